//! The canonical form of a prompt: the bytes that are cut into blocks.
//!
//! A chat is a sequence of fields, each a tag and the field's JSON text (of a string: without its quotes, escapes left as they
//! are):
//!
//! ```text
//! [TOOLS tools]  then for each message
//! MESSAGE role [NAME name] [TOOL_CALL_ID id] [REASONING text] {TEXT text | PART json}* [TOOL_CALLS json]
//! ```
//!
//! * **Unambiguous.** Tags are control characters that JSON text can't contain, neither within strings (they must be escaped
//!   there) nor between tokens (they aren't white space). So no content can look like a boundary.
//! * **Extending.** Nothing marks the end, neither of a message nor of the chat: with one more message the form only grows.
//! * **Stable.** Order and white space of a message's keys make no difference, nor whether a text is a string or the only part of
//!   a list. Within `tools`, `tool_calls` and parts that aren't text, the JSON text counts as it is written; so does the choice of
//!   escapes in a string. A client that writes the same history in another way loses its prefix, nothing else.
//!
//! A text prompt is its JSON text, and token ids are their little-endian `u32`s. The [seed](Request::seed) keeps the kinds apart.

use super::body::Request;
use super::chat::{Chat, Part};
use super::prompt::Prompt;
use crate::blocks::{self, BlockSize, Chain, ChainBuilder};

/// Chains of different versions must not be compared. Raise it with any change to the form, the seed or
/// [the hash of a block](crate::blocks).
pub const FORM_VERSION: u32 = 3;

const TOOLS: &[u8] = b"\x01";
const MESSAGE: &[u8] = b"\x02";
const NAME: &[u8] = b"\x03";
const TOOL_CALL_ID: &[u8] = b"\x04";
const REASONING: &[u8] = b"\x05";
const TEXT: &[u8] = b"\x06";
const PART: &[u8] = b"\x07";
const TOOL_CALLS: &[u8] = b"\x08";

/// Token ids that are turned into bytes at once.
const IDS: usize = 64;

impl Request<'_> {
    /// The chain of the prompt's blocks.
    pub fn chain(&self, size: BlockSize) -> Chain {
        let mut bytes = 0;
        self.canonical(&mut |piece| bytes += piece.len());
        let mut chain = ChainBuilder::new(self.seed(), size, bytes);
        self.canonical(&mut |piece| chain.push(piece));
        chain.finish()
    }

    /// What separates this prompt from an equal one: its kind, the model, the LoRA and the salt.
    pub fn seed(&self) -> u64 {
        let kind: &[u8] = match self.prompt {
            Prompt::Chat(_) => b"chat",
            Prompt::Text(_) => b"text",
            Prompt::Tokens(_) => b"tokens",
        };
        let [model, salt] = [&self.model, &self.cache_salt].map(|name| name.as_deref().map(str::as_bytes));
        blocks::seed(&[Some(kind), model, self.lora, salt])
    }

    /// Gives `emit` the canonical form, piece by piece. Most pieces lie in the body.
    pub fn canonical(&self, emit: &mut impl FnMut(&[u8])) {
        match &self.prompt {
            Prompt::Chat(chat) => chat.canonical(emit),
            Prompt::Text(text) => emit(text),
            Prompt::Tokens(ids) => {
                for ids in ids.chunks(IDS) {
                    let mut bytes = [0; IDS * size_of::<u32>()];
                    for (to, id) in bytes.as_chunks_mut().0.iter_mut().zip(ids) {
                        *to = id.to_le_bytes();
                    }
                    emit(bytes.get(..size_of_val(ids)).unwrap_or_default());
                }
            }
        }
    }
}

impl Chat<'_> {
    fn canonical(&self, emit: &mut impl FnMut(&[u8])) {
        let mut field = |tag: &[u8], text: Option<&[u8]>| {
            if let Some(text) = text {
                emit(tag);
                emit(text);
            }
        };
        field(TOOLS, self.tools);
        for message in &self.messages {
            field(MESSAGE, Some(message.role));
            field(NAME, message.name);
            field(TOOL_CALL_ID, message.tool_call_id);
            field(REASONING, message.reasoning_content);
            for part in self.parts(message.content) {
                match part {
                    Part::Text(text) => field(TEXT, Some(text)),
                    Part::Other(json) => field(PART, Some(json)),
                }
            }
            field(TOOL_CALLS, message.tool_calls);
        }
    }
}
