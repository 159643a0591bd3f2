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
    /// Something that nobody can read. Every replica passes it, and nobody ever overwrites it: had it been an entry,
    /// somebody might have applied it.
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

    /// Looks at a position. One hostcall.
    pub(crate) fn look(&self, host: &impl SharedData, keys: &Keys, seq: u64) -> HostResult<Found> {
        let Some(there) = host.shared_get(&self.key(keys, seq))? else {
            return Ok(if seq < self.ring { Found::End(Expect::Absent) } else { Found::Gone });
        };
        let is = match entry::read(&there.value) {
            entry::Read::Entry(entry) if entry.seq == seq => return Ok(Found::Entry(entry)),
            entry::Read::Entry(Entry { seq, .. }) | entry::Read::Malformed(seq) => seq,
            entry::Read::Garbage => return Ok(Found::Unreadable),
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
