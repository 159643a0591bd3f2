//! Pods with fewer requests in flight score more.

use crate::pipeline::part::{Built, Field, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use serde::Deserialize;

/// Configuration, and the scorer itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InFlight {
    tolerance: f32,
    busy: f32,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { tolerance: 0.0, busy: 8.0 }
    }
}

impl Part for InFlight {
    const NAME: &'static str = "in-flight";
    const STAGE: Stage = Stage::Score;
    const DOC: &'static str = "1 for the pod with the fewest requests in flight (by `weight`), falling in proportion to \
        how many more another has, to 0 for one that has `busy` more, or as many more as the busiest if that is greater.";
    const FIELDS: &'static [Field] = &[
        Field {
            name: "tolerance",
            kind: "number",
            default: "`0`",
            doc: "Requests more than the least that make no difference, 0 to 10000.",
        },
        Field {
            name: "busy",
            kind: "number",
            default: "`8`",
            doc: "Requests more than the least (after `tolerance`) that make 0, 1 to 10000. Keeps small numbers from \
                  looking like a great imbalance.",
        },
    ];
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("tolerance", self.tolerance, 0.0, 10_000.0);
        site.within("busy", self.busy, 1.0, 10_000.0);
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
