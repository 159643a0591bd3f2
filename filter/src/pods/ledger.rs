//! A ledger: what one life of a VM has in flight, in absolute numbers.
//!
//! A VM that traps is told of no end of its streams, so counters that go up and down would leak. A ledger is replaced
//! whole at each writing, and one that is not written any more is left out of the sum.

use crate::index::wire::{self, Put, Reader};
use crate::index::{FORMAT, MAX_SLOTS, PodRef, PodSet};

/// Most pods in one ledger: every slot under two generations.
const MOST: usize = 2 * MAX_SLOTS;

/// What one life of a VM has in flight.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// The life.
    pub life: u64,
    /// Position of the log up to which the life's own `Routed` entries are in these numbers.
    pub position: u64,
    /// Slots of the pods that the life's configurations name.
    pub in_use: PodSet,
    /// Slots of the pods of which the life knows by events what they hold.
    pub exact: PodSet,
    /// Requests in flight by pod.
    pub in_flight: Vec<(PodRef, u32)>,
}

impl Ledger {
    /// The bytes of a ledger. What exceeds two entries for each slot is left out.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = wire::begin(160 + self.in_flight.len() * 8);
        out.put_u8(FORMAT);
        out.put_u64(self.life);
        out.put_u64(self.position);
        out.put_u64s(self.in_use.words());
        out.put_u64s(self.exact.words());
        for (pod, count) in self.in_flight.iter().take(MOST) {
            pod.put(&mut out);
            out.put_u32(*count);
        }
        wire::seal(&mut out);
        out
    }

    /// Reads a ledger; `None` where the bytes are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut from = wire::open(bytes)?;
        (from.u8()? == FORMAT).then_some(())?;
        let (life, position) = (from.u64()?, from.u64()?);
        let mut set = || Some(PodSet::from_words(from.u64s(MAX_SLOTS / 64)?.try_into().ok()?));
        let (in_use, exact) = (set()?, set()?);
        (from.left() <= MOST * 8 && from.left().is_multiple_of(8)).then_some(())?;
        let entry = |from: &mut Reader<'_>| Some((PodRef::read(from)?, from.u32()?));
        let in_flight = (0..from.left() / 8).map(|_| entry(&mut from)).collect::<Option<_>>()?;
        Some(Self { life, position, in_use, exact, in_flight })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Slot;
    use proptest::prelude::*;

    fn pod() -> impl Strategy<Value = PodRef> {
        (0u16..512, any::<u16>())
            .prop_map(|(slot, generation)| PodRef { slot: Slot::new(slot).unwrap(), generation })
    }

    proptest! {
        #[test]
        fn a_ledger_reads_as_it_was_written(
            life: u64,
            position: u64,
            words: [[u64; 8]; 2],
            in_flight in prop::collection::vec((pod(), any::<u32>()), 0..1100),
        ) {
            let mut ledger = Ledger { life, position, in_use: PodSet::from_words(words[0]), exact: PodSet::from_words(words[1]), in_flight };
            let bytes = ledger.write();
            ledger.in_flight.truncate(MOST);
            prop_assert_eq!(Ledger::read(&bytes), Some(ledger));
            let cut = bytes.len() - 1;
            prop_assert_eq!(Ledger::read(&bytes[..cut]), None);
        }

        #[test]
        fn hostile_bytes_are_refused_or_are_a_ledger(mut content in prop::collection::vec(any::<u8>(), 0..300), format: bool) {
            if let (true, Some(first)) = (format, content.first_mut()) {
                *first = FORMAT;
            }
            let mut bytes = wire::begin(0);
            bytes.extend(&content);
            wire::seal(&mut bytes);
            if let Some(ledger) = Ledger::read(&bytes) {
                prop_assert_eq!(ledger.write(), bytes);
            }
        }
    }
}
