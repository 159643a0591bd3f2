//! The pods of one block in eight bytes.
//!
//! Most blocks are on one or two pods, and two bitmaps for each block would take 128 bytes. So up to four pods are
//! kept in place, as four lanes of 16 bits: slot + 1, and a bit that says whether the block is visible for it. A
//! block on more has its two bitmaps in a slab.

use super::super::{PodSet, Slot};
use super::slab::{Item, NIL, Slab};

const LANES: u32 = 4;
const LANE_BITS: u32 = 16;
const SLOT: u64 = 0x3FF;
const VISIBLE: u64 = 0x400;
/// Set where the low half is an index into the slab. Lanes leave this bit free.
const SPILLED: u64 = 1 << 63;

/// Fewer pods than this come back from the slab. Below four, so that a block between the two does not move to and fro.
const RETURN_BELOW: usize = 3;

/// The bitmaps of a block on many pods.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Sets {
    stored: PodSet,
    visible: PodSet,
}

impl Item for Sets {
    fn vacant(next: u32) -> Self {
        Self { stored: PodSet::from_words([u64::from(next); 8]), visible: PodSet::EMPTY }
    }

    fn next_vacant(&self) -> u32 {
        self.stored.words().first().map_or(NIL, |&word| word as u32)
    }
}

/// The pods of one block.
#[derive(Debug, Clone, Copy)]
pub struct Pods(u64);

impl Pods {
    /// No pod.
    pub const NOBODY: Self = Self(0);

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the pod stores the block, and if so whether it is visible for it.
    #[inline]
    pub fn of(self, slot: Slot, slab: &Slab<Sets>) -> Option<bool> {
        if let Some(index) = self.spilled() {
            let sets = slab.get(index)?;
            return sets.stored.contains(slot).then(|| sets.visible.contains(slot));
        }
        let (_, lane) = self.lane_of(slot)?;
        Some(lane & VISIBLE != 0)
    }

    /// Adds a pod that does not store the block. `false` where the slab is full.
    pub fn add(&mut self, slot: Slot, visible: bool, slab: &mut Slab<Sets>) -> bool {
        if self.spilled().is_none() {
            let lane = lane(slot, visible);
            if let Some((shift, _)) = self.lanes().find(|&(_, lane)| lane == 0) {
                self.0 |= lane << shift;
                return true;
            }
            let sets = Sets { stored: self.stored(slab), visible: self.visible(slab) };
            let Some(index) = slab.insert(sets) else { return false };
            self.0 = SPILLED | u64::from(index);
        }
        let Some(sets) = self.spilled().and_then(|index| slab.get_mut(index)) else { return false };
        sets.stored.insert(slot);
        if visible {
            sets.visible.insert(slot);
        }
        true
    }

    /// Takes a pod out.
    pub fn remove(&mut self, slot: Slot, slab: &mut Slab<Sets>) {
        let Some(index) = self.spilled() else {
            if let Some((shift, lane)) = self.lane_of(slot) {
                self.0 &= !(lane << shift);
            }
            return;
        };
        let Some(sets) = slab.get_mut(index) else { return };
        sets.stored.remove(slot);
        sets.visible.remove(slot);
        if sets.stored.len() < RETURN_BELOW {
            let sets = *sets;
            slab.free(index);
            self.0 = 0;
            for slot in sets.stored.iter() {
                self.add(slot, sets.visible.contains(slot), slab);
            }
        }
    }

    /// Sets whether the block is visible for a pod. Says whether that changed: never where the pod does not store it.
    #[inline]
    pub fn show(&mut self, slot: Slot, visible: bool, slab: &mut Slab<Sets>) -> bool {
        if let Some(index) = self.spilled() {
            let Some(sets) = slab.get_mut(index).filter(|sets| sets.stored.contains(slot)) else {
                return false;
            };
            return if visible { sets.visible.insert(slot) } else { sets.visible.remove(slot) };
        }
        let Some((shift, lane)) = self.lane_of(slot) else { return false };
        let changed = (lane & VISIBLE != 0) != visible;
        if changed {
            self.0 ^= VISIBLE << shift;
        }
        changed
    }

    /// The pods that store the block.
    #[inline]
    pub fn stored(self, slab: &Slab<Sets>) -> PodSet {
        self.set(slab, |sets| sets.stored, |_| true)
    }

    /// The pods for which the block is visible.
    #[inline]
    pub fn visible(self, slab: &Slab<Sets>) -> PodSet {
        self.set(slab, |sets| sets.visible, |lane| lane & VISIBLE != 0)
    }

    /// Starts to fetch what [`Pods::visible`] will read.
    #[inline]
    pub fn touch(self, slab: &Slab<Sets>) -> u32 {
        let sets = self.spilled().and_then(|index| slab.get(index));
        sets.and_then(|sets| sets.visible.words().first()).map_or(0, |&word| word as u32)
    }

    #[inline]
    fn set(self, slab: &Slab<Sets>, of: fn(&Sets) -> PodSet, with: fn(u64) -> bool) -> PodSet {
        if let Some(index) = self.spilled() {
            return slab.get(index).map_or(PodSet::EMPTY, of);
        }
        self.lanes().filter(|&(_, lane)| with(lane)).filter_map(|(_, lane)| slot_in(lane)).collect()
    }

    const fn spilled(self) -> Option<u32> {
        if self.0 & SPILLED != 0 { Some(self.0 as u32) } else { None }
    }

    /// Shift and content of each lane, empty ones too.
    #[inline]
    fn lanes(self) -> impl Iterator<Item = (u32, u64)> {
        (0..LANES).map(move |lane| (lane * LANE_BITS, (self.0 >> (lane * LANE_BITS)) & (SLOT | VISIBLE)))
    }

    #[inline]
    fn lane_of(self, slot: Slot) -> Option<(u32, u64)> {
        let code = u64::from(slot.number()) + 1;
        self.lanes().find(|&(_, lane)| lane & SLOT == code)
    }
}

const fn lane(slot: Slot, visible: bool) -> u64 {
    (slot.number() as u64 + 1) | if visible { VISIBLE } else { 0 }
}

#[inline]
fn slot_in(lane: u64) -> Option<Slot> {
    Slot::new(((lane & SLOT) as u16).checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_map(ops in prop::collection::vec((0..12u16, any::<bool>(), 0..3u8), 0..80)) {
            let (mut slab, mut pods, mut reference) = (Slab::new(), Pods::NOBODY, BTreeMap::new());
            for (n, visible, op) in ops {
                // Both ends of the range of slots.
                let slot = Slot::new(if n < 6 { n } else { 511 - n }).unwrap();
                match op {
                    0 if !reference.contains_key(&slot) => {
                        prop_assert!(pods.add(slot, visible, &mut slab));
                        reference.insert(slot, visible);
                    }
                    1 => {
                        pods.remove(slot, &mut slab);
                        reference.remove(&slot);
                    }
                    _ => {
                        let changes = reference.get(&slot).is_some_and(|&is| is != visible);
                        prop_assert_eq!(pods.show(slot, visible, &mut slab), changes);
                        reference.entry(slot).and_modify(|is| *is = visible);
                    }
                }
                prop_assert_eq!(pods.is_empty(), reference.is_empty());
                prop_assert_eq!(pods.of(slot, &slab), reference.get(&slot).copied());
                prop_assert_eq!(pods.stored(&slab), reference.keys().copied().collect::<PodSet>());
                let visible = reference.iter().filter(|&(_, &is)| is).map(|(&slot, _)| slot).collect::<PodSet>();
                prop_assert_eq!(pods.visible(&slab), visible);
            }
        }
    }

    #[test]
    fn the_slab_is_given_back() {
        let mut slab = Slab::new();
        for _ in 0..10_000 {
            let mut pods = Pods::NOBODY;
            Slot::all().take(40).for_each(|slot| assert!(pods.add(slot, true, &mut slab)));
            Slot::all().take(40).for_each(|slot| pods.remove(slot, &mut slab));
            assert!(pods.is_empty());
        }
        assert_eq!(slab.iter().count(), 1);
    }
}
