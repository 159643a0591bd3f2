//! Request bodies of natural text, with escapes and letters beyond ASCII, three quarters of each shared with others.

use bytes::Bytes;

/// Distinct shared prefixes.
pub const PREFIXES: usize = 64;

const WORDS: &[&str] = &[
    "the",
    "router",
    "sends",
    "every",
    "request",
    "to",
    "a",
    "pod",
    "that",
    "already",
    "holds",
    "its",
    "prefix",
    "Größe",
    "naïve",
    "façade",
    "東京",
    "поезд",
    "“quoted”",
    "\"straight\"",
    "C:\\path\\file",
    "line\nbreak",
    "tab\there",
    "if",
    "x",
    "<",
    "10",
    "&&",
    "y",
    ">=",
    "{",
    "}",
    "return",
    "value;",
    "because",
    "cache",
    "and",
    "queue",
    "are",
    "short",
    "when",
    "nobody",
    "waits",
    "—",
    "it",
    "costs",
    "milliseconds",
    "instead",
    "of",
    "seconds",
    "🚀",
];

/// Bodies of about one size.
pub struct Prompts {
    prefixes: Vec<String>,
    tail: String,
    tail_bytes: usize,
}

/// A generator whose sequence depends on its seed alone (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Text of at least so many bytes, escaped for JSON.
fn text(random: &mut Random, bytes: usize) -> String {
    let mut plain = String::new();
    while plain.len() < bytes {
        plain.push_str(WORDS[(random.next() % WORDS.len() as u64) as usize]);
        plain.push(' ');
    }
    let quoted = serde_json::to_string(&plain).expect("text is JSON");
    quoted[1..quoted.len() - 1].to_owned()
}

impl Prompts {
    /// Bodies of about `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        let mut random = Random(bytes as u64);
        let prefixes = (0..PREFIXES).map(|_| text(&mut random, bytes * 3 / 4)).collect();
        let tail_bytes = bytes / 4;
        Self { prefixes, tail: text(&mut random, tail_bytes), tail_bytes }
    }

    /// The body of the `n`-th request: a shared prefix as system prompt, and a question like no other.
    pub fn body(&self, n: usize) -> Bytes {
        let prefix = &self.prefixes[n % PREFIXES];
        let mut body = String::with_capacity(prefix.len() + self.tail_bytes + 256);
        body.push_str(r#"{"model":"bench","messages":[{"role":"system","content":""#);
        body.push_str(prefix);
        body.push_str(r#""},{"role":"user","content":""#);
        body.push_str(&format!("question {n}: "));
        body.push_str(&self.tail);
        body.push_str(r#""}],"temperature":0.7,"stream":false,"max_tokens":128}"#);
        Bytes::from(body)
    }
}
