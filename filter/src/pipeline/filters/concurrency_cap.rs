//! Bounded load: pods that have too many requests in flight are out, so that affinity spills before it piles up.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// Takes out the pods that have reached their bound of requests in flight: `factor` times the mean over the pods that are still
/// candidates (in proportion to `weight`), plus `slack`; and, where they are given, `max_in_flight` here and of the pod. The pod
/// with the least load is always within the relative bound.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencyCap {
    /// Most requests in flight on any pod.
    #[schemars(transform = Self::MAX_IN_FLIGHT.schema())]
    max_in_flight: Option<u32>,
    /// How far above the mean a pod may be.
    #[schemars(transform = Self::FACTOR.schema())]
    factor: f32,
    /// Requests above that which are always allowed: at low load the mean says little.
    #[schemars(transform = Self::SLACK.schema())]
    slack: u32,
}

impl ConcurrencyCap {
    const MAX_IN_FLIGHT: Bounds<u32> = Bounds::new(1, 1_000_000);
    const FACTOR: Bounds<f32> = Bounds::new(1.0, 100.0);
    const SLACK: Bounds<u32> = Bounds::new(0, 100_000);
}

impl Default for ConcurrencyCap {
    fn default() -> Self {
        Self { max_in_flight: None, factor: 1.25, slack: 4 }
    }
}

impl Part for ConcurrencyCap {
    const NAME: &'static str = "concurrency-cap";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("factor", self.factor, Self::FACTOR);
        site.within("slack", self.slack, Self::SLACK);
        site.within("max_in_flight", self.max_in_flight, Self::MAX_IN_FLIGHT);
        Built::Filter(Box::new(self))
    }
}

impl Filter for ConcurrencyCap {
    fn is_about_load(&self) -> bool {
        true
    }

    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        let share = self.factor * view.mean_load(kept);
        for (i, (pod, state)) in view.pods.iter().zip(view.states).enumerate() {
            let most = self.max_in_flight.unwrap_or(u32::MAX).min(pod.max_in_flight.unwrap_or(u32::MAX));
            if state.in_flight >= most || state.in_flight as f32 >= share * pod.weight + self.slack as f32 {
                kept.remove(i);
            }
        }
    }
}
