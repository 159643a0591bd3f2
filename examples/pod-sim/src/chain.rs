//! Tokens to chained block hashes: the names under which the prefix cache knows its blocks.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Hashes a growing sequence of tokens into one hash for each full block, each over the block and the hash before it.
#[derive(Clone, Debug)]
pub struct Chain {
    hashes: Vec<u64>,
    last: u64,
    /// The tokens after the last full block, in bytes.
    partial: Vec<u8>,
    block_bytes: usize,
}

impl Chain {
    /// An empty chain. `seed` is what keeps models and salts apart; `block_size` is in tokens and at least 1.
    pub fn new(seed: u64, block_size: usize) -> Self {
        let block_bytes = block_size.max(1) * size_of::<u32>();
        Self { hashes: Vec::new(), last: seed, partial: Vec::with_capacity(block_bytes), block_bytes }
    }

    /// The seed of prompts to `model` under `salt` (OpenAI bodies' `cache_salt`).
    pub fn seed(model: &str, salt: Option<&str>) -> u64 {
        let mut hasher = Xxh3::new();
        hasher.update(model.as_bytes());
        if let Some(salt) = salt {
            // No model name ends so, since 0xFF is not UTF-8: the two can't run into each other.
            hasher.update(&[0xFF]);
            hasher.update(salt.as_bytes());
        }
        hasher.digest()
    }

    /// Appends tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.partial.extend_from_slice(&token.to_le_bytes());
            if self.partial.len() == self.block_bytes {
                self.last = xxh3_64_with_seed(&self.partial, self.last);
                self.hashes.push(self.last);
                self.partial.clear();
            }
        }
    }

    /// One hash for each full block so far.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(tokens: &[u32], block_size: usize) -> Vec<u64> {
        let mut chain = Chain::new(7, block_size);
        chain.push(tokens);
        chain.hashes().to_vec()
    }

    proptest! {
        #[test]
        fn blocks_agree_exactly_as_far_as_the_tokens_do(
            left in proptest::collection::vec(0u32..3, 0..40), right in proptest::collection::vec(0u32..3, 0..40),
            block_size in 1usize..5,
        ) {
            let common = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            let (left, right) = (of(&left, block_size), of(&right, block_size));
            let agree = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(agree, common / block_size);
            // After the first difference nothing agrees again, however equal the tokens.
            prop_assert!(left[agree..].iter().zip(&right[agree..]).all(|(a, b)| a != b));
        }

        #[test]
        fn pushing_in_pieces_changes_nothing(tokens in proptest::collection::vec(0u32..9, 0..60), cut in 0usize..60) {
            let cut = cut.min(tokens.len());
            let mut chain = Chain::new(7, 4);
            chain.push(&tokens[..cut]);
            chain.push(&tokens[cut..]);
            prop_assert_eq!(chain.hashes(), &of(&tokens, 4)[..]);
        }
    }

    #[test]
    fn models_and_salts_have_chains_of_their_own() {
        let seeds = [("a", None), ("b", None), ("a", Some("")), ("a", Some("s")), ("as", None)];
        let seeds = seeds.map(|(model, salt)| Chain::seed(model, salt));
        for (index, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..index].contains(seed), "seed {index} is used twice");
        }
    }
}
