//! A set of pods by their position in the configuration.

use crate::pods::MAX_PODS;

const WORDS: usize = MAX_PODS / 64;

/// Positions of pods, as bits. A type of its own, so that no position is ever taken for a slot of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Positions([u64; WORDS]);

impl Positions {
    /// Adds a position; those from [`MAX_PODS`] on are not representable and ignored.
    pub fn insert(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    /// Takes a position out.
    pub fn remove(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word &= !(1 << (at % 64));
        }
    }

    /// Is it in?
    pub fn contains(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// What is in both.
    pub fn intersect(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0.get(i).unwrap_or(&0) & other.0.get(i).unwrap_or(&0)))
    }

    /// What is in this and not in the other.
    pub fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0.get(i).unwrap_or(&0) & !other.0.get(i).unwrap_or(&0)))
    }

    /// Positions in either.
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0.get(i).unwrap_or(&0) | other.0.get(i).unwrap_or(&0)))
    }

    /// Is nobody in it?
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Its positions, ascending.
    pub fn iter(&self) -> Iter {
        Iter { words: self.0, at: 0 }
    }

    /// The first `count` positions.
    pub fn first(count: usize) -> Self {
        Self(std::array::from_fn(|word| match count.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        }))
    }

    /// The `n`th of its positions, counted from 0.
    pub fn nth(&self, mut n: usize) -> Option<usize> {
        for (i, word) in self.0.iter().enumerate() {
            let ones = word.count_ones() as usize;
            if n < ones {
                let rest = (0..n).fold(*word, |rest, _| rest & rest.wrapping_sub(1));
                return Some(i * 64 + rest.trailing_zeros() as usize);
            }
            n -= ones;
        }
        None
    }
}

/// Positions of a set, ascending.
pub struct Iter {
    words: [u64; WORDS],
    at: usize,
}

impl Iterator for Iter {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        loop {
            let word = self.words.get_mut(self.at)?;
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= word.wrapping_sub(1);
                return Some(self.at * 64 + bit);
            }
            self.at += 1;
        }
    }
}

impl FromIterator<usize> for Positions {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Self {
        let mut set = Self::default();
        positions.into_iter().for_each(|at| set.insert(at));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(
            one in prop::collection::btree_set(0..MAX_PODS, 0..60),
            two in prop::collection::btree_set(0..MAX_PODS, 0..60),
            out in prop::collection::btree_set(0..MAX_PODS + 9, 0..60),
        ) {
            let [mut set, other] = [&one, &two].map(|pods| pods.iter().copied().collect::<Positions>());
            let listed = |set: &Positions| set.iter().collect::<Vec<_>>();
            prop_assert_eq!(listed(&set), one.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(listed(&set.union(&other)), one.union(&two).copied().collect::<Vec<_>>());
            prop_assert_eq!(listed(&set.intersect(&other)), one.intersection(&two).copied().collect::<Vec<_>>());
            for n in 0..one.len() + 2 {
                prop_assert_eq!(set.nth(n), one.iter().nth(n).copied());
            }
            out.iter().for_each(|pod| set.remove(*pod));
            let left: BTreeSet<_> = one.difference(&out).copied().collect();
            prop_assert_eq!((set.len(), set.is_empty()), (left.len(), left.is_empty()));
            for pod in 0..MAX_PODS + 9 {
                prop_assert_eq!(set.contains(pod), left.contains(&pod));
            }
        }
    }

    #[test]
    fn the_first_so_many() {
        for count in [0, 1, 63, 64, 65, 128, 255, 256] {
            assert_eq!(Positions::first(count), (0..count).collect(), "{count}");
        }
    }
}
