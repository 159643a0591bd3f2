//! Bounded load from below: a pod that is nearly idle while others are busy gets the request.

use crate::pipeline::part::{Built, Field, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use serde::Deserialize;

/// Configuration, and the filter itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencyFloor {
    share: f32,
}

impl Default for ConcurrencyFloor {
    fn default() -> Self {
        Self { share: 0.33 }
    }
}

impl Part for ConcurrencyFloor {
    const NAME: &'static str = "concurrency-floor";
    const STAGE: Stage = Stage::Filter;
    const DOC: &'static str = "While some candidates would even with this request have no more than `share` of the mean \
        load (in proportion to `weight`), keeps only those; otherwise keeps all. A new pod, which holds nothing that \
        could attract a request, gets its first work and its first prefixes this way.";
    const FIELDS: &'static [Field] = &[Field {
        name: "share",
        kind: "number",
        default: "`0.33`",
        doc: "Part of the mean of requests in flight that each pod has at least, above 0 and up to 1. The greater, the \
              more affinity is given up for balance. Without effect while the mean is below 1/`share`.",
    }];
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, site: &mut Site<'_>) -> Built {
        if !(self.share > 0.0 && self.share <= 1.0) {
            site.refuse("share", format!("{} is out of range; give more than 0, and up to 1", self.share));
        }
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
