//! Text to token ids, by a small fixed rule instead of a vocabulary.
//!
//! A token is a word with the one space before it, cut every [`MAX_WORD`] bytes, a run of white space, or one other
//! character. English comes out near four bytes a token, as with real vocabularies. An id is the hash of the
//! token's bytes with the top bit clear; ids with the top bit set are control tokens, which no text can produce.

use xxhash_rust::xxh3::xxh3_64;

/// Longest piece of a word that is one token, in bytes without its leading space.
pub const MAX_WORD: usize = 6;

/// Opens a message of a chat; the role follows.
pub const MESSAGE_START: u32 = CONTROL;
/// Parts the role of a message from its content.
pub const CONTENT_START: u32 = CONTROL + 1;
/// Closes a message of a chat.
pub const MESSAGE_END: u32 = CONTROL + 2;

const CONTROL: u32 = 1 << 31;

/// The words that answers are made of. Each is one token, with and without a space before it.
pub const WORDS: [&str; 64] = [
    "able", "across", "after", "again", "air", "also", "answer", "around", "back", "before", "below", "both",
    "carry", "city", "close", "could", "cover", "cross", "day", "early", "earth", "enough", "every",
    "family", "few", "field", "first", "follow", "found", "girl", "great", "ground", "group", "hand", "hard",
    "high", "hold", "house", "inch", "island", "keep", "large", "learn", "light", "line", "long", "might",
    "money", "moon", "music", "night", "north", "ocean", "often", "open", "paper", "plant", "reach", "river",
    "road", "round", "sea", "stone", "under",
];

/// The id of the token with these bytes.
pub fn id(token: &[u8]) -> u32 {
    xxh3_64(token) as u32 & !CONTROL
}

/// Appends the tokens of `text` to `out`. The same text gives the same tokens wherever it stands.
pub fn push_text(text: &str, out: &mut Vec<u32>) {
    let bytes = text.as_bytes();
    out.reserve(bytes.len() / 4);
    let mut at = 0;
    while at < bytes.len() {
        let end = at + token_len(&bytes[at..]);
        out.push(id(&bytes[at..end]));
        at = end;
    }
}

/// Length of the first token of `rest`, which isn't empty.
fn token_len(rest: &[u8]) -> usize {
    let word = |from: usize| rest[from..].iter().take(MAX_WORD).take_while(|byte| is_word(**byte)).count();
    let letters = word(0);
    if letters > 0 {
        return letters;
    }
    if rest[0] == b' ' {
        let letters = word(1);
        if letters > 0 {
            return 1 + letters;
        }
    }
    let spaces = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    match rest.get(spaces) {
        // The last space of a run belongs to the word that follows it.
        Some(next) if spaces > 1 && rest[spaces - 1] == b' ' && is_word(*next) => spaces - 1,
        _ => spaces.max(1),
    }
}

/// Bytes of words: ASCII letters and digits, and all of a non-ASCII character.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80
}

/// An endless text that a seed decides, one word of [`WORDS`] a token: answers, and synthetic prompts.
#[derive(Clone, Copy, Debug)]
pub struct Prose {
    /// Equal seeds give equal texts.
    pub seed: u64,
}

impl Prose {
    /// Appends words `from..to` to `text`, each but word 0 with a space before it.
    pub fn push_words(self, from: usize, to: usize, text: &mut String) {
        for index in from..to {
            if index > 0 {
                text.push(' ');
            }
            text.push_str(self.word(index));
        }
    }

    /// The token of word `index`, as it stands in the text.
    pub fn token(self, index: usize) -> u32 {
        let word = self.word(index).as_bytes();
        let mut piece = [b' '; MAX_WORD + 1];
        piece[1..=word.len()].copy_from_slice(word);
        id(&piece[usize::from(index == 0)..=word.len()])
    }

    fn word(self, index: usize) -> &'static str {
        WORDS[(mix(self.seed.wrapping_add(mix(index as u64))) % WORDS.len() as u64) as usize]
    }
}

/// SplitMix64's finalizer: one number into another that shares no pattern with it.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tokens of `text` as text, cut where `token_len` says.
    fn pieces(text: &str) -> Vec<String> {
        let mut rest = text.as_bytes();
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let (token, after) = rest.split_at(token_len(rest));
            pieces.push(String::from_utf8_lossy(token).into_owned());
            rest = after;
        }
        pieces
    }

    #[test]
    fn words_keep_their_space_and_long_ones_are_cut() {
        assert_eq!(
            pieces("The router  holds, internationally\n\n ok"),
            ["The", " router", " ", " holds", ",", " intern", "ationa", "lly", "\n\n", " ok"]
        );
    }

    #[test]
    fn every_word_of_an_answer_is_one_token() {
        for word in WORDS {
            assert_eq!(pieces(word).len(), 1, "{word}");
            assert_eq!(pieces(&format!(" {word}")).len(), 1, "{word}");
        }
    }

    proptest! {
        #[test]
        fn prose_reads_back_as_the_tokens_it_was_made_of(seed: u64, words in 0usize..200, cut in 0usize..200) {
            let prose = Prose { seed };
            let mut text = String::new();
            prose.push_words(0, cut.min(words), &mut text);
            prose.push_words(cut.min(words), words, &mut text);
            let mut read = Vec::new();
            push_text(&text, &mut read);
            prop_assert_eq!(read, (0..words).map(|index| prose.token(index)).collect::<Vec<_>>());
        }

        #[test]
        fn tokens_cover_the_text_and_are_never_control_tokens(text in "(\\PC|[ \n])*") {
            let mut tokens = Vec::new();
            push_text(&text, &mut tokens);
            prop_assert!(tokens.iter().all(|token| *token < CONTROL));
            let mut rest = text.as_bytes();
            for _ in &tokens {
                rest = &rest[token_len(rest)..];
            }
            prop_assert!(rest.is_empty());
        }
    }
}
