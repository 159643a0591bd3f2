//! How deep each pod holds a chain.

use std::cmp::Reverse;

use super::{BlockHash, PodSet, Table};

/// How deep pods hold a chain: the answer of [`Table::depths`]. Reuse one for all queries: it keeps its buffers.
#[derive(Debug, Default)]
pub struct Depths {
    /// Depth in blocks (at least 1) and the pods that hold exactly so many, deepest first. A pod is in one step at most.
    pub steps: Vec<(u32, PodSet)>,
    spans: Vec<Span>,
    halves: Vec<Span>,
    middles: Vec<u32>,
}

/// Pods that hold at least `low` blocks of the chain and at most `high`.
#[derive(Debug, Clone, Copy)]
struct Span {
    low: u32,
    high: u32,
    pods: PodSet,
}

impl Span {
    /// Splits the span in two by asking who holds so many blocks. Never below 1 + `low`, so that both get smaller. First
    /// by one block: a chain that nobody knows costs one look.
    const fn middle(&self) -> u32 {
        if self.low == 0 { 1 } else { self.high - (self.high - self.low) / 2 }
    }
}

impl Table {
    /// Writes to `out` how many leading blocks of `chain` each pod of `among` holds.
    ///
    /// `chain` is a path: each hash stands for its block and everything before it. The answer is exactly that of
    /// walking the chain block by block and stopping, for each pod, at the first block that it does not hold.
    ///
    /// All spans are halved together, level by level: the memory accesses of one level do not wait for each other.
    pub fn depths(&self, chain: &[BlockHash], among: &PodSet, out: &mut Depths) {
        let Depths { steps, spans, halves, middles } = out;
        steps.clear();
        spans.clear();
        let high = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        spans.push(Span { low: 0, high, pods: *among });
        while !spans.is_empty() {
            spans.retain(|span| {
                let open = span.low < span.high && !span.pods.is_empty();
                if !open && span.low > 0 && !span.pods.is_empty() {
                    steps.push((span.low, span.pods));
                }
                open
            });
            middles.clear();
            middles.extend(spans.iter().map(|span| self.trees.find(last_of(chain, span.middle()))));
            halves.clear();
            for (span, &index) in spans.iter().zip(middles.iter()) {
                let middle = span.middle();
                let node = self.trees.node(index);
                let visible = if node.depth == middle - 1 {
                    node.pods.visible(self.trees.sets())
                } else {
                    PodSet::EMPTY
                };
                let holding = visible.intersect(&span.pods);
                halves.push(Span { low: middle, pods: holding, ..*span });
                halves.push(Span { high: middle - 1, pods: span.pods.minus(&holding), ..*span });
            }
            std::mem::swap(spans, halves);
        }
        steps.sort_unstable_by_key(|&(depth, _)| Reverse(depth));
    }
}

/// The last of the first `count` blocks.
fn last_of(chain: &[BlockHash], count: u32) -> BlockHash {
    chain.get(count as usize - 1).copied().unwrap_or_default()
}
