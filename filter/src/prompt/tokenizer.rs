//! Text to token ids, as the engine's own tokenizer makes them.

use super::cuts;
use super::image::{Image, ImageError};
use super::marks;
use super::segments::Segments;
use super::vocabulary::Vocabulary;
use crate::blocks::ChainBuilder;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt;
use tokenizers::pipeline::{
    EncodeOptions, PipelinePatternMatcher, PipelineTokenizer, PreTokenizer, PreTokenizerScratch, Segment,
    Span, SpecialSegmentIterator, normalize_all,
};
use tokenizers::vocab::bucket_added_vocabulary::{AddedToken, AddedVocabulary};

/// A tokenizer without its vocabulary, as an image carries it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Frame {
    /// What the `tokenizers` crate reads, with a vocabulary of bytes.
    rest: Value,
    added: Vec<Added>,
    /// See [`marks`].
    #[serde(default)]
    marks_are_letters: bool,
}

/// A token that is found in text as it is, before words are cut.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Added {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    /// Where a file doesn't say, a token that isn't special is sought in normalized text.
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl Added {
    /// Whether it may be found across a place where texts are [cut](cuts). Those that are sought before cutting never are.
    pub fn spans_words(&self) -> bool {
        let normalized = self.normalized.unwrap_or(!self.special);
        normalized && (self.single_word || self.lstrip || self.rstrip || self.content.contains([' ', '\n']))
    }
}

impl Frame {
    /// Brings a tokenizer without its vocabulary up to date, and tries to load it.
    pub fn of(mut rest: Value, added: Vec<Added>) -> Result<Self, String> {
        let byte_level = rest.pointer("/model/byte_level") == Some(&Value::Bool(true));
        let vocab: Map<String, Value> =
            super::convert::names_of_bytes().zip(0..).map(|(name, id)| (name, Value::from(id))).collect();
        if let Some(model) = rest.get_mut("model") {
            *model = json!({"type": "BPE", "vocab": vocab, "merges": [], "byte_level": byte_level});
        }
        tokenizers::canonicalize_value(&mut rest).map_err(|error| error.to_string())?;
        if rest.pointer("/model/byte_level") != Some(&Value::Bool(true)) {
            return Err("BPE that is not byte-level".to_owned());
        }
        let marks_are_letters = rest.get_mut("pre_tokenizer").is_some_and(marks::take_out);
        let frame = Self { rest, added, marks_are_letters };
        // Whether patterns are known shows only once a text is cut.
        around(&frame.load()?.0).map_err(|_| {
            let of = frame.rest.get("pre_tokenizer").map(Value::to_string).unwrap_or_default();
            format!("a pre-tokenizer that is none of those known: {of:.400}")
        })?;
        Ok(frame)
    }

    fn load(&self) -> Result<(PipelineTokenizer, AddedVocabulary), String> {
        let rest = tokenizers::from_json(&self.rest.to_string()).map_err(|error| error.to_string())?;
        let mut added = AddedVocabulary::new();
        let tokens = self.added.iter().map(|token| AddedToken {
            content: token.content.clone(),
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized.unwrap_or(!token.special),
            special: token.special,
        });
        let ids: hashbrown::HashMap<&str, u32> =
            self.added.iter().map(|token| (token.content.as_str(), token.id)).collect();
        let normalizers = tokenizers::pipeline::NormalizerChain(rest.get_normalizers());
        added
            .add_tokens(tokens, 0, |token| ids.get(token).copied(), Some(&normalizers))
            .map_err(|error| error.to_string())?;
        Ok((rest, added))
    }
}

/// Bytes after which a text is [cut](cuts) where it may be.
const PIECE: usize = 8192;

/// How much of a text was tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Its start: what follows is new, and more than was allowed.
    Start,
}

/// A part of a text that is tokenized by itself, and the added token behind it.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: usize,
    end: usize,
    token: Option<u32>,
}

/// Why an image could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// The bytes are no image.
    Image(ImageError),
    /// Its frame is not what this version makes.
    Frame(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::Frame(error) => write!(f, "a tokenizer image whose frame cannot be read: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// The tokenizer of one model, in one VM.
pub struct Tokenizer {
    rest: PipelineTokenizer,
    added: AddedVocabulary,
    marks_are_letters: bool,
    vocabulary: Vocabulary,
    segments: Segments,
    /// Special tokens around a text that stands for itself.
    before: Vec<u32>,
    after: Vec<u32>,
    /// See [`Tokenizer::with_pieces`]; `None` where texts of this tokenizer must not be cut.
    piece: Option<usize>,
    pieces: Vec<Piece>,
    scratch: PreTokenizerScratch,
    words: Vec<Span>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// A tokenizer from its image. `seed`: a secret of this VM, see [`Vocabulary::new`]. `memory`: bytes of blocks of text
    /// to remember, see [`Segments`].
    ///
    /// # Errors
    /// Where the bytes are not an image that this version made.
    pub fn load(image: &[u8], seed: u64, memory: usize) -> Result<Self, LoadError> {
        let mut image = Image::read(image).map_err(LoadError::Image)?;
        let frame: Frame =
            serde_json::from_str(image.frame()).map_err(|error| LoadError::Frame(error.to_string()))?;
        image.drop_frame();
        let (rest, added) = frame.load().map_err(LoadError::Frame)?;
        let (before, after) = around(&rest).map_err(LoadError::Frame)?;
        Ok(Self {
            rest,
            added,
            marks_are_letters: frame.marks_are_letters,
            vocabulary: Vocabulary::new(image, seed),
            segments: Segments::new(seed, memory),
            before,
            after,
            piece: cuts::are_safe(&frame.rest, &frame.added).then_some(PIECE),
            pieces: Vec::new(),
            scratch: PreTokenizerScratch::default(),
            words: Vec::new(),
        })
    }

    /// Bytes that the vocabulary and what is remembered take.
    pub fn memory_bytes(&self) -> usize {
        self.vocabulary.memory_bytes() + self.segments.memory_bytes()
    }

    /// Bytes that remembered segments take.
    pub fn segments_bytes(&self) -> usize {
        self.segments.memory_bytes()
    }

    /// Tokens that the engine puts before and after a text that isn't a rendered chat.
    pub fn around(&self) -> (&[u32], &[u32]) {
        (&self.before, &self.after)
    }

    /// Cuts long texts after other than 8192 bytes, where they may be cut at all. Ids are the same.
    #[must_use]
    pub fn with_pieces(self, bytes: usize) -> Self {
        Self { piece: self.piece.map(|_| bytes), ..self }
    }

    /// Whether long texts are cut.
    pub fn may_cut(&self) -> bool {
        self.piece.is_some()
    }

    /// Appends the tokens of a text, without those around it.
    ///
    /// # Errors
    /// Where the text can't be normalized or cut.
    pub fn encode(&mut self, text: &str, out: &mut Vec<u32>) -> Result<(), String> {
        let pieces = self.pieces(text);
        let done = pieces.iter().try_for_each(|piece| {
            self.tokenize(text.get(piece.start..piece.end).unwrap_or_default(), piece.start, out)?;
            out.extend(piece.token);
            Ok(())
        });
        self.pieces = pieces;
        done
    }

    /// Adds the tokens of a text to a chain, without those around it. What is remembered is not tokenized again; of what is
    /// new, at most `most_new` bytes are.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; the chain is then of no use.
    pub fn chain(&mut self, text: &str, most_new: usize, chain: &mut ChainBuilder) -> Result<Extent, String> {
        let pieces = self.pieces(text);
        let done = self.chain_pieces(text, &pieces, most_new, chain);
        self.pieces = pieces;
        done
    }

    fn chain_pieces(
        &mut self,
        text: &str,
        pieces: &[Piece],
        mut most_new: usize,
        chain: &mut ChainBuilder,
    ) -> Result<Extent, String> {
        let mut ids = Vec::new();
        for piece in pieces {
            let part = text.get(piece.start..piece.end).unwrap_or_default();
            let key = self.segments.key(part, chain.mark(self.segments.seed()), piece.start == 0);
            match key.and_then(|key| self.segments.recall(key)) {
                Some(added) => chain.go_on(added),
                None => {
                    let Some(left) = most_new.checked_sub(part.len()) else { return Ok(Extent::Start) };
                    most_new = left;
                    ids.clear();
                    self.tokenize(part, piece.start, &mut ids)?;
                    let before = chain.len();
                    chain.push_tokens(&ids);
                    if let Some(key) = key {
                        self.segments.remember(key, chain.since(before));
                    }
                }
            }
            chain.push_tokens(piece.token.as_slice());
        }
        Ok(Extent::Whole)
    }

    /// Cuts a text at added tokens, and what is long between them.
    fn pieces(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        let mut start = 0;
        while start < text.len() {
            let (until, token, next) = match self.added.extract_next(text.as_bytes(), start, false, false) {
                Some(((until, end), token)) if end > start => (until, Some(token), end),
                _ => (text.len(), None, text.len()),
            };
            while let Some(least) = self.piece {
                let end = start + cuts::piece(text.get(start..until).unwrap_or_default(), least).len();
                if end == until {
                    break;
                }
                pieces.push(Piece { start, end, token: None });
                start = end;
            }
            pieces.push(Piece { start, end: until, token });
            start = next;
        }
        pieces
    }

    /// Appends the tokens of a text without added tokens, which begins at byte `offset`.
    fn tokenize(&mut self, text: &str, offset: usize, out: &mut Vec<u32>) -> Result<(), String> {
        let Self { rest, added, marks_are_letters, vocabulary, scratch, words, .. } = self;
        let normal =
            normalize_all(rest.get_normalizers(), text, offset).map_err(|error| error.to_string())?;
        for segment in SpecialSegmentIterator::new(&normal, added, true, false) {
            match segment {
                Segment::SpecialToken(token) => out.push(token),
                Segment::Text { text, .. } => {
                    words.clear();
                    let shown =
                        if *marks_are_letters { marks::as_letters(text) } else { Cow::Borrowed(text) };
                    let cut = rest.get_pre_tokenizer().pre_tokenize(&shown, scratch, words);
                    cut.map_err(|error| error.to_string())?;
                    for word in words.iter() {
                        let word = text.as_bytes().get(word.range()).unwrap_or_default();
                        vocabulary.encode(word, out);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What the post-processor puts around a text.
fn around(rest: &PipelineTokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    const PROBE: &str = "a";
    let encode = |add_special_tokens| {
        let options = EncodeOptions { add_special_tokens, ..EncodeOptions::default() };
        let mut out = Vec::new();
        rest.encode_into(PROBE, &options, &mut out).map_err(|error| error.to_string())?;
        Ok::<Vec<u32>, String>(out.into_iter().map(u32::from).collect())
    };
    let (bare, whole) = (encode(false)?, encode(true)?);
    let at = whole.windows(bare.len().max(1)).position(|tokens| tokens == bare);
    let Some((before, rest)) = at.and_then(|at| whole.split_at_checked(at)) else {
        return Err("its post-processor takes the text away".to_owned());
    };
    Ok((before.to_vec(), rest.get(bare.len()..).unwrap_or_default().to_vec()))
}
