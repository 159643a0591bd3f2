//! How an index is set up.

use xxhash_rust::xxh3::xxh3_64;

use super::SHARDS;

/// Settings of an [`Index`](super::Index). All VMs of one index must have the same `fingerprint`, `max_blocks`, `ring` and
/// `shards`; these are part of its keys, so VMs that differ in one of them never read each other's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexSettings {
    /// What makes block hashes comparable: a digest of block size, canonical form and seed.
    pub fingerprint: u64,
    /// Blocks that the index takes, over all pods. From 15/16 of it on the oldest are removed; what exceeds it is refused.
    pub max_blocks: usize,
    /// Blocks that are remembered of each pod: about what its KV cache holds. Beyond it the pod's oldest are removed.
    pub pod_blocks: usize,
    /// Tokens in a block of text, about.
    pub text_tokens: u64,
    /// Tokens in a block of tokens: the fewest where models differ.
    pub block_tokens: u64,
    /// Blocks that were not used for so many seconds are removed.
    pub ttl_seconds: u32,
    /// Places of the log. Each takes up to 8 KiB of shared data, which never shrinks.
    pub ring: u64,
    /// Parts of the checkpoint: a power of two, at most 256.
    pub shards: usize,
    /// Most VMs that tell each other what they have in flight: one for each worker, and Envoy's main thread.
    pub ledgers: usize,
    /// What only this VM knows, and no client can find out: see [`Table::with_secret`](super::Table::with_secret).
    pub secret: u64,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            fingerprint: 0,
            max_blocks: 1_000_000,
            pod_blocks: 32_768,
            text_tokens: 64,
            block_tokens: 16,
            ttl_seconds: 3600,
            ring: 16_384,
            shards: SHARDS,
            ledgers: 256,
            secret: 0,
        }
    }
}

impl IndexSettings {
    /// The settings with what is out of range brought into it.
    pub(super) fn bounded(mut self) -> Self {
        let shards = self.shards.clamp(1, SHARDS);
        // A power of two divides the table's shards.
        self.shards = if shards.is_power_of_two() { shards } else { shards.next_power_of_two() / 2 };
        self.ring = self.ring.clamp(8, 1 << 20);
        self.ledgers = self.ledgers.clamp(1, 1024);
        self
    }

    /// The fingerprint of everything that must be the same in all VMs.
    #[must_use]
    pub fn identity(&self) -> u64 {
        let parts = [self.fingerprint, self.max_blocks as u64, self.ring, self.shards as u64];
        xxh3_64(parts.map(u64::to_le_bytes).as_flattened())
    }
}
