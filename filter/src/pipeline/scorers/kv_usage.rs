//! Engines with more room in their KV cache score more.

use super::told;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// The part of the KV cache that no request under way holds (needs `metrics`). An engine that said nothing lately gets the mean
/// of the others.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvUsage {}

impl Part for KvUsage {
    const NAME: &'static str = "kv-usage";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Engine];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Score(Box::new(self))
    }
}

impl Score for KvUsage {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        told::score(among, scores, |pod| Some(1.0 - view.engine(pod)?.kv_usage?));
    }
}
