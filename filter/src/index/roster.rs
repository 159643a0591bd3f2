//! Which pod has which slot: the pods table of one replica.
//!
//! A slot belongs to a pod's identity. Its generation counts how often it was freed, so that what speaks of an earlier
//! holder is known by its generation. Changed by entries of the log alone, hence equal in all replicas.

use std::collections::BTreeMap;

use super::wire::{Put, Reader};
use super::{Generation, MAX_SLOTS, PodRef, PodSet, Slot};

/// What a slot is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotState {
    /// Nobody's.
    #[default]
    Free,
    /// A pod's, and in answers.
    Active,
    /// Was a pod's; its blocks are being wiped.
    Leaving {
        /// Position of the entry by which it left.
        at: u64,
        /// When that was, in seconds of the log's clock.
        since: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Seat {
    generation: Generation,
    state: SlotState,
    id: Box<str>,
}

/// The slots and their pods.
#[derive(Debug, Clone)]
pub struct Roster {
    seats: Vec<Seat>,
    by_id: BTreeMap<Box<str>, Slot>,
    active: PodSet,
    leaving: PodSet,
    version: u64,
}

impl Default for Roster {
    fn default() -> Self {
        Self {
            seats: vec![Seat::default(); MAX_SLOTS],
            by_id: BTreeMap::new(),
            active: PodSet::EMPTY,
            leaving: PodSet::EMPTY,
            version: 0,
        }
    }
}

impl Roster {
    /// The slot of an active pod.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<PodRef> {
        self.by_id.get(id).map(|slot| self.at(*slot))
    }

    /// A slot under its present generation.
    #[must_use]
    pub fn at(&self, slot: Slot) -> PodRef {
        PodRef { slot, generation: self.seats.get(slot.index()).map_or(0, |seat| seat.generation) }
    }

    /// Unequal to that of any other state this roster was in. Replicas that are equal may differ in it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replaces `before`, and has a version of its own.
    pub(super) fn succeed(&mut self, before: &Self) {
        self.version = before.version.max(self.version) + 1;
    }

    /// Slots that a new pod could take.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        MAX_SLOTS.saturating_sub(self.active.len() + self.leaving.len())
    }

    /// Slots of the pods that answers may name.
    #[must_use]
    pub fn active(&self) -> &PodSet {
        &self.active
    }

    /// Slots that are being wiped.
    #[must_use]
    pub fn leaving(&self) -> &PodSet {
        &self.leaving
    }

    /// What a slot is doing.
    #[must_use]
    pub fn state(&self, slot: Slot) -> SlotState {
        self.seats.get(slot.index()).map_or(SlotState::Free, |seat| seat.state)
    }

    /// The pod that has, or last had, a slot.
    #[must_use]
    pub fn id(&self, slot: Slot) -> &str {
        self.seats.get(slot.index()).map_or("", |seat| &seat.id)
    }

    /// Whether this is an active pod, under its present generation.
    #[must_use]
    pub fn is_active(&self, pod: PodRef) -> bool {
        self.active.contains(pod.slot) && self.at(pod.slot) == pod
    }

    /// Gives a pod the lowest free slot. `Ok(false)` where it has one already; `Err` where none is free.
    pub(super) fn join(&mut self, id: &str) -> Result<bool, NoSlot> {
        if self.by_id.contains_key(id) {
            return Ok(false);
        }
        let slot = Slot::all().find(|slot| self.state(*slot) == SlotState::Free).ok_or(NoSlot)?;
        let seat = self.seats.get_mut(slot.index()).ok_or(NoSlot)?;
        seat.state = SlotState::Active;
        seat.id = id.into();
        self.by_id.insert(id.into(), slot);
        self.active.insert(slot);
        self.version += 1;
        Ok(true)
    }

    /// Takes an active pod out of answers. Says whether it was one.
    pub(super) fn leave(&mut self, pod: PodRef, at: u64, since: u32) -> bool {
        if !self.is_active(pod) {
            return false;
        }
        if let Some(seat) = self.seats.get_mut(pod.slot.index()) {
            seat.state = SlotState::Leaving { at, since };
            self.by_id.remove(&seat.id);
        }
        self.active.remove(pod.slot);
        self.leaving.insert(pod.slot);
        self.version += 1;
        true
    }

    /// Frees a leaving slot under the next generation. Says whether it was leaving.
    pub(super) fn free(&mut self, pod: PodRef) -> bool {
        if !self.leaving.contains(pod.slot) || self.at(pod.slot) != pod {
            return false;
        }
        if let Some(seat) = self.seats.get_mut(pod.slot.index()) {
            *seat = Seat { generation: pod.generation.wrapping_add(1), ..Seat::default() };
        }
        self.leaving.remove(pod.slot);
        self.version += 1;
        true
    }

    /// Appends the table to a value. Slots that were never used are left out.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let used = || self.seats.iter().zip(Slot::all()).filter(|(seat, _)| **seat != Seat::default());
        out.put_u16(u16::try_from(used().count()).unwrap_or(u16::MAX));
        for (seat, slot) in used() {
            self.at(slot).put(out);
            match seat.state {
                SlotState::Free => out.put_u8(0),
                SlotState::Active => out.put_u8(1),
                SlotState::Leaving { at, since } => {
                    out.put_u8(2);
                    out.put_u64(at);
                    out.put_u32(since);
                }
            }
            out.put_text(&seat.id);
        }
    }

    /// Reads what [`Roster::put`] wrote. `None` for anything else.
    pub(super) fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut roster = Self::default();
        let mut next = 0;
        for _ in 0..from.u16()? {
            let PodRef { slot, generation } = PodRef::read(from)?;
            // Ascending: no slot comes twice.
            slot.index().checked_sub(next)?;
            next = slot.index().saturating_add(1);
            let state = match from.u8()? {
                0 => SlotState::Free,
                1 => SlotState::Active,
                2 => SlotState::Leaving { at: from.u64()?, since: from.u32()? },
                _ => return None,
            };
            let id: Box<str> = from.text()?.into();
            match state {
                SlotState::Free => (id.is_empty()).then_some(())?,
                SlotState::Leaving { .. } => {
                    roster.leaving.insert(slot);
                }
                SlotState::Active => {
                    roster.active.insert(slot);
                    (!id.is_empty() && roster.by_id.insert(id.clone(), slot).is_none()).then_some(())?;
                }
            }
            *roster.seats.get_mut(slot.index())? = Seat { generation, state, id };
        }
        Some(roster)
    }
}

/// Every slot is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSlot;
