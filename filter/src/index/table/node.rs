//! A block's place in the trees.

use super::BlockHash;
use super::slab::{Item, NIL};

/// A block that somebody holds, or a placeholder: a block that nobody holds, kept because a block after it is held.
/// A placeholder has no parent, so it says nothing that its children do not imply.
///
/// Who holds it is in the map, where a query finds it without coming here.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub struct Node {
    pub hash: BlockHash,
    pub depth: u32,
    /// `NIL` at depth 0 and in placeholders.
    pub parent: u32,
    /// Log clock, seconds.
    pub touched: u32,
    /// First of the children.
    pub child: u32,
    /// Siblings, in no order.
    pub next: u32,
    pub previous: u32,
}

// At most 64 MB for a million blocks, of which the map takes up to 29.
const _: () = assert!(size_of::<Node>() == 32);

impl Node {
    /// A placeholder. Also what reading a place that does not exist gives.
    pub const fn placeholder(hash: BlockHash) -> Self {
        Self { hash, depth: 0, parent: NIL, touched: 0, child: NIL, next: NIL, previous: NIL }
    }

    /// Whether it is linked to `parent` as the next block after it. Only a store that contradicts what a placeholder's
    /// children said of it links others; they stay invisible.
    pub fn follows(&self, parent: &Self) -> bool {
        parent.depth.checked_add(1) == Some(self.depth)
    }
}

impl Item for Node {
    fn vacant(next: u32) -> Self {
        Self { next, ..Self::placeholder(0) }
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }
}
