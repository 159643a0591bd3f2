//! Text to token ids, as the engine's own tokenizer makes them.

use super::cuts;
use super::frame::{Frame, around};
use super::image::{Image, ImageError};
use super::marks;
use super::segments::{SHORTEST, Segments};
use super::vocabulary::Vocabulary;
use crate::blocks::ChainBuilder;
use std::borrow::Cow;
use std::fmt;
use tokenizers::pipeline::{
    PipelinePatternMatcher, PipelineTokenizer, PreTokenizer, PreTokenizerScratch, Segment, Span,
    SpecialSegmentIterator, normalize_all,
};
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

/// Bytes after which a text is [cut](cuts) where it may be.
const CUT_AFTER: usize = 8192;
/// A longer word takes more time and memory than it should. No text has one, but for what isn't text.
const LONGEST_WORD: usize = 16 << 10;
/// Words from here on take [`SLOWER`] times as long for each byte as those of natural text, which are mostly remembered.
const LONG_WORD: usize = 256;
const SLOWER: usize = 8;

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
struct Part {
    start: usize,
    end: usize,
    token: Option<u32>,
}

/// How far a text was taken apart.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Where the next part begins.
    start: usize,
    /// Where the added token ahead begins, which it is and where it ends, if that was looked for; the end of the text without
    /// one.
    token: Option<(usize, Option<u32>, usize)>,
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
    /// Bytes after which a long text is [cut](cuts); `None` where texts of this tokenizer must not be.
    cut_after: Option<usize>,
    scratch: PreTokenizerScratch,
    words: Vec<Span>,
    /// Bytes that may still be tokenized for this text, of which long words take several times their own.
    left: usize,
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
            cut_after: cuts::are_safe(&frame.rest, &frame.added).then_some(CUT_AFTER),
            scratch: PreTokenizerScratch::default(),
            words: Vec::new(),
            left: 0,
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
    pub fn cut_after(self, bytes: usize) -> Self {
        Self { cut_after: self.cut_after.map(|_| bytes), ..self }
    }

    /// Whether long texts are cut.
    pub fn may_cut(&self) -> bool {
        self.cut_after.is_some()
    }

    /// Appends the tokens of a text, without those around it.
    ///
    /// # Errors
    /// Where the text can't be normalized or cut, or has a word of more than 16 KiB.
    pub fn encode(&mut self, text: &str, out: &mut Vec<u32>) -> Result<(), String> {
        let mut place = Place::default();
        self.left = usize::MAX;
        while let Some(part) = self.next_part(text, &mut place) {
            self.tokenize_part(text, part, out)?;
        }
        Ok(())
    }

    /// Adds the tokens of a text to a chain, without those around it. What is remembered is not tokenized again; of what is
    /// new, at most `most_new` bytes are, and less of words that take long.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; the chain is then of no use.
    pub fn chain(&mut self, text: &str, most_new: usize, chain: &mut ChainBuilder) -> Result<Extent, String> {
        let (mut place, mut parts, mut ids) = (Place::default(), Vec::new(), Vec::new());
        self.left = most_new;
        loop {
            // As many parts as are worth remembering together.
            parts.clear();
            let start = place.start;
            while place.start - start < SHORTEST
                && let Some(part) = self.next_part(text, &mut place)
            {
                parts.push(part);
            }
            if parts.is_empty() {
                return Ok(Extent::Whole);
            }
            let piece = text.get(start..place.start).unwrap_or_default();
            let key = self.segments.key(piece, chain, start == 0);
            if let Some(added) = key.and_then(|key| self.segments.recall(key)) {
                chain.go_on(added);
                continue;
            }
            let Some(left) = self.left.checked_sub(piece.len()) else { return Ok(Extent::Start) };
            self.left = left;
            ids.clear();
            for part in &parts {
                if self.tokenize_part(text, *part, &mut ids)? == Extent::Start {
                    return Ok(Extent::Start);
                }
            }
            let before = chain.len();
            chain.push_tokens(&ids);
            if let Some(key) = key {
                self.segments.remember(key, chain.since(before));
            }
        }
    }

    /// The next part of a text: up to an added token, or to where a long text may be cut.
    fn next_part(&self, text: &str, place: &mut Place) -> Option<Part> {
        let start = place.start;
        if start >= text.len() {
            return None;
        }
        let (until, token, next) = place.token.take().unwrap_or_else(|| {
            match self.added.extract_next(text.as_bytes(), start, false, false) {
                Some(((until, end), token)) if end > start => (until, Some(token), end),
                _ => (text.len(), None, text.len()),
            }
        });
        let long = text.get(start..until).unwrap_or_default();
        let end = start + self.cut_after.map_or(long, |least| cuts::start(long, least)).len();
        if end < until {
            *place = Place { start: end, token: Some((until, token, next)) };
            return Some(Part { start, end, token: None });
        }
        *place = Place { start: next, token: None };
        Some(Part { start, end, token })
    }

    fn tokenize_part(&mut self, text: &str, part: Part, out: &mut Vec<u32>) -> Result<Extent, String> {
        let extent = self.tokenize(text.get(part.start..part.end).unwrap_or_default(), part.start, out)?;
        out.extend(part.token);
        Ok(extent)
    }

    /// Appends the tokens of a text without added tokens, which begins at byte `offset`; not all of them where its words take
    /// longer than is [left](Self::left).
    fn tokenize(&mut self, text: &str, offset: usize, out: &mut Vec<u32>) -> Result<Extent, String> {
        let Self { rest, added, marks_are_letters, vocabulary, scratch, words, left, .. } = self;
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
                        match word.len() {
                            0..LONG_WORD => {}
                            bytes @ ..=LONGEST_WORD => match left.checked_sub(bytes * (SLOWER - 1)) {
                                Some(rest) => *left = rest,
                                None => return Ok(Extent::Start),
                            },
                            bytes => return Err(format!("a word of {bytes} bytes")),
                        }
                        vocabulary.encode(word, out);
                    }
                }
            }
        }
        Ok(Extent::Whole)
    }
}
