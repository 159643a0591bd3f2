//! The hash map of one shard: where the node of a block is.
//!
//! Entries stand in lines of eight, a cache line each, so that finding one seldom costs more than one access to memory;
//! and a query can start that access for many blocks before it waits for the first. A map grows by a quarter, and its
//! entries say all that moving them needs.

use super::slab::NIL;

const PLACES: usize = 8;

/// Entries a line has on average when the map grows.
const MEAN: usize = 6;

/// Eight entries, empty where the index is `NIL`.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line {
    tags: [u32; PLACES],
    indices: [u32; PLACES],
}

const EMPTY: Line = Line { tags: [0; PLACES], indices: [NIL; PLACES] };

impl Line {
    fn is_full(&self) -> bool {
        self.indices.iter().all(|&index| index != NIL)
    }

    fn entries(&self) -> impl Iterator<Item = (u32, u32)> {
        self.tags.iter().copied().zip(self.indices.iter().copied()).filter(|&(_, index)| index != NIL)
    }

    /// Writes an entry over the one with index `old`. `false` where there is none.
    fn replace(&mut self, old: u32, tag: u32, index: u32) -> bool {
        let Some(place) = self.indices.iter().position(|&other| other == old) else { return false };
        if let (Some(t), Some(i)) = (self.tags.get_mut(place), self.indices.get_mut(place)) {
            (*t, *i) = (tag, index);
        }
        true
    }
}

/// Node indices by tag, 32 bits of a hash. An entry is in its home line or, where that is full, in the first line after
/// it that was not.
#[derive(Debug, Default)]
pub struct Map {
    lines: Vec<Line>,
    len: usize,
}

impl Map {
    /// Indices of entries with that tag; seldom more than one.
    #[inline]
    pub fn find(&self, tag: u32) -> impl Iterator<Item = u32> {
        let mut last = false;
        let lines =
            self.from(self.home(tag)).take_while(move |line| !std::mem::replace(&mut last, !line.is_full()));
        lines.flat_map(move |line| {
            line.entries().filter(move |&(other, _)| other == tag).map(|(_, index)| index)
        })
    }

    /// What [`Map::find`] finds first, as far as the home line tells; `NIL` where it tells nothing.
    #[inline]
    pub fn guess(&self, tag: u32) -> u32 {
        let Some(line) = self.lines.get(self.home(tag)) else { return NIL };
        line.tags
            .iter()
            .zip(&line.indices)
            .fold(NIL, |found, (&other, &index)| if other == tag { found.min(index) } else { found })
    }

    /// Reads from the home line, so that it is on its way when it is needed.
    #[inline]
    pub fn touch(&self, tag: u32) -> u32 {
        self.lines.get(self.home(tag)).map_or(0, |line| line.tags.first().copied().unwrap_or(0))
    }

    /// Adds an entry. No other has this index.
    pub fn insert(&mut self, tag: u32, index: u32) {
        if self.len >= self.lines.len() * MEAN {
            let grown = vec![EMPTY; self.lines.len() + self.lines.len() / 4 + 1];
            let old = std::mem::replace(&mut self.lines, grown);
            old.iter().flat_map(Line::entries).for_each(|(tag, index)| self.place(tag, index));
        }
        self.place(tag, index);
        self.len += 1;
    }

    /// Takes an entry out.
    pub fn remove(&mut self, tag: u32, index: u32) {
        let home = self.home(tag);
        let Some(mut hole) = self.from(home).position(|line| line.indices.contains(&index)) else { return };
        hole = self.after(home, hole);
        let mut gone = index;
        self.len -= 1;
        // Whoever found the line full and went on may now come back, and leaves a hole in turn.
        loop {
            let Some(line) = self.lines.get_mut(hole) else { return };
            let was_full = line.is_full();
            if !was_full {
                line.replace(gone, 0, NIL);
                return;
            }
            let Some((tag, index, from)) = self.displaced(hole) else {
                if let Some(line) = self.lines.get_mut(hole) {
                    line.replace(gone, 0, NIL);
                }
                return;
            };
            if let Some(line) = self.lines.get_mut(hole) {
                line.replace(gone, tag, index);
            }
            (hole, gone) = (from, index);
        }
    }

    /// Every index.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().flat_map(Line::entries).map(|(_, index)| index)
    }

    pub fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// The first entry after `line` that would rather be in it or before it, and the line where it is.
    fn displaced(&self, line: usize) -> Option<(u32, u32, usize)> {
        for distance in 1..self.lines.len() {
            let at = self.after(line, distance);
            let here = self.lines.get(at)?;
            let from_far = |&(tag, _): &(u32, u32)| self.distance(self.home(tag), at) >= distance;
            if let Some((tag, index)) = here.entries().find(from_far) {
                return Some((tag, index, at));
            }
            if !here.is_full() {
                return None;
            }
        }
        None
    }

    fn place(&mut self, tag: u32, index: u32) {
        let home = self.home(tag);
        for distance in 0..self.lines.len() {
            let at = self.after(home, distance);
            if self.lines.get_mut(at).is_some_and(|line| line.replace(NIL, tag, index)) {
                return;
            }
        }
    }

    /// The line that an entry is in if it has room. In the order of tags.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.lines.len() as u64) >> 32) as usize
    }

    /// All lines, from that one on and around.
    fn from(&self, line: usize) -> impl Iterator<Item = &Line> {
        let (before, after) = self.lines.split_at_checked(line).unwrap_or_default();
        after.iter().chain(before)
    }

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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few tags, so that lines overflow, around the end too.
        #[test]
        fn agrees_with_a_set(ops in prop::collection::vec((0..24u32, any::<bool>()), 1..400)) {
            let (mut map, mut reference) = (Map::default(), BTreeSet::new());
            for ((n, insert), index) in ops.into_iter().zip(0u32..) {
                let tag = if n < 8 { n } else { u32::MAX / 16 * (n - 8) + n };
                if insert {
                    map.insert(tag, index);
                    reference.insert((tag, index));
                } else if let Some(&(tag, index)) = reference.range((tag, 0)..).next() {
                    map.remove(tag, index);
                    reference.remove(&(tag, index));
                }
                let found: BTreeSet<(u32, u32)> =
                    reference.iter().flat_map(|&(tag, _)| map.find(tag).map(move |index| (tag, index))).collect();
                prop_assert_eq!(&found, &reference);
                let all: BTreeSet<u32> = map.iter().collect();
                prop_assert_eq!(all, reference.iter().map(|&(_, index)| index).collect::<BTreeSet<_>>());
                prop_assert_eq!(map.iter().count(), reference.len());
                prop_assert!(map.guess(tag) == NIL || reference.contains(&(tag, map.guess(tag))));
            }
        }
    }

    #[test]
    fn grows_by_a_quarter() {
        let mut map = Map::default();
        assert_eq!(map.find(7).next(), None);
        for n in 0..10_000u32 {
            map.insert(n.wrapping_mul(0x9E37_79B9), n);
            assert!(
                n < 100 || map.memory_bytes() / 64 * 8 <= n as usize * 7 / 4,
                "{n}: {}",
                map.memory_bytes()
            );
        }
        assert!((0..10_000u32).all(|n| map.find(n.wrapping_mul(0x9E37_79B9)).eq([n])));
    }
}
