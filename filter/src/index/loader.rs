//! Loading a checkpoint, a slice at a time.
//!
//! The log goes on meanwhile, and so does the checkpoint: each shard is taken as it is found. If the ring has
//! overwritten the lowest position by the time the replay gets there, loading begins anew.

use crate::host::{HostResult, SharedData};

use super::keys::Keys;
use super::log::read_floor;
use super::replica::State;
use super::{IndexSettings, Replica, Table, shard};

/// A checkpoint that is being read.
#[derive(Debug)]
pub(crate) struct Loader {
    table: Table,
    /// `None` where a shard could not be read.
    positions: Vec<Option<u64>>,
    shards: usize,
    floor: u64,
    lowest: Option<State>,
    unreadable: usize,
}

impl Loader {
    /// Begins. One hostcall.
    pub(crate) fn begin(
        host: &impl SharedData,
        keys: &Keys,
        &IndexSettings { max_blocks, shards, secret, .. }: &IndexSettings,
    ) -> HostResult<Self> {
        let floor = read_floor(host, keys)?;
        let mut loader = Self {
            table: Table::with_secret(max_blocks, secret),
            positions: Vec::new(),
            shards,
            floor: floor.unwrap_or(0),
            lowest: None,
            unreadable: 0,
        };
        if floor.is_none() {
            // Nothing was ever overwritten: begin with the log itself, at once.
            loader.positions = vec![Some(0); shards];
            loader.lowest = Some(State::default());
        }
        Ok(loader)
    }

    /// Reads shards until about `bytes` were read. Says whether all are.
    pub(crate) fn step(&mut self, host: &impl SharedData, keys: &Keys, bytes: usize) -> HostResult<bool> {
        let mut read = 0;
        while self.positions.len() < self.shards && read < bytes {
            let number = self.positions.len();
            let there = host.shared_get(&keys.shard(number))?;
            // A missing key costs a call, too.
            read += 1024;
            let state = match there {
                Some(there) => {
                    read += there.value.len();
                    shard::read(&there.value, number, self.shards, &mut self.table)
                }
                // Never written, so everything it lacks is in the ring.
                None if self.floor == 0 => Some(State::default()),
                None => None,
            };
            self.unreadable += usize::from(state.is_none());
            self.positions.push(state.as_ref().map(|state| state.position));
            if let Some(state) = state
                && self.lowest.as_ref().is_none_or(|lowest| state.position < lowest.position)
            {
                self.lowest = Some(state);
            }
        }
        Ok(self.is_done())
    }

    pub(crate) fn is_done(&self) -> bool {
        self.positions.len() >= self.shards
    }

    /// Shards that could not be read.
    pub(crate) fn unreadable(&self) -> usize {
        self.unreadable
    }

    /// The replica that the shards make. `None` where none of them could be read, or some are still to be read.
    pub(crate) fn finish(self) -> Option<Replica> {
        self.is_done().then_some(())?;
        Some(Replica::assemble(self.lowest?, self.table, &self.positions))
    }
}
