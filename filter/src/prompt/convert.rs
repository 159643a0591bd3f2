//! tokenizer.json to an [`Image`](super::Image).
//!
//! Takes files of any age: pairs of merges as `"a b"` or `["a", "b"]`, and whatever else the `tokenizers` crate knows how to
//! bring up to date.

use super::frame::{Added, Frame};
use super::image::{EMPTY, Image, Merge, Parts};
use hashbrown::HashMap;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt;

/// A larger tokenizer.json than any in use.
pub const MAX_JSON_BYTES: usize = 96 << 20;
/// Ids from here on are refused: tables grow with the largest.
const MOST_TOKENS: u32 = 1 << 24;
/// Longest token, in bytes of the file.
const LONGEST_TOKEN: usize = 4096;

/// Why a tokenizer.json cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConvertError {
    /// It is larger than [`MAX_JSON_BYTES`].
    TooLarge(usize),
    /// It is not JSON of the form that it must have; says what and where.
    Malformed(String),
    /// It asks for something that isn't understood.
    Unsupported(String),
    /// It contradicts itself.
    Wrong(String),
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => {
                write!(f, "tokenizer.json has {bytes} bytes, more than the {MAX_JSON_BYTES} that are taken")
            }
            Self::Malformed(what) => write!(f, "tokenizer.json cannot be read: {what}"),
            Self::Unsupported(what) => write!(f, "tokenizer.json needs what is not supported: {what}"),
            Self::Wrong(what) => write!(f, "tokenizer.json is wrong: {what}"),
        }
    }
}

impl std::error::Error for ConvertError {}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow, default)]
    vocab: Vocab<'a>,
    #[serde(borrow, default)]
    merges: Vec<Pair<'a>>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    dropout: Option<f64>,
    #[serde(default)]
    ignore_merges: bool,
    /// Only in files of tokenizers 1.0 and later, which say here what a `ByteLevel` pre-tokenizer said before.
    #[serde(default)]
    byte_level: bool,
}

/// Tokens, as they are written in the file, with their ids.
#[derive(Default)]
struct Vocab<'a>(HashMap<Cow<'a, str>, u32>);

/// The two tokens of a merge.
struct Pair<'a>(Cow<'a, str>, Cow<'a, str>);

/// Makes an image of a tokenizer.json. It is work for seconds at worst: not for the thread of a worker.
///
/// # Errors
/// Where the file is malformed, contradicts itself, or is of a kind of model that isn't understood.
pub fn convert(json: &[u8]) -> Result<Vec<u8>, ConvertError> {
    if json.len() > MAX_JSON_BYTES {
        return Err(ConvertError::TooLarge(json.len()));
    }
    let file: File<'_> =
        serde_json::from_slice(json).map_err(|error| ConvertError::Malformed(error.to_string()))?;
    let File { normalizer, pre_tokenizer, post_processor, added_tokens, model } = file;
    check(&model)?;
    let Model { vocab: Vocab(vocab), merges, ignore_merges, byte_level, .. } = model;
    let bytes = byte_tokens(&vocab)?;
    let merges = resolve(&vocab, &merges)?;
    let words: Option<Vec<_>> = ignore_merges.then(|| {
        let words = vocab.iter().filter_map(|(word, token)| Some((raw(word)?, *token)));
        words.collect()
    });
    for added in &added_tokens {
        if added.id >= MOST_TOKENS || added.content.len() > LONGEST_TOKEN {
            return Err(ConvertError::Wrong(format!(
                "the added token {:?} has id {}",
                added.content, added.id
            )));
        }
        if vocab.get(added.content.as_str()).is_some_and(|id| *id != added.id) {
            return Err(ConvertError::Wrong(format!("the added token {:?} has two ids", added.content)));
        }
    }
    let rest = json!({
        "version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
        "model": {"byte_level": byte_level},
    });
    let frame = Frame::of(rest, added_tokens).map_err(ConvertError::Unsupported)?;
    let frame = serde_json::to_string(&frame).map_err(|error| ConvertError::Wrong(error.to_string()))?;
    let tokens = u32::try_from(vocab.len()).unwrap_or(u32::MAX);
    Ok(Image::build(&Parts {
        bytes: &bytes,
        merges: &merges,
        whole_words: words.as_deref(),
        frame: &frame,
        tokens,
    }))
}

fn check(model: &Model<'_>) -> Result<(), ConvertError> {
    let unsupported = |what: String| Err(ConvertError::Unsupported(what));
    match model.kind.as_deref() {
        Some("BPE") => {}
        // Files of old leave it out; only BPE has merges.
        None if !model.merges.is_empty() => {}
        Some(kind) => return unsupported(format!("the model type {kind}; byte-level BPE is supported")),
        None => return unsupported("a model without a type and without merges".to_owned()),
    }
    for (name, value) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            return unsupported(format!("{name} {value:?}"));
        }
    }
    if model.dropout.is_some_and(|dropout| dropout > 0.0) {
        return unsupported("dropout, which makes tokens a matter of chance".to_owned());
    }
    if model.vocab.0.is_empty() {
        return Err(ConvertError::Wrong("its vocabulary is empty".to_owned()));
    }
    for (token, id) in &model.vocab.0 {
        if *id >= MOST_TOKENS || token.len() > LONGEST_TOKEN {
            return Err(ConvertError::Wrong(format!("the token {token:?} has id {id}")));
        }
    }
    Ok(())
}

fn byte_tokens(vocab: &HashMap<Cow<'_, str>, u32>) -> Result<[u32; 256], ConvertError> {
    let mut bytes = [EMPTY; 256];
    let mut text = [0; 4];
    for (byte, token) in (0..=u8::MAX).zip(&mut bytes) {
        let name: &str = char_of(byte).encode_utf8(&mut text);
        match vocab.get(name) {
            Some(id) => *token = *id,
            // These appear in no text.
            None if matches!(byte, 0xC0 | 0xC1 | 0xF5..) => {}
            None => {
                return Err(ConvertError::Unsupported(format!(
                    "a vocabulary without a token for the byte {byte:#04x}; byte-level BPE is supported"
                )));
            }
        }
    }
    Ok(bytes)
}

fn resolve(vocab: &HashMap<Cow<'_, str>, u32>, pairs: &[Pair<'_>]) -> Result<Vec<Merge>, ConvertError> {
    let id = |token: &str| {
        vocab.get(token).copied().ok_or_else(|| {
            ConvertError::Wrong(format!("a merge speaks of {token:?}, which is not in the vocabulary"))
        })
    };
    let mut merges: HashMap<(u32, u32), Merge> = HashMap::with_capacity(pairs.len());
    let mut product = String::new();
    for (rank, Pair(left, right)) in (0..).zip(pairs) {
        product.clear();
        product.push_str(left);
        product.push_str(right);
        let merge = Merge { left: id(left)?, right: id(right)?, rank, product: id(&product)? };
        // Of a pair that is there twice the last counts, as everywhere.
        merges.insert((merge.left, merge.right), merge);
    }
    let mut merges: Vec<_> = merges.into_values().collect();
    // Equal files make equal images.
    merges.sort_unstable_by_key(|merge| merge.rank);
    Ok(merges)
}

/// The character by which vocabularies of byte-level BPE name a byte: itself where it is printable, else one from U+0100 on.
fn char_of(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The name of a byte in a vocabulary.
pub(super) fn name_of(byte: u8) -> String {
    char_of(byte).to_string()
}

/// The names of all bytes, in their order.
pub(super) fn names_of_bytes() -> impl Iterator<Item = String> {
    (0..=u8::MAX).map(name_of)
}

/// The bytes that a name of the vocabulary stands for; `None` where a word can't be it.
fn raw(name: &str) -> Option<Vec<u8>> {
    name.chars()
        .map(|c| match u32::from(c) {
            0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(u32::from(c)).ok(),
            0x100..=0x143 => (0..=u8::MAX).find(|byte| char_of(*byte) == c),
            _ => None,
        })
        .collect()
}

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocab<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut vocab = HashMap::with_capacity(1 << 17);
                while let Some((Text(token), id)) = map.next_entry()? {
                    vocab.insert(token, id);
                }
                Ok(Vocab(vocab))
            }

            /// Unigram's: whoever reads the model's type says what is wrong.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Vocab::default())
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pair<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Merged;
        impl<'de> Visitor<'de> for Merged {
            type Value = Pair<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge, as \"left right\" or [\"left\", \"right\"]")
            }

            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                let halves = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = halves.ok_or_else(|| E::custom(format!("the merge {text:?}")))?;
                Ok(Pair(left.into(), right.into()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let halves = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = halves.ok_or_else(|| E::custom(format!("the merge {text:?}")))?;
                Ok(Pair(left.to_owned().into(), right.to_owned().into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                match (seq.next_element()?, seq.next_element()?, seq.next_element::<Text<'de>>()?) {
                    (Some(Text(left)), Some(Text(right)), None) => Ok(Pair(left, right)),
                    _ => Err(A::Error::custom("a merge is not of two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Merged)
    }
}

/// Text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_bytes_are_those_of_gpt_2() {
        let names: Vec<_> = (0..=u8::MAX).map(char_of).collect();
        assert_eq!(names[usize::from(b' ')], 'Ġ');
        assert_eq!(names[usize::from(b'\n')], 'Ċ');
        assert_eq!((names[0], names[0x7F], names[0xAD]), ('Ā', 'ġ', 'Ń'));
        for byte in 0..=u8::MAX {
            assert_eq!(raw(&char_of(byte).to_string()), Some(vec![byte]));
        }
        assert_eq!(raw("Ġa"), Some(b" a".to_vec()));
        assert_eq!(raw("a b"), None);
        assert_eq!(raw("漢"), None);
    }
}
