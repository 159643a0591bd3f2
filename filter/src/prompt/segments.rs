//! Segments of text that were tokenized before, with the blocks that they made.
//!
//! Added tokens cut a rendered chat into segments that don't influence each other, and long ones are [cut](super::cuts) further:
//! the tokens of a segment follow from its text alone, and its blocks from those and from what the chain was before. So of
//! the next turn of a conversation only its new segments are tokenized. Short ones are taken together, with the added tokens
//! between them. Blocks are kept, not tokens: they take a fraction of the memory, and need no hashing again.
//!
//! What is remembered has a bound in bytes. It is kept in two generations: once the young one has filled its half, it becomes
//! the old one, and what was the old one is forgotten, but for what was asked for meanwhile.

use crate::blocks::{Added, ChainBuilder};
use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Shorter texts are tokenized as quickly as they are looked up.
pub(super) const SHORTEST: usize = 64;
/// What an entry takes beside its blocks, at most, in a map that has just grown.
const OVERHEAD: usize = 160;

/// What a segment is known by: hashes under a secret seed of its text and of the chain before it, its length, and whether it
/// opens the text, which matters to some normalizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    text: u64,
    chain: u64,
    length: usize,
    opens: bool,
}

type Generation = HashMap<Key, Added>;

/// A memory of segments, for one tokenizer in one VM.
#[derive(Debug)]
pub struct Segments {
    seed: u64,
    budget: usize,
    young: Generation,
    old: Generation,
    young_bytes: usize,
    old_bytes: usize,
}

impl Segments {
    /// A memory of at most `budget` bytes; 0 remembers nothing. `seed` should be a secret of this VM: nobody should be able
    /// to make two texts that it takes for one.
    pub fn new(seed: u64, budget: usize) -> Self {
        let (young, old) = (Generation::new(), Generation::new());
        Self { seed, budget, young, old, young_bytes: 0, old_bytes: 0 }
    }

    /// Bytes of what is remembered, at most the budget.
    pub fn memory_bytes(&self) -> usize {
        self.young_bytes + self.old_bytes
    }

    /// The key of a text after a chain, where it is worth remembering.
    pub(super) fn key(&self, text: &str, chain: &ChainBuilder, opens: bool) -> Option<Key> {
        (self.budget > 0 && text.len() >= SHORTEST).then(|| Key {
            text: xxh3_64_with_seed(text.as_bytes(), self.seed),
            chain: chain.mark(self.seed),
            length: text.len(),
            opens,
        })
    }

    /// The blocks of a segment, where they are known.
    pub(super) fn recall(&mut self, key: Key) -> Option<&Added> {
        if let Some(added) = self.old.remove(&key) {
            self.old_bytes -= size(&added);
            self.keep(key, added);
        }
        self.young.get(&key)
    }

    /// Remembers the blocks of a segment.
    pub(super) fn remember(&mut self, key: Key, added: Added) {
        // A segment must leave room for others.
        if size(&added) <= self.budget / 4 {
            self.keep(key, added);
        }
    }

    fn keep(&mut self, key: Key, added: Added) {
        if self.young_bytes + size(&added) > self.budget / 2 {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        self.young_bytes += size(&added);
        if let Some(before) = self.young.insert(key, added) {
            self.young_bytes -= size(&before);
        }
    }
}

fn size(added: &Added) -> usize {
    added.bytes() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn added(n: usize, count: usize) -> Added {
        let mut chain = ChainBuilder::tokens(0, 4, 0);
        chain.push_tokens(&vec![n as u32; count]);
        chain.since(0)
    }

    fn key(segments: &Segments, n: usize) -> Option<Key> {
        let mut chain = ChainBuilder::tokens(0, 4, 0);
        chain.push_tokens(&[n as u32 % 3]);
        segments.key(&format!("{n:0>99}"), &chain, false)
    }

    proptest! {
        #[test]
        fn recalls_only_what_it_was_told_within_its_budget(
            ops in prop::collection::vec((0..30usize, 0..900usize), 1..200),
            budget in 0..9000usize,
        ) {
            let mut segments = Segments::new(7, budget);
            let mut told: BTreeMap<usize, Added> = BTreeMap::new();
            for (n, count) in ops {
                let Some(key) = key(&segments, n) else {
                    prop_assert_eq!(budget, 0);
                    continue;
                };
                match segments.recall(key) {
                    Some(found) => prop_assert_eq!(found, &told[&n]),
                    None => {
                        let added = added(n, count);
                        segments.remember(key, added.clone());
                        let fits = size(&added) <= budget / 4;
                        prop_assert_eq!(segments.recall(key), Some(&added).filter(|_| fits));
                        told.insert(n, added);
                    }
                }
                prop_assert!(segments.memory_bytes() <= budget);
                let held = segments.young.values().chain(segments.old.values());
                prop_assert_eq!(segments.memory_bytes(), held.map(size).sum::<usize>());
            }
        }
    }

    #[test]
    fn what_is_asked_for_stays() {
        let mut segments = Segments::new(1, 4000);
        let first = key(&segments, 0).unwrap();
        segments.remember(first, added(0, 30));
        for n in 1..500 {
            let other = key(&segments, n).unwrap();
            segments.remember(other, added(n, 30));
            assert!(segments.recall(first).is_some(), "after {n} others");
        }
        assert!(segments.key("short", &ChainBuilder::tokens(0, 4, 0), true).is_none());
    }
}
