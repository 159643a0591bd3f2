//! What a block is called, where it belongs, and what is known of it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::PodSet;

/// Names a block and everything before it in its chain.
pub use crate::blocks::BlockHash;

/// How many shards a table has. A block's shard follows from its hash alone.
pub const SHARDS: usize = 256;

/// A block as checkpoints keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its name.
    pub hash: BlockHash,
    /// The block before it; `None` exactly at depth 0.
    pub parent: Option<BlockHash>,
    /// How many blocks are before it in its chain.
    pub depth: u32,
    /// When it was last stored or touched, in seconds of the log's clock.
    pub touched: u32,
    /// The pods that hold it; never empty.
    pub stored: PodSet,
}

impl Block {
    /// A digest of all of it.
    pub(super) fn digest(&self) -> u64 {
        let own = [self.hash, self.parent.unwrap_or(0), u64::from(self.depth), u64::from(self.touched)];
        own.iter()
            .chain(self.stored.words())
            .fold(0, |seed, word| xxh3_64_with_seed(&word.to_le_bytes(), seed))
    }
}

/// 2^64 / phi, odd.
pub const SCRAMBLE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fibonacci scrambling: multiplying by it carries every bit of the hash into the highest.
pub const fn scramble(hash: BlockHash) -> u64 {
    hash.wrapping_mul(SCRAMBLE)
}

pub const fn shard_of(hash: BlockHash) -> usize {
    (scramble(hash) >> 56) as usize
}
