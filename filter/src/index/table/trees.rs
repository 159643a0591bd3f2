//! Nodes, found by hash and linked into trees; and what of a pod is visible, kept up to date along the links.

use super::map::Map;
use super::node::Node;
use super::pods::Sets;
use super::slab::{NIL, Slab};
use super::{BlockHash, SHARDS, Slot, shard_of, tag_of};

/// All nodes of a table.
#[derive(Debug)]
pub struct Trees {
    nodes: Slab<Node>,
    /// Pods of blocks that have many.
    sets: Slab<Sets>,
    /// Node indices by hash. Many small maps, because a map that grows keeps both copies meanwhile.
    shards: Vec<Map>,
}

impl Trees {
    pub fn new() -> Self {
        Self { nodes: Slab::new(), sets: Slab::new(), shards: (0..SHARDS).map(|_| Map::default()).collect() }
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

    pub const fn sets(&self) -> &Slab<Sets> {
        &self.sets
    }

    /// Every node, and places that are free, which look like placeholders.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// Indices of the nodes of a shard.
    pub fn shard(&self, shard: usize) -> impl Iterator<Item = u32> + '_ {
        self.shards.get(shard).into_iter().flat_map(Map::iter)
    }

    /// Finds a block, placeholders included. `NIL` where it is unknown.
    #[inline]
    pub fn find(&self, hash: BlockHash) -> u32 {
        let Some(shard) = self.shards.get(shard_of(hash)) else { return NIL };
        shard.find(tag_of(hash)).find(|&index| self.node(index).hash == hash).unwrap_or(NIL)
    }

    /// Starts to fetch what [`Trees::guess`] will read.
    #[inline]
    pub fn touch(&self, hash: BlockHash) -> u32 {
        self.shards.get(shard_of(hash)).map_or(0, |shard| shard.touch(tag_of(hash)))
    }

    /// Where a block most likely is, without reading its node. `NIL` where that is not known.
    #[inline]
    pub fn guess(&self, hash: BlockHash) -> u32 {
        self.shards.get(shard_of(hash)).map_or(NIL, |shard| shard.guess(tag_of(hash)))
    }

    /// The same with a guess at the index, which saves going through the map where it is right.
    #[inline]
    pub fn find_near(&self, guess: u32, hash: BlockHash) -> u32 {
        let node = self.node(guess);
        if node.hash == hash && !node.is_placeholder() { guess } else { self.find(hash) }
    }

    /// Adds a placeholder for a block that is unknown. `NIL` where indices ran out.
    pub fn insert(&mut self, hash: BlockHash) -> u32 {
        let Some(shard) = self.shards.get_mut(shard_of(hash)) else { return NIL };
        let Some(index) = self.nodes.insert(Node::placeholder(hash)) else { return NIL };
        shard.insert(tag_of(hash), index);
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

    /// Makes a node that nobody holds any longer a placeholder, or frees it where it is not needed as one.
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

    /// Sets whether a block that a pod stores is visible for it, and likewise every block after it as far as that
    /// changes. Returns how many changed. There are `at_most` to change: a pod without holes is done at once, however
    /// many children of other pods there are.
    ///
    /// Walks along the links without a stack; every step down follows a link to a greater depth, so it ends.
    pub fn show(&mut self, start: u32, slot: Slot, visible: bool, at_most: usize) -> usize {
        let mut changed = usize::from(self.show_one(start, slot, visible));
        if changed == 0 {
            return 0;
        }
        let mut at = self.node(start).child;
        while at != NIL && changed < at_most {
            let mut node = self.node(at);
            let follows = is_after(&node, &self.node(node.parent));
            if follows && self.show_one(at, slot, visible) {
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

    /// Whether a pod sees all blocks before this one.
    pub fn sees_before(&self, node: &Node, slot: Slot) -> bool {
        if node.parent == NIL {
            return node.depth == 0;
        }
        let parent = self.node(node.parent);
        is_after(node, &parent) && parent.pods.of(slot, &self.sets) == Some(true)
    }

    /// Whether a pod stores the block.
    #[inline]
    pub fn stores(&self, node: &Node, slot: Slot) -> bool {
        node.pods.of(slot, &self.sets).is_some()
    }

    /// Adds a pod that does not store the block; not visible yet. `false` where memory for it ran out.
    pub fn add(&mut self, index: u32, slot: Slot) -> bool {
        let Self { nodes, sets, .. } = self;
        nodes.get_mut(index).is_some_and(|node| node.pods.add(slot, false, sets))
    }

    /// Takes a pod out of a block.
    pub fn take(&mut self, index: u32, slot: Slot) {
        let Self { nodes, sets, .. } = self;
        if let Some(node) = nodes.get_mut(index) {
            node.pods.remove(slot, sets);
        }
    }

    /// The blocks that follow this one.
    pub fn children<'a>(&'a self, parent: &'a Node) -> impl Iterator<Item = Node> + 'a {
        let mut at = parent.child;
        std::iter::from_fn(move || {
            let node = *self.nodes.get(at)?;
            at = node.next;
            Some(node)
        })
        .filter(|node| is_after(node, parent))
    }

    pub fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes()
            + self.sets.memory_bytes()
            + self.shards.capacity() * size_of::<Map>()
            + self.shards.iter().map(Map::memory_bytes).sum::<usize>()
    }

    fn show_one(&mut self, index: u32, slot: Slot, visible: bool) -> bool {
        let Self { nodes, sets, .. } = self;
        nodes.get_mut(index).is_some_and(|node| node.pods.show(slot, visible, sets))
    }

    fn free_if_bare(&mut self, index: u32) {
        let node = self.node(index);
        if index == NIL || !node.is_placeholder() || node.child != NIL {
            return;
        }
        if let Some(shard) = self.shards.get_mut(shard_of(node.hash)) {
            shard.remove(tag_of(node.hash), index);
            self.nodes.free(index);
        }
    }
}

/// Whether a linked node is the next block after its parent. Only a store that contradicts what a placeholder's
/// children said of it links others; they stay invisible.
fn is_after(node: &Node, parent: &Node) -> bool {
    parent.depth.checked_add(1) == Some(node.depth)
}
