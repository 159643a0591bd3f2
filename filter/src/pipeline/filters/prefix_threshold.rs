//! Only pods that hold enough of the prompt.

use crate::pipeline::part::{Built, Field, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use serde::Deserialize;

/// Configuration, and the filter itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrefixThreshold {
    min_share: f32,
}

impl Default for PrefixThreshold {
    fn default() -> Self {
        Self { min_share: 0.5 }
    }
}

impl Part for PrefixThreshold {
    const NAME: &'static str = "prefix-threshold";
    const STAGE: Stage = Stage::Filter;
    const DOC: &'static str = "Keeps the pods that hold at least a share of the prompt's blocks. Where none does, as \
        with every new prompt, all are kept. A prompt shorter than a block passes.";
    const FIELDS: &'static [Field] = &[Field {
        name: "min_share",
        kind: "number",
        default: "`0.5`",
        doc: "Blocks held by blocks of the prompt, above 0 and up to 1.",
    }];
    const READS: &'static [SlotId] = &[SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        if !(self.min_share > 0.0 && self.min_share <= 1.0) {
            site.refuse(
                "min_share",
                format!("{} is out of range; give more than 0, and up to 1", self.min_share),
            );
        }
        Built::Filter(Box::new(self))
    }
}

impl Filter for PrefixThreshold {
    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        if view.slots.chain.is_empty() {
            return;
        }
        let enough = self.min_share * view.slots.chain.blocks() as f32;
        let warm = view.slots.residency.steps().iter().filter(|(depth, _)| *depth as f32 >= enough);
        *kept = kept.intersect(&warm.fold(Positions::default(), |all, (_, pods)| all.union(pods)));
    }
}
