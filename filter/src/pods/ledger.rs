//! A ledger: what one life of a VM has in flight, in absolute numbers.
//!
//! A VM that traps is told of no end of its streams, so counters that go up and down would leak. A ledger is replaced
//! whole at each writing, and one that is not written any more is left out of the sum.

use super::Account;
use crate::index::wire::{self, Put};
use crate::index::{FORMAT, MAX_SLOTS, PodRef, PodSet};

/// Most pods in one ledger: every slot under two generations.
const MOST: usize = 2 * MAX_SLOTS;
/// Most models of which requests are counted.
pub const MOST_MODELS: usize = 64;

/// What one life of a VM has in flight.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// The life.
    pub life: u64,
    /// Position of the log up to which the life's own `Routed` entries are in these numbers.
    pub position: u64,
    /// Slots of the pods that the life's configurations name.
    pub in_use: PodSet,
    /// Slots of the pods of which the life knows by events what they hold.
    pub exact: PodSet,
    /// What the life has under way, and what it learnt, by pod.
    pub accounts: Vec<(PodRef, Account)>,
    /// Requests in flight of models that are counted, by the model's digest.
    pub models: Vec<(u64, u32)>,
}

impl Ledger {
    /// The bytes of a ledger. What exceeds two entries for each slot is left out.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = wire::begin(160 + self.accounts.len() * (PodRef::BYTES + Account::BYTES));
        out.put_u8(FORMAT);
        out.put_u64(self.life);
        out.put_u64(self.position);
        out.put_u64s(self.in_use.words());
        out.put_u64s(self.exact.words());
        let models = self.models.get(..MOST_MODELS).unwrap_or(&self.models);
        out.put_u8(u8::try_from(models.len()).unwrap_or(u8::MAX));
        for (model, count) in models {
            out.put_u64(*model);
            out.put_u32(*count);
        }
        for (pod, account) in self.accounts.iter().take(MOST) {
            pod.put(&mut out);
            account.put(&mut out);
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
        let count = usize::from(from.u8()?);
        (count <= MOST_MODELS).then_some(())?;
        let models = (0..count).map(|_| Some((from.u64()?, from.u32()?))).collect::<Option<_>>()?;
        let each = PodRef::BYTES + Account::BYTES;
        (from.left() <= MOST * each && from.left().is_multiple_of(each)).then_some(())?;
        let accounts = (0..from.left() / each)
            .map(|_| Some((PodRef::read(&mut from)?, Account::read(&mut from)?)))
            .collect::<Option<_>>()?;
        Some(Self { life, position, in_use, exact, accounts, models })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Slot;
    use crate::pods::{Pace, Results, Work};
    use proptest::prelude::*;

    fn pod() -> impl Strategy<Value = PodRef> {
        (0u16..512, any::<u16>())
            .prop_map(|(slot, generation)| PodRef { slot: Slot::new(slot).unwrap(), generation })
    }

    fn account() -> impl Strategy<Value = Account> {
        let sum = || 0.0..1e6_f32;
        (any::<[u32; 4]>(), [sum(), sum(), sum(), sum(), sum()], [sum(), sum()], any::<bool>()).prop_map(
            |([requests, waiting, prefill, context], pace, [answers, failures], open)| {
                let [count, work, seconds, work_squared, work_seconds] = pace;
                Account {
                    work: Work { requests, waiting, prefill, context },
                    pace: Pace { count, work, seconds, work_squared, work_seconds },
                    results: Results { answers, failures },
                    open,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_ledger_reads_as_it_was_written(
            life: u64,
            position: u64,
            words: [[u64; 8]; 2],
            accounts in prop::collection::vec((pod(), account()), 0..1100),
            models: Vec<(u64, u32)>,
        ) {
            let mut ledger = Ledger {
                life,
                position,
                in_use: PodSet::from_words(words[0]),
                exact: PodSet::from_words(words[1]),
                accounts,
                models,
            };
            let bytes = ledger.write();
            ledger.accounts.truncate(MOST);
            ledger.models.truncate(MOST_MODELS);
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
