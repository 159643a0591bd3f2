//! Bytes of a prompt -> chained block hashes.
//!
//! The canonical form of a prompt is cut into blocks of one size. The hash of a block covers everything before it,
//! so two chains are equal up to exactly the last block in which the prompts (and the seeds) are equal:
//!
//! ```text
//! h[i] = xxh3_64_with_seed(xxh3_64(block[i]), h[i - 1]),   h[-1] = seed
//! ```
//!
//! Hashing the block without a seed first is deliberate: xxh3 derives a new secret for every seed it meets with more than
//! 240 bytes, which costs about as much again as a block of 256 bytes itself.
//!
//! A last block that isn't full has no hash: it will be another block once the conversation goes on.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Name of a block and, since hashes are chained, of all that precedes it.
pub type BlockHash = u64;

/// Bytes in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize(usize);

impl BlockSize {
    /// Smallest block: below it the hashes of a prompt would weigh more than half of the prompt.
    pub const MIN: usize = 16;
    /// Largest block: beyond it, short conversations would have no block to be found by.
    pub const MAX: usize = 65_536;

    /// A block of `bytes`; none if that isn't between [`BlockSize::MIN`] and [`BlockSize::MAX`].
    pub fn new(bytes: usize) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&bytes).then_some(Self(bytes))
    }

    /// Bytes in a block.
    pub fn bytes(self) -> usize {
        self.0
    }
}

impl Default for BlockSize {
    /// 256 bytes: about 64 tokens of English, four of vLLM's blocks.
    fn default() -> Self {
        Self(256)
    }
}

/// The hashes of a prompt's full blocks, first block first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// One hash a block.
    pub hashes: Vec<BlockHash>,
}

/// Builds a [`Chain`] from pieces of a canonical form. Where the pieces are cut makes no difference.
#[derive(Debug)]
pub struct ChainBuilder {
    size: usize,
    last: u64,
    hashes: Vec<BlockHash>,
    /// Bytes of the block that the last piece left unfinished.
    partial: Vec<u8>,
}

impl ChainBuilder {
    /// A chain for a prompt of `bytes` bytes in canonical form. `bytes` only reserves memory.
    pub fn new(seed: u64, size: BlockSize, bytes: usize) -> Self {
        let size = size.bytes();
        Self { size, last: seed, hashes: Vec::with_capacity(bytes / size), partial: Vec::with_capacity(size) }
    }

    /// Takes the next bytes. A block that lies whole in `piece` is hashed where it is.
    pub fn push(&mut self, piece: &[u8]) {
        let mut piece = piece;
        if !self.partial.is_empty() {
            let Some((head, rest)) = piece.split_at_checked(self.size - self.partial.len()) else {
                return self.partial.extend_from_slice(piece);
            };
            self.partial.extend_from_slice(head);
            let hash = link(self.last, &self.partial);
            self.append(hash);
            self.partial.clear();
            piece = rest;
        }
        let mut blocks = piece.chunks_exact(self.size);
        for block in &mut blocks {
            self.append(link(self.last, block));
        }
        self.partial.extend_from_slice(blocks.remainder());
    }

    /// The chain of all that was pushed.
    pub fn finish(self) -> Chain {
        Chain { hashes: self.hashes }
    }

    fn append(&mut self, hash: BlockHash) {
        self.last = hash;
        self.hashes.push(hash);
    }
}

fn link(previous: u64, block: &[u8]) -> BlockHash {
    xxh3_64_with_seed(&xxh3_64(block).to_le_bytes(), previous)
}

/// Seed of a chain from what separates prompts besides their bytes: an absent field differs from an empty one, and bytes
/// can't move from one field to the next.
pub fn seed(fields: &[Option<&[u8]>]) -> u64 {
    fields.iter().fold(0, |seed, field| match field {
        None => xxh3_64_with_seed(&[], seed),
        Some(bytes) => xxh3_64_with_seed(&xxh3_64(bytes).to_le_bytes(), seed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The chain as the module's first lines say it, over the whole prompt at once.
    fn literal(seed: u64, size: usize, bytes: &[u8]) -> Vec<u64> {
        let mut hashes = Vec::new();
        for end in (size..=bytes.len()).step_by(size) {
            let own = xxh3_64(&bytes[end - size..end]);
            hashes.push(xxh3_64_with_seed(&own.to_le_bytes(), *hashes.last().unwrap_or(&seed)));
        }
        hashes
    }

    fn chain(seed: u64, size: usize, pieces: &[Vec<u8>]) -> Vec<u64> {
        let mut builder = ChainBuilder::new(seed, BlockSize::new(size).unwrap(), 0);
        for piece in pieces {
            builder.push(piece);
        }
        builder.finish().hashes
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 0..12),
            size in 16usize..80,
            seed: u64,
        ) {
            prop_assert_eq!(chain(seed, size, &pieces), literal(seed, size, &pieces.concat()));
        }

        #[test]
        fn a_changed_byte_changes_its_block_and_all_after(
            bytes in prop::collection::vec(any::<u8>(), 64..400),
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            let at = at.index(bytes.len());
            let mut other = bytes.clone();
            other[at] ^= flip;
            let (a, b) = (chain(7, 16, &[bytes]), chain(7, 16, &[other]));
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                prop_assert_eq!(a == b, i < at / 16, "block {}", i);
            }
        }
    }

    #[test]
    fn another_seed_shares_no_block() {
        let bytes = vec![vec![b'a'; 4096]];
        let (a, b) = (chain(1, 256, &bytes), chain(2, 256, &bytes));
        assert_eq!(a.len(), 16);
        assert!(a.iter().all(|hash| !b.contains(hash)));
    }

    #[test]
    fn repeated_blocks_have_different_hashes() {
        let mut hashes = chain(0, 16, &[vec![0; 16 * 1000]]);
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 1000);
    }

    #[test]
    fn memory_is_reserved_once() {
        let mut builder = ChainBuilder::new(0, BlockSize::default(), 100_000);
        let (hashes, partial) = (builder.hashes.capacity(), builder.partial.capacity());
        for piece in [1, 255, 300, 99_000, 443] {
            builder.push(&vec![0; piece]);
        }
        assert_eq!((builder.hashes.capacity(), builder.partial.capacity()), (hashes, partial));
        assert_eq!(builder.finish().hashes.len(), 100_000 / 256);
    }

    #[test]
    fn seeds_keep_fields_apart() {
        let seeds = [
            seed(&[None, None]),
            seed(&[Some(b""), None]),
            seed(&[None, Some(b"")]),
            seed(&[Some(b"ab"), Some(b"c")]),
            seed(&[Some(b"a"), Some(b"bc")]),
            seed(&[Some(b"abc"), None]),
            seed(&[None, Some(b"abc")]),
        ];
        for (i, a) in seeds.iter().enumerate() {
            assert!(seeds[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert_eq!(BlockSize::new(15), None);
        assert_eq!(BlockSize::new(65_537), None);
        assert_eq!(BlockSize::new(256), Some(BlockSize::default()));
    }
}
