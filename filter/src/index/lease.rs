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
