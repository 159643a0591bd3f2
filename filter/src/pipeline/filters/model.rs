//! Pods that are known to serve other models are out.

use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use crate::pods::Pod;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::HashMap;

/// Keeps the pods whose `models` list the requested model, and those without a list. A model that no pod lists, such as a LoRA
/// adapter loaded at run time, may be anywhere: all are kept.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {}

impl Part for Model {
    const NAME: &'static str = "model";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] = &[SlotId::Body];

    fn reads(&self, pods: &[Pod]) -> Vec<SlotId> {
        // Where nobody lists models the filter keeps all, and no request need wait for its body.
        if pods.iter().any(|pod| !pod.models.is_empty()) { Self::READS.to_vec() } else { Vec::new() }
    }

    fn build(self, site: &mut Site<'_>) -> Built {
        let silent: Positions =
            (0..).zip(site.pods).filter(|(_, pod)| pod.models.is_empty()).map(|(i, _)| i).collect();
        let mut servers: HashMap<String, Positions> = HashMap::new();
        for (i, pod) in site.pods.iter().enumerate() {
            for model in &pod.models {
                servers.entry(model.clone()).or_insert(silent).insert(i);
            }
        }
        Built::Filter(Box::new(Servers { servers }))
    }
}

/// For each model that some pod lists: who may serve it.
struct Servers {
    servers: HashMap<String, Positions>,
}

impl Filter for Servers {
    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        if let Some(servers) = view.slots.model.as_ref().and_then(|model| self.servers.get(model)) {
            *kept = kept.intersect(servers);
        }
    }
}
