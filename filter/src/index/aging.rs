//! What a pod has probably forgotten: its oldest chains, tail first.
//!
//! Derived from the table, in whichever VM keeps it; never part of the replicated state. The holder of the lease
//! decides with it and appends what it decides to the log, from which every replica removes the same blocks.

use super::{BlockHash, Slot, Table};

/// For each pod, its leaves (blocks that it holds without holding a child of theirs), the longest untouched first.
#[derive(Debug, Default)]
pub struct Aging {}

impl Aging {
    /// Reads the leaves of every pod from a table. Scans it whole.
    #[must_use]
    pub fn of(table: &Table) -> Self {
        let _ = table;
        Self {}
    }

    /// Notes what [`Table::store`] was called with. Call it after.
    pub fn stored(&mut self, table: &Table, slot: Slot, hashes: &[BlockHash]) {
        let _ = (table, slot, hashes);
    }

    /// Notes what [`Table::remove`] is about to be called with. Call it before: parents of removed blocks become leaves.
    pub fn removing(&mut self, table: &Table, slot: Slot, hashes: &[BlockHash]) {
        let _ = (table, slot, hashes);
    }

    /// Forgets a slot whose column is wiped.
    pub fn forget(&mut self, slot: Slot) {
        let _ = slot;
    }

    /// Appends to `out` the `count` blocks of the pod that were longest untouched, each chain from its tail, so that no
    /// block goes before a block after it. Fewer only where the pod holds fewer.
    ///
    /// Nothing is removed: append them to the log; until they are removed, the next call names them again.
    pub fn oldest(&mut self, table: &Table, slot: Slot, count: usize, out: &mut Vec<BlockHash>) {
        let _ = (table, slot, count, out);
    }

    /// The same for at most `count` blocks of chains that were last touched before `before`, in seconds of the log's clock.
    pub fn expired(
        &mut self,
        table: &Table,
        slot: Slot,
        before: u32,
        count: usize,
        out: &mut Vec<BlockHash>,
    ) {
        let _ = (table, slot, before, count, out);
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        0
    }
}
