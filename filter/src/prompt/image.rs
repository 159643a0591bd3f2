//! The binary form of a tokenizer: what [`convert`](super::convert) makes once, and every VM loads by copying.
//!
//! ```text
//! header   12 words: magic, version, checksum (2) of all that follows, flags, slots of merges, slots of words, bytes of the
//!          frame, tokens, 0, 0, 0
//! bytes    256 words: the token of each byte
//! merges   4 words a slot: left, right, rank, product; empty where left is EMPTY
//! words    4 words a slot: the low and the high half of the word's hash, its token, 0; empty where the token is EMPTY
//! frame    JSON: the tokenizer without its vocabulary, filled up to whole words
//! ```
//!
//! All words are little-endian `u32`. Tables are open addressing with linear probing, at most two thirds full.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: u32 = u32::from_le_bytes(*b"WPTK");
/// Raise it with any change to the layout, to a hash, or to what the frame means.
const VERSION: u32 = 2;
const HEADER: usize = 12;
const SLOT: usize = 4;
/// No token has this id.
pub(super) const EMPTY: u32 = u32::MAX;
/// Words of the vocabulary are told apart by their hash alone, under a seed of its own.
const WORD_SEED: u64 = 0x776f_7264;

/// Bytes in a word of the image.
pub const WORD: usize = size_of::<u32>();
/// A larger image than any vocabulary in use: a million merges.
const MAX_BYTES: usize = 64 << 20;

/// Where in the header things are.
mod at {
    pub const CHECKSUM: usize = 2;
    /// Here begins what the checksum is of.
    pub const FLAGS: usize = 4;
    pub const MERGES: usize = 5;
    pub const WORDS: usize = 6;
    pub const FRAME: usize = 7;
    pub const TOKENS: usize = 8;
}

/// A word that is a token is that token, whatever merging would make of it.
const IGNORE_MERGES: u32 = 1;

/// Why bytes are no image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageError {
    /// They don't begin as one.
    Magic,
    /// Another version of Warmpath made it.
    Version(u32),
    /// Its length is not what its header says, or beyond all bounds.
    Length,
    /// It was changed or cut since it was made.
    Checksum,
    /// The JSON at its end is not text.
    Frame,
}

impl std::fmt::Display for ImageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => f.write_str("not a tokenizer image"),
            Self::Version(version) => {
                write!(f, "a tokenizer image of version {version}, this build reads {VERSION}; make it anew")
            }
            Self::Length => f.write_str("a tokenizer image that was cut off, or is too large"),
            Self::Checksum => f.write_str("a tokenizer image that was damaged"),
            Self::Frame => f.write_str("a tokenizer image whose frame is not UTF-8"),
        }
    }
}

impl std::error::Error for ImageError {}

/// One merge of a vocabulary: two tokens that become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Merge {
    pub left: u32,
    pub right: u32,
    /// Lower ranks go first.
    pub rank: u32,
    pub product: u32,
}

/// A tokenizer in its binary form. What it holds may be wrong, never dangerous: whoever reads it takes ids as mere numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    words: Vec<u32>,
    frame: String,
}

/// What an image is made of.
pub(super) struct Parts<'a> {
    pub bytes: &'a [u32; 256],
    pub merges: &'a [Merge],
    /// Tokens by their bytes, where a word that is a token must not be merged.
    pub whole_words: Option<&'a [(Vec<u8>, u32)]>,
    pub frame: &'a str,
    pub tokens: u32,
}

impl Image {
    /// Puts an image together.
    pub(super) fn build(parts: &Parts<'_>) -> Vec<u8> {
        let merges = table(parts.merges.iter().map(|merge| {
            let Merge { left, right, rank, product } = *merge;
            (pair_hash(left, right), [left, right, rank, product])
        }));
        let words = parts.whole_words.unwrap_or_default();
        let words = table(words.iter().map(|(word, token)| {
            let hash = word_hash(word);
            (hash, [hash as u32, (hash >> 32) as u32, *token, 0])
        }));
        let flags = if parts.whole_words.is_some() { IGNORE_MERGES } else { 0 };
        let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let sizes = [size(merges.len()), size(words.len()), size(parts.frame.len())];
        let header = [&[flags][..], &sizes, &[parts.tokens, 0, 0, 0]].concat();
        let mut body: Vec<u8> = Vec::new();
        for words in [&header, &parts.bytes[..], merges.as_flattened(), words.as_flattened()] {
            body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        body.extend(parts.frame.as_bytes());
        body.resize(body.len().next_multiple_of(WORD), b' ');
        let mut image: Vec<u8> = [MAGIC, VERSION].iter().flat_map(|word| word.to_le_bytes()).collect();
        image.extend(xxh3_64(&body).to_le_bytes());
        image.extend(body);
        image
    }

    /// Reads an image, checking all that its tables rely on.
    ///
    /// # Errors
    /// Where the bytes are not an image that this version made.
    pub fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        if bytes.len() > MAX_BYTES {
            return Err(ImageError::Length);
        }
        let (words, rest) = bytes.as_chunks::<WORD>();
        let header: [u32; HEADER] = match words.first_chunk::<HEADER>() {
            Some(header) => header.map(u32::from_le_bytes),
            None => return Err(ImageError::Magic),
        };
        let field = |at: usize| header.get(at).copied().unwrap_or(0);
        if field(0) != MAGIC {
            return Err(ImageError::Magic);
        }
        if field(1) != VERSION {
            return Err(ImageError::Version(field(1)));
        }
        let frame = field(at::FRAME) as usize;
        let tables = (field(at::MERGES) as usize)
            .checked_add(field(at::WORDS) as usize)
            .and_then(|slots| slots.checked_mul(SLOT))
            .and_then(|words| words.checked_add(HEADER + 256));
        let length = tables.and_then(|tables| tables.checked_add(frame.div_ceil(WORD)));
        let (Some(tables), true) = (tables, rest.is_empty() && length == Some(words.len())) else {
            return Err(ImageError::Length);
        };
        let body = bytes.get(at::FLAGS * WORD..).unwrap_or_default();
        let sum = u64::from(field(at::CHECKSUM)) | u64::from(field(at::CHECKSUM + 1)) << 32;
        if xxh3_64(body) != sum {
            return Err(ImageError::Checksum);
        }
        let text = bytes.get(tables * WORD..).and_then(|text| text.get(..frame)).unwrap_or_default();
        let frame = String::from_utf8(text.to_vec()).map_err(|_| ImageError::Frame)?;
        let words = words.iter().take(tables).map(|word| u32::from_le_bytes(*word)).collect();
        Ok(Self { words, frame })
    }

    /// The tokenizer without its vocabulary, as JSON.
    pub fn frame(&self) -> &str {
        &self.frame
    }

    /// Number of tokens that the vocabulary was made of, added ones not counted.
    pub fn tokens(&self) -> u32 {
        self.header(at::TOKENS)
    }

    /// Bytes allocated.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * WORD + self.frame.capacity()
    }

    /// Frees the frame, which is read once.
    pub(super) fn drop_frame(&mut self) {
        self.frame = String::new();
    }

    /// The token of a byte; [`EMPTY`] where it has none.
    #[inline]
    pub(super) fn byte(&self, byte: u8) -> u32 {
        self.words.get(HEADER + usize::from(byte)).copied().unwrap_or(EMPTY)
    }

    /// Rank and product of two neighbours that merge.
    #[inline]
    pub(super) fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let slots = self.slots(0, self.header(at::MERGES));
        probe(slots, pair_hash(left, right), |slot| match *slot {
            [EMPTY, ..] => Probed::Empty,
            [l, r, rank, product] if l == left && r == right => Probed::Found((rank, product)),
            _ => Probed::Other,
        })
    }

    /// The token of a word that must not be merged.
    #[inline]
    pub(super) fn whole_word(&self, word: &[u8]) -> Option<u32> {
        if self.header(at::FLAGS) & IGNORE_MERGES == 0 {
            return None;
        }
        let hash = word_hash(word);
        let slots = self.slots(self.header(at::MERGES), self.header(at::WORDS));
        probe(slots, hash, |slot| match *slot {
            [_, _, EMPTY, _] => Probed::Empty,
            [low, high, token, _] if u64::from(low) | u64::from(high) << 32 == hash => Probed::Found(token),
            _ => Probed::Other,
        })
    }

    #[inline]
    fn header(&self, at: usize) -> u32 {
        self.words.get(at).copied().unwrap_or(0)
    }

    #[inline]
    fn slots(&self, first: u32, count: u32) -> &[[u32; SLOT]] {
        let (slots, _) = self.words.get(HEADER + 256..).unwrap_or_default().as_chunks();
        slots.get(first as usize..).and_then(|slots| slots.get(..count as usize)).unwrap_or_default()
    }
}

enum Probed<T> {
    Empty,
    Found(T),
    Other,
}

/// Where a hash belongs in a table: its high bits, scaled, so that a table need not be a power of two.
#[inline]
fn home(hash: u64, slots: usize) -> usize {
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

#[inline]
fn probe<T>(slots: &[[u32; SLOT]], hash: u64, look: impl Fn(&[u32; SLOT]) -> Probed<T>) -> Option<T> {
    let (before, from) = slots.split_at_checked(home(hash, slots.len()))?;
    // A damaged table without an empty slot ends the search too.
    for slot in from.iter().chain(before) {
        match look(slot) {
            Probed::Found(found) => return Some(found),
            Probed::Empty => return None,
            Probed::Other => {}
        }
    }
    None
}

/// A table of slots, each at its hash or as soon as possible behind it.
fn table(slots: impl ExactSizeIterator<Item = (u64, [u32; SLOT])>) -> Vec<[u32; SLOT]> {
    let size = slots.len().div_ceil(2) * 3;
    let mut table = vec![[EMPTY; SLOT]; size];
    for (hash, slot) in slots {
        let start = home(hash, size);
        let free = (start..size).chain(0..start).find(|at| table.get(*at) == Some(&[EMPTY; SLOT]));
        if let Some(place) = free.and_then(|at| table.get_mut(at)) {
            *place = slot;
        }
    }
    table
}

#[inline]
fn pair_hash(left: u32, right: u32) -> u64 {
    // Multiplication carries upwards only, so the low bits are folded in before a second one.
    let pair = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (pair ^ (pair >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn word_hash(word: &[u8]) -> u64 {
    xxh3_64_with_seed(word, WORD_SEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn image(merges: &BTreeMap<(u32, u32), (u32, u32)>, words: Option<&BTreeMap<Vec<u8>, u32>>) -> Vec<u8> {
        let merges: Vec<_> = merges
            .iter()
            .map(|(&(left, right), &(rank, product))| Merge { left, right, rank, product })
            .collect();
        let words: Option<Vec<_>> =
            words.map(|words| words.iter().map(|(word, token)| (word.clone(), *token)).collect());
        Image::build(&Parts {
            bytes: &std::array::from_fn(|byte| byte as u32),
            merges: &merges,
            whole_words: words.as_deref(),
            frame: "{\"é\":1}",
            tokens: 9,
        })
    }

    proptest! {
        #[test]
        fn finds_what_was_put_in_and_nothing_else(
            merges in prop::collection::btree_map((0..40u32, 0..40u32), (0..99u32, 0..99u32), 0..200),
            words in prop::option::of(prop::collection::btree_map(prop::collection::vec(0..4u8, 0..4), 0..99u32, 0..60)),
        ) {
            let image = Image::read(&image(&merges, words.as_ref())).unwrap();
            for pair in (0..41).flat_map(|left| (0..41).map(move |right| (left, right))) {
                prop_assert_eq!(image.merge(pair.0, pair.1), merges.get(&pair).copied());
            }
            for word in (0..256u32).map(|n| n.to_le_bytes().map(|byte| byte % 4).to_vec()) {
                for word in (0..=4).map(|len| &word[..len]) {
                    prop_assert_eq!(image.whole_word(word), words.as_ref().and_then(|words| words.get(word)).copied());
                }
            }
            prop_assert_eq!((image.frame(), image.tokens(), image.byte(7)), ("{\"é\":1}", 9, 7));
        }

        #[test]
        fn what_was_changed_is_refused(at: prop::sample::Index, flip in 1u8.., cut: prop::sample::Index) {
            let merges = BTreeMap::from([((1, 2), (0, 3)), ((3, 4), (1, 5))]);
            let good = image(&merges, None);
            let mut bad = good.clone();
            let i = at.index(bad.len());
            bad[i] ^= flip;
            prop_assert!(Image::read(&bad).is_err(), "byte {}", i);
            prop_assert!(Image::read(&good[..cut.index(good.len())]).is_err());
        }
    }
}
