//! What requests must have in common to go to one pod by hashing.

use super::source::{self, Source};
use crate::pipeline::part::{Built, Input, Part, Prepare, Site, Stage};
use crate::pipeline::slots::{SlotId, Slots};
use crate::pods::Pod;
use schemars::JsonSchema;
use serde::Deserialize;

/// Makes the key of the `consistent-hash` scorer: requests of equal keys go to one pod.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashKey {
    /// Where the key is looked for; the first that has a value counts.
    #[schemars(length(min = 1, max = source::MAX_SOURCES))]
    from: Vec<Source>,
}

impl Part for HashKey {
    const NAME: &'static str = "hash-key";
    const STAGE: Stage = Stage::Prepare;
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
