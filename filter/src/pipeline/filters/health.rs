//! Pods that don't answer are out.

use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps the pods that answer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {}

impl Part for Health {
    const NAME: &'static str = "health";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] = &[SlotId::Health];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Filter(Box::new(self))
    }
}

impl Filter for Health {
    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        for (pod, state) in view.states.iter().enumerate() {
            if !state.healthy {
                kept.remove(pod);
            }
        }
    }
}
