//! Bytes of a prompt -> chained block hashes.
//!
//! The canonical form of a prompt is cut into blocks of one size. The link of a block covers everything before it, so two
//! chains are equal up to exactly the last block in which the prompts (and the seeds) are equal:
//!
//! ```text
//! link[i] = xxh3_64_with_seed(xxh3_64(block[i]), link[i - 1]),   link[-1] = seed
//! ```
//!
//! Hashing the block without a seed first is deliberate: xxh3 derives a new secret for every seed it meets with more than
//! 240 bytes, which costs about as much again as a block of 256 bytes itself.
//!
//! A last block that isn't full has no link: it will be another block once the conversation goes on.
//!
//! Not every link is kept of what a router guesses. The first 64 are; after them every second one, and the distance doubles every
//! 32 that are kept. So no distance is larger than 1/32 of what precedes it: what a match may miss is little beside what it
//! found, and a prompt of 400 KB has 210 hashes to look up, record and age instead of 1,562 in blocks of 256 bytes, or 6,250 in
//! blocks of 16 tokens. Which links are kept depends on their number alone. Each kept hash is *worth* the blocks that it
//! stands for.
//!
//! What an engine says of its own cache, by KV events, is block by block: of tokens, every link has a name too. The lowest two
//! bits of a name say which [`Kind`] it is of, so that one index holds all.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Name of a prefix of a prompt: the link of its last block, with a [`Kind`] in the lowest bits.
pub type BlockHash = u64;

/// Bits of a name that say its kind.
const KIND: u64 = 0b11;

/// What is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A prefix as text that was sent to a pod, or a session.
    Text,
    /// A prefix as tokens that was sent to a pod.
    Tokens,
    /// A block of tokens that an engine said it holds.
    Cached,
}

impl Kind {
    /// All kinds, in the order of [`Kind::index`].
    pub const ALL: [Self; 3] = [Self::Text, Self::Tokens, Self::Cached];

    /// The kind of a name.
    pub const fn of(name: BlockHash) -> Self {
        match name & KIND {
            0 => Self::Text,
            1 => Self::Tokens,
            _ => Self::Cached,
        }
    }

    /// The name of this kind for a link.
    pub const fn name(self, link: u64) -> BlockHash {
        link & !KIND | self as u64
    }

    /// Below the number of kinds.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Kept links after which their distance doubles, from twice as many on.
const GROUP: u32 = 32;
/// Beyond any prompt that Envoy would buffer, the distance stays at this many doublings.
const MOST_DOUBLINGS: u32 = 20;

/// How often the distance was doubled for a kept link, by its number.
fn doublings(kept: u32) -> u32 {
    (kept / GROUP).saturating_sub(1).min(MOST_DOUBLINGS)
}

/// Blocks that the first `depth` hashes of a chain stand for.
pub fn worth(depth: u32) -> u32 {
    let doublings = doublings(depth);
    // Counted in blocks at this distance, each doubling leaves half of what came before it: one group less.
    let worth = u64::from(depth - GROUP * doublings) << doublings;
    u32::try_from(worth).unwrap_or(u32::MAX)
}

/// Blocks that the hash after the first `depth` stands for.
pub fn worth_of(depth: u32) -> usize {
    1 << doublings(depth)
}

/// Hashes that together stand for at most so many blocks.
pub fn depth_within(blocks: usize) -> usize {
    (1..).take_while(|depth| worth(*depth) as usize <= blocks).count()
}

/// Bytes in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize(usize);

/// Bytes of English text in a token, about.
const BYTES_PER_TOKEN: f32 = 4.0;

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

    /// Tokens in a block, about: what tells work and load in tokens where there is no tokenizer.
    pub fn tokens(self) -> f32 {
        self.0 as f32 / BYTES_PER_TOKEN
    }
}

impl Default for BlockSize {
    /// 256 bytes: about 64 tokens of English, four of vLLM's blocks.
    fn default() -> Self {
        Self(256)
    }
}

/// The names of a prompt's prefixes, shortest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// Those that are kept, each [worth](worth_of) its blocks: of [`Kind::Text`] or [`Kind::Tokens`].
    pub hashes: Vec<BlockHash>,
    /// Every block, as [`Kind::Cached`]; none of a text.
    pub cached: Vec<BlockHash>,
}

impl Chain {
    /// Whole blocks of the prompt, as far as they are known.
    pub fn blocks(&self) -> u32 {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        worth(number(self.hashes.len())).max(number(self.cached.len()))
    }

    /// Whether the prompt has no whole block.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Forgets all of it, keeping the buffers.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.cached.clear();
    }
}

/// What a piece of a prompt added to a chain, and where it left the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    links: Box<[u64]>,
    end: u64,
    partial: Box<[u8]>,
}

impl Added {
    /// Bytes of it, beside its own.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.links) + self.partial.len()
    }
}

/// Builds a [`Chain`] from pieces of a canonical form. Where the pieces are cut makes no difference.
#[derive(Debug)]
pub struct ChainBuilder {
    kind: Kind,
    size: usize,
    /// The last link, or the seed.
    end: u64,
    links: Vec<u64>,
    /// Bytes of the block that the last piece left unfinished.
    partial: Vec<u8>,
}

impl ChainBuilder {
    /// A chain for a prompt of `bytes` bytes in canonical form. `bytes` only reserves memory.
    pub fn new(seed: u64, size: BlockSize, bytes: usize) -> Self {
        Self::with_size(Kind::Text, seed, size.bytes(), bytes)
    }

    /// A chain for `tokens` token ids, in blocks of `block` tokens.
    pub fn tokens(seed: u64, block: usize, tokens: usize) -> Self {
        let size = block.max(1) * size_of::<u32>();
        Self::with_size(Kind::Tokens, seed, size, tokens * size_of::<u32>())
    }

    fn with_size(kind: Kind, seed: u64, size: usize, bytes: usize) -> Self {
        let links = Vec::with_capacity(bytes / size);
        Self { kind, size, end: seed, links, partial: Vec::with_capacity(size) }
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
            let Some((head, rest)) = piece.split_at_checked(self.size.saturating_sub(self.partial.len()))
            else {
                return self.partial.extend_from_slice(piece);
            };
            self.partial.extend_from_slice(head);
            self.append(xxh3_64(&self.partial));
            self.partial.clear();
            piece = rest;
        }
        while let Some((block, rest)) = piece.split_at_checked(self.size) {
            self.append(xxh3_64(block));
            piece = rest;
        }
        self.partial.extend_from_slice(piece);
    }

    fn append(&mut self, digest: u64) {
        self.end = link(self.end, digest);
        self.links.push(self.end);
    }

    /// What the next bytes will be chained to, and in which blocks: equal marks go on equally. `seed`: whoever knows it could
    /// make equal ones on purpose.
    pub fn mark(&self, seed: u64) -> u64 {
        let state = [self.size as u64, self.end];
        let state = state.iter().fold(seed, |seed, value| xxh3_64_with_seed(&value.to_le_bytes(), seed));
        xxh3_64_with_seed(&self.partial, state)
    }

    /// Links so far.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there is no link yet.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// What was added after the first `before` links, to be [added](Self::go_on) to an equal chain another time.
    pub fn since(&self, before: usize) -> Added {
        let links = self.links.get(before..).unwrap_or_default();
        Added { links: links.into(), end: self.end, partial: self.partial.as_slice().into() }
    }

    /// Adds what was added before to a chain that stood at the same [mark](Self::mark).
    pub fn go_on(&mut self, added: &Added) {
        self.links.extend_from_slice(&added.links);
        self.end = added.end;
        self.partial.clear();
        self.partial.extend_from_slice(&added.partial);
    }

    /// The chain of all that was pushed.
    pub fn finish(self) -> Chain {
        let Self { kind, mut links, .. } = self;
        let kept = (1..).map_while(|depth| links.get(worth(depth) as usize - 1));
        let hashes = kept.map(|link| kind.name(*link)).collect();
        match kind {
            Kind::Text => links = Vec::new(),
            Kind::Tokens | Kind::Cached => {
                links.iter_mut().for_each(|link| *link = Kind::Cached.name(*link));
            }
        }
        Chain { hashes, cached: links }
    }
}

/// The link of a block after the link before it, or after the seed. `digest` is the xxh3 of the block's bytes.
pub fn link(previous: u64, digest: u64) -> u64 {
    xxh3_64_with_seed(&digest.to_le_bytes(), previous)
}

/// The digest of a block of tokens, as [`link`] takes it. `bytes` is a buffer.
pub fn digest(tokens: &[u32], bytes: &mut Vec<u8>) -> u64 {
    bytes.resize(size_of_val(tokens), 0);
    for (to, id) in bytes.as_chunks_mut().0.iter_mut().zip(tokens) {
        *to = id.to_le_bytes();
    }
    xxh3_64(bytes)
}

/// What separates the caches of equal token ids in one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Apart<'a> {
    /// The model, or in vLLM the LoRA adapter, as requests name it.
    pub model: Option<&'a str>,
    /// SGLang's `lora_path`, in JSON.
    pub lora: Option<&'a [u8]>,
    /// The xxh3 of a tenant's salt.
    pub salt: Option<u64>,
    /// SGLang's `extra_key`, in JSON.
    pub extra_key: Option<&'a [u8]>,
}

impl Apart<'_> {
    /// The seed of a chain of blocks of so many tokens.
    pub fn seed(&self, block_tokens: usize) -> u64 {
        let size = (block_tokens as u64).to_le_bytes();
        let salt = self.salt.map(u64::to_le_bytes);
        let salt = salt.as_ref().map(<[u8; 8]>::as_slice);
        let model = self.model.map(str::as_bytes);
        seed(&[Some(b"ids"), Some(&size), model, self.lora, salt, self.extra_key])
    }
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
        let mut links = vec![seed];
        for block in bytes.chunks_exact(size) {
            links.push(xxh3_64_with_seed(&xxh3_64(block).to_le_bytes(), *links.last().unwrap()));
        }
        let mut kept = Vec::new();
        let mut at = 1;
        while let Some(link) = links.get(at) {
            kept.push(*link & !3);
            at += match kept.len() {
                0..64 => 1,
                n => 1 << (n / 32 - 1),
            };
        }
        kept
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
    fn tokens_are_bytes_in_little_endian() {
        let ids: Vec<u32> = (0..16 * 300 + 5).collect();
        let chain = |parts: &[&[u32]]| {
            let mut builder = ChainBuilder::tokens(9, 16, ids.len());
            parts.iter().for_each(|part| builder.push_tokens(part));
            builder.finish()
        };
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let kept: Vec<_> = literal(9, 64, &bytes).iter().map(|name| Kind::Tokens.name(*name)).collect();
        assert_eq!(chain(&[&ids]).hashes, kept);
        // Every block, linked as whoever hears of it one by one links it.
        let (mut buffer, mut end) = (Vec::new(), 9);
        let each: Vec<_> = ids
            .chunks_exact(16)
            .map(|block| {
                end = link(end, digest(block, &mut buffer));
                Kind::Cached.name(end)
            })
            .collect();
        assert_eq!((chain(&[&ids]).cached, chain(&[&ids]).blocks()), (each, 300));
        let (a, b) = ids.split_at(777);
        assert_eq!(chain(&[a, b]), chain(&[&ids]));
    }

    proptest! {
        #[test]
        fn what_was_added_can_be_added_again(
            pieces in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..400), 0..12),
            block in prop_oneof![1..3usize, 1..20usize],
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
            let reserved = (builder.links.capacity(), builder.partial.capacity());
            for piece in vec![0; bytes].chunks(1000) {
                builder.push(piece);
            }
            assert_eq!((builder.links.capacity(), builder.partial.capacity()), reserved, "{bytes} bytes");
            assert_eq!(builder.links.len(), reserved.0, "{bytes} bytes");
        }
    }

    #[test]
    fn a_hash_is_worth_its_blocks() {
        let bytes: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
        let all = literal(0, 16, &bytes);
        for depth in 0..=all.len() {
            let worth = worth(depth as u32) as usize;
            assert_eq!(literal(0, 16, &bytes[..worth * 16]), all[..depth]);
            assert!(worth == 0 || literal(0, 16, &bytes[..worth * 16 - 1]).len() == depth - 1);
            assert_eq!(super::worth(depth as u32 + 1) as usize - worth, worth_of(depth as u32));
            assert!(depth < 64 || worth_of(depth as u32) <= worth / 32);
        }
        assert_eq!(super::worth(u32::MAX), u32::MAX);
        for blocks in 0..5000 {
            assert_eq!(depth_within(blocks), literal(0, 16, &bytes[..blocks * 16]).len());
        }
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
