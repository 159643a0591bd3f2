//! Only pods that hold enough of the prompt.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps the pods that hold at least a share of the prompt's blocks. Where none does, as with every new prompt, all are kept. A
/// prompt shorter than a block passes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrefixThreshold {
    /// Blocks held by blocks of the prompt.
    #[schemars(transform = Self::MIN_SHARE.schema())]
    min_share: f32,
}

impl PrefixThreshold {
    const MIN_SHARE: Bounds<f32> = Bounds::above(0.0, 1.0);
}

impl Default for PrefixThreshold {
    fn default() -> Self {
        Self { min_share: 0.5 }
    }
}

impl Part for PrefixThreshold {
    const NAME: &'static str = "prefix-threshold";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] = &[SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("min_share", self.min_share, Self::MIN_SHARE);
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
