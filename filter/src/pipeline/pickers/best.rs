//! The best score.

use super::smallest::smallest;
use crate::pipeline::decision::Order;
use crate::pipeline::part::{Built, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// The pod with the best score; among equals the one with the fewest requests in flight (by `weight`), among those by chance.
/// Without scorers: least requests. Fallbacks follow in the same order.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Best {}

impl Part for Best {
    const NAME: &'static str = "best";
    const STAGE: Stage = Stage::Pick;
    const READS: &'static [SlotId] = &[SlotId::Load, SlotId::Scores];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Pick(Box::new(self))
    }
}

impl Pick for Best {
    fn pick(&self, view: &View<'_>, among: &Positions, scores: &[f32], rng: &mut Rng, order: &mut Order) {
        smallest(among, order, |pod| {
            let score = scores.get(pod).copied().unwrap_or(0.0);
            (-score, view.load(pod), rng.bits())
        });
    }
}
