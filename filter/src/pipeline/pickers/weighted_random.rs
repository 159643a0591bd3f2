//! Chance in proportion to weight and score.

use crate::pipeline::decision::Order;
use crate::pipeline::part::{Built, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// By chance, in proportion to the pod's `weight` times its score; by `weight` alone where there are no scorers or all scores
/// are 0. Fallbacks are drawn likewise from the rest.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedRandom {}

impl Part for WeightedRandom {
    const NAME: &'static str = "weighted-random";
    const STAGE: Stage = Stage::Pick;
    const READS: &'static [SlotId] = &[SlotId::Scores];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Pick(Box::new(self))
    }
}

impl Pick for WeightedRandom {
    fn pick(&self, view: &View<'_>, among: &Positions, scores: &[f32], rng: &mut Rng, order: &mut Order) {
        let mut left = *among;
        while !order.is_full() && !left.is_empty() {
            let scored = left.iter().any(|pod| scores.get(pod).is_some_and(|score| *score > 0.0));
            let share = |pod: usize| {
                let weight = view.pods.get(pod).map_or(0.0, |pod| pod.weight);
                if scored { weight * scores.get(pod).copied().unwrap_or(0.0) } else { weight }
            };
            let mut at = rng.unit() * left.iter().map(share).sum::<f32>();
            // Rounding may leave a rest of `at` behind the last share; then the last pod that has one is it.
            let mut chosen = None;
            for pod in left.iter().filter(|pod| share(*pod) > 0.0) {
                chosen = Some(pod);
                at -= share(pod);
                if at < 0.0 {
                    break;
                }
            }
            let Some(chosen) = chosen else { return };
            left.remove(chosen);
            order.push(chosen);
        }
    }
}
