//! One VM's copy of the index: a function of the log alone.
//!
//! A replica changes only by applying entries in order, so at one position all replicas are equal. That holds for one
//! that was loaded from a checkpoint whose shards were written at different positions, too: it begins at the lowest of
//! them, and every shard that is ahead stays frozen until the replay arrives at its position. For that, what an entry
//! does to a block may depend on the block's own shard, the pods and the clock, and on nothing else: not on how far a
//! wipe happens to have got in this VM, nor on the number of blocks in the whole table.

use crate::blocks::Kind;
use xxhash_rust::xxh3::xxh3_64;

use super::roster::{Roster, SlotState};
use super::wire::{Put, Reader};
use super::{Aging, BlockHash, Delta, Entry, PodRef, PodSet, SHARDS, Slot, Table};

/// The log's clock goes forward by at most this many seconds with one entry, whatever the wall clock did.
const LONGEST_STEP: u32 = 10;

/// What was ignored while entries were applied. Equal replicas may have counted differently: they began elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaCounts {
    /// Deltas about a pod whose generation has passed, or that isn't active.
    pub stale_deltas: u64,
    /// Blocks that were refused: their shard is full, or they are known with another parent.
    pub refused_blocks: u64,
    /// Pods that found no free slot.
    pub refused_pods: u64,
}

/// One VM's copy of the index.
#[derive(Debug)]
pub struct Replica {
    position: u64,
    clock: u32,
    last_time: u32,
    roster: Roster,
    table: Table,
    /// Shards of the checkpoint. Each is a run of shards of the table.
    shards: usize,
    /// Shards that were loaded from a later position, with that position; the nearest last.
    ahead: Vec<(u64, usize)>,
    /// Shards that could not be read, frozen until an entry says that they are lost.
    missing: Vec<usize>,
    aging: Option<Aging>,
    counts: ReplicaCounts,
}

impl Replica {
    /// The replica of an empty log. `shards` must divide the number of the table's shards.
    pub(crate) fn new(max_blocks: usize, shards: usize) -> Self {
        Self {
            position: 0,
            clock: 0,
            last_time: 0,
            roster: Roster::default(),
            table: Table::new(max_blocks),
            shards: shards.clamp(1, SHARDS),
            ahead: Vec::new(),
            missing: Vec::new(),
            aging: None,
            counts: ReplicaCounts::default(),
        }
    }

    /// What is left of a replica that lost the log: the pods, and the position up to which it knew everything.
    pub(crate) fn waiting(before: &Self) -> Self {
        let mut waiting = Self::new(0, before.shards);
        waiting.position = before.position;
        waiting.roster = before.roster.clone();
        waiting.succeed(before);
        waiting
    }

    /// Takes over what belongs to the VM, not to the log, from the replica that this one replaces.
    pub(crate) fn succeed(&mut self, before: &Self) {
        self.counts = before.counts;
        self.roster.succeed(&before.roster);
    }

    /// Number of entries applied, which is the position of the next.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The log's clock, in seconds. It advances with entries, and never goes back.
    #[must_use]
    pub fn clock(&self) -> u32 {
        self.clock
    }

    /// What the clock would be after an entry at this time of the wall clock.
    #[must_use]
    pub fn clock_at(&self, time: u32) -> u32 {
        self.clock.saturating_add(time.saturating_sub(self.last_time).min(LONGEST_STEP))
    }

    /// The wall clock that the last entry bore.
    #[must_use]
    pub fn last_time(&self) -> u32 {
        self.last_time
    }

    /// The pods.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The blocks.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What was ignored so far.
    #[must_use]
    pub fn counts(&self) -> ReplicaCounts {
        self.counts
    }

    /// Whether every shard is at the replica's position: only then does it equal the others.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.ahead.is_empty() && self.missing.is_empty()
    }

    /// Whether every shard that could be read is at the replica's position.
    #[must_use]
    pub fn is_whole_but_for_missing(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Shards whose checkpoint could not be read and that nobody has declared lost yet.
    #[must_use]
    pub fn missing(&self) -> &[usize] {
        &self.missing
    }

    /// A digest of the whole state. Replicas that are whole and at one position have the same.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        self.put_state(&mut bytes);
        bytes.put_u64(self.table.digest(&PodSet::FULL));
        xxh3_64(&bytes)
    }

    /// Applies the entry at the replica's position.
    pub fn apply(&mut self, entry: &Entry) {
        self.begin();
        self.clock = self.clock_at(entry.time);
        self.last_time = entry.time;
        for delta in &entry.deltas {
            self.apply_delta(delta);
        }
        self.end();
    }

    /// Passes an entry that nobody can read, as every replica does.
    pub(crate) fn skip(&mut self) {
        self.begin();
        self.end();
    }

    /// What belongs to the position, whatever its entry says: leaving pods lose the blocks of one shard.
    ///
    /// The wiping is paced by the log, not by time to spare, so that all replicas have wiped the same at one position.
    fn begin(&mut self) {
        let turn = self.position % self.shards as u64;
        for slot in self.roster.leaving().iter().collect::<Vec<_>>() {
            if let SlotState::Leaving { at, .. } = self.roster.state(slot)
                && self.position.saturating_sub(at) <= self.shards as u64
            {
                self.wipe(slot, turn as usize);
            }
        }
    }

    fn end(&mut self) {
        self.position = self.position.saturating_add(1);
        self.thaw_due();
    }

    fn apply_delta(&mut self, delta: &Delta) {
        match delta {
            Delta::Stored { pod, parent, depth, hashes } if self.roster.is_active(*pod) => {
                let stored = self.table.store(pod.slot, *parent, *depth, hashes, self.clock);
                self.counts.refused_blocks += stored.refused as u64;
                if let Some(aging) = &mut self.aging {
                    aging.stored(&self.table, pod.slot, hashes, self.clock, stored);
                }
            }
            Delta::Removed { pod, hashes } if self.roster.is_active(*pod) => {
                self.remove(pod.slot, hashes);
                // What an engine no longer holds nobody needs to guess.
                if self.table.held_of(pod.slot, Kind::Tokens) > 0 {
                    let cached = hashes.iter().filter(|hash| Kind::of(**hash) == Kind::Cached);
                    let guesses: Vec<_> = cached.map(|hash| Kind::Tokens.name(*hash)).collect();
                    self.remove(pod.slot, &guesses);
                }
            }
            Delta::Touched { pod, leaf } if self.roster.is_active(*pod) => {
                self.table.touch(*leaf, self.clock);
            }
            Delta::Cleared { pod } if self.roster.is_active(*pod) => self.clear(pod.slot),
            Delta::Left { pod } if self.roster.leave(*pod, self.position, self.clock) => {
                if let Some(aging) = &mut self.aging {
                    aging.forget(pod.slot);
                }
            }
            Delta::Freed { pod } if self.roster.free(*pod) => self.clear(pod.slot),
            Delta::Joined { id } => {
                if self.roster.join(id).is_err() {
                    self.counts.refused_pods += 1;
                }
            }
            Delta::Lost { shard } => self.lose(usize::from(*shard)),
            Delta::Routed { pod, .. } if self.roster.is_active(*pod) => {}
            _ => self.counts.stale_deltas += 1,
        }
    }

    fn remove(&mut self, slot: Slot, hashes: &[BlockHash]) {
        if let Some(aging) = &mut self.aging {
            aging.removing(&self.table, slot, hashes);
        }
        self.table.remove(slot, hashes);
    }

    fn clear(&mut self, slot: Slot) {
        for shard in 0..self.shards {
            self.wipe(slot, shard);
        }
        if let Some(aging) = &mut self.aging {
            aging.forget(slot);
        }
    }

    fn lose(&mut self, shard: usize) {
        if shard >= self.shards {
            return;
        }
        for slot in Slot::all().filter(|slot| self.table.held_by(*slot) > 0).collect::<Vec<_>>() {
            self.wipe(slot, shard);
        }
        if let Some(aging) = &mut self.aging {
            // Blocks before lost ones became leaves.
            *aging = Aging::of(&self.table);
        }
        if self.missing.contains(&shard) {
            self.missing.retain(|missing| *missing != shard);
            self.thaw(shard);
        }
    }

    fn wipe(&mut self, slot: Slot, shard: usize) {
        for part in self.parts(shard) {
            self.table.wipe(slot, part);
        }
    }

    /// The table's shards that make up one of the checkpoint's.
    pub(crate) fn parts(&self, shard: usize) -> std::ops::Range<usize> {
        let size = SHARDS / self.shards;
        shard * size..(shard + 1) * size
    }

    fn thaw_due(&mut self) {
        while let Some((position, shard)) = self.ahead.last().copied()
            && position <= self.position
        {
            self.ahead.pop();
            self.thaw(shard);
        }
    }

    fn thaw(&mut self, shard: usize) {
        for part in self.parts(shard) {
            self.table.thaw(part);
        }
    }

    /// Finds out from now on which blocks are the oldest. Scans the table: for the holder of the lease alone.
    pub(crate) fn begin_aging(&mut self) {
        if self.aging.is_none() {
            self.aging = Some(Aging::of(&self.table));
        }
    }

    pub(crate) fn end_aging(&mut self) {
        self.aging = None;
    }

    /// The table, and what knows its oldest blocks where [`Replica::begin_aging`] was called.
    pub(crate) fn aging(&mut self) -> Option<(&Table, &Roster, &mut Aging)> {
        self.aging.as_mut().map(|aging| (&self.table, &self.roster, aging))
    }

    /// Appends to a value what every shard of a checkpoint carries beside its blocks: position, clock and pods.
    pub(crate) fn put_state(&self, out: &mut Vec<u8>) {
        out.put_u64(self.position);
        out.put_u32(self.clock);
        out.put_u32(self.last_time);
        self.roster.put(out);
    }

    /// Reads what [`Replica::put_state`] wrote.
    pub(crate) fn read_state(from: &mut Reader<'_>) -> Option<State> {
        Some(State {
            position: from.u64()?,
            clock: from.u32()?,
            last_time: from.u32()?,
            roster: Roster::read(from)?,
        })
    }

    /// Puts a replica together from the shards of a checkpoint: the blocks are in `table`, and `positions` says where
    /// each shard was written; `None` where it could not be read. `state` is that of the lowest position.
    pub(crate) fn assemble(state: State, table: Table, positions: &[Option<u64>]) -> Self {
        let mut replica = Self {
            position: state.position,
            clock: state.clock,
            last_time: state.last_time,
            roster: state.roster,
            table,
            ..Self::new(0, positions.len())
        };
        for (shard, position) in positions.iter().enumerate() {
            match position {
                Some(position) => replica.ahead.push((*position, shard)),
                None => replica.missing.push(shard),
            }
            for part in replica.parts(shard) {
                replica.table.freeze(part);
            }
        }
        replica.ahead.sort_unstable_by(|a, b| b.cmp(a));
        replica.thaw_due();
        replica
    }

    /// The reference to an active pod.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<PodRef> {
        self.roster.find(id)
    }
}

/// What a shard of a checkpoint carries beside its blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub position: u64,
    pub clock: u32,
    pub last_time: u32,
    pub roster: Roster,
}
