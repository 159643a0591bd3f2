//! Pods with fewer requests in flight score more.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// 1 for the pod with the fewest requests in flight (by `weight`), falling in proportion to how many more another has, to 0 for
/// one that has `busy` more, or as many more as the busiest if that is greater.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InFlight {
    /// Requests more than the least that make no difference.
    #[schemars(transform = Self::TOLERANCE.schema())]
    tolerance: f32,
    /// Requests more than the least (after `tolerance`) that make 0. Keeps small numbers from looking like a great
    /// imbalance.
    #[schemars(transform = Self::BUSY.schema())]
    busy: f32,
}

impl InFlight {
    const TOLERANCE: Bounds<f32> = Bounds::new(0.0, 10_000.0);
    const BUSY: Bounds<f32> = Bounds::new(1.0, 10_000.0);
}

impl Default for InFlight {
    fn default() -> Self {
        Self { tolerance: 0.0, busy: 8.0 }
    }
}

impl Part for InFlight {
    const NAME: &'static str = "in-flight";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("tolerance", self.tolerance, Self::TOLERANCE);
        site.within("busy", self.busy, Self::BUSY);
        Built::Score(Box::new(self))
    }
}

impl Score for InFlight {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let (mut least, mut most) = (f32::INFINITY, 0.0_f32);
        for pod in among.iter() {
            let load = view.load(pod);
            least = least.min(load);
            most = most.max(load);
        }
        let free = least + self.tolerance;
        let span = (most - free).max(self.busy);
        for pod in among.iter() {
            if let Some(score) = scores.get_mut(pod) {
                *score = 1.0 - (view.load(pod) - free).max(0.0) / span;
            }
        }
    }
}
