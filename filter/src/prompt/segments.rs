//! Segments of text that were tokenized before, with their tokens.
//!
//! Added tokens cut a rendered chat into segments that don't influence each other: the tokens of a segment follow from its
//! text alone. So of the next turn of a conversation only its new segments are tokenized.
//!
//! What is remembered has a bound in bytes. It is kept in two generations: once the young one has filled its half, it becomes
//! the old one, and what was the old one is forgotten, but for what was asked for meanwhile.

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Shorter texts are tokenized as quickly as they are looked up.
const SHORTEST: usize = 64;
/// What an entry takes beside its tokens.
const OVERHEAD: usize = 64;

/// What a segment is known by: a hash under a secret seed, its length, and whether it opens the text, which matters to some
/// normalizers.
type Key = (u64, usize, bool);
type Generation = HashMap<Key, Box<[u32]>>;

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

    /// The key of a text, where it is worth remembering.
    pub(super) fn key(&self, text: &str, opens: bool) -> Option<Key> {
        (self.budget > 0 && text.len() >= SHORTEST)
            .then(|| (xxh3_64_with_seed(text.as_bytes(), self.seed), text.len(), opens))
    }

    /// Appends the tokens of a segment to `out`. Says whether they were known.
    pub(super) fn recall(&mut self, key: Key, out: &mut Vec<u32>) -> bool {
        if let Some(tokens) = self.young.get(&key) {
            out.extend_from_slice(tokens);
            return true;
        }
        let Some(tokens) = self.old.remove(&key) else { return false };
        self.old_bytes -= size(&tokens);
        out.extend_from_slice(&tokens);
        self.keep(key, tokens);
        true
    }

    /// Remembers the tokens of a segment.
    pub(super) fn remember(&mut self, key: Key, tokens: &[u32]) {
        // A segment must leave room for others.
        if size(tokens) <= self.budget / 4 {
            self.keep(key, tokens.into());
        }
    }

    fn keep(&mut self, key: Key, tokens: Box<[u32]>) {
        if self.young_bytes + size(&tokens) > self.budget / 2 {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        self.young_bytes += size(&tokens);
        if let Some(before) = self.young.insert(key, tokens) {
            self.young_bytes -= size(&before);
        }
    }
}

fn size(tokens: &[u32]) -> usize {
    size_of_val(tokens) + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn recalls_only_what_it_was_told_within_its_budget(
            ops in prop::collection::vec((0..30usize, 0..90usize), 1..200),
            budget in 0..6000usize,
        ) {
            let mut segments = Segments::new(7, budget);
            let text = |n: usize| format!("{n:0>99}");
            let mut told: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
            for (n, count) in ops {
                let Some(key) = segments.key(&text(n), false) else {
                    prop_assert_eq!(budget, 0);
                    continue;
                };
                let mut out = vec![9];
                match segments.recall(key, &mut out) {
                    true => prop_assert_eq!(&out[1..], &told[&n][..]),
                    false => {
                        prop_assert_eq!(out, [9]);
                        let tokens = vec![n as u32; count];
                        segments.remember(key, &tokens);
                        let mut again = Vec::new();
                        let fits = size(&tokens) <= budget / 4;
                        prop_assert_eq!(segments.recall(key, &mut again), fits);
                        told.insert(n, tokens);
                    }
                }
                prop_assert!(segments.memory_bytes() <= budget);
                let held = segments.young.values().chain(segments.old.values());
                prop_assert_eq!(segments.memory_bytes(), held.map(|tokens| size(tokens)).sum::<usize>());
            }
        }
    }

    #[test]
    fn what_is_asked_for_stays() {
        let mut segments = Segments::new(1, 4000);
        let text = |n: usize| format!("{n:0>99}");
        let key = segments.key(&text(0), false).unwrap();
        segments.remember(key, &[1; 30]);
        for n in 1..500 {
            let other = segments.key(&text(n), false).unwrap();
            segments.remember(other, &[2; 30]);
            assert!(segments.recall(key, &mut Vec::new()), "after {n} others");
        }
        assert!(segments.key("short", true).is_none());
    }
}
