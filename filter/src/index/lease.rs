//! Who does the housekeeping: at most one VM at a time, mostly.
//!
//! The holder writes its life into one key at each of its ticks; each write changes the key's version, which is its
//! heartbeat. Who saw no change for [`PATIENCE`] ticks of its own takes over. No clock is involved: clocks jump.
//!
//! Two VMs can believe for a moment that they hold the lease. What the holder does is safe all the same: it appends
//! to the log or replaces what it has read.

use crate::host::{Cas, Expect, HostResult, SharedData, Write};

use super::keys::Keys;
use super::wire::{self, Put};

/// Ticks without a heartbeat after which the lease is free.
pub(crate) const PATIENCE: u32 = 40;

/// The lease, as one VM sees it.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    seen: Option<Cas>,
    unchanged: u32,
}

impl Lease {
    /// Renews the lease, takes it where it is free, or watches its holder. Call it once a tick. Says whether `life`
    /// holds it now.
    pub(crate) fn tick(&mut self, host: &impl SharedData, keys: &Keys, life: u64) -> HostResult<bool> {
        let key = keys.lease();
        let there = host.shared_get(&key)?;
        let (expect, holder) = match &there {
            None => (Expect::Absent, None),
            Some(there) => (Expect::Version(there.cas), holder(&there.value)),
        };
        let seen = there.map(|there| there.cas);
        if seen == self.seen {
            self.unchanged = self.unchanged.saturating_add(1);
        } else {
            self.seen = seen;
            self.unchanged = 0;
        }
        if seen.is_some() && holder != Some(life) && self.unchanged < PATIENCE {
            return Ok(false);
        }
        let mut bytes = wire::begin(8);
        bytes.put_u64(life);
        wire::seal(&mut bytes);
        Ok(host.shared_set(&key, &bytes, expect)? == Write::Done)
    }
}

fn holder(bytes: &[u8]) -> Option<u64> {
    let mut from = wire::open(bytes)?;
    let life = from.u64()?;
    from.end().map(|()| life)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeShared;

    #[test]
    fn a_lease_is_held_while_its_holder_ticks_and_taken_over_after() {
        let (shared, keys) = (FakeShared::default(), Keys::new(1));
        let (mut first, mut second) = (Lease::default(), Lease::default());
        for _ in 0..200 {
            assert_eq!(first.tick(&shared, &keys, 1), Ok(true));
            assert_eq!(second.tick(&shared, &keys, 2), Ok(false));
        }
        for _ in 1..PATIENCE {
            assert_eq!(second.tick(&shared, &keys, 2), Ok(false));
        }
        assert_eq!(second.tick(&shared, &keys, 2), Ok(true));
        // The first was only stalled: it finds the other's heartbeat.
        assert_eq!(first.tick(&shared, &keys, 1), Ok(false));
        assert_eq!(second.tick(&shared, &keys, 2), Ok(true));
    }

    #[test]
    fn of_two_that_take_over_one_does() {
        let (shared, keys) = (FakeShared::default(), Keys::new(1));
        assert_eq!(Lease::default().tick(&shared, &keys, 1), Ok(true));
        let (mut second, mut third) = (Lease::default(), Lease::default());
        let mut held = (false, false);
        for _ in 0..=PATIENCE {
            held = (second.tick(&shared, &keys, 2).unwrap(), third.tick(&shared, &keys, 3).unwrap());
        }
        assert_eq!(held, (true, false));
    }

    #[test]
    fn garbage_is_a_holder_that_never_ticks() {
        let (shared, keys) = (FakeShared::default(), Keys::new(1));
        let _ = shared.shared_set(&keys.lease(), b"garbage", Expect::Anything);
        let mut lease = Lease::default();
        let ticks = (0..).take_while(|_| !lease.tick(&shared, &keys, 1).unwrap()).count();
        assert_eq!(ticks as u32, PATIENCE);
    }
}
