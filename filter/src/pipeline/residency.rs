//! Which pods hold how much of a chain: the question that parts ask of the index, with pods named by position.

use super::positions::Positions;
use crate::blocks::Chain;
use std::cmp::Reverse;

/// Answers from the index.
pub trait Residency {
    /// Fills `out`, which is empty, with the pods that hold at least the first block of `chain`.
    fn depths(&self, chain: &Chain, out: &mut Matches);
}

/// How deep pods hold a chain: groups of pods of equal depth, in blocks, deepest first, no depth twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matches {
    steps: Vec<(u32, Positions)>,
}

impl Matches {
    /// Groups in any order, of which a pod may be in several: its deepest counts.
    pub fn deepest(groups: &mut [(u32, Positions)]) -> Self {
        groups.sort_unstable_by_key(|(depth, _)| Reverse(*depth));
        let mut known = Positions::default();
        let mut matches = Self::default();
        for of_depth in groups.chunk_by(|(one, _), (next, _)| one == next) {
            let depth = of_depth.first().map_or(0, |(depth, _)| *depth);
            let pods = of_depth.iter().fold(Positions::default(), |all, (_, pods)| all.union(pods));
            matches.push(depth, pods.minus(&known));
            known = known.union(&pods);
        }
        matches
    }

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
