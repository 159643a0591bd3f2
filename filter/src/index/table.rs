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

mod block;
mod map;
mod node;
mod pods;
mod sets;
mod slab;
mod trees;

pub use block::{Block, BlockHash, SHARDS};
use block::{SCRAMBLE, scramble, shard_of};
use map::Entry;
pub(super) use node::Node;
pub(super) use pods::Pods;
use sets::Pair;
use slab::NIL;
use trees::Trees;

use super::{MAX_SLOTS, PodSet, Slot};
use crate::blocks::{Kind, worth_of};
use std::collections::BTreeSet;

/// Blocks whose memory is fetched together.
const BATCH: usize = 32;

/// What a [`Table::store`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// Blocks that the pod did not hold before.
    pub added: usize,
    /// Blocks left out: known with another parent or depth, or new to a full shard.
    pub refused: usize,
}

/// The block table of one replica.
#[derive(Debug)]
pub struct Table {
    /// Read by the query and by ageing.
    pub(super) trees: Trees,
    shards: Vec<Shard>,
    /// By slot.
    pods: Vec<Held>,
    max_per_shard: usize,
    /// Blocks of [`Kind::Cached`], each counted for each pod.
    cached: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Shard {
    /// Blocks that somebody holds; placeholders are not counted.
    blocks: usize,
    frozen: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    stored: usize,
    visible: usize,
    /// By kind.
    kinds: [OfKind; Kind::ALL.len()],
}

#[derive(Debug, Clone, Copy, Default)]
struct OfKind {
    stored: usize,
    worth: usize,
}

impl Held {
    fn count(&mut self, hash: BlockHash, depth: u32, add: bool) {
        let step = |count: &mut usize, by: usize| {
            *count = if add { count.saturating_add(by) } else { count.saturating_sub(by) };
        };
        step(&mut self.stored, 1);
        if let Some(of_kind) = self.kinds.get_mut(Kind::of(hash).index()) {
            step(&mut of_kind.stored, 1);
            step(&mut of_kind.worth, worth_at(hash, depth));
        }
    }
}

/// Blocks of the configured size that a block stands for.
pub(super) fn worth_at(hash: BlockHash, depth: u32) -> usize {
    if Kind::of(hash) == Kind::Cached { 1 } else { worth_of(depth) }
}

impl Table {
    /// An empty table that takes about `max_blocks` blocks: each shard takes its even share, and refuses more.
    #[must_use]
    pub fn new(max_blocks: usize) -> Self {
        Self::with_secret(max_blocks, 0)
    }

    /// The same, where clients can't know by what its blocks are found: whoever does can make blocks that take ever longer to
    /// find. Makes no other difference.
    #[must_use]
    pub fn with_secret(max_blocks: usize, secret: u64) -> Self {
        Self {
            trees: Trees::new(secret),
            shards: vec![Shard::default(); SHARDS],
            pods: vec![Held::default(); MAX_SLOTS],
            max_per_shard: max_blocks.div_ceil(SHARDS),
            cached: 0,
        }
    }

    /// The shard that a block belongs to, below [`SHARDS`].
    #[must_use]
    pub const fn shard_of(hash: BlockHash) -> usize {
        shard_of(hash)
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
        let deepest = u32::try_from(hashes.len()).ok().and_then(|count| depth.checked_add(count));
        if deepest.is_none() {
            return Stored { added: 0, refused: hashes.len() };
        }
        let mut done = Stored::default();
        let mut before = parent.map(|hash| self.trees.find(hash));
        for (n, (&hash, depth)) in hashes.iter().zip(depth..).enumerate() {
            if n % BATCH == 0 {
                self.trees.fetch(hashes.get(n..).map_or(&[], |rest| rest.get(..BATCH).unwrap_or(rest)));
            }
            let mut entry = self.trees.find(hash);
            if !self.is_frozen(hash) {
                match self.place(entry, before, depth, touched) {
                    Some(index) => {
                        entry.index = index;
                        if entry.pods.of(slot, self.trees.sets()).is_none() {
                            entry.pods = self.add(entry, depth, slot, self.sees(before, depth, slot));
                            done.added += 1;
                        }
                    }
                    None => done.refused += 1,
                }
            }
            before = Some(entry);
        }
        done
    }

    /// Records that a pod no longer holds these blocks. Says how many of them it held.
    pub fn remove(&mut self, slot: Slot, hashes: &[BlockHash]) -> usize {
        let mut removed = 0;
        for batch in hashes.chunks(BATCH) {
            self.trees.fetch(batch);
            removed +=
                batch.iter().filter(|&&hash| !self.is_frozen(hash) && self.drop_pod(hash, slot)).count();
        }
        removed
    }

    /// Sets when a block was last used, where that is later than what is known. Says whether the block is known.
    pub fn touch(&mut self, hash: BlockHash, touched: u32) -> bool {
        let entry = self.trees.find(hash);
        if self.is_frozen(hash) || entry.pods.is_empty() {
            return false;
        }
        if let Some(node) = self.trees.node_mut(entry.index) {
            node.touched = node.touched.max(touched);
        }
        true
    }

    /// Takes a pod out of every block of one shard; says how many held it. All [`SHARDS`] calls wipe its column.
    pub fn wipe(&mut self, slot: Slot, shard: usize) -> usize {
        if self.shards.get(shard).is_none_or(|shard| shard.frozen) || self.held_by(slot) == 0 {
            return 0;
        }
        let held = self.trees.shard(shard).filter(|entry| entry.pods.of(slot, self.trees.sets()).is_some());
        let hashes: Vec<BlockHash> = held.map(|entry| entry.hash).collect();
        hashes.into_iter().filter(|&hash| self.drop_pod(hash, slot)).count()
    }

    /// Makes a shard ignore `store`, `remove`, `touch` and `wipe` until it is thawed. [`Table::load`] still writes to it.
    pub fn freeze(&mut self, shard: usize) {
        self.set_frozen(shard, true);
    }

    /// Ends [`Table::freeze`].
    pub fn thaw(&mut self, shard: usize) {
        self.set_frozen(shard, false);
    }

    /// The blocks of a shard, in no order.
    pub fn shard(&self, shard: usize) -> impl Iterator<Item = Block> + '_ {
        self.trees.shard(shard).filter_map(|entry| self.block(entry))
    }

    /// Puts a block of a checkpoint back, in any order. Says whether it was taken: not where it is known already,
    /// contradicts itself, has no pods, or its shard is full.
    pub fn load(&mut self, block: &Block) -> bool {
        let entry = self.trees.find(block.hash);
        if !entry.pods.is_empty() || block.stored.is_empty() {
            return false;
        }
        let before = block.parent.map(|hash| self.trees.find(hash));
        let Some(index) = self.place(entry, before, block.depth, block.touched) else { return false };
        if let Some(shard) = self.shards.get_mut(shard_of(block.hash)) {
            shard.blocks += 1;
        }
        let seen = block.stored.iter().filter(|&slot| self.sees(before, block.depth, slot));
        let pair = Pair { stored: block.stored, visible: seen.collect() };
        self.trees.assign(block.hash, &pair);
        for slot in block.stored.iter() {
            let Some(pod) = self.pods.get_mut(slot.index()) else { continue };
            pod.count(block.hash, block.depth, true);
            self.cached += usize::from(Kind::of(block.hash) == Kind::Cached);
            if pair.visible.contains(slot) {
                pod.visible += 1;
                pod.visible += self.trees.spread(index, slot, true, pod.stored - pod.visible);
            }
        }
        true
    }

    /// The record of a block that somebody holds.
    #[must_use]
    pub fn get(&self, hash: BlockHash) -> Option<Block> {
        self.block(&self.trees.find(hash))
    }

    /// How many blocks somebody holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.blocks).sum()
    }

    /// Whether nobody holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many blocks a pod holds.
    #[must_use]
    pub fn held_by(&self, slot: Slot) -> usize {
        self.pods.get(slot.index()).map_or(0, |pod| pod.stored)
    }

    /// How many blocks of a kind a pod holds.
    #[must_use]
    pub fn held_of(&self, slot: Slot, kind: Kind) -> usize {
        self.of_kind(slot, kind).stored
    }

    /// How much of a prompt they stand for, in blocks of the configured size: see [`crate::blocks`].
    #[must_use]
    pub fn worth_of(&self, slot: Slot, kind: Kind) -> usize {
        self.of_kind(slot, kind).worth
    }

    fn of_kind(&self, slot: Slot, kind: Kind) -> OfKind {
        self.pods.get(slot.index()).and_then(|pod| pod.kinds.get(kind.index())).copied().unwrap_or_default()
    }

    /// How many blocks of [`Kind::Cached`] pods hold, each counted for each pod.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// How many leading blocks of `chain`, which is a path, a pod holds.
    #[must_use]
    pub fn depth_of(&self, slot: Slot, chain: &[BlockHash]) -> usize {
        let is_visible = |hash: &BlockHash, depth: usize| {
            let entry = self.trees.find(*hash);
            entry.pods.of(slot, self.trees.sets()) == Some(true)
                && self.trees.node(entry.index).depth as usize == depth
        };
        // Whatever is visible at its depth has all before it visible.
        let (mut low, mut high) = (0, chain.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match chain.get(middle).is_some_and(|hash| is_visible(hash, middle)) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Blocks of a pod that follow `block`, that one included, and were not used since `before`; those of `but` are left out.
    /// Children stand before their parents. At most `limit` blocks are looked at.
    #[must_use]
    pub fn unused_after(
        &self,
        slot: Slot,
        block: BlockHash,
        before: u32,
        but: &[BlockHash],
        limit: usize,
    ) -> Vec<BlockHash> {
        let but: BTreeSet<_> = but.iter().collect();
        let mut found = Vec::new();
        let entry = self.trees.find(block);
        let mut ahead: Vec<_> =
            (entry.index != NIL).then(|| self.trees.node(entry.index)).into_iter().collect();
        let mut looked = 0;
        while let Some(node) = ahead.pop() {
            looked += 1;
            if looked > limit {
                break;
            }
            if node.touched < before && !but.contains(&node.hash) && self.trees.stores(node.hash, slot) {
                found.push(node.hash);
            }
            ahead.extend(self.trees.children(node).take(limit.saturating_sub(looked + ahead.len())));
        }
        found.reverse();
        found
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.trees.memory_bytes()
            + self.shards.capacity() * size_of::<Shard>()
            + self.pods.capacity() * size_of::<Held>()
    }

    /// A digest of all that is replicated, as far as it concerns the pods of `mask`. Equal tables have equal digests,
    /// whatever the order in which they came to be so.
    #[must_use]
    pub fn digest(&self, mask: &PodSet) -> u64 {
        let blocks = (0..SHARDS).flat_map(|shard| self.shard(shard));
        blocks.fold(0, |sum: u64, block| {
            let stored = block.stored.intersect(mask);
            sum.wrapping_add(if stored.is_empty() { 0 } else { Block { stored, ..block }.digest() })
        })
    }

    /// Finds the place of a block after `before`: its node, where it is known so, or a new one, linked. `None` where the
    /// block is refused.
    fn place(&mut self, entry: Entry, before: Option<Entry>, depth: u32, touched: u32) -> Option<u32> {
        if !entry.pods.is_empty() {
            let above = before.map_or(NIL, |before| before.index);
            let node = self.trees.node_mut(entry.index)?;
            // A parent that has no node is not this block's: that one has.
            let same = node.depth == depth && node.parent == above && before.is_some() == (above != NIL);
            if same {
                node.touched = node.touched.max(touched);
            }
            return same.then_some(entry.index);
        }
        let full =
            self.shards.get(shard_of(entry.hash)).is_none_or(|shard| shard.blocks >= self.max_per_shard);
        let itself = before.is_some_and(|before| before.hash == entry.hash);
        if full || itself || before.is_none() != (depth == 0) {
            return None;
        }
        let index = if entry.is_known() { entry.index } else { self.trees.insert(entry.hash) };
        let node = self.trees.node_mut(index)?;
        (node.depth, node.touched) = (depth, touched);
        if let Some(before) = before {
            let above = if before.is_known() { before.index } else { self.trees.insert(before.hash) };
            self.trees.link(index, above);
        }
        Some(index)
    }

    /// Whether a pod sees all blocks before one that is at this depth after `before`.
    fn sees(&self, before: Option<Entry>, depth: u32, slot: Slot) -> bool {
        let Some(before) = before else { return depth == 0 };
        before.pods.of(slot, self.trees.sets()) == Some(true)
            && self.trees.node(before.index).depth.checked_add(1) == Some(depth)
    }

    /// Adds a pod that does not hold the block. Returns the pods that now do.
    fn add(&mut self, entry: Entry, depth: u32, slot: Slot, visible: bool) -> Pods {
        if let Some(shard) = self.shards.get_mut(shard_of(entry.hash)).filter(|_| entry.pods.is_empty()) {
            shard.blocks += 1;
        }
        if let Some(pod) = self.pods.get_mut(slot.index()) {
            pod.count(entry.hash, depth, true);
            self.cached += usize::from(Kind::of(entry.hash) == Kind::Cached);
            if visible {
                pod.visible += 1;
                pod.visible += self.trees.spread(entry.index, slot, true, pod.stored - pod.visible);
            }
        }
        self.trees.set(entry.hash, slot, Some(visible))
    }

    /// Takes a pod out of a block. Says whether it was in.
    fn drop_pod(&mut self, hash: BlockHash, slot: Slot) -> bool {
        let entry = self.trees.find(hash);
        let state = entry.pods.of(slot, self.trees.sets());
        let (Some(visible), Some(pod)) = (state, self.pods.get_mut(slot.index())) else { return false };
        pod.count(hash, self.trees.node(entry.index).depth, false);
        self.cached = self.cached.saturating_sub(usize::from(Kind::of(hash) == Kind::Cached));
        if visible {
            pod.visible -= 1;
            pod.visible -= self.trees.spread(entry.index, slot, false, pod.visible);
        }
        if self.trees.set(hash, slot, None).is_empty() {
            self.trees.retire(entry.index);
            if let Some(shard) = self.shards.get_mut(shard_of(hash)) {
                shard.blocks -= 1;
            }
        }
        true
    }

    fn block(&self, entry: &Entry) -> Option<Block> {
        let node = self.trees.node(entry.index);
        let parent = (node.parent != NIL).then(|| self.trees.node(node.parent).hash);
        let stored = entry.pods.stored(self.trees.sets());
        let block = Block { hash: entry.hash, parent, depth: node.depth, touched: node.touched, stored };
        (!entry.pods.is_empty()).then_some(block)
    }

    fn is_frozen(&self, hash: BlockHash) -> bool {
        self.shards.get(shard_of(hash)).is_some_and(|shard| shard.frozen)
    }

    fn set_frozen(&mut self, shard: usize, frozen: bool) {
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.frozen = frozen;
        }
    }
}

#[cfg(test)]
mod tests;
