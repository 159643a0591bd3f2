//! The canonical form of a prompt: the bytes that are cut into blocks.
//!
//! A chat is a sequence of fields, each a tag and the field's JSON text (of a string: without its quotes, escapes left as they
//! are):
//!
//! ```text
//! [TOOLS tools]  then for each message
//! MESSAGE role [NAME name] [TOOL_CALL_ID id] [REASONING text] {TEXT text | PART json}* [TOOL_CALLS json]
//! or, of what is no message in the input of `/v1/responses`: a call, its output, a thought
//! ITEM PART json
//! ```
//!
//! What stands outside of the messages (`instructions`, Anthropic's `system`) comes before them as a message of role `system`.
//!
//! * **Unambiguous.** Tags are control characters that JSON text can't contain, neither within strings (they must be escaped
//!   there) nor between tokens (they aren't white space). So no content can look like a boundary.
//! * **Extending.** Nothing marks the end, neither of a message nor of the chat: with one more message the form only grows.
//! * **Stable.** Order and white space of a message's keys make no difference, nor whether a text is a string or the only part of
//!   a list. Within `tools`, `tool_calls` and parts that aren't text, the JSON text counts as it is written; so does the choice of
//!   escapes in a string. A client that writes the same history in another way loses its prefix, nothing else.
//!
//! * **Without marks.** `cache_control` is left out, wherever Anthropic's API has it, as if it had not been written. So is a
//!   block of `system` that begins with `x-anthropic-billing-header`, as in vLLM: it differs from request to request. SGLang
//!   leaves it in, and has nothing in its cache where we expect something.
//!
//! A text prompt is its JSON text, and token ids are their little-endian `u32`s. The [seed](Request::seed) keeps the kinds apart.
//!
//! **What is not in the body.** `previous_response_id` and its like stand for a history that only the engine knows. Their values
//! are part of the seed: such a prompt shares blocks with those that name the same history, and with no others. So the
//! next turn, which names another response, is decided by load; who wants it on the pod that keeps the history, needs a
//! session. In the same way SGLang's images, which have no place in the text, keep prompts apart as a whole.

use super::body::Request;
use super::chat::Chat;
use super::endpoint::Endpoint;
use super::parts::{Content, Part};
use super::prompt::Prompt;
use crate::blocks::{self, BlockSize, Chain, ChainBuilder};

/// Chains of different versions must not be compared. Raise it with any change to the form, the seed or
/// [the hash of a block](crate::blocks).
pub const FORM_VERSION: u32 = 6;

const TOOLS: &[u8] = b"\x01";
const MESSAGE: &[u8] = b"\x02";
const NAME: &[u8] = b"\x03";
const TOOL_CALL_ID: &[u8] = b"\x04";
const REASONING: &[u8] = b"\x05";
const TEXT: &[u8] = b"\x06";
const PART: &[u8] = b"\x07";
const TOOL_CALLS: &[u8] = b"\x08";
// 9, 10 and 13 are white space.
const ITEM: &[u8] = b"\x0b";

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

    /// What separates this prompt from an equal one: its kind, the model, the LoRA, the salts, and what is kept [apart](Self::apart).
    pub fn seed(&self) -> u64 {
        let kind: &[u8] = match (&self.prompt, self.endpoint) {
            // Equal parts of a system prompt are joined in different ways.
            (Prompt::Chat(_), Endpoint::Messages) => b"messages",
            (Prompt::Chat(_), Endpoint::Responses) => b"responses",
            (Prompt::Chat(_), _) => b"chat",
            (Prompt::Text(_), _) => b"text",
            (Prompt::Tokens(_), _) => b"tokens",
        };
        let [model, salt] = [&self.model, &self.cache_salt].map(|name| name.as_deref().map(str::as_bytes));
        let apart = self.apart.iter().flat_map(|(name, json)| [Some(name.as_bytes()), Some(*json)]);
        blocks::seed(
            &[Some(kind), model, self.lora, salt, self.extra_key]
                .into_iter()
                .chain(apart)
                .collect::<Vec<_>>(),
        )
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
        self.emit(self.tools, TOOLS, emit);
        for message in self.instructions.iter().chain(&self.messages) {
            emit(if message.role.is_some() { MESSAGE } else { ITEM });
            emit(message.role.unwrap_or_default());
            let fields = [
                (NAME, message.name),
                (TOOL_CALL_ID, message.tool_call_id),
                (REASONING, message.reasoning_content),
            ];
            for (tag, text) in fields {
                field(tag, text, emit);
            }
            self.emit(message.content, PART, emit);
            field(TOOL_CALLS, message.tool_calls, emit);
        }
    }

    /// Emits parts; `tag` is what begins one that isn't text.
    fn emit(&self, content: Content, tag: &[u8], emit: &mut impl FnMut(&[u8])) {
        for part in self.parts(content) {
            match part {
                Part::Text(text) => field(TEXT, Some(text), emit),
                Part::Other(json) => field(tag, Some(json), emit),
                Part::Rest(json) => emit(json),
            }
        }
    }
}

fn field(tag: &[u8], text: Option<&[u8]>, emit: &mut impl FnMut(&[u8])) {
    if let Some(text) = text {
        emit(tag);
        emit(text);
    }
}
