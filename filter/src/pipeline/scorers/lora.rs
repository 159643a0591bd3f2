//! Engines that have the LoRA adapter score more.

use super::told;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use crate::pods::adapter;
use schemars::JsonSchema;
use serde::Deserialize;

/// By the requested model as a LoRA adapter: 1 where requests use it now, 0.8 where another may be loaded, 0.6 where requests
/// already wait for it, else 0 (needs `metrics`). An engine that said nothing lately gets the mean of the others.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lora {}

impl Part for Lora {
    const NAME: &'static str = "lora";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Body, SlotId::Engine];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Score(Box::new(self))
    }
}

impl Score for Lora {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let Some(model) = view.slots.model.as_deref().map(adapter) else { return };
        told::score(among, scores, |pod| {
            let lora = view.engine(pod)?.lora.as_ref()?;
            let loaded =
                lora.running.len() + lora.waiting.iter().filter(|one| !lora.running.contains(one)).count();
            Some(match () {
                () if lora.running.contains(&model) => 1.0,
                () if loaded < lora.max as usize => 0.8,
                () if lora.waiting.contains(&model) => 0.6,
                () => 0.0,
            })
        });
    }
}
