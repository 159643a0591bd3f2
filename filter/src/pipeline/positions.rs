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

    /// What is in either.
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
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                (bit < 64).then(|| {
                    rest &= rest - 1;
                    i * 64 + bit
                })
            })
        })
    }
}

impl FromIterator<usize> for Positions {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Self {
        let mut set = Self::default();
        positions.into_iter().for_each(|at| set.insert(at));
        set
    }
}
