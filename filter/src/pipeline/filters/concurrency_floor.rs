//! Bounded load from below: a pod that is nearly idle while others are busy gets the request.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// While some candidates would even with this request have no more than `share` of the mean load (in proportion to `weight`),
/// keeps only those; otherwise keeps all. A new pod, which holds nothing that could attract a request, gets its first work and
/// its first prefixes this way.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencyFloor {
    /// Part of the mean of requests in flight that each pod has at least. The greater, the more affinity is
    /// given up for balance. Without effect while the mean is below 1/`share`.
    #[schemars(transform = Self::SHARE.schema())]
    share: f32,
}

impl ConcurrencyFloor {
    const SHARE: Bounds<f32> = Bounds::above(0.0, 1.0);
}

impl Default for ConcurrencyFloor {
    fn default() -> Self {
        Self { share: 0.33 }
    }
}

impl Part for ConcurrencyFloor {
    const NAME: &'static str = "concurrency-floor";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("share", self.share, Self::SHARE);
        Built::Filter(Box::new(self))
    }
}

impl Filter for ConcurrencyFloor {
    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        let floor = self.share * view.mean_load(kept);
        let nearly_idle = view.pods.iter().zip(view.states).enumerate().filter(|(i, (pod, state))| {
            kept.contains(*i) && (state.in_flight as f32 + 1.0) <= floor * pod.weight
        });
        let nearly_idle: Positions = nearly_idle.map(|(i, _)| i).collect();
        if !nearly_idle.is_empty() {
            *kept = nearly_idle;
        }
    }
}
