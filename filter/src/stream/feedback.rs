//! What an answer's `cached_tokens` says of the prediction, and what is withdrawn where it fell short.

use crate::blocks;
use crate::fleet::Fleet;
use crate::host::Host;
use crate::index::{BlockHash, Delta, OnUnseen, PodRef};
use crate::metrics::Metric;

/// Blocks, and part of the prediction, by which it may fall short: text is counted in tokens only about.
const MARGIN_BLOCKS: f32 = 2.0;
const MARGIN: f32 = 0.1;
/// Most blocks that are looked at to withdraw them: a millisecond's work. What is left is found out by its own requests.
const MOST: usize = 8192;

/// What was predicted of a request.
#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    /// The pod.
    pub pod: PodRef,
    /// Blocks of the prompt that it was thought to hold.
    pub matched: f32,
    /// All blocks of the prompt.
    pub blocks: f32,
    /// Tokens in a block, where the prompt was compared as tokens.
    pub block_tokens: Option<f32>,
    /// The log's clock when it was sent.
    pub clock: u32,
    /// Whether the pod says itself what it holds.
    pub is_exact: bool,
}

impl Prediction {
    /// Blocks of the prompt that the pod really held.
    fn held(&self, prompt: u32, cached: u32) -> f32 {
        match self.block_tokens {
            Some(tokens) if tokens > 0.0 => cached as f32 / tokens,
            _ => self.blocks * cached as f32 / prompt.max(1) as f32,
        }
    }

    /// Tokens that were predicted to be in the cache, in the engine's counting.
    fn tokens(&self, prompt: u32) -> u32 {
        match self.block_tokens {
            Some(tokens) => (self.matched * tokens) as u32,
            None => (self.matched / self.blocks.max(1.0) * prompt as f32) as u32,
        }
    }

    /// Counts what the answer says, and withdraws of the pod what it has lost.
    ///
    /// The request's own blocks are there by now. But where the pod had lost one of them, it had lost everything that followed
    /// it, too: caches evict a chain's tail before its head. So what other prompts had there in the continuation goes.
    pub fn compare(
        &self,
        host: &impl Host,
        fleet: &mut Fleet,
        prompt: u32,
        cached: u32,
        chain: &[BlockHash],
    ) {
        let predicted = self.tokens(prompt);
        fleet.metrics.add(host, Metric::FeedbackRequests, 1);
        fleet.metrics.add(host, Metric::FeedbackPredicted, predicted.into());
        fleet.metrics.add(host, Metric::FeedbackCached, cached.into());
        if let Some(percent) = (u64::from(cached) * 100).checked_div(predicted.into()) {
            fleet.metrics.record(host, Metric::FeedbackRatio, percent.min(100));
        }
        let held = self.held(prompt, cached);
        let missing = self.matched - held;
        if self.is_exact || missing <= MARGIN_BLOCKS || missing <= MARGIN * self.matched {
            return;
        }
        let depth = blocks::depth_within(held as usize);
        let Some(lost) = chain.get(depth) else { return };
        let table = fleet.index.replica().table();
        let hashes = table.unused_after(self.pod.slot, *lost, self.clock, chain, MOST);
        if !hashes.is_empty() {
            fleet.metrics.add(host, Metric::Corrected, hashes.len() as u64);
            let _ = fleet.index.append(host, &[Delta::Removed { pod: self.pod, hashes }], OnUnseen::Go);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Slot;

    fn prediction(matched: f32, blocks: f32, block_tokens: Option<f32>) -> Prediction {
        let pod = PodRef { slot: Slot::new(0).unwrap(), generation: 0 };
        Prediction { pod, matched, blocks, block_tokens, clock: 0, is_exact: false }
    }

    #[test]
    fn tokens_are_blocks_where_the_prompt_was_compared_as_tokens_and_a_share_of_it_elsewhere() {
        let tokens = prediction(10.0, 20.5, Some(16.0));
        assert_eq!((tokens.tokens(330), tokens.held(330, 96)), (160, 6.0));
        let text = prediction(10.0, 20.0, None);
        assert_eq!((text.tokens(1000), text.held(1000, 250)), (500, 5.0));
        assert_eq!((text.tokens(0), text.held(0, 0)), (0, 0.0), "an engine that counts nothing");
        let nothing = prediction(0.0, 0.5, None);
        assert_eq!((nothing.tokens(30), nothing.held(30, 0)), (0, 0.0));
    }
}
