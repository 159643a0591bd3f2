//! How deep each pod holds a chain.

use std::cmp::Reverse;
use std::hint::black_box;

use super::table::Pods;
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
    /// Number and last of the leading blocks at which spans are split.
    splits: Vec<(u32, BlockHash)>,
}

/// Two numbers of leading blocks, the first less than the second, between which the pods that hold so many change.
#[derive(Debug, Clone, Copy)]
struct Span {
    low: u32,
    high: u32,
    at_low: Pods,
    at_high: Pods,
}

impl Span {
    /// How often it is split when so many splits are affordable: at most between any two blocks.
    fn splits(&self, affordable: u32) -> u32 {
        affordable.min(self.high - self.low - 1)
    }

    /// Where it is split for the `n`th time of so many.
    fn split(&self, n: u32, splits: u32) -> u32 {
        let width = self.high - self.low;
        if splits == 1 {
            return self.low + width / 2;
        }
        self.low + (u64::from(width) * u64::from(n) / u64::from(splits + 1)) as u32
    }
}

impl Table {
    /// Writes to `out` how many leading blocks of `chain` each pod of `among` holds.
    ///
    /// `chain` is a path: each hash stands for its block and everything before it. The answer is exactly that of
    /// walking the chain block by block and stopping, for each pod, at the first block that it does not hold. (A block
    /// recorded at another depth than it has in the chain counts as not held.)
    ///
    /// Pods only get fewer along a chain, so wherever they are the same at both ends of a span they are so in between.
    /// The other spans are split until they are between neighbours; all of them together, level by level, so that the
    /// memory accesses of a level do not wait for each other.
    pub fn depths(&self, chain: &[BlockHash], among: &PodSet, out: &mut Depths) {
        let Depths { steps, spans, parts, splits } = out;
        steps.clear();
        spans.clear();
        let Some(&first) = chain.first() else { return };
        let high = u32::try_from(chain.len()).unwrap_or(u32::MAX).saturating_add(1);
        let whole = Span { low: 1, high, at_low: self.trees.find(first).pods, at_high: Pods::NOBODY };
        if self.differs(&whole, among) {
            self.keep(whole, among, spans, steps);
        }
        while !spans.is_empty() {
            let affordable = (LOOKUPS / spans.len()).max(1) as u32;
            splits.clear();
            for span in spans.iter() {
                let number = span.splits(affordable);
                let counts = (1..=number).map(|n| span.split(n, number));
                splits.extend(counts.map(|count| (count, last_of(chain, count))));
            }
            // Asks memory for all that the loop below reads.
            black_box(splits.iter().fold(0, |all, &(_, hash)| all ^ self.trees.touch(hash)));
            parts.clear();
            let mut splits = splits.iter();
            for &(mut span) in spans.iter() {
                let mut differs = true;
                for &(count, hash) in splits.by_ref().take(span.splits(affordable) as usize) {
                    if count >= span.high {
                        continue;
                    }
                    let pods = self.trees.find(hash).pods;
                    let (is_low, is_high) = (pods == span.at_low, pods == span.at_high);
                    let lower = Span { high: count, at_high: pods, ..span };
                    let upper = Span { low: count, at_low: pods, ..span };
                    if is_low != is_high {
                        // Mostly so. Which of the two cannot be predicted, so no branch should depend on it.
                        span = if is_low { upper } else { lower };
                        continue;
                    }
                    if self.differs(&lower, among) {
                        self.keep(lower, among, parts, steps);
                    }
                    span = upper;
                    differs = self.differs(&upper, among);
                }
                if differs {
                    self.keep(span, among, parts, steps);
                }
            }
            std::mem::swap(spans, parts);
        }
        steps.sort_unstable_by_key(|&(depth, _)| Reverse(depth));
    }

    /// Whether pods of `among` change within a span.
    #[inline]
    fn differs(&self, span: &Span, among: &PodSet) -> bool {
        let sets = self.trees.sets();
        span.at_low != span.at_high && span.at_low.visible(among, sets) != span.at_high.visible(among, sets)
    }

    /// Keeps a span within which pods change for further splitting, or says who they are if it is between neighbours.
    #[inline]
    fn keep(&self, span: Span, among: &PodSet, open: &mut Vec<Span>, steps: &mut Vec<(u32, PodSet)>) {
        if span.high - span.low > 1 {
            open.push(span);
            return;
        }
        let deeper = span.at_high.visible(among, self.trees.sets());
        steps.push((span.low, span.at_low.visible(among, self.trees.sets()).minus(&deeper)));
    }
}

/// The last of the first `count` blocks.
fn last_of(chain: &[BlockHash], count: u32) -> BlockHash {
    chain.get(count as usize - 1).copied().unwrap_or_default()
}
