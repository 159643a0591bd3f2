//! Base64 with padding, for state that is opaque on its way.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * index)) as usize & 63];
            out.push(if index <= chunk.len() { letter as char } else { '=' });
        }
    }
    out
}

/// The bytes of a text, if it is one that [`encode`] makes.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.as_bytes().chunks(4) {
        let letters = chunk.iter().take_while(|letter| **letter != b'=').count();
        let mut word = 0u32;
        for letter in &chunk[..letters] {
            word = word << 6 | ALPHABET.iter().position(|known| known == letter)? as u32;
        }
        if letters < 2 {
            return None;
        }
        out.extend_from_slice(&(word << (6 * (4 - letters)) << 8).to_be_bytes()[..letters - 1]);
    }
    // Whatever isn't written as it would be here is refused.
    (encode(&out) == text).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_texts() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        for wrong in ["Z", "Zg", "Zg=", "Zh==", "Zm9v=", "Z g=", "=Zg="] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
