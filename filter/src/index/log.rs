//! The replicated log: a ring of keys in shared data.
//!
//! Nothing is reserved. Position `s` of the log has the key `s % ring`, and an entry commits by one compare-and-swap
//! on it, against the version that was read with the entry of the lap before (or, on the first lap, against absence).
//! A VM that dies at any point leaves a whole entry or none.
//!
//! No key says where the log ends. Whoever follows it has to look at its next position anyhow: that one read finds the
//! next entry, or else the version that an append needs. So a log in which nothing is new costs a reader one hostcall,
//! and an append one more.

use crate::host::{Expect, HostResult, SharedData, Write};

use super::entry::{self, Entry};
use super::keys::Keys;
use super::wire::{self, Put};

/// What is at a position of the log.
#[derive(Debug)]
pub(crate) enum Found {
    /// Its entry.
    Entry(Entry),
    /// Nothing yet: the log ends here. An append must expect this.
    End(Expect),
    /// Something that nobody can read. Every replica passes it, and nobody overwrites what isn't an entry at all.
    Unreadable,
    /// The entry is gone, or never was: whoever wants it has to begin with the checkpoint.
    Gone,
}

/// The log, as one VM sees it.
#[derive(Debug)]
pub(crate) struct Log {
    ring: u64,
    /// The lowest position that the checkpoint contained when the floor was read last. It only rises.
    floor: u64,
}

impl Log {
    pub(crate) fn new(ring: u64) -> Self {
        Self { ring: ring.max(1), floor: 0 }
    }

    /// Places of the ring.
    pub(crate) fn ring(&self) -> u64 {
        self.ring
    }

    /// The floor, as far as is known.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    fn key(&self, keys: &Keys, seq: u64) -> String {
        keys.log(seq % self.ring)
    }

    /// Looks at a position. One hostcall, and another where it can't be read.
    pub(crate) fn look(&mut self, host: &impl SharedData, keys: &Keys, seq: u64) -> HostResult<Found> {
        let Some(there) = host.shared_get(&self.key(keys, seq))? else {
            return Ok(if seq < self.ring { Found::End(Expect::Absent) } else { Found::Gone });
        };
        let is = match entry::read(&there.value) {
            entry::Read::Entry(entry) if entry.seq == seq => return Ok(Found::Entry(entry)),
            entry::Read::Entry(Entry { seq, .. }) | entry::Read::Malformed(seq) => seq,
            // Which lap put it there? A place is overwritten only once the floor is above its position.
            entry::Read::Garbage => {
                self.floor = self.floor.max(read_floor(host, keys)?.unwrap_or(0));
                return Ok(if seq < self.floor { Found::Gone } else { Found::Unreadable });
            }
        };
        Ok(match is {
            _ if is == seq || is % self.ring != seq % self.ring => Found::Unreadable,
            _ if is.checked_add(self.ring) == Some(seq) => Found::End(Expect::Version(there.cas)),
            _ => Found::Gone,
        })
    }

    /// Puts an entry at the end of the log. One hostcall. `expect` is what [`Found::End`] said of that position.
    pub(crate) fn commit(
        &self,
        host: &impl SharedData,
        keys: &Keys,
        seq: u64,
        expect: Expect,
        bytes: &[u8],
    ) -> HostResult<Write> {
        host.shared_set(&self.key(keys, seq), bytes, expect)
    }

    /// Whether the entry that would be overwritten at this position is in every shard of the checkpoint. A hostcall
    /// only where the floor that is known says no.
    pub(crate) fn has_room(&mut self, host: &impl SharedData, keys: &Keys, seq: u64) -> HostResult<bool> {
        let free = |floor: u64| seq < floor.saturating_add(self.ring);
        if !free(self.floor) {
            self.floor = self.floor.max(read_floor(host, keys)?.unwrap_or(0));
        }
        Ok(free(self.floor))
    }

    /// Entries that can still be appended from this position on, as far as is known.
    pub(crate) fn room(&self, seq: u64) -> u64 {
        self.floor.saturating_add(self.ring).saturating_sub(seq)
    }

    /// Publishes that every shard of the checkpoint contains the log up to here. A lower floor never replaces a higher.
    pub(crate) fn raise_floor(&mut self, host: &impl SharedData, keys: &Keys, floor: u64) -> HostResult<()> {
        let key = keys.floor();
        let there = host.shared_get(&key)?;
        let known = there.as_ref().and_then(|there| parse_floor(&there.value)).unwrap_or(0);
        self.floor = self.floor.max(known);
        if floor > known {
            let mut bytes = wire::begin(8);
            bytes.put_u64(floor);
            wire::seal(&mut bytes);
            let expect = there.map_or(Expect::Absent, |there| Expect::Version(there.cas));
            if host.shared_set(&key, &bytes, expect)? == Write::Done {
                self.floor = self.floor.max(floor);
            }
        }
        Ok(())
    }
}

fn parse_floor(bytes: &[u8]) -> Option<u64> {
    let mut from = wire::open(bytes)?;
    let floor = from.u64()?;
    from.end().map(|()| floor)
}

/// The floor: `None` where no checkpoint was ever finished.
pub(crate) fn read_floor(host: &impl SharedData, keys: &Keys) -> HostResult<Option<u64>> {
    Ok(host.shared_get(&keys.floor())?.map(|there| parse_floor(&there.value).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeShared;

    const RING: u64 = 8;

    fn entry(seq: u64) -> Vec<u8> {
        entry::drafts(&[]).remove(0).stamp(seq, 1, 2).to_vec()
    }

    /// What a reader at position 20 sees where `value` is in its place.
    fn at_20(value: Option<&[u8]>, floor: u64) -> Found {
        let (shared, keys, mut log) = (FakeShared::default(), Keys::new(1), Log::new(RING));
        log.raise_floor(&shared, &keys, floor).unwrap();
        if let Some(value) = value {
            let _ = shared.shared_set(&keys.log(20 % RING), value, Expect::Anything);
        }
        Log::new(RING).look(&shared, &keys, 20).unwrap()
    }

    #[test]
    fn a_place_is_what_it_holds() {
        assert!(matches!(at_20(Some(&entry(20)), 13), Found::Entry(Entry { seq: 20, .. })));
        assert!(matches!(at_20(Some(&entry(12)), 13), Found::End(Expect::Version(_))));
        assert!(matches!(at_20(Some(&entry(28)), 21), Found::Gone), "lapped");
        assert!(matches!(at_20(Some(&entry(4)), 13), Found::Gone), "never written");
        assert!(matches!(at_20(None, 13), Found::Gone), "never written");
        assert!(matches!(at_20(Some(&entry(21)), 13), Found::Unreadable), "at another's place");
        assert!(matches!(at_20(Some(b"garbage"), 20), Found::Unreadable));
        assert!(matches!(at_20(Some(b""), 20), Found::Unreadable));
        assert!(matches!(at_20(Some(b"garbage"), 21), Found::Gone), "perhaps from a later lap");
    }

    #[test]
    fn an_entry_with_deltas_that_make_no_sense_is_passed_once_and_overwritten_later() {
        let malformed = |seq: u64| {
            let mut bytes = wire::begin(0);
            bytes.put_u8(entry::FORMAT);
            bytes.put_u64(seq);
            wire::seal(&mut bytes);
            bytes
        };
        assert!(matches!(at_20(Some(&malformed(20)), 13), Found::Unreadable));
        assert!(matches!(at_20(Some(&malformed(12)), 13), Found::End(Expect::Version(_))));
        assert!(matches!(at_20(Some(&malformed(28)), 13), Found::Gone));
    }

    #[test]
    fn the_first_lap_ends_at_an_absent_key() {
        let (shared, keys, mut log) = (FakeShared::default(), Keys::new(1), Log::new(RING));
        assert!(matches!(log.look(&shared, &keys, 7), Ok(Found::End(Expect::Absent))));
        assert!(matches!(log.look(&shared, &keys, 8), Ok(Found::Gone)));
    }

    #[test]
    fn there_is_room_up_to_a_lap_above_the_floor() {
        let (shared, keys, mut log) = (FakeShared::default(), Keys::new(1), Log::new(RING));
        assert_eq!((log.has_room(&shared, &keys, 7), log.has_room(&shared, &keys, 8)), (Ok(true), Ok(false)));
        log.raise_floor(&shared, &keys, 5).unwrap();
        log.raise_floor(&shared, &keys, 3).unwrap();
        let mut other = Log::new(RING);
        assert_eq!(
            (other.has_room(&shared, &keys, 12), other.has_room(&shared, &keys, 13)),
            (Ok(true), Ok(false))
        );
        assert_eq!(other.room(12), 1);
        let _ = shared.shared_set(&keys.floor(), b"garbage", Expect::Anything);
        assert_eq!(other.has_room(&shared, &keys, 13), Ok(false), "what is known still holds");
        log.raise_floor(&shared, &keys, 6).unwrap();
        assert_eq!(other.has_room(&shared, &keys, 13), Ok(true));
    }
}
