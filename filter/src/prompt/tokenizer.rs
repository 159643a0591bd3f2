//! Text to token ids, as the engine's own tokenizer makes them.

use super::image::{Image, ImageError};
use super::segments::Segments;
use super::vocabulary::Vocabulary;
use crate::blocks::ChainBuilder;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
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
        let frame = Self { rest, added };
        frame.load()?;
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
    vocabulary: Vocabulary,
    segments: Segments,
    /// Special tokens around a text that stands for itself.
    before: Vec<u32>,
    after: Vec<u32>,
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
            vocabulary: Vocabulary::new(image, seed),
            segments: Segments::new(seed, memory),
            before,
            after,
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

    /// Appends the tokens of a text, without those around it.
    ///
    /// # Errors
    /// Where the text can't be normalized or cut.
    pub fn encode(&mut self, text: &str, out: &mut Vec<u32>) -> Result<(), String> {
        let mut cut = 0;
        while cut < text.len() {
            let (segment, token, next) = self.next_segment(text, cut);
            self.segment(segment, cut, out)?;
            out.extend(token);
            cut = next;
        }
        Ok(())
    }

    /// Adds the tokens of a text to a chain, without those around it. Of what is remembered, nothing is tokenized.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; the chain is then of no use.
    pub fn chain(&mut self, text: &str, chain: &mut ChainBuilder) -> Result<(), String> {
        let mut ids = Vec::new();
        let mut cut = 0;
        while cut < text.len() {
            let (segment, token, next) = self.next_segment(text, cut);
            let key = self.segments.key(segment, chain.mark(self.segments.seed()), cut == 0);
            match key.and_then(|key| self.segments.recall(key)) {
                Some(added) => chain.go_on(added),
                None => {
                    ids.clear();
                    self.segment(segment, cut, &mut ids)?;
                    let before = chain.len();
                    chain.push_tokens(&ids);
                    if let Some(key) = key {
                        self.segments.remember(key, chain.since(before));
                    }
                }
            }
            chain.push_tokens(token.as_slice());
            cut = next;
        }
        Ok(())
    }

    /// The text from byte `cut` to the next added token, that token, and where it ends.
    fn next_segment<'t>(&self, text: &'t str, cut: usize) -> (&'t str, Option<u32>, usize) {
        let (until, token, next) = match self.added.extract_next(text.as_bytes(), cut, false, false) {
            Some(((start, end), token)) if end > cut => (start, Some(token), end),
            _ => (text.len(), None, text.len()),
        };
        (text.get(cut..until).unwrap_or_default(), token, next)
    }

    /// Appends the tokens of a text between added tokens, which begins at byte `offset`.
    fn segment(&mut self, text: &str, offset: usize, out: &mut Vec<u32>) -> Result<(), String> {
        let Self { rest, added, vocabulary, scratch, words, .. } = self;
        let normal =
            normalize_all(rest.get_normalizers(), text, offset).map_err(|error| error.to_string())?;
        for segment in SpecialSegmentIterator::new(&normal, added, true, false) {
            match segment {
                Segment::SpecialToken(token) => out.push(token),
                Segment::Text { text, .. } => {
                    words.clear();
                    let cut = rest.get_pre_tokenizer().pre_tokenize(text, scratch, words);
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
