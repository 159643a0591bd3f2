//! Request bodies of natural text, with escapes and letters beyond ASCII.

use bytes::Bytes;

/// Distinct shared prefixes.
const PREFIXES: usize = 64;
/// Turns of a conversation: each sends all that was said before, and a question.
pub const TURNS: usize = 20;

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

/// What requests have in common with those before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A system prompt of three quarters that others share, and a question like no other.
    Quarter,
    /// Nothing.
    Cold,
    /// Each [`TURNS`] requests are a conversation like no other that grows to the size.
    Conversation,
}

/// Bodies of one shape, of about one size.
pub struct Prompts {
    shape: Shape,
    prefixes: Vec<String>,
    tail: String,
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
    pub fn new(shape: Shape, bytes: usize) -> Self {
        let mut random = Random(bytes as u64);
        let (prefixes, each, tail) = match shape {
            Shape::Quarter => (PREFIXES, bytes * 3 / 4, bytes / 4),
            Shape::Cold => (0, 0, bytes),
            Shape::Conversation => (2 * TURNS, bytes / (2 * TURNS), 0),
        };
        let prefixes = (0..prefixes).map(|_| text(&mut random, each)).collect();
        Self { shape, prefixes, tail: text(&mut random, tail) }
    }

    /// The body of the `n`-th request.
    pub fn body(&self, n: usize) -> Bytes {
        let mut body = String::from(r#"{"model":"bench","messages":["#);
        match self.shape {
            Shape::Quarter => {
                body.push_str(r#"{"role":"system","content":""#);
                body.push_str(&self.prefixes[n % PREFIXES]);
                body.push_str(r#""},"#);
                push(&mut body, "user", n, &self.tail);
            }
            Shape::Cold => push(&mut body, "user", n, &self.tail),
            Shape::Conversation => {
                let (conversation, turn) = (n / TURNS, n % TURNS);
                for (i, said) in self.prefixes.iter().take(2 * turn + 1).enumerate() {
                    body.push_str(if i > 0 { "," } else { "" });
                    push(&mut body, if i % 2 == 0 { "user" } else { "assistant" }, conversation, said);
                }
            }
        }
        body.push_str(r#"],"temperature":0.7,"stream":false,"max_tokens":1}"#);
        Bytes::from(body)
    }
}

/// A message that no request of another number has.
fn push(body: &mut String, role: &str, number: usize, text: &str) {
    body.push_str(&format!(r#"{{"role":"{role}","content":"number {number}: {text}"}}"#));
}
