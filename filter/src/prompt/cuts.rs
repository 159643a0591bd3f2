//! Where a long text may be cut so that its parts have the tokens of the whole.
//!
//! A text between two added tokens can be 400 KB of document. To be remembered though it is extended, and to be tokenized no
//! further than a request may, it has to be cut; and never so that a token changes. Two places are safe with the patterns that
//! byte-level tokenizers have:
//!
//! * before a space between two ASCII letters,
//! * behind a newline that is between something that is no white space, and an ASCII letter or a Chinese character.
//!
//! They are safe if each alternative of the patterns is one of [`SAFE`]. None of those has a match with both sides of such a
//! place in it, none looks behind, and what one that begins before the place makes of the one character behind it, it would
//! make of the end of the text, too. The exception is `\s+(?!\S)`, which takes a newline at the end of the text and not one before
//! a letter; but there `\s+` takes it, for the white space there is that newline alone, which is why something else must stand
//! before it. So words before the place don't depend on what is behind it, nor the other way round. Composition (NFC) has
//! nothing to compose there either. Any other pattern or normalizer: no cut.

use super::frame::Added;
use serde_json::Value;

/// Alternatives of patterns that don't mind the cut.
const SAFE: &[&str] = &[
    // Contractions.
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    // Letters: GPT-2; GPT-4, Llama 3, Qwen; DeepSeek; o200k with and without contractions.
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    // Digits.
    r"\p{N}",
    r"\p{N}{1,3}",
    r" ?\p{N}+",
    // Punctuation.
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    // White space.
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    EVERY_SPACE,
];

/// The alternative that leaves no white space unmatched: a pattern with it has a word's end at each safe place.
const EVERY_SPACE: &str = r"\s+";

/// Digits as the `tokenizers` crate takes them for what they are not: it cuts them in threes.
const MISTAKEN: [&str; 2] = [r"\p{N}+", r"\p{N}{1,2}"];

/// The regular expressions of a tokenizer's splits, one after another; `None` for a split by anything else.
fn patterns(rest: &Value) -> Vec<Option<String>> {
    match rest.get("pre_tokenizer") {
        Some(Value::Object(one)) => match one.get("pretokenizers") {
            Some(Value::Array(list)) => list.iter().map(pattern).collect(),
            _ => vec![rest.get("pre_tokenizer").and_then(pattern)],
        },
        _ => Vec::new(),
    }
}

/// Whether words would be cut otherwise than a pattern says.
pub(super) fn is_mistaken(rest: &Value) -> bool {
    let patterns = patterns(rest);
    let mut all = patterns.iter().flatten().flat_map(|pattern| alternatives(pattern));
    all.any(|alternative| MISTAKEN.contains(&alternative))
}

/// Whether a tokenizer's texts may be cut. `rest`: its file without vocabulary, in canonical form.
pub(super) fn are_safe(rest: &Value, added: &[Added]) -> bool {
    let mut ends_words = false;
    for split in patterns(rest) {
        let Some(pattern) = split else { return false };
        let alternatives = alternatives(&pattern);
        if !alternatives.iter().all(|alternative| SAFE.contains(alternative)) {
            return false;
        }
        ends_words |= alternatives.contains(&EVERY_SPACE);
    }
    ends_words && is_composing(rest.get("normalizer")) && !added.iter().any(Added::spans_words)
}

/// A normalizer that composes, or does nothing.
fn is_composing(normalizer: Option<&Value>) -> bool {
    match normalizer {
        None | Some(Value::Null) => true,
        Some(normalizer) => match normalizer.get("normalizers").and_then(Value::as_array) {
            Some(list) => list.iter().all(|one| is_composing(Some(one))),
            None => normalizer.get("type").and_then(Value::as_str) == Some("NFC"),
        },
    }
}

/// The regular expression whose matches are words, each control character in it written as an escape.
fn pattern(split: &Value) -> Option<String> {
    let regex = split.pointer("/pattern/Regex")?.as_str()?;
    let behavior = split.get("behavior").map_or(Some("Isolated"), Value::as_str)?;
    let behavior = (behavior, split.get("invert").and_then(Value::as_bool).unwrap_or(false));
    matches!(behavior, ("Isolated", false) | ("Removed", true))
        .then(|| regex.replace('\r', r"\r").replace('\n', r"\n"))
}

/// The parts of a regular expression between the bars that are in no bracket.
fn alternatives(regex: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut groups, mut class, mut escaped, mut start) = (0, false, false, 0);
    for (at, character) in regex.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => groups += 1,
            ')' => groups -= 1,
            '|' if groups == 0 => {
                found.extend(regex.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.extend(regex.get(start..));
    found
}

/// The start of a text up to its first safe place behind `least` bytes, or all of it.
pub(super) fn start(text: &str, least: usize) -> &str {
    let bytes = text.as_bytes();
    let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
    for at in least.max(1)..bytes.len() {
        let found = match bytes.get(at - 1..=at) {
            Some([before, b' ']) => before.is_ascii_alphabetic() && letter(at + 1),
            Some([b'\n', after]) => {
                let ends = text.get(..at - 1).and_then(|text| text.chars().next_back());
                ends.is_some_and(|end| !end.is_whitespace())
                    && (after.is_ascii_alphabetic() || text.get(at..).is_some_and(is_chinese))
            }
            _ => false,
        };
        if found {
            return text.get(..at).unwrap_or(text);
        }
    }
    text
}

fn is_chinese(text: &str) -> bool {
    text.chars().next().is_some_and(|character| ('\u{4e00}'..='\u{9fa5}').contains(&character))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split(regex: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
    }

    const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    #[test]
    fn only_what_is_known_to_be_safe_is_cut() {
        let safe = |pre: Value, normalizer: Value| {
            are_safe(&json!({"pre_tokenizer": pre, "normalizer": normalizer}), &[])
        };
        let sequence = |splits: Vec<Value>| json!({"type": "Sequence", "pretokenizers": splits});
        assert!(safe(split(QWEN), json!(null)));
        assert!(safe(split(&QWEN.replace(r"\r\n", "\r\n")), json!({"type": "NFC"})));
        assert!(safe(
            sequence(vec![split(r"\p{N}{1,3}"), split(QWEN)]),
            json!({"type": "Sequence", "normalizers": []})
        ));
        assert!(!safe(sequence(vec![split(r"\p{N}{1,3}")]), json!(null)));
        assert!(!safe(sequence(vec![]), json!(null)));
        assert!(!safe(json!(null), json!(null)));
        assert!(!safe(split(&format!("{QWEN}|x")), json!(null)));
        assert!(!safe(split(&QWEN.replace(r"|\s+(?!\S)|\s+", "")), json!(null)));
        assert!(!safe(sequence(vec![split(QWEN), json!({"type": "Punctuation"})]), json!(null)));
        for normalizer in [
            json!({"type": "Lowercase"}),
            json!({"type": "NFKC"}),
            json!({"type": "Prepend", "prepend": "▁"}),
        ] {
            assert!(!safe(split(QWEN), normalizer.clone()));
            assert!(!safe(
                split(QWEN),
                json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, normalizer]})
            ));
        }
        let mut contiguous = split(QWEN);
        contiguous["behavior"] = json!("MergedWithPrevious");
        assert!(!safe(contiguous, json!(null)));
    }

    #[test]
    fn cuts_at_the_first_safe_place() {
        for (text, least, first) in [
            ("a b c", 0, "a"),
            ("a b c", 1, "a"),
            ("a b c", 2, "a b"),
            ("a  b 1 c", 0, "a  b 1 c"),
            ("1 b. c\nd", 0, "1 b. c\n"),
            ("x \na", 0, "x \na"),
            ("。\n字", 0, "。\n"),
            ("\u{3000}\n字", 0, "\u{3000}\n字"),
            ("x\n\nya", 0, "x\n\nya"),
            ("x\né", 0, "x\né"),
            ("\na", 0, "\na"),
            ("", 0, ""),
            ("a b", 9, "a b"),
        ] {
            assert_eq!(start(text, least), first, "{text:?} from {least} on");
        }
    }
}
