//! What went wrong or was left out: every step down is counted.

/// Counts since this VM began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexCounts {
    /// Entries applied, own and others'.
    pub entries: u64,
    /// Entries that nobody can read.
    pub unreadable_entries: u64,
    /// Shards of a checkpoint that could not be read.
    pub unreadable_shards: u64,
    /// Ledgers that could not be read.
    pub unreadable_ledgers: u64,
    /// Times that the log had gone on by more than a lap, so that the checkpoint was loaded again.
    pub lapped: u64,
    /// Appends that were dropped because the ring was full.
    pub full: u64,
    /// Appends that failed for another reason.
    pub failed: u64,
    /// Hostcalls on shared data that failed.
    pub host_errors: u64,
    /// Blocks that this VM, holding the lease, found too old or too many.
    pub aged: u64,
    /// Shards of the checkpoint that this VM wrote.
    pub shards_written: u64,
    /// Deltas that came too late: about a pod that had left.
    pub stale_deltas: u64,
    /// Blocks that found no room, or contradict what is known of them.
    pub refused_blocks: u64,
    /// Pods that found no slot.
    pub refused_pods: u64,
}
