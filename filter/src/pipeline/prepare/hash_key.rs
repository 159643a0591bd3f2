//! What requests must have in common to go to one pod by hashing.

use super::source::{self, Source};
use crate::pipeline::part::{Built, Field, Input, Part, Prepare, Site, Stage};
use crate::pipeline::slots::{SlotId, Slots};
use crate::pods::Pod;
use serde::Deserialize;

/// Configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashKey {
    from: Vec<Source>,
}

impl Part for HashKey {
    const NAME: &'static str = "hash-key";
    const STAGE: Stage = Stage::Prepare;
    const DOC: &'static str =
        "Makes the key of the `consistent-hash` scorer: requests of equal keys go to one pod.";
    const FIELDS: &'static [Field] = &[Field {
        name: "from",
        kind: "list of `{\"header\": NAME}`, `{\"cookie\": NAME}`, `\"user\"`, `\"model\"`, `{\"prefix\": BLOCKS}`",
        default: "",
        doc: "Where the key is looked for; the first that has a value counts. `user` and `model` are the body's fields; \
              `prefix` is the prompt's first blocks, 1 to 4096 (from 65 on, the nearest fewer that have a hash), and needs the preparation `prefix` before this one.",
    }];
    const READS: &'static [SlotId] = &[SlotId::Headers, SlotId::Body, SlotId::Chain];
    const WRITES: &'static [SlotId] = &[SlotId::HashKey];

    fn reads(&self, _pods: &[Pod]) -> Vec<SlotId> {
        source::reads(&self.from)
    }

    fn build(mut self, site: &mut Site<'_>) -> Built {
        source::check(&mut self.from, site);
        Built::Prepare(Box::new(self))
    }
}

impl Prepare for HashKey {
    fn prepare(&self, input: &Input<'_>, slots: &mut Slots) {
        slots.hash_key = source::key(&self.from, input, slots);
    }
}
