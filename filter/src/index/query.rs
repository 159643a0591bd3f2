//! How deep each pod holds a chain.

use std::cmp::Reverse;
use std::hint::black_box;

use super::{BlockHash, PodSet, Table};

/// How many blocks are looked up in one go, more if there are more spans. While one waits for memory the others do.
const LOOKUPS: usize = 4;

/// How deep pods hold a chain: the answer of [`Table::depths`]. Reuse one for all queries: it keeps its buffers.
#[derive(Debug, Default)]
pub struct Depths {
    /// Depth in blocks (at least 1) and the pods that hold exactly so many, deepest first. A pod is in one step at most.
    pub steps: Vec<(u32, PodSet)>,
    spans: Vec<Span>,
    parts: Vec<Span>,
    splits: Vec<Split>,
}

/// Pods that hold at least `low` blocks of the chain and at most `high`.
#[derive(Debug, Clone, Copy)]
struct Span {
    low: u32,
    high: u32,
    pods: PodSet,
}

/// A block of a span: those that hold `count` blocks hold it too, others of the span do not.
#[derive(Debug, Clone, Copy)]
struct Split {
    count: u32,
    /// Of the last of these blocks.
    hash: BlockHash,
}

impl Span {
    /// How many splits it is worth when so many are affordable.
    fn splits(&self, affordable: u32) -> u32 {
        let width = self.high - self.low;
        // First of all by one block: a chain that nobody knows costs one look.
        if self.low == 0 { 1 } else { width.min(affordable) }
    }

    /// The number of blocks, above `low`, at which the span is split for the `n`th time of so many.
    fn count(&self, n: u32, splits: u32) -> u32 {
        let width = u64::from(if self.low == 0 { 1 } else { self.high - self.low });
        self.low + (width * u64::from(n)).div_ceil(u64::from(splits) + 1) as u32
    }
}

impl Table {
    /// Writes to `out` how many leading blocks of `chain` each pod of `among` holds.
    ///
    /// `chain` is a path: each hash stands for its block and everything before it. The answer is exactly that of
    /// walking the chain block by block and stopping, for each pod, at the first block that it does not hold.
    ///
    /// Spans of the chain are split until all pods of each hold the same; all spans together, level by level, so that
    /// the memory accesses of a level do not wait for each other.
    pub fn depths(&self, chain: &[BlockHash], among: &PodSet, out: &mut Depths) {
        let Depths { steps, spans, parts, splits } = out;
        steps.clear();
        spans.clear();
        let high = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        if high > 0 && !among.is_empty() {
            spans.push(Span { low: 0, high, pods: *among });
        }
        while !spans.is_empty() {
            let affordable = (LOOKUPS / spans.len()).max(1) as u32;
            splits.clear();
            for span in spans.iter() {
                let number = span.splits(affordable);
                for n in 1..=number {
                    let count = span.count(n, number);
                    splits.push(Split { count, hash: last_of(chain, count) });
                }
            }
            // Asks memory for all that the loop below reads.
            black_box(splits.iter().fold(0, |all, split| all ^ self.trees.touch(split.hash)));
            parts.clear();
            let mut splits = splits.iter();
            for &(mut span) in spans.iter() {
                for split in splits.by_ref().take(span.splits(affordable) as usize) {
                    let deeper = self.trees.find(split.hash).pods.visible(&span.pods, self.trees.sets());
                    let shallower = span.pods.minus(&deeper);
                    settle(Span { high: split.count - 1, pods: shallower, ..span }, parts, steps);
                    span = Span { low: split.count, pods: deeper, ..span };
                }
                settle(span, parts, steps);
            }
            std::mem::swap(spans, parts);
        }
        steps.sort_unstable_by_key(|&(depth, _)| Reverse(depth));
    }
}

/// Keeps a span for further splitting, or its answer where there is nothing left to split.
fn settle(span: Span, open: &mut Vec<Span>, steps: &mut Vec<(u32, PodSet)>) {
    if span.pods.is_empty() || span.high == 0 {
        return;
    }
    if span.low < span.high { open.push(span) } else { steps.push((span.low, span.pods)) }
}

/// The last of the first `count` blocks.
fn last_of(chain: &[BlockHash], count: u32) -> BlockHash {
    chain.get(count as usize - 1).copied().unwrap_or_default()
}
