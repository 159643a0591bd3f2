//! The block table of one replica: which pods hold which block.
//!
//! Blocks form trees, a chain's next block being a child of the one before. Beside the set of pods that *store* a
//! block the table keeps the set for which it is *visible*: those that store it and every block before it. Along a
//! chain the visible sets only shrink, so a query can bisect, and is still exact where pods have holes.
//!
//! **State is local to a shard.** What a write does to a block depends on that block's record and on how many blocks
//! its shard holds, on nothing else; links, visibility and placeholders are derived. So shards of a checkpoint that
//! were written at different positions of the log can be loaded together: [`Table::freeze`] those that are ahead,
//! and [`Table::thaw`] each when the replay arrives at its position.

use super::{PodSet, Slot};

/// Names a block and everything before it in its chain.
pub type BlockHash = u64;

/// How many shards a table has. A block's shard follows from its hash alone.
pub const SHARDS: usize = 256;

/// What a [`Table::store`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// Blocks that the pod did not hold before.
    pub added: usize,
    /// Blocks left out: known with another parent or depth, or new to a full shard.
    pub refused: usize,
}

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

/// The block table of one replica.
#[derive(Debug)]
pub struct Table {}

impl Table {
    /// An empty table that takes about `max_blocks` blocks: each shard takes its even share, and refuses more.
    #[must_use]
    pub fn new(max_blocks: usize) -> Self {
        let _ = max_blocks;
        Self {}
    }

    /// The shard that a block belongs to, below [`SHARDS`].
    #[must_use]
    pub const fn shard_of(hash: BlockHash) -> usize {
        (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize
    }

    /// Records that a pod holds the blocks `hashes`, each the parent of the next; the first follows `parent`, or begins
    /// a chain (depth 0, no parent). Sets their `touched` where that is later.
    ///
    /// Each block stands alone: one that is refused does not keep those after it from being stored.
    pub fn store(
        &mut self,
        slot: Slot,
        parent: Option<BlockHash>,
        depth: u32,
        hashes: &[BlockHash],
        touched: u32,
    ) -> Stored {
        let _ = (slot, parent, depth, hashes, touched);
        Stored::default()
    }

    /// Records that a pod no longer holds these blocks. Says how many of them it held.
    pub fn remove(&mut self, slot: Slot, hashes: &[BlockHash]) -> usize {
        let _ = (slot, hashes);
        0
    }

    /// Sets when a block was last used, where that is later than what is known. Says whether the block is known.
    pub fn touch(&mut self, hash: BlockHash, touched: u32) -> bool {
        let _ = (hash, touched);
        false
    }

    /// Takes a pod out of every block of one shard; says how many held it. All [`SHARDS`] calls wipe its column.
    pub fn wipe(&mut self, slot: Slot, shard: usize) -> usize {
        let _ = (slot, shard);
        0
    }

    /// Makes a shard ignore `store`, `remove`, `touch` and `wipe` until it is thawed. [`Table::load`] still writes to it.
    pub fn freeze(&mut self, shard: usize) {
        let _ = shard;
    }

    /// Ends [`Table::freeze`].
    pub fn thaw(&mut self, shard: usize) {
        let _ = shard;
    }

    /// The blocks of a shard, in no order.
    pub fn shard(&self, shard: usize) -> impl Iterator<Item = Block> + '_ {
        let _ = shard;
        std::iter::empty()
    }

    /// Puts a block of a checkpoint back, in any order. Says whether it was taken: not where it is known already,
    /// contradicts itself, has no pods, or its shard is full.
    pub fn load(&mut self, block: &Block) -> bool {
        let _ = block;
        false
    }

    /// The record of a block that somebody holds.
    #[must_use]
    pub fn get(&self, hash: BlockHash) -> Option<Block> {
        let _ = hash;
        None
    }

    /// How many blocks somebody holds.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// Whether nobody holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many blocks a pod holds.
    #[must_use]
    pub fn held_by(&self, slot: Slot) -> usize {
        let _ = slot;
        0
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        0
    }

    /// A digest of all that is replicated, as far as it concerns the pods of `mask`. Equal tables have equal digests,
    /// whatever the order in which they came to be so.
    #[must_use]
    pub fn digest(&self, mask: &PodSet) -> u64 {
        let _ = mask;
        0
    }
}
