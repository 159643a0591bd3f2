//! The pods of blocks that are on many.
//!
//! Along a chain the same pods hold hundreds of blocks, so a pair of sets is kept once, however many blocks have it:
//! what would be 128 bytes a block is next to nothing, and stays in the cache.

use hashbrown::HashTable;

use super::super::{PodSet, Slot};
use super::pods::{Pods, State};
use super::scramble;
use super::slab::{Item, NIL, Slab};

/// The pods that store a block, and those of them for which it is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pair {
    pub stored: PodSet,
    pub visible: PodSet,
}

impl Pair {
    /// What the block is to a pod.
    #[inline]
    pub fn of(&self, slot: Slot) -> State {
        self.stored.contains(slot).then(|| self.visible.contains(slot))
    }

    /// Sets what the block is to a pod.
    pub fn set(&mut self, slot: Slot, state: State) {
        if state.is_some() {
            self.stored.insert(slot)
        } else {
            self.stored.remove(slot)
        };
        if state == Some(true) {
            self.visible.insert(slot)
        } else {
            self.visible.remove(slot)
        };
    }
}

#[derive(Debug, Clone, Copy)]
struct Shared {
    pair: Pair,
    /// Blocks that have it; the next free place where there are none.
    blocks: u32,
}

impl Item for Shared {
    fn vacant(next: u32) -> Self {
        Self { pair: Pair::default(), blocks: next }
    }

    fn next_vacant(&self) -> u32 {
        self.blocks
    }
}

/// Pairs of sets, each kept once under an index.
#[derive(Debug)]
pub struct Sets {
    shared: Slab<Shared>,
    by_content: HashTable<u32>,
    /// The last change: before, of which pod to what, after. The next block of a chain mostly changes likewise.
    last: Option<(Pods, Slot, State, Pods)>,
}

impl Sets {
    pub const fn new() -> Self {
        Self { shared: Slab::new(), by_content: HashTable::new(), last: None }
    }

    /// The pair at an index; of nobody where there is none.
    #[inline]
    pub fn get(&self, index: u32) -> &Pair {
        const NOBODY: &Pair = &Pair { stored: PodSet::EMPTY, visible: PodSet::EMPTY };
        self.shared.get(index).map_or(NOBODY, |shared| &shared.pair)
    }

    /// The index of a pair, for one more block.
    pub fn take(&mut self, pair: &Pair) -> u32 {
        let Self { shared, by_content, .. } = self;
        let same = |&index: &u32| shared.get(index).is_some_and(|shared| shared.pair == *pair);
        if let Some(&index) = by_content.find(hash(pair), same) {
            self.again(index);
            return index;
        }
        // Never more than there are blocks, whose indices ran out before.
        let Some(index) = shared.insert(Shared { pair: *pair, blocks: 1 }) else { return NIL };
        by_content.insert_unique(hash(pair), index, |&index| shared.get(index).map_or(0, |s| hash(&s.pair)));
        index
    }

    /// Counts one more block for an index that is in use.
    pub fn again(&mut self, index: u32) {
        if let Some(shared) = self.shared.get_mut(index) {
            shared.blocks += 1;
        }
    }

    /// Counts one block less.
    pub fn give_back(&mut self, index: u32) {
        let Some(shared) = self.shared.get_mut(index) else { return };
        shared.blocks -= 1;
        if shared.blocks > 0 {
            return;
        }
        if let Ok(entry) = self.by_content.find_entry(hash(&shared.pair), |&other| other == index) {
            entry.remove();
        }
        self.shared.free(index);
        // It may speak of the index that has just lost its meaning.
        self.last = None;
    }

    /// What pods become by a change, if it is the one that was remembered.
    #[inline]
    pub fn last_step(&self, from: Pods, slot: Slot, state: State) -> Option<Pods> {
        let (before, whose, what, after) = self.last?;
        ((before, whose, what) == (from, slot, state)).then_some(after)
    }

    pub fn remember_step(&mut self, from: Pods, slot: Slot, state: State, to: Pods) {
        self.last = Some((from, slot, state, to));
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_content.len()
    }

    pub fn memory_bytes(&self) -> usize {
        self.shared.memory_bytes() + self.by_content.allocation_size()
    }
}

fn hash(pair: &Pair) -> u64 {
    let words = pair.stored.words().iter().chain(pair.visible.words());
    let mixed = words.fold(0, |hash: u64, word| scramble(hash ^ word).rotate_left(29));
    scramble(mixed ^ (mixed >> 32))
}
