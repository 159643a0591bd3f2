//! Blocks, found by hash and linked into trees; and what of a pod is visible, kept up to date along the links.

use std::hint::black_box;

use super::map::{Entry, Map};
use super::node::Node;
use super::pods::{Pods, State};
use super::sets::{Pair, Sets};
use super::slab::{NIL, Slab};
use super::{BlockHash, SHARDS, Slot, shard_of};

/// All blocks of a table.
#[derive(Debug)]
pub struct Trees {
    nodes: Slab<Node>,
    sets: Sets,
    /// Many small maps, because one that grows keeps both copies meanwhile.
    shards: Vec<Map>,
}

impl Trees {
    /// No blocks. For `secret` see [`Map::new`].
    pub fn new(secret: u64) -> Self {
        Self {
            nodes: Slab::new(),
            sets: Sets::new(),
            shards: (0..SHARDS).map(|_| Map::new(secret)).collect(),
        }
    }

    /// Looks a block up. Its node and nobody where it is a placeholder, neither where it is unknown.
    #[inline]
    pub fn find(&self, hash: BlockHash) -> Entry {
        self.shards.get(shard_of(hash)).map_or(Entry::unknown(hash), |shard| shard.find(hash))
    }

    /// Starts to fetch what [`Trees::find`] will read. The result means nothing, but must be used.
    #[inline]
    pub fn touch(&self, hash: BlockHash) -> u64 {
        self.shards.get(shard_of(hash)).map_or(0, |shard| shard.touch(hash))
    }

    /// Fetches what looking these blocks up and writing to them needs. Their accesses to memory then overlap, where one
    /// block after the other would wait for its own.
    pub fn fetch(&self, hashes: &[BlockHash]) {
        black_box(hashes.iter().fold(0, |all, &hash| all ^ self.touch(hash)));
        let depths = hashes.iter().map(|&hash| self.node(self.find(hash).index).depth);
        black_box(depths.fold(0, |all, depth| all ^ depth));
    }

    /// The node at an index. By value, for it is small; an empty placeholder where there is none.
    #[inline]
    pub fn node(&self, index: u32) -> Node {
        self.nodes.get(index).copied().unwrap_or(Node::placeholder(0))
    }

    #[inline]
    pub fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index)
    }

    /// The sets that pods of blocks share.
    pub const fn sets(&self) -> &Sets {
        &self.sets
    }

    /// The entries of a shard, placeholders among them.
    pub fn shard(&self, shard: usize) -> impl Iterator<Item = &Entry> {
        self.shards.get(shard).into_iter().flat_map(Map::iter)
    }

    /// Adds a placeholder for a block that is unknown. `NIL` where indices ran out.
    pub fn insert(&mut self, hash: BlockHash) -> u32 {
        let Some(shard) = self.shards.get_mut(shard_of(hash)) else { return NIL };
        let Some(index) = self.nodes.insert(Node::placeholder(hash)) else { return NIL };
        shard.insert(Entry { index, ..Entry::unknown(hash) });
        index
    }

    /// Makes `index`, which has no parent, a child of `parent`.
    pub fn link(&mut self, index: u32, parent: u32) {
        let Some(above) = self.node_mut(parent) else { return };
        let next = above.child;
        above.child = index;
        if let Some(sibling) = self.node_mut(next) {
            sibling.previous = index;
        }
        if let Some(node) = self.node_mut(index) {
            (node.parent, node.next, node.previous) = (parent, next, NIL);
        }
    }

    /// Makes a block that nobody holds any longer a placeholder, or frees it where it is not needed as one.
    pub fn retire(&mut self, index: u32) {
        let node = self.node(index);
        if let Some(next) = self.node_mut(node.next) {
            next.previous = node.previous;
        }
        if let Some(previous) = self.node_mut(node.previous) {
            previous.next = node.next;
        } else if let Some(parent) = self.node_mut(node.parent) {
            parent.child = node.next;
        }
        if let Some(place) = self.node_mut(index) {
            *place = Node { child: node.child, ..Node::placeholder(node.hash) };
        }
        self.free_if_bare(node.parent);
        self.free_if_bare(index);
    }

    /// Sets what a known block is to a pod, and returns its pods.
    #[inline]
    pub fn set(&mut self, hash: BlockHash, slot: Slot, state: State) -> Pods {
        let Self { shards, sets, .. } = self;
        let Some(entry) = shards.get_mut(shard_of(hash)).and_then(|shard| shard.get_mut(hash)) else {
            return Pods::NOBODY;
        };
        entry.pods.set(slot, state, sets);
        entry.pods
    }

    /// Sets who holds a known block that nobody held.
    pub fn assign(&mut self, hash: BlockHash, pair: &Pair) {
        let Self { shards, sets, .. } = self;
        if let Some(entry) = shards.get_mut(shard_of(hash)).and_then(|shard| shard.get_mut(hash)) {
            entry.pods = Pods::new(pair, sets);
        }
    }

    /// Carries to all blocks after this one that it became visible for a pod, or is no longer. Returns how many changed.
    /// There are at most `limit` to change: a pod without holes is done at once, however many children of other pods
    /// there are.
    ///
    /// Walks along the links without a stack; every step down leads to a greater depth, so it ends.
    pub fn spread(&mut self, start: u32, slot: Slot, visible: bool, limit: usize) -> usize {
        let mut changed = 0;
        let mut at = self.node(start).child;
        while at != NIL && changed < limit {
            let mut node = self.node(at);
            let is_next = node.follows(&self.node(node.parent));
            if is_next && self.find(node.hash).pods.of(slot, &self.sets) == Some(!visible) {
                self.set(node.hash, slot, Some(visible));
                changed += 1;
                if node.child != NIL {
                    at = node.child;
                    continue;
                }
            }
            while node.next == NIL {
                if node.parent == start || node.parent == NIL {
                    return changed;
                }
                node = self.node(node.parent);
            }
            at = node.next;
        }
        changed
    }

    /// Whether a pod stores a block.
    pub fn stores(&self, hash: BlockHash, slot: Slot) -> bool {
        self.find(hash).pods.of(slot, &self.sets).is_some()
    }

    /// The blocks that follow this one.
    pub fn children(&self, parent: Node) -> impl Iterator<Item = Node> {
        let mut at = parent.child;
        let siblings = std::iter::from_fn(move || {
            let node = *self.nodes.get(at)?;
            at = node.next;
            Some(node)
        });
        siblings.filter(move |node| node.follows(&parent))
    }

    pub fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes()
            + self.sets.memory_bytes()
            + self.shards.capacity() * size_of::<Map>()
            + self.shards.iter().map(Map::memory_bytes).sum::<usize>()
    }

    fn free_if_bare(&mut self, index: u32) {
        let node = self.node(index);
        if index == NIL || node.child != NIL || !self.find(node.hash).pods.is_empty() {
            return;
        }
        if let Some(shard) = self.shards.get_mut(shard_of(node.hash)) {
            shard.remove(node.hash);
            self.nodes.free(index);
        }
    }
}
