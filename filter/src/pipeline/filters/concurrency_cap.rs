//! Bounded load: pods that have too many requests in flight are out, so that affinity spills before it piles up.

use crate::pipeline::part::{Built, Field, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use serde::Deserialize;

/// Configuration, and the filter itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencyCap {
    max_in_flight: Option<u32>,
    factor: f32,
    slack: u32,
}

impl Default for ConcurrencyCap {
    fn default() -> Self {
        Self { max_in_flight: None, factor: 1.25, slack: 4 }
    }
}

impl Part for ConcurrencyCap {
    const NAME: &'static str = "concurrency-cap";
    const STAGE: Stage = Stage::Filter;
    const DOC: &'static str = "Takes out the pods that have reached their bound of requests in flight: `factor` times \
        the mean over the pods that are still candidates (in proportion to `weight`), plus `slack`; and, where they are \
        given, `max_in_flight` here and of the pod. The pod with the least load is always within the relative bound.";
    const FIELDS: &'static [Field] = &[
        Field {
            name: "max_in_flight",
            kind: "number",
            default: "none",
            doc: "Most requests in flight on any pod, 1 to 1000000.",
        },
        Field {
            name: "factor",
            kind: "number",
            default: "`1.25`",
            doc: "How far above the mean a pod may be, 1 to 100.",
        },
        Field {
            name: "slack",
            kind: "number",
            default: "`4`",
            doc: "Requests above that which are always allowed, 0 to 100000: at low load the mean says little.",
        },
    ];
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("factor", self.factor, 1.0, 100.0);
        site.within("slack", self.slack, 0, 100_000);
        site.within("max_in_flight", self.max_in_flight.unwrap_or(1), 1, 1_000_000);
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
