//! What one infinite cache would have given: the yardstick for hits.

use std::collections::HashSet;

use crate::chain::Chain;

/// A cache without end, in blocks of this package's own tokens.
#[derive(Debug)]
pub struct Ideal {
    block_size: usize,
    blocks: HashSet<u64>,
}

impl Ideal {
    /// An empty cache with blocks of so many tokens.
    pub fn new(block_size: usize) -> Self {
        Self { block_size: block_size.max(1), blocks: HashSet::new() }
    }

    /// How many tokens of `prompt` are in the cache. The last token never counts, as in engines.
    pub fn cached(&self, prompt: &[u32]) -> usize {
        let findable = &prompt[..prompt.len().saturating_sub(1)];
        self.chain(findable).hashes().iter().take_while(|hash| self.blocks.contains(hash)).count()
            * self.block_size
    }

    /// Adds a sequence.
    pub fn add(&mut self, tokens: &[u32]) {
        let chain = self.chain(tokens);
        self.blocks.extend(chain.hashes());
    }

    fn chain(&self, tokens: &[u32]) -> Chain {
        let mut chain = Chain::new(0, self.block_size);
        chain.push(tokens);
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_the_longest_common_prefix_with_anything_before(
            sequences in proptest::collection::vec(proptest::collection::vec(0u32..2, 1..30), 1..12), block_size in 1usize..5,
        ) {
            let mut ideal = Ideal::new(block_size);
            for (index, sequence) in sequences.iter().enumerate() {
                let common = |other: &Vec<u32>| sequence.iter().zip(other).take_while(|(a, b)| a == b).count();
                let longest = sequences[..index].iter().map(common).max().unwrap_or(0);
                let expected = longest.min(sequence.len() - 1) / block_size * block_size;
                prop_assert_eq!(ideal.cached(sequence), expected);
                ideal.add(sequence);
            }
        }
    }
}
