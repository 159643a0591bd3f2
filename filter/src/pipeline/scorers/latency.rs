//! Pods that were fast score more.

use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// How fast the pod gave first tokens lately for the work that was ahead of them, against the fastest: 1 for that one, 0.5 for
/// one that takes twice as long. Doesn't look at what the request would find there now: see `predicted-ttft`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {}

impl Part for Latency {
    const NAME: &'static str = "latency";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Pace];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Score(Box::new(self))
    }
}

impl Score for Latency {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let slowness = |pod: usize| view.states.get(pod).map_or(f32::INFINITY, |state| state.slowness);
        let least = among.iter().map(slowness).fold(f32::INFINITY, f32::min);
        for pod in among.iter() {
            if let Some(score) = scores.get_mut(pod) {
                *score = least / slowness(pod);
            }
        }
    }
}
