//! The pods of one block in four bytes.
//!
//! Most blocks are on one or two pods: up to three are kept in place, as lanes of ten bits (slot, and whether the block
//! is visible for it), unused ones repeating the one before. A block on more has its sets among the shared ones.

use super::super::{PodSet, Slot};
use super::sets::{Pair, Sets};

const LANES: usize = 3;
const LANE_BITS: u32 = 10;
const VISIBLE: u32 = 0x200;
const LANE: u32 = 0x3FF;
/// Set where lanes hold somebody.
const IN_PLACE: u32 = 1 << 30;
/// Set where the other bits are an index into the shared sets.
const SHARED: u32 = 1 << 31;

/// What a block is to a pod: not stored, stored but not visible, or visible.
pub type State = Option<bool>;

/// The pods of one block. Of shared sets it owns a share: it must not be dropped while somebody is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pods(u32);

impl Pods {
    /// No pod.
    pub const NOBODY: Self = Self(0);

    /// The pods of a pair of sets.
    pub fn new(pair: &Pair, sets: &mut Sets) -> Self {
        if pair.stored.len() > LANES {
            return Self(SHARED | sets.take(pair));
        }
        Self::in_place(pair.stored.iter().map(|slot| (slot, pair.visible.contains(slot))))
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What the block is to a pod.
    #[inline]
    pub fn of(self, slot: Slot, sets: &Sets) -> State {
        if let Some(index) = self.shared() {
            return sets.get(index).of(slot);
        }
        self.lanes().find(|&(other, _)| other == slot).map(|(_, visible)| visible)
    }

    /// Sets what the block is to a pod.
    #[inline]
    pub fn set(&mut self, slot: Slot, state: State, sets: &mut Sets) {
        let old = *self;
        let others = old.lanes().filter(|&(other, _)| other != slot);
        if old.shared().is_none() && others.clone().count() + usize::from(state.is_some()) <= LANES {
            *self = Self::in_place(others.chain(state.map(|visible| (slot, visible))));
            return;
        }
        if let Some(known) = sets.last_step(old, slot, state) {
            *self = known;
            known.shared().into_iter().for_each(|index| sets.again(index));
        } else {
            let mut pair = old.pair(sets);
            pair.set(slot, state);
            *self = Self::new(&pair, sets);
            sets.remember_step(old, slot, state, *self);
        }
        old.shared().into_iter().for_each(|index| sets.give_back(index));
    }

    /// The pods that store the block.
    pub fn stored(self, sets: &Sets) -> PodSet {
        self.pair(sets).stored
    }

    /// The pods of `among` for which the block is visible.
    #[inline]
    pub fn visible(self, among: &PodSet, sets: &Sets) -> PodSet {
        if let Some(index) = self.shared() {
            return sets.get(index).visible.intersect(among);
        }
        self.lanes()
            .filter(|&(slot, visible)| visible && among.contains(slot))
            .map(|(slot, _)| slot)
            .collect()
    }

    fn pair(self, sets: &Sets) -> Pair {
        if let Some(index) = self.shared() {
            return *sets.get(index);
        }
        let mut pair = Pair::default();
        self.lanes().for_each(|(slot, visible)| pair.set(slot, Some(visible)));
        pair
    }

    fn in_place(mut lanes: impl Iterator<Item = (Slot, bool)>) -> Self {
        let mut next = || {
            lanes.next().map(|(slot, visible)| u32::from(slot.number()) | if visible { VISIBLE } else { 0 })
        };
        let Some(first) = next() else { return Self::NOBODY };
        let second = next().unwrap_or(first);
        let third = next().unwrap_or(second);
        Self(IN_PLACE | first | second << LANE_BITS | third << (2 * LANE_BITS))
    }

    #[inline]
    const fn shared(self) -> Option<u32> {
        if self.0 & SHARED != 0 { Some(self.0 & !SHARED) } else { None }
    }

    #[inline]
    fn lanes(self) -> impl Iterator<Item = (Slot, bool)> + Clone {
        let lanes = if self.0 & SHARED == 0 && !self.is_empty() { LANES as u32 } else { 0 };
        let lane = move |n: u32| (self.0 >> (n * LANE_BITS)) & LANE;
        (0..lanes)
            .filter(move |&n| n == 0 || lane(n) != lane(n - 1))
            .filter_map(move |n| Some((Slot::new((lane(n) & !VISIBLE) as u16)?, lane(n) & VISIBLE != 0)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Several blocks side by side, as they share sets; now and then one begins anew with many pods at once.
        #[test]
        fn agree_with_maps(
            ops in prop::collection::vec((0..4usize, 0..9u16, prop::option::of(any::<bool>()), 0..1024u16), 0..120),
        ) {
            // Both ends of the range of slots.
            let slot_of = |n: u16| Slot::new(if n < 5 { n } else { 511 - n }).unwrap();
            let mut sets = Sets::new();
            let mut blocks = [Pods::NOBODY; 4];
            let mut references: [BTreeMap<Slot, bool>; 4] = Default::default();
            for (n, slot, state, anew) in ops {
                let slot = slot_of(slot);
                if anew < 256 {
                    for slot in std::mem::take(&mut references[n]).into_keys() {
                        blocks[n].set(slot, None, &mut sets);
                    }
                    references[n] = (0..8).filter(|bit| anew >> bit & 1 != 0).map(|bit| (slot_of(bit), bit % 2 == 0)).collect();
                    let mut pair = Pair::default();
                    references[n].iter().for_each(|(&slot, &visible)| pair.set(slot, Some(visible)));
                    blocks[n] = Pods::new(&pair, &mut sets);
                }
                blocks[n].set(slot, state, &mut sets);
                match state {
                    Some(visible) => { references[n].insert(slot, visible); }
                    None => { references[n].remove(&slot); }
                }
                for (pods, reference) in blocks.iter().zip(&references) {
                    prop_assert_eq!(pods.is_empty(), reference.is_empty());
                    prop_assert_eq!(pods.of(slot, &sets), reference.get(&slot).copied());
                    prop_assert_eq!(pods.stored(&sets), reference.keys().copied().collect::<PodSet>());
                    let visible: PodSet = reference.iter().filter(|&(_, &is)| is).map(|(&slot, _)| slot).collect();
                    prop_assert_eq!(pods.visible(&PodSet::FULL, &sets), visible);
                    let others = PodSet::FULL.minus(&[slot].into_iter().collect());
                    prop_assert_eq!(pods.visible(&others, &sets), visible.intersect(&others));
                }
                let shared: Vec<_> = references.iter().filter(|reference| reference.len() > LANES).collect();
                let distinct = shared.iter().enumerate().filter(|(n, of)| !shared[..*n].contains(of)).count();
                prop_assert_eq!(sets.len(), distinct);
            }
        }
    }
}
