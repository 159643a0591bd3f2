//! Patterns that take combining marks for letters, on a crate that knows them only without.
//!
//! Qwen 3.5 cuts words by Qwen 3's pattern, but with `[\p{L}\p{M}]` in the place of `\p{L}`. Since marks are then nothing but
//! letters, it cuts a text as Qwen 3's would if each mark in it were a letter of as many bytes. (The one place where they
//! differ, the character before a word, may be a mark; but then what follows is the rest of the same word.)

use serde_json::Value;
use std::borrow::Cow;
use unicode_normalization::char::is_combining_mark;

/// What such a pattern has, and what the pattern without marks has there.
const REPLACED: [(&str, &str); 2] = [
    (r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r" ?[^\s\p{L}\p{M}\p{N}]+", r" ?[^\s\p{L}\p{N}]+"),
];

/// Puts the pattern without marks in the place of one with them. Says whether there was one.
pub(super) fn take_out(pre_tokenizer: &mut Value) -> bool {
    let split = match pre_tokenizer.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        // After another split, a mark could stand where its word was cut.
        Some(list) if list.len() == 1 => list.first_mut(),
        Some(_) => None,
        None => Some(pre_tokenizer),
    };
    let Some(Value::String(regex)) = split.and_then(|split| split.pointer_mut("/pattern/Regex")) else {
        return false;
    };
    if !REPLACED.iter().all(|(with, _)| regex.matches(with).count() == 1) {
        return false;
    }
    let without = REPLACED.iter().fold(regex.clone(), |regex, (with, without)| regex.replace(with, without));
    if without.contains(r"\p{M}") {
        return false;
    }
    *regex = without;
    true
}

/// The text with a letter of as many bytes for each mark.
pub(super) fn as_letters(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || !text.chars().any(is_mark) {
        return Cow::Borrowed(text);
    }
    let letter = |mark: char| match mark.len_utf8() {
        2 => 'é',
        3 => '一',
        _ => '\u{20000}',
    };
    text.chars().map(|character| if is_mark(character) { letter(character) } else { character }).collect()
}

fn is_mark(character: char) -> bool {
    character >= '\u{300}' && is_combining_mark(character)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const QWEN3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    #[test]
    fn only_a_pattern_that_is_known_otherwise_is_replaced() {
        let split =
            |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"});
        let sequence = |splits: Vec<Value>| json!({"type": "Sequence", "pretokenizers": splits});
        let mut one = split(QWEN35);
        assert!(take_out(&mut one));
        assert_eq!(one, split(QWEN3));
        let mut listed = sequence(vec![split(QWEN35)]);
        assert!(take_out(&mut listed));
        assert_eq!(listed, sequence(vec![split(QWEN3)]));
        for other in [
            split(QWEN3),
            split(&QWEN35.replace(r"[^\s\p{L}\p{M}\p{N}]", r"[^\s\p{L}\p{N}]")),
            split(&format!(r"{QWEN35}|\p{{M}}")),
            sequence(vec![split(r"\p{N}"), split(QWEN35)]),
            json!(null),
        ] {
            let mut same = other.clone();
            assert!(!take_out(&mut same));
            assert_eq!(same, other);
        }
    }

    proptest! {
        #[test]
        fn bytes_stay_where_they_are(text in "(\\PC|\u{301}|\u{5b0}|\u{93e}|\u{1d165}|[a-z ]){0,40}") {
            let letters = as_letters(&text);
            let ends = |text: &str| text.char_indices().map(|(at, _)| at).collect::<Vec<_>>();
            prop_assert_eq!(ends(&letters), ends(&text));
            for (letter, character) in letters.chars().zip(text.chars()) {
                let right = if is_mark(character) { letter.is_alphabetic() } else { letter == character };
                prop_assert!(right, "{:?} for {:?}", letter, character);
            }
        }
    }
}
