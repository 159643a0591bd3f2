//! The hash map of one shard: who holds a block, and where its node is.
//!
//! A query waits for memory and for nothing else. So an entry has all that a query reads, and entries stand in lines of
//! four, a cache line each: looking a block up seldom costs more than one access, and the accesses for many blocks can
//! be started before the first is waited for. A map grows by a quarter, without looking at any node.

use super::BlockHash;
use super::pods::Pods;
use super::slab::NIL;

const PLACES: usize = 4;

/// Tenths of all places that are taken when the map grows.
const FULL: usize = 7;

/// A block. `index` is `NIL` in empty places and for blocks that are unknown.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub hash: BlockHash,
    pub pods: Pods,
    pub index: u32,
}

impl Entry {
    /// What is known of an unknown block.
    pub const fn unknown(hash: BlockHash) -> Self {
        Self { hash, pods: Pods::NOBODY, index: NIL }
    }

    pub const fn is_known(&self) -> bool {
        self.index != NIL
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([Entry; PLACES]);

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const EMPTY: Self = Self([Entry::unknown(0); PLACES]);

    fn is_full(&self) -> bool {
        self.0.iter().all(Entry::is_known)
    }

    fn free_place(&mut self) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| !entry.is_known())
    }

    /// Looks at all places, for which of them it is cannot be predicted.
    #[inline]
    fn get(&self, hash: BlockHash) -> Entry {
        let is = |entry: &Entry| (entry.hash == hash) & entry.is_known();
        self.0.iter().fold(Entry::unknown(hash), |found, entry| if is(entry) { *entry } else { found })
    }

    fn get_mut(&mut self, hash: BlockHash) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.hash == hash && entry.is_known())
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|entry| entry.is_known())
    }
}

/// Entries by hash. An entry is in its home line or, where that is full, in the first line after it that was not.
#[derive(Debug)]
pub struct Map {
    lines: Vec<Line>,
    len: usize,
    /// Odd.
    factor: u64,
}

impl Map {
    /// An empty map. Who knows `secret` can make blocks that all want the same lines, which then are searched from end to end.
    pub const fn new(secret: u64) -> Self {
        Self { lines: Vec::new(), len: 0, factor: super::SCRAMBLE ^ secret << 1 }
    }

    /// Looks a block up.
    #[inline]
    pub fn find(&self, hash: BlockHash) -> Entry {
        let home = self.home(hash);
        for distance in 0..self.lines.len() {
            let Some(line) = self.lines.get(self.after(home, distance)) else { break };
            let entry = line.get(hash);
            if entry.is_known() {
                return entry;
            }
            if !line.is_full() {
                break;
            }
        }
        Entry::unknown(hash)
    }

    /// A known block, to change its pods.
    #[inline]
    pub fn get_mut(&mut self, hash: BlockHash) -> Option<&mut Entry> {
        let at = self.line_of(hash)?;
        self.lines.get_mut(at)?.get_mut(hash)
    }

    /// Starts to fetch what [`Map::find`] will read. The result means nothing, but must be used.
    #[inline]
    pub fn touch(&self, hash: BlockHash) -> u64 {
        self.lines.get(self.home(hash)).map_or(0, |line| line.0.first().map_or(0, |entry| entry.hash))
    }

    /// Adds a block that is unknown.
    pub fn insert(&mut self, entry: Entry) {
        if self.len * 10 >= self.lines.len() * PLACES * FULL {
            let grown = vec![Line::EMPTY; self.lines.len() + self.lines.len() / 4 + 1];
            let old = std::mem::replace(&mut self.lines, grown);
            old.iter().flat_map(Line::entries).for_each(|entry| self.place(*entry));
        }
        self.place(entry);
        self.len += 1;
    }

    /// Takes a block out.
    pub fn remove(&mut self, hash: BlockHash) {
        let Some(mut at) = self.line_of(hash) else { return };
        let mut gone = hash;
        self.len -= 1;
        loop {
            let Some(line) = self.lines.get_mut(at) else { return };
            let was_full = line.is_full();
            let Some(place) = line.get_mut(gone) else { return };
            *place = Entry::unknown(0);
            // Whoever found the line full and went on may now come back, and leaves a hole in turn.
            let Some((entry, from)) = was_full.then(|| self.displaced(at)).flatten() else { return };
            if let Some(place) = self.lines.get_mut(at).and_then(Line::free_place) {
                *place = entry;
            }
            (at, gone) = (from, entry.hash);
        }
    }

    /// Every entry.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.lines.iter().flat_map(Line::entries)
    }

    pub fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// The line in which a known block is.
    #[inline]
    fn line_of(&self, hash: BlockHash) -> Option<usize> {
        let home = self.home(hash);
        for distance in 0..self.lines.len() {
            let at = self.after(home, distance);
            let line = self.lines.get(at)?;
            if line.entries().any(|entry| entry.hash == hash) {
                return Some(at);
            }
            if !line.is_full() {
                return None;
            }
        }
        None
    }

    /// The first entry after a line that would rather be in it or before it, and the line where it is.
    fn displaced(&self, line: usize) -> Option<(Entry, usize)> {
        for distance in 1..self.lines.len() {
            let at = self.after(line, distance);
            let here = self.lines.get(at)?;
            if let Some(entry) =
                here.entries().find(|entry| self.distance(self.home(entry.hash), at) >= distance)
            {
                return Some((*entry, at));
            }
            if !here.is_full() {
                return None;
            }
        }
        None
    }

    fn place(&mut self, entry: Entry) {
        let home = self.home(entry.hash);
        for distance in 0..self.lines.len() {
            let at = self.after(home, distance);
            if let Some(place) = self.lines.get_mut(at).and_then(Line::free_place) {
                *place = entry;
                return;
            }
        }
    }

    /// The line that a block is in if there is room: by bits other than those that name its shard.
    #[inline]
    fn home(&self, hash: BlockHash) -> usize {
        let bits = (hash.wrapping_mul(self.factor) >> 24) as u32;
        ((u64::from(bits) * self.lines.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, line: usize, distance: usize) -> usize {
        let at = line + distance;
        if at < self.lines.len() { at } else { at - self.lines.len() }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.lines.len() - from }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    /// Names that crowd in the first, a middle and the last of the lines, so that these overflow, around the end too.
    fn names() -> Vec<BlockHash> {
        let part = |hash: &BlockHash| (super::super::scramble(*hash) >> 51) % 32;
        let crowded = |of: u64| {
            (0u64..).map(|n| xxh3_64(&n.to_le_bytes())).filter(move |hash| part(hash) == of).take(16)
        };
        [0].into_iter().chain(crowded(0)).chain(crowded(13)).chain(crowded(31)).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_map(ops in prop::collection::vec((0..49usize, any::<bool>()), 1..400)) {
            let (names, mut map, mut reference) = (names(), Map::new(0), BTreeMap::new());
            for ((n, insert), index) in ops.into_iter().zip(0u32..) {
                let hash = names[n];
                if !insert {
                    map.remove(hash);
                    reference.remove(&hash);
                } else if let Some(entry) = map.get_mut(hash) {
                    entry.index = index;
                    prop_assert!(reference.insert(hash, index).is_some());
                } else {
                    map.insert(Entry { hash, pods: Pods::NOBODY, index });
                    prop_assert!(reference.insert(hash, index).is_none());
                }
                for &hash in &names {
                    let entry = map.find(hash);
                    prop_assert_eq!(entry.hash, hash);
                    prop_assert_eq!(entry.index, reference.get(&hash).copied().unwrap_or(NIL));
                }
                let all: BTreeMap<BlockHash, u32> = map.iter().map(|entry| (entry.hash, entry.index)).collect();
                prop_assert_eq!(map.iter().count(), reference.len());
                prop_assert_eq!(&all, &reference);
            }
        }
    }

    #[test]
    fn grows_by_a_quarter() {
        let mut map = Map::new(0);
        for n in 0..10_000u32 {
            let hash = xxh3_64(&n.to_le_bytes());
            assert!(!map.find(hash).is_known());
            map.insert(Entry { hash, pods: Pods::NOBODY, index: n });
            assert!(n < 1000 || map.memory_bytes() <= n as usize * 29, "{n}: {}", map.memory_bytes());
        }
        assert!((0..10_000u32).all(|n| map.find(xxh3_64(&n.to_le_bytes())).index == n));
    }

    /// How many lines are searched at most for any of these blocks.
    fn longest_search(secret: u64, hashes: &[BlockHash]) -> usize {
        let mut map = Map::new(secret);
        for (&hash, index) in hashes.iter().zip(0..) {
            map.insert(Entry { hash, pods: Pods::NOBODY, index });
        }
        let found =
            |hash: &BlockHash| map.distance(map.home(*hash), map.line_of(*hash).expect("it is there"));
        hashes.iter().map(found).max().unwrap_or(0)
    }

    #[test]
    fn blocks_that_were_made_to_collide_do_not_where_the_secret_is_unknown() {
        // Newton's inverse: each step doubles the bits that are right.
        let inverse = (0..6)
            .fold(1u64, |x, _| x.wrapping_mul(2u64.wrapping_sub(super::super::SCRAMBLE.wrapping_mul(x))));
        // All in one shard, and there in the first sixty-fourth of the lines.
        let made = |n: u32| (7 << 56 | xxh3_64(&n.to_le_bytes()) >> 14).wrapping_mul(inverse);
        let made: Vec<_> = (0..4000).map(made).collect();
        assert!(made.iter().all(|hash| super::super::shard_of(*hash) == 7));
        assert!(longest_search(0, &made) > 900, "they do where it is known");
        for secret in 1..50 {
            let longest = longest_search(xxh3_64(&[secret]), &made);
            assert!(longest < 40, "{secret}: {longest}");
        }
    }
}
