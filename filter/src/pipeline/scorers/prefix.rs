//! Pods that hold more of the prompt score more.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// The share of the prompt's blocks that the pod holds. With `sharing` above 0, a block that k pods hold counts 1/k^sharing:
/// what one pod alone knows (a conversation) binds to it, while what many know (a system prompt) is about to be everywhere, and
/// leaves the choice to load.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prefix {
    /// Discount of blocks that several pods hold; 0: none.
    #[schemars(transform = Self::SHARING.schema())]
    sharing: f32,
}

impl Prefix {
    const SHARING: Bounds<f32> = Bounds::new(0.0, 4.0);
}

impl Default for Prefix {
    fn default() -> Self {
        Self { sharing: 0.0 }
    }
}

impl Part for Prefix {
    const NAME: &'static str = "prefix";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("sharing", self.sharing, Self::SHARING);
        Built::Score(Box::new(self))
    }
}

impl Score for Prefix {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let steps = view.slots.residency.steps();
        let total = view.slots.chain.blocks() as f32;
        // From the deepest step up: its holders get the blocks that only they hold, then those and the next step's
        // holders get the blocks down to the next, and so on to the first block, which all hold.
        let mut holders = Positions::default();
        for (i, (depth, pods)) in steps.iter().enumerate() {
            holders = holders.union(pods);
            let next = steps.get(i + 1).map_or(0, |(depth, _)| *depth);
            let blocks = depth.saturating_sub(next) as f32;
            let worth =
                if self.sharing == 0.0 { blocks } else { blocks / (holders.len() as f32).powf(self.sharing) };
            for pod in holders.intersect(among).iter() {
                if let Some(score) = scores.get_mut(pod) {
                    *score += worth / total;
                }
            }
        }
    }
}
