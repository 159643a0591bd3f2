//! What a decision tells the other workers, through the log: where the request went, and what it will leave in a cache.

use crate::blocks::Chain;
use crate::index::{BlockHash, Delta, PodRef, Replica};
use crate::pods::Job;

/// Seconds for which a chain that was used counts as fresh: its next use within them isn't worth an entry.
const FRESH: u32 = 10;

/// What was recorded of one request, as far as it may have to be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The pod.
    pub pod: PodRef,
    /// Hashes of the chain that were recorded of the pod before.
    pub before: usize,
}

/// What to append for a request that goes to a pod, and what it may have to take back. Nothing, if that is known already: by
/// what was routed, or because the pod says itself what it holds (`is_exact`), and that is all of the prompt.
pub fn recorded(
    replica: &Replica,
    pod: PodRef,
    chain: &Chain,
    job: Job,
    is_exact: bool,
) -> (Vec<Delta>, Record) {
    let Chain { hashes: chain, cached } = chain;
    let before = replica.table().depth_of(pod.slot, chain);
    let record = Record { pod, before };
    let Some(leaf) = chain.last() else { return (Vec::new(), record) };
    let says_all = || !cached.is_empty() && replica.table().depth_of(pod.slot, cached) == cached.len();
    if is_exact && says_all() {
        return (Vec::new(), Record { pod, before: chain.len() });
    }
    let (held, new) = chain.split_at_checked(before).unwrap_or((chain, &[]));
    let mut deltas = Vec::new();
    if !new.is_empty() {
        deltas.push(Delta::Stored {
            pod,
            parent: held.last().copied(),
            depth: u32::try_from(held.len()).unwrap_or(u32::MAX),
            hashes: new.to_vec(),
        });
    } else if is_stale(replica, *leaf) {
        deltas.push(Delta::Touched { pod, leaf: *leaf });
    }
    if !deltas.is_empty() {
        deltas.push(Delta::Routed { pod, job });
    }
    (deltas, record)
}

/// What to append for a session that goes to `pod`, and no longer to `others`.
pub fn session(replica: &Replica, pod: PodRef, others: &[PodRef], session: BlockHash) -> Vec<Delta> {
    let alone = Chain { hashes: vec![session], cached: Vec::new() };
    let (mut deltas, _) = recorded(replica, pod, &alone, Job::default(), false);
    deltas.extend(others.iter().map(|other| Delta::Removed { pod: *other, hashes: vec![session] }));
    deltas
}

/// What to append when the request failed: the blocks that it was to bring are not there. Tail first, so that no moment
/// leaves a hole.
pub fn withdrawn(record: &Record, chain: &[BlockHash]) -> Vec<Delta> {
    let new = chain.get(record.before..).unwrap_or(&[]);
    match new.is_empty() {
        true => Vec::new(),
        false => vec![Delta::Removed { pod: record.pod, hashes: new.iter().rev().copied().collect() }],
    }
}

fn is_stale(replica: &Replica, leaf: BlockHash) -> bool {
    let touched = replica.table().get(leaf).map_or(0, |block| block.touched);
    replica.clock().saturating_sub(touched) >= FRESH
}
