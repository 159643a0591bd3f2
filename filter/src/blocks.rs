//! Bytes of a prompt -> chained block hashes.
//!
//! The canonical form of a prompt is cut into blocks. The hash of a block covers everything before it, so two chains are
//! equal up to exactly the last block in which the prompts (and the seeds) are equal:
//!
//! ```text
//! h[i] = xxh3_64_with_seed(xxh3_64(block[i]), h[i - 1]) but for its lowest bit,   h[-1] = seed
//! ```
//!
//! Hashing the block without a seed first is deliberate: xxh3 derives a new secret for every seed it meets with more than
//! 240 bytes, which costs about as much again as a block of 256 bytes itself.
//!
//! A last block that isn't full has no hash: it will be another block once the conversation goes on.
//!
//! The first 64 blocks of text have the configured size; after them, it doubles every 32 blocks. So no block is larger
//! than 1/32 of what precedes it: what a match may miss is little beside what it found, and a prompt of 400 KB has 210
//! blocks to look up, record and age instead of 1,562. Where a block begins depends on its number alone. Blocks of token
//! ids stay as large as the engine's. The lowest bit of a hash tells the two kinds of chains apart.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Name of a block and, since hashes are chained, of all that precedes it.
pub type BlockHash = u64;

/// Blocks after which the size doubles, from twice as many on.
const GROUP: u32 = 32;
/// Beyond any prompt that Envoy would buffer, blocks stay at this many doublings.
const MOST_DOUBLINGS: u32 = 20;

/// How often the size was doubled for a block, by its number in the chain.
fn doublings(block: u32) -> u32 {
    (block / GROUP).saturating_sub(1).min(MOST_DOUBLINGS)
}

/// Whether a hash is of a chain whose blocks are all of one size: blocks of tokens, as an engine has them.
fn is_even(hash: BlockHash) -> bool {
    hash & 1 == 1
}

/// Blocks of the first one's size that the first `depth` blocks of a chain stand for. `hash`: any block of the chain.
pub fn worth(hash: BlockHash, depth: u32) -> u32 {
    if is_even(hash) {
        return depth;
    }
    let doublings = doublings(depth);
    // Counted in blocks of this size, each doubling leaves half of what came before it: one group less.
    let worth = u64::from(depth - GROUP * doublings) << doublings;
    u32::try_from(worth).unwrap_or(u32::MAX)
}

/// Blocks of the first one's size that the block after the first `depth` stands for.
pub fn worth_of(hash: BlockHash, depth: u32) -> usize {
    if is_even(hash) { 1 } else { 1 << doublings(depth) }
}

/// Bytes in the first blocks of a chain.
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

/// What a piece of a prompt added to a chain: its whole blocks, and the bytes after the last of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    hashes: Box<[BlockHash]>,
    partial: Box<[u8]>,
}

impl Added {
    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.hashes) + self.partial.len()
    }
}

/// Builds a [`Chain`] from pieces of a canonical form. Where the pieces are cut makes no difference.
#[derive(Debug)]
pub struct ChainBuilder {
    base: usize,
    even: bool,
    /// Of the next block.
    size: usize,
    last: u64,
    hashes: Vec<BlockHash>,
    /// Bytes of the block that the last piece left unfinished.
    partial: Vec<u8>,
}

impl ChainBuilder {
    /// A chain for a prompt of `bytes` bytes in canonical form. `bytes` only reserves memory.
    pub fn new(seed: u64, size: BlockSize, bytes: usize) -> Self {
        let base = size.bytes();
        let blocks = most_blocks(bytes / base);
        let largest = base << doublings(u32::try_from(blocks).unwrap_or(u32::MAX));
        let (hashes, partial) = (Vec::with_capacity(blocks), Vec::with_capacity(largest.min(bytes)));
        Self { base, even: false, size: base, last: seed, hashes, partial }
    }

    /// A chain for `tokens` token ids, in blocks of `block` tokens.
    pub fn tokens(seed: u64, block: usize, tokens: usize) -> Self {
        let block = block.max(1);
        let size = block * size_of::<u32>();
        let (hashes, partial) = (Vec::with_capacity(tokens / block), Vec::with_capacity(size));
        Self { base: size, even: true, size, last: seed, hashes, partial }
    }

    /// Takes the next token ids.
    pub fn push_tokens(&mut self, ids: &[u32]) {
        // Bytes of a few blocks at a time.
        for ids in ids.chunks(256) {
            let mut bytes = [0; 256 * size_of::<u32>()];
            for (to, id) in bytes.as_chunks_mut().0.iter_mut().zip(ids) {
                *to = id.to_le_bytes();
            }
            self.push(bytes.get(..size_of_val(ids)).unwrap_or_default());
        }
    }

    /// Takes the next bytes. A block that lies whole in `piece` is hashed where it is.
    pub fn push(&mut self, piece: &[u8]) {
        let mut piece = piece;
        if !self.partial.is_empty() {
            let Some((head, rest)) = piece.split_at_checked(self.size - self.partial.len()) else {
                return self.partial.extend_from_slice(piece);
            };
            self.partial.extend_from_slice(head);
            let hash = self.link(&self.partial);
            self.append(hash);
            self.partial.clear();
            piece = rest;
        }
        while let Some((block, rest)) = piece.split_at_checked(self.size) {
            self.append(self.link(block));
            piece = rest;
        }
        self.partial.extend_from_slice(piece);
    }

    /// What the next bytes will be chained to: equal marks go on equally.
    pub fn mark(&self, seed: u64) -> u64 {
        xxh3_64_with_seed(&self.partial, xxh3_64_with_seed(&self.last.to_le_bytes(), seed))
    }

    /// Blocks so far.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is no whole block yet.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// What was added after the first `before` blocks, to be [added](Self::go_on) to an equal chain another time.
    pub fn since(&self, before: usize) -> Added {
        let hashes = self.hashes.get(before..).unwrap_or_default();
        Added { hashes: hashes.into(), partial: self.partial.as_slice().into() }
    }

    /// Adds what was added before to a chain of blocks of tokens that stood at the same [mark](Self::mark).
    pub fn go_on(&mut self, added: &Added) {
        self.hashes.extend_from_slice(&added.hashes);
        self.last = self.hashes.last().copied().unwrap_or(self.last);
        self.partial.clear();
        self.partial.extend_from_slice(&added.partial);
    }

    /// The chain of all that was pushed.
    pub fn finish(self) -> Chain {
        Chain { hashes: self.hashes }
    }

    fn append(&mut self, hash: BlockHash) {
        self.last = hash;
        self.hashes.push(hash);
        if !self.even {
            self.size = self.base << doublings(u32::try_from(self.hashes.len()).unwrap_or(u32::MAX));
        }
    }

    fn link(&self, block: &[u8]) -> BlockHash {
        link(self.last, block) & !1 | u64::from(self.even)
    }
}

/// At least as many blocks as a prompt has that fills `even` blocks of the configured size.
fn most_blocks(even: usize) -> usize {
    let group = GROUP as usize;
    match even.checked_div(2 * group).and_then(usize::checked_ilog2) {
        None => even,
        Some(doublings) => group * (doublings as usize + 3),
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
        let mut rest = bytes;
        loop {
            let size = match hashes.len() {
                0..64 => size,
                n => size << (n / 32 - 1),
            };
            let Some((block, after)) = rest.split_at_checked(size) else { return hashes };
            let own = xxh3_64(block);
            hashes.push(xxh3_64_with_seed(&own.to_le_bytes(), *hashes.last().unwrap_or(&seed)) & !1);
            rest = after;
        }
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
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..900), 0..12),
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
        assert_eq!(hashes.len(), 190);
    }

    #[test]
    fn blocks_of_tokens_are_even_and_no_blocks_of_text() {
        let ids: Vec<u32> = (0..16 * 300 + 5).collect();
        let chain = |parts: &[&[u32]]| {
            let mut builder = ChainBuilder::tokens(9, 16, ids.len());
            parts.iter().for_each(|part| builder.push_tokens(part));
            builder.finish().hashes
        };
        let whole = chain(&[&ids]);
        assert_eq!(whole.len(), 300);
        assert!(whole.iter().all(|hash| is_even(*hash)));
        let (a, b) = ids.split_at(777);
        assert_eq!(chain(&[a, b]), whole);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert!(
            super::tests::chain(9, 64, &[bytes]).iter().all(|hash| !is_even(*hash) && !whole.contains(hash))
        );
    }

    proptest! {
        #[test]
        fn what_was_added_can_be_added_again(
            pieces in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..60), 0..12),
            block in 1..20usize,
        ) {
            let builder = || ChainBuilder::tokens(3, block, 0);
            let (mut one, mut two, mut plain) = (builder(), builder(), builder());
            for piece in &pieces {
                prop_assert_eq!(one.mark(5), two.mark(5));
                let (mark, before) = (one.mark(5), one.len());
                one.push_tokens(piece);
                two.go_on(&one.since(before));
                plain.push_tokens(piece);
                prop_assert!(piece.is_empty() || one.mark(5) != mark);
            }
            let whole = plain.finish();
            prop_assert_eq!((&one.finish(), &two.finish()), (&whole, &whole));
        }
    }

    #[test]
    fn memory_is_reserved_once() {
        for bytes in [0, 255, 16_384, 100_000, 3_000_000] {
            let mut builder = ChainBuilder::new(0, BlockSize::default(), bytes);
            let reserved = (builder.hashes.capacity(), builder.partial.capacity());
            for piece in vec![0; bytes].chunks(1000) {
                builder.push(piece);
            }
            assert_eq!((builder.hashes.capacity(), builder.partial.capacity()), reserved, "{bytes} bytes");
            assert!(builder.hashes.len() + 64 >= reserved.0, "{bytes} bytes");
        }
    }

    #[test]
    fn a_block_is_worth_its_bytes() {
        let bytes: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
        let all = literal(0, 16, &bytes);
        for depth in 0..=all.len() {
            let worth = worth(0, depth as u32) as usize;
            assert_eq!(literal(0, 16, &bytes[..worth * 16]), all[..depth]);
            assert!(worth == 0 || literal(0, 16, &bytes[..worth * 16 - 1]).len() == depth - 1);
            assert_eq!(super::worth(0, depth as u32 + 1) as usize - worth, worth_of(0, depth as u32));
            assert!(depth < 64 || super::worth(0, depth as u32 + 1) as usize - worth <= worth / 32);
        }
        assert_eq!(super::worth(0, u32::MAX), u32::MAX);
        assert_eq!((super::worth(1, 1000), worth_of(1, 1000)), (1000, 1));
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
