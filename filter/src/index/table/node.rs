//! A block's place in the trees.

use super::BlockHash;
use super::pods::Pods;
use super::slab::{Item, NIL};

/// A block that somebody holds, or a placeholder: a block that nobody holds, kept because a block after it is held.
/// A placeholder has no parent, so it says nothing that its children do not imply.
///
/// What a query reads comes first: the beginning seldom straddles two cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Node {
    pub hash: BlockHash,
    pub pods: Pods,
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

// At most 64 MB for a million blocks, of which the hash map takes up to 12.
const _: () = assert!(size_of::<Node>() == 40);

impl Node {
    /// A placeholder. Also what reading a place that does not exist gives.
    pub const fn placeholder(hash: BlockHash) -> Self {
        let pods = Pods::NOBODY;
        Self { hash, pods, depth: 0, parent: NIL, touched: 0, child: NIL, next: NIL, previous: NIL }
    }

    pub const fn is_placeholder(&self) -> bool {
        self.pods.is_empty()
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
