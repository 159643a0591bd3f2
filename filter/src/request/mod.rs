//! Request bodies -> what routing needs: those of OpenAI's APIs, of Anthropic's `/v1/messages` and of SGLang's `/generate`.
//!
//! [`parse`] walks a body once and borrows from it: the model, the session's names, and the prompt as pieces of the JSON text
//! itself, escapes and all. Nothing of the prompt is unescaped or copied. [`Request::canonical`] puts the pieces in one
//! order with unambiguous separators, so that the next turn of a conversation extends the turn before byte for byte, and
//! [`Request::chain`] hashes that in place.
//!
//! **Whose answer counts.** The engine's: whatever we can't read goes on unchanged, by load, and the engine says what is
//! wrong with it. So a [`ParseError`] refuses nobody, and where engines differ in strictness we take the simpler way:
//!
//! * JSON is RFC 8259, whole: bad escapes, numbers, control characters, anything after the value are errors. `NaN` and a byte order
//!   mark, which Python's `json` takes, are errors too: such a request loses its prefix, nothing else.
//! * Of duplicate keys the last wins, as in Python's `json`, so that we see the model that the engine sees.
//! * `null` is absence, as in the engines' schemas. Unknown fields are checked for grammar and skipped: their numbers may have any
//!   size, their nesting is bounded ([`MAX_DEPTH`]) without recursion.
//! * Only names ([`Request::model`], [`Request::user`], [`Request::cache_salt`]) become `str`, so only they must be valid UTF-8
//!   without lone surrogates. Contents are hashed as they are: checking 400 KB of them would double the cost of a parse
//!   to spare an engine a body that it refuses by itself.
//! * A batch (`prompt`, `input`, `text` or `input_ids` as a list of prompts) is routed by its first prompt.

mod body;
mod canonical;
mod chat;
mod cursor;
mod endpoint;
mod error;
mod outline;
mod parts;
mod prompt;
mod special;
mod tree;

#[cfg(test)]
mod tests;

pub use body::{Limits, MAX_NAME_BYTES, Request, parse};
pub use canonical::FORM_VERSION;
pub use chat::{BILLING, Chat, Message};
pub use cursor::{MAX_DEPTH, unescaped};
pub use endpoint::Endpoint;
pub use error::{ParseError, Reason};
pub use outline::{Edit, Outline};
pub use parts::{Content, Part};
pub use prompt::Prompt;
pub use tree::tree;
