//! Only pods that have a label in common with the one that an earlier step chose.

use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::peers::Label;
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// For the decode step of a workflow: keeps the pods that bear a label with the same value as the prefill pod, where KV can only
/// be handed over within a domain. Keeps all where no earlier step chose a pod.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Affinity {
    /// Name of the label, as in `pods[].labels`.
    label: String,
}

impl Part for Affinity {
    const NAME: &'static str = "affinity";
    const STAGE: Stage = Stage::Filter;
    const READS: &'static [SlotId] = &[SlotId::Peer];

    fn build(self, site: &mut Site<'_>) -> Built {
        Built::Filter(Box::new(Near { label: Label::named(site, "label", &self.label) }))
    }
}

struct Near {
    label: Label,
}

impl Filter for Near {
    fn filter(&self, view: &View<'_>, kept: &mut Positions) {
        let Some(peer) = view.slots.peer else { return };
        let far: Vec<_> = kept.iter().filter(|pod| !self.label.is_shared(*pod, peer)).collect();
        far.into_iter().for_each(|pod| kept.remove(pod));
    }
}
