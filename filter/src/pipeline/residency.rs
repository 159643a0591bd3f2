//! Which pods hold how much of a chain: the question that parts ask of the index, with pods named by position.

use super::positions::Positions;
use crate::blocks::BlockHash;

/// Answers from the index.
pub trait Residency {
    /// Fills `out`, which is empty, with the pods that hold at least the first block of `chain`.
    fn depths(&self, chain: &[BlockHash], out: &mut Matches);
}

/// How deep pods hold a chain: groups of pods of equal depth, in blocks, deepest first, no depth twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matches {
    steps: Vec<(u32, Positions)>,
}

impl Matches {
    /// Nobody holds anything.
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Adds the pods of the next smaller depth. Depths that don't fall, zero and empty sets add nothing.
    pub fn push(&mut self, depth: u32, pods: Positions) {
        if depth > 0 && depth < self.steps.last().map_or(u32::MAX, |(last, _)| *last) && !pods.is_empty() {
            self.steps.push((depth, pods));
        }
    }

    /// The groups, deepest first.
    pub fn steps(&self) -> &[(u32, Positions)] {
        &self.steps
    }

    /// Blocks that this pod holds without a gap.
    pub fn depth(&self, pod: usize) -> u32 {
        self.steps.iter().find(|(_, pods)| pods.contains(pod)).map_or(0, |(depth, _)| *depth)
    }
}
