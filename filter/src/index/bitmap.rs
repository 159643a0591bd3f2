//! Sets of pods, as bitmaps over slots.
//!
//! A pod is a bit everywhere in the index, so that "which of these pods hold this block" is eight ANDs.

/// How many slots there are: 256 pods, and room for those that left and are still being wiped.
pub const MAX_SLOTS: usize = 512;

const WORDS: usize = MAX_SLOTS / 64;

/// The bit that stands for a pod. Always below [`MAX_SLOTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The slot of that number; `None` from [`MAX_SLOTS`] on.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < MAX_SLOTS { Some(Self(number)) } else { None }
    }

    /// Every slot, ascending.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..MAX_SLOTS as u16).map(Self)
    }

    /// Its number, below [`MAX_SLOTS`].
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Its number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    const fn word(self) -> usize {
        self.0 as usize / 64
    }

    const fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// A set of slots. 64 bytes, copied freely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PodSet([u64; WORDS]);

impl PodSet {
    /// The set of nobody.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// The set of every slot.
    pub const FULL: Self = Self([u64::MAX; WORDS]);

    /// The set whose bit `i` of word `w` stands for slot `64 * w + i`.
    #[must_use]
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    /// The set as words, the inverse of [`PodSet::from_words`].
    #[must_use]
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// Adds a slot; says whether it is new.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let Some(word) = self.0.get_mut(slot.word()) else { return false };
        let new = *word & slot.bit() == 0;
        *word |= slot.bit();
        new
    }

    /// Takes a slot out; says whether it was in.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let Some(word) = self.0.get_mut(slot.word()) else { return false };
        let there = *word & slot.bit() != 0;
        *word &= !slot.bit();
        there
    }

    /// Whether the slot is in.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.get(slot.word()).is_some_and(|word| word & slot.bit() != 0)
    }

    /// Slots of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// Slots of both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// Slots of this set that the other lacks.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether nobody is in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// How many slots are in.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The slots, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        (0u16..).zip(self.0.iter()).flat_map(|(w, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as u16)?;
                rest &= rest - 1;
                Some(Slot(w * 64 + bit))
            })
        })
    }

    fn zip(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let mut words = self.0;
        for (word, &with) in words.iter_mut().zip(&other.0) {
            *word = op(*word, with);
        }
        Self(words)
    }
}

impl FromIterator<Slot> for PodSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::EMPTY;
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slots() -> impl Strategy<Value = BTreeSet<u16>> {
        prop::collection::btree_set(0..MAX_SLOTS as u16, 0..40)
    }

    fn set(of: &BTreeSet<u16>) -> PodSet {
        of.iter().filter_map(|&n| Slot::new(n)).collect()
    }

    fn numbers(set: PodSet) -> Vec<u16> {
        set.iter().map(Slot::number).collect()
    }

    #[test]
    fn a_slot_is_below_the_bound() {
        assert_eq!(Slot::new(511).map(Slot::number), Some(511));
        assert_eq!(Slot::new(512), None);
        assert_eq!(Slot::all().count(), MAX_SLOTS);
        assert_eq!(Slot::all().collect::<PodSet>(), PodSet::FULL);
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_set(a in slots(), b in slots(), n in 0..MAX_SLOTS as u16) {
            let (x, y, slot) = (set(&a), set(&b), Slot::new(n).unwrap());
            prop_assert_eq!(numbers(x), a.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.contains(slot), a.contains(&n));
            prop_assert_eq!(numbers(x.union(&y)), a.union(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(numbers(x.intersect(&y)), a.intersection(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(numbers(x.minus(&y)), a.difference(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(PodSet::from_words(*x.words()), x);
            let (mut grown, mut shrunk) = (x, x);
            prop_assert_eq!(grown.insert(slot), !a.contains(&n));
            prop_assert_eq!(shrunk.remove(slot), a.contains(&n));
            prop_assert_eq!(grown.len() - shrunk.len(), 1);
        }
    }
}
