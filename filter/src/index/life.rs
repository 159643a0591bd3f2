//! Numbers that name the lives of VMs: no two are ever the same, though a VM has neither randomness nor a clock to trust.

use crate::host::{Expect, HostResult, SharedData, Write};

use super::keys::Keys;
use super::wire::{self, Put};

const ATTEMPTS: usize = 16;

/// Draws the number of a new life: one more than the last. `None` where others were faster each time.
pub(crate) fn draw(host: &impl SharedData, keys: &Keys) -> HostResult<Option<u64>> {
    let key = keys.lives();
    for _ in 0..ATTEMPTS {
        let (last, expect) = match host.shared_get(&key)? {
            None => (0, Expect::Absent),
            Some(there) => {
                // No version comes twice, so a count that begins with one repeats none that was lost.
                let lost = u64::from(there.cas.get()) << 32;
                (parse(&there.value).unwrap_or(lost), Expect::Version(there.cas))
            }
        };
        let life = last.wrapping_add(1);
        let mut bytes = wire::begin(8);
        bytes.put_u64(life);
        wire::seal(&mut bytes);
        if host.shared_set(&key, &bytes, expect)? == Write::Done {
            return Ok(Some(life));
        }
    }
    Ok(None)
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let mut from = wire::open(bytes)?;
    let life = from.u64()?;
    from.end().map(|()| life)
}
