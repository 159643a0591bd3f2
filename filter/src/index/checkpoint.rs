//! The rolling checkpoint: what lets the ring be overwritten, and a new VM begin.
//!
//! The holder of the lease writes shard after shard, round and round, as fast as the log grows: a whole pass takes half
//! a lap of the ring. Shards are written with compare-and-swap and never replaced by an older one, so that a holder
//! that was stalled while another took over does no harm. The lowest position over all shards is the floor: the ring
//! never overwrites what is above it.

use crate::host::{Expect, HostResult, SharedData, Write};

use super::keys::Keys;
use super::log::Log;
use super::{Replica, shard};

/// Writes the checkpoint.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    /// Lower bounds of what each shard contains.
    positions: Vec<u64>,
    next: usize,
    /// Position up to which shards were paid for.
    paid: u64,
}

impl Checkpointer {
    pub(crate) fn new(shards: usize) -> Self {
        Self { positions: vec![0; shards.max(1)], next: 0, paid: 0 }
    }

    /// Writes as many shards as the log's growth since the last call asks for, at most `most`. Says how many.
    pub(crate) fn run(
        &mut self,
        host: &impl SharedData,
        keys: &Keys,
        log: &mut Log,
        replica: &Replica,
        most: usize,
    ) -> HostResult<usize> {
        let shards = self.positions.len() as u64;
        let each = (log.ring() / 2 / shards).max(1);
        let position = replica.position();
        // More than a pass is never owed; near the floor all of it is.
        self.paid = self.paid.max(position.saturating_sub(each.saturating_mul(shards)));
        let hurry = log.room(position) < log.ring() / 4;
        let mut written = 0;
        for _ in 0..most.min(self.positions.len()) {
            if !hurry && position.saturating_sub(self.paid) < each {
                break;
            }
            if !self.write(host, keys, replica)? {
                break;
            }
            written += 1;
            self.paid = self.paid.saturating_add(each).min(position);
        }
        let floor = self.positions.iter().copied().min().unwrap_or(0);
        if floor > log.floor() {
            log.raise_floor(host, keys, floor)?;
        }
        Ok(written)
    }

    /// Writes the next shard. `false` where somebody else is writing it.
    fn write(&mut self, host: &impl SharedData, keys: &Keys, replica: &Replica) -> HostResult<bool> {
        if replica.missing().contains(&self.next) {
            // Nobody has it, so there is nothing that the ring would have to keep for it.
            self.passed(replica.position());
            return Ok(true);
        }
        let key = keys.shard(self.next);
        let there = host.shared_get(&key)?;
        let expect = there.as_ref().map_or(Expect::Absent, |there| Expect::Version(there.cas));
        let mut contains = there.and_then(|there| shard::position(&there.value));
        if contains.is_none_or(|contains| contains < replica.position()) {
            match host.shared_set(&key, &shard::write(replica, self.next), expect)? {
                Write::Done => contains = Some(replica.position()),
                Write::Conflict => return Ok(false),
            }
        }
        self.passed(contains.unwrap_or(0));
        Ok(true)
    }

    /// The next shard contains this position, at least.
    fn passed(&mut self, position: u64) {
        if let Some(known) = self.positions.get_mut(self.next) {
            *known = position.max(*known);
        }
        self.next = (self.next + 1) % self.positions.len().max(1);
    }
}
