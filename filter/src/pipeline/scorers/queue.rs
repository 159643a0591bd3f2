//! Engines with a shorter queue score more.

use super::told;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// 1 for the engine with the fewest queued requests, falling in proportion to 0 for the one with the most (needs `metrics`). An
/// engine that said nothing lately gets the mean of the others.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {}

impl Part for Queue {
    const NAME: &'static str = "queue";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Engine];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Score(Box::new(self))
    }
}

impl Score for Queue {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        told::least_first(among, scores, |pod| view.engine(pod)?.waiting);
    }
}
