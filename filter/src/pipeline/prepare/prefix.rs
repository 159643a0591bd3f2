//! The prompt as a chain of block hashes, and how deep each pod holds it.

use crate::blocks::BlockSize;
use crate::pipeline::part::{Built, Input, Part, Prepare, Site, Stage};
use crate::pipeline::residency::Residency;
use crate::pipeline::slots::{SlotId, Slots};
use schemars::JsonSchema;
use serde::Deserialize;

/// Cuts the prompt into blocks (of `blocks.size` bytes, or of a tokenizer's `block_tokens`), hashes them as a chain, and asks
/// the index how many of its first blocks each pod holds. Makes the request wait for its body.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prefix {}

impl Part for Prefix {
    const NAME: &'static str = "prefix";
    const STAGE: Stage = Stage::Prepare;
    const READS: &'static [SlotId] = &[SlotId::Body];
    const WRITES: &'static [SlotId] = &[SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        Built::Prepare(Box::new(Blocks { size: site.block_size }))
    }
}

struct Blocks {
    size: BlockSize,
}

impl Prepare for Blocks {
    fn prepare(&self, input: &Input<'_>, slots: &mut Slots) {
        if let Some(body) = input.body {
            slots.chain = body.chain(self.size);
            slots.block_tokens = body.block_tokens(self.size);
        }
    }

    fn locate(&self, slots: &mut Slots, index: &dyn Residency) {
        if !slots.chain.is_empty() {
            index.depths(&slots.chain, &mut slots.residency);
        }
    }
}
