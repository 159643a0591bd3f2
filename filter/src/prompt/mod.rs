//! Prompts as an engine sees them: text to token ids.
//!
//! A tokenizer.json has two halves, and each is served by what suits it:
//!
//! * **Everything before the vocabulary**: added tokens, normalization, and the cut into words. That is Hugging Face's
//!   `tokenizers` crate, whose grammars decide parity, and which loads it in a moment.
//! * **The vocabulary**: merging the bytes of a word into tokens. The crate takes a second of a worker's thread to build its
//!   tables, in each VM. So they are built once, into an [`Image`]: flat tables in one piece of memory that every VM copies and
//!   uses as it is. [`Vocabulary`] merges on them, and the crate is its reference in tests.
//!
//! Byte-level BPE is what is understood so far: Qwen, Llama 3, DeepSeek, GPT and most of what is served today. Any other model
//! is refused with its name, and its prompts are compared as text.

mod convert;
mod cuts;
pub mod delivery;
mod dialect;
mod exact;
mod frame;
mod image;
mod marks;
mod segments;
pub mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod vocabulary;

pub use convert::{ConvertError, convert};
pub use exact::{Exact, Outcome};
pub use image::{Image, ImageError};
pub use segments::Segments;
pub use tokenizer::{Extent, LoadError, Tokenizer};
pub use vocabulary::Vocabulary;
