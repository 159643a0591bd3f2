//! How deep each pod holds a chain.

use super::{BlockHash, PodSet, Table};

/// How deep pods hold a chain: the answer of [`Table::depths`]. Reuse one for all queries: it keeps its buffers.
#[derive(Debug, Default)]
pub struct Depths {
    /// Depth in blocks (at least 1) and the pods that hold exactly so many, deepest first. A pod is in one step at most.
    pub steps: Vec<(u32, PodSet)>,
}

impl Table {
    /// Writes to `out` how many leading blocks of `chain` each pod of `among` holds.
    ///
    /// `chain` is a path: each hash stands for its block and everything before it. The answer is exactly that of
    /// walking the chain block by block and stopping, for each pod, at the first block that it does not hold.
    pub fn depths(&self, chain: &[BlockHash], among: &PodSet, out: &mut Depths) {
        let _ = (chain, among);
        out.steps.clear();
    }
}
