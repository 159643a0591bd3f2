//! Stays on warm pods until the time lost waiting there outweighs the time saved.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps the pods that hold at least `min_share` of the prompt, unless the soonest first token among them is later than the
/// soonest elsewhere by more than `patience_milliseconds`; then, and where no pod holds so much, keeps all. Times are predicted
/// as by `predicted-ttft`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StickOrSpill {
    /// Blocks held by blocks of the prompt.
    #[schemars(transform = Self::MIN_SHARE.schema())]
    min_share: f32,
    /// How much later a warm pod may be; `null`: as late as it likes. Each spill makes another copy, for which
    /// something else is evicted.
    #[schemars(transform = Self::PATIENCE_MILLISECONDS.schema())]
    patience_milliseconds: Option<u32>,
    /// Whether this request's own tokens count, of which a warm pod has fewer to prefill, or only what is ahead of it.
    count_prompt: bool,
}

impl StickOrSpill {
    const MIN_SHARE: Bounds<f32> = Bounds::above(0.0, 1.0);
    const PATIENCE_MILLISECONDS: Bounds<u32> = Bounds::new(0, 600_000);
}

impl Default for StickOrSpill {
    fn default() -> Self {
        Self { min_share: 0.8, patience_milliseconds: Some(0), count_prompt: true }
    }
}

impl Part for StickOrSpill {
    const NAME: &'static str = "stick-or-spill";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] =
        &[SlotId::Work, SlotId::Pace, SlotId::Engine, SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("min_share", self.min_share, Self::MIN_SHARE);
        site.within("patience_milliseconds", self.patience_milliseconds, Self::PATIENCE_MILLISECONDS);
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
