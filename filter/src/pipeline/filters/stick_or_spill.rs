//! Stays on warm pods until the time lost waiting there outweighs the time saved.

use crate::pipeline::part::{Built, Field, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use serde::Deserialize;

/// Configuration, and the filter itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StickOrSpill {
    min_share: f32,
    patience_milliseconds: Option<u32>,
    count_prompt: bool,
}

impl Default for StickOrSpill {
    fn default() -> Self {
        Self { min_share: 0.8, patience_milliseconds: Some(0), count_prompt: true }
    }
}

impl Part for StickOrSpill {
    const NAME: &'static str = "stick-or-spill";
    const STAGE: Stage = Stage::Filter;
    const DOC: &'static str = "Keeps the pods that hold at least `min_share` of the prompt, unless the soonest first token among \
        them is later than the soonest elsewhere by more than `patience_milliseconds`; then, and where no pod holds so much, keeps \
        all. Times are predicted as by `predicted-ttft`.";
    const FIELDS: &'static [Field] = &[
        Field {
            name: "min_share",
            kind: "number",
            default: "`0.8`",
            doc: "Blocks held by blocks of the prompt, above 0 and up to 1.",
        },
        Field {
            name: "patience_milliseconds",
            kind: "number or `null`",
            default: "`0`",
            doc: "How much later a warm pod may be, 0 to 600000; `null`: as late as it likes. Each spill makes another copy, for \
                  which something else is evicted.",
        },
        Field {
            name: "count_prompt",
            kind: "true or false",
            default: "`true`",
            doc: "Whether this request's own tokens count, of which a warm pod has fewer to prefill, or only what is ahead of it.",
        },
    ];
    const READS: &'static [SlotId] =
        &[SlotId::Work, SlotId::Pace, SlotId::Engine, SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        if !(self.min_share > 0.0 && self.min_share <= 1.0) {
            site.refuse(
                "min_share",
                format!("{} is out of range; give more than 0, and up to 1", self.min_share),
            );
        }
        site.within("patience_milliseconds", self.patience_milliseconds.unwrap_or(0), 0, 600_000);
        Built::Filter(Box::new(self))
    }
}

impl StickOrSpill {
    fn soonest(&self, view: &View<'_>, among: &Positions) -> f32 {
        let seconds = |pod: usize| match self.count_prompt {
            true => view.first_token(pod),
            false => view.seconds(pod, view.tokens_ahead(pod)),
        };
        among.iter().map(seconds).fold(f32::INFINITY, f32::min)
    }
}

impl Filter for StickOrSpill {
    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        let enough = self.min_share * view.slots.chain.blocks() as f32;
        let steps = view.slots.residency.steps().iter().filter(|(depth, _)| *depth as f32 >= enough);
        let warm = steps.fold(Positions::default(), |all, (_, pods)| all.union(pods)).intersect(kept);
        if warm.is_empty() {
            return;
        }
        let lost = self.soonest(view, &warm) - self.soonest(view, &kept.minus(&warm));
        if self.patience_milliseconds.is_none_or(|patience| lost <= patience as f32 / 1000.0) {
            *kept = warm;
        }
    }
}
