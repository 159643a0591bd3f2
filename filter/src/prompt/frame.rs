//! A tokenizer without its vocabulary: what the `tokenizers` crate does before words are merged.

use super::{cuts, marks};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokenizers::pipeline::{EncodeOptions, PipelineTokenizer};
use tokenizers::vocab::bucket_added_vocabulary::{AddedToken, AddedVocabulary};

/// What an image carries beside its tables.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Frame {
    /// What the `tokenizers` crate reads, with a vocabulary of bytes.
    pub rest: Value,
    pub added: Vec<Added>,
    /// See [`marks`].
    pub marks_are_letters: bool,
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
        normalized && (self.lstrip || self.rstrip || self.content.contains([' ', '\n']))
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
        if let Some(token) = added.iter().find(|token| token.single_word) {
            // The crate cuts some texts within a character where it looks for the word's start.
            return Err(format!(
                "the added token {:?}, which must be a word of its own (single_word)",
                token.content
            ));
        }
        let marks_are_letters = rest.get_mut("pre_tokenizer").is_some_and(marks::take_out);
        let frame = Self { rest, added, marks_are_letters };
        // Whether patterns are known shows only once a text is cut.
        let known = around(&frame.load()?.0).is_ok() && !cuts::is_mistaken(&frame.rest);
        if !known {
            let of = frame.rest.get("pre_tokenizer").map(Value::to_string).unwrap_or_default();
            return Err(format!("a pre-tokenizer that is none of those known: {of:.400}"));
        }
        Ok(frame)
    }

    /// The same, as the crate has it.
    pub fn load(&self) -> Result<(PipelineTokenizer, AddedVocabulary), String> {
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

/// What the post-processor puts around a text.
pub(super) fn around(rest: &PipelineTokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
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
