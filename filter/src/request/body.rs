//! One walk over a body.

use super::chat::Chat;
use super::cursor::{Cursor, unescaped};
use super::endpoint::Endpoint;
use super::error::{ParseError, Reason};
use super::prompt::{Prompt, prompt};
use std::borrow::Cow;

/// Longest model name, user or salt, in bytes of the body.
pub const MAX_NAME_BYTES: usize = 4096;

/// Bounds on what [`parse`] remembers of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most messages in a chat.
    pub max_messages: usize,
    /// Most content parts in all messages of a chat together; a string counts as one.
    pub max_parts: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_messages: 8192, max_parts: 16_384 }
    }
}

/// What routing needs of a body, and where possible a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'b> {
    /// What was asked for.
    pub endpoint: Endpoint,
    /// The model asked for. In vLLM a LoRA adapter is asked for by this name. Engines with one model take requests without it.
    pub model: Option<Cow<'b, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the engine computes the whole prompt, whatever its cache holds: for probabilities of its tokens.
    pub computes_all: bool,
    /// The caller's name for its end user.
    pub user: Option<Cow<'b, str>>,
    /// Requests with different salts must not share cached blocks.
    pub cache_salt: Option<Cow<'b, str>>,
    /// The JSON text of SGLang's `lora_path`, a string or a list of strings.
    pub lora: Option<&'b [u8]>,
    /// The JSON text of SGLang's `extra_key`: requests with different ones don't share cached blocks.
    pub extra_key: Option<&'b [u8]>,
    /// The JSON texts of fields that keep equal prompts apart, by name: a history that only the engine has, images beside
    /// a text.
    pub apart: Vec<(&'static str, &'b [u8])>,
    /// A field that changes what the engine makes of the prompt, beside those above. Blocks of text don't mind; tokens do.
    pub altered_by: Option<&'static str>,
    /// What the model reads.
    pub prompt: Prompt<'b>,
}

/// Fields of [`Request::altered_by`], beside those that keep prompts [apart](Request::apart).
const ALTERING: [&str; 9] = [
    "add_special_tokens",
    "chat_template",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "prompt_embeds",
    "reasoning_effort",
    "suffix",
    "truncate_prompt_tokens",
];

/// Reads the body of a request to `endpoint`.
pub fn parse<'b>(endpoint: Endpoint, body: &'b [u8], limits: &Limits) -> Result<Request<'b>, ParseError> {
    let mut cursor = Cursor::new(body);
    open(&mut cursor)?;
    let mut fields = Fields::default();
    cursor.object(|cursor, key| fields.read(cursor, endpoint, key, limits))?;
    cursor.end()?;
    fields.finish(&cursor, endpoint)
}

/// Goes to the object that a body must be.
pub(super) fn open(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    match cursor.peek() {
        None => cursor.error(Reason::Empty),
        Some(0xef) if cursor.rest().starts_with(b"\xef\xbb\xbf") => cursor.error(Reason::ByteOrderMark),
        Some(b'{') => Ok(()),
        Some(_) => cursor.error(Reason::Expected("an object")),
    }
}

/// The fields of a body, as far as they were met.
#[derive(Debug, Default)]
struct Fields<'b> {
    model: Option<Cow<'b, str>>,
    stream: bool,
    computes_all: bool,
    user: Option<Cow<'b, str>>,
    cache_salt: Option<Cow<'b, str>>,
    lora: Option<&'b [u8]>,
    extra_key: Option<&'b [u8]>,
    apart: Vec<(&'static str, &'b [u8])>,
    altered_by: Option<&'static str>,
    chat: Chat<'b>,
    /// Whether the chat has its messages.
    is_chat: bool,
    /// A prompt that is no chat.
    prompt: Option<Prompt<'b>>,
    /// `input_ids`, which count more than `text`.
    ids: Option<Prompt<'b>>,
}

impl<'b> Fields<'b> {
    /// Reads the value of `key`.
    fn read(
        &mut self,
        cursor: &mut Cursor<'b>,
        endpoint: Endpoint,
        key: &[u8],
        limits: &Limits,
    ) -> Result<(), ParseError> {
        use Endpoint::{Chat, Completions, Embeddings, Generate, Messages, Responses};
        match (endpoint, key) {
            (_, b"model") => self.model = name(cursor, "model")?,
            (_, b"stream") => self.stream = flag(cursor, "stream")?,
            (_, b"prompt_logprobs") => self.computes_all |= cursor.nullable(Cursor::value)?.is_some(),
            (Completions, b"echo") => self.computes_all |= flag(cursor, "echo")?,
            (_, b"user") => self.user = name(cursor, "user")?,
            (_, b"cache_salt") => self.cache_salt = name(cursor, "cache_salt")?,
            (_, b"lora_path") => self.lora = cursor.nullable(Cursor::value)?,
            (_, b"extra_key") => self.extra_key = cursor.nullable(Cursor::value)?,
            (Chat | Messages | Responses, b"tools") => self.chat.read_tools(cursor, limits)?,
            (Messages, b"system") | (Responses, b"instructions") => {
                self.chat.read_instructions(cursor, limits)?;
            }
            (Chat | Messages, b"messages") => {
                self.is_chat = cursor.nullable(|cursor| self.chat.read_messages(cursor, limits))?.is_some();
            }
            (Responses, b"input") => {
                self.is_chat = cursor.nullable(|cursor| self.chat.read_input(cursor, limits))?.is_some();
            }
            (Generate, b"input_ids") => self.ids = cursor.nullable(|cursor| prompt(cursor, "input_ids"))?,
            (Completions, b"prompt") | (Embeddings, b"input") | (Generate, b"text") => {
                self.prompt = cursor.nullable(|cursor| prompt(cursor, endpoint.field()))?;
            }
            _ => {
                let value = cursor.value()?;
                self.note(endpoint, key, value);
            }
        }
        Ok(())
    }

    /// Notes a field that isn't read, if it matters.
    fn note(&mut self, endpoint: Endpoint, key: &[u8], value: &'b [u8]) {
        let of = |names: &[&'static str]| names.iter().copied().find(|name| name.as_bytes() == key);
        let apart = of(endpoint.apart());
        let altering = apart.or_else(|| of(&ALTERING)).filter(|_| value != b"null");
        self.altered_by = self.altered_by.or(altering);
        if let Some(name) = apart {
            self.apart.retain(|(other, _)| *other != name);
            self.apart.extend(altering.map(|name| (name, value)));
        }
    }

    fn finish(self, cursor: &Cursor<'b>, endpoint: Endpoint) -> Result<Request<'b>, ParseError> {
        let chat = self.is_chat.then_some(Prompt::Chat(self.chat));
        let Some(prompt) = chat.or(self.ids).or(self.prompt) else {
            return cursor.error(Reason::Missing(endpoint.field()));
        };
        let mut apart = self.apart;
        apart.sort_unstable();
        let Self { model, stream, computes_all, user, cache_salt, lora, extra_key, altered_by, .. } = self;
        Ok(Request {
            endpoint,
            model,
            stream,
            computes_all,
            user,
            cache_salt,
            lora,
            extra_key,
            apart,
            altered_by,
            prompt,
        })
    }
}

fn name<'b>(cursor: &mut Cursor<'b>, field: &'static str) -> Result<Option<Cow<'b, str>>, ParseError> {
    let Some(string) = cursor.nullable_string(field)? else { return Ok(None) };
    if string.len() > MAX_NAME_BYTES {
        return cursor.error(Reason::NameTooLong(field));
    }
    match unescaped(string) {
        Some(name) => Ok(Some(name)),
        None => cursor.error(Reason::NameNotText(field)),
    }
}

/// A boolean; null is false.
fn flag(cursor: &mut Cursor<'_>, field: &'static str) -> Result<bool, ParseError> {
    match cursor.value()? {
        b"true" => Ok(true),
        b"false" | b"null" => Ok(false),
        _ => cursor.wrong_type(field, "true or false"),
    }
}
