//! Pods that will give the first token sooner score more.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// The shortest predicted time to first token over the pod's own. Predicted from the tokens that wait there to be prefilled,
/// those of this prompt that the pod doesn't hold, and the pod's rate, which is learnt from the first tokens of streamed
/// answers; a pod that asked for less (429, or 503 with Retry-After) counts as that much slower.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PredictedTtft {
    /// Pods within this part of the shortest time are as good as it: what was learnt is no more exact.
    #[schemars(transform = Self::TOLERANCE.schema())]
    tolerance: f32,
    /// So are pods within so many milliseconds more: nobody notices.
    #[schemars(transform = Self::TOLERANCE_MILLISECONDS.schema())]
    tolerance_milliseconds: f32,
}

impl PredictedTtft {
    const TOLERANCE: Bounds<f32> = Bounds::new(0.0, 10.0);
    const TOLERANCE_MILLISECONDS: Bounds<f32> = Bounds::new(0.0, 10_000.0);
}

impl Default for PredictedTtft {
    fn default() -> Self {
        Self { tolerance: 0.1, tolerance_milliseconds: 5.0 }
    }
}

impl Part for PredictedTtft {
    const NAME: &'static str = "predicted-ttft";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] =
        &[SlotId::Work, SlotId::Pace, SlotId::Engine, SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("tolerance", self.tolerance, Self::TOLERANCE);
        site.within("tolerance_milliseconds", self.tolerance_milliseconds, Self::TOLERANCE_MILLISECONDS);
        Built::Score(Box::new(self))
    }
}

impl Score for PredictedTtft {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let best = among.iter().map(|pod| view.first_token(pod)).fold(f32::INFINITY, f32::min);
        let good = best * (1.0 + self.tolerance) + self.tolerance_milliseconds / 1000.0;
        for pod in among.iter() {
            if let Some(score) = scores.get_mut(pod) {
                let seconds = view.first_token(pod);
                *score = if seconds <= good { 1.0 } else { good / seconds };
            }
        }
    }
}
