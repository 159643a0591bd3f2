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
    /// The model asked for. In vLLM a LoRA adapter is asked for by this name. Engines with one model take requests without it.
    pub model: Option<Cow<'b, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The caller's name for its end user.
    pub user: Option<Cow<'b, str>>,
    /// Requests with different salts must not share cached blocks.
    pub cache_salt: Option<Cow<'b, str>>,
    /// The JSON text of SGLang's `lora_path`, a string or a list of strings.
    pub lora: Option<&'b [u8]>,
    /// A field that changes what the engine makes of the prompt, beside those above. Blocks of text don't mind; tokens do.
    pub altered_by: Option<&'static str>,
    /// What the model reads.
    pub prompt: Prompt<'b>,
}

/// Fields of [`Request::altered_by`].
const ALTERING: [&str; 8] = [
    "add_special_tokens",
    "chat_template",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "prompt_embeds",
    "reasoning_effort",
    "truncate_prompt_tokens",
];

/// Reads the body of a request to `endpoint`.
pub fn parse<'b>(endpoint: Endpoint, body: &'b [u8], limits: &Limits) -> Result<Request<'b>, ParseError> {
    let mut cursor = Cursor::new(body);
    match cursor.peek() {
        None => return cursor.error(Reason::Empty),
        Some(0xef) if body.starts_with(b"\xef\xbb\xbf") => return cursor.error(Reason::ByteOrderMark),
        Some(b'{') => {}
        Some(_) => return cursor.error(Reason::Expected("an object")),
    }
    let mut fields = Fields::default();
    let field = match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Completions => "prompt",
        Endpoint::Embeddings => "input",
    };
    cursor.object(|cursor, key| fields.read(cursor, key, field, limits))?;
    cursor.end()?;
    fields.finish(&cursor, field)
}

/// The fields of a body, as far as they were met.
#[derive(Debug, Default)]
struct Fields<'b> {
    model: Option<Cow<'b, str>>,
    stream: bool,
    user: Option<Cow<'b, str>>,
    cache_salt: Option<Cow<'b, str>>,
    lora: Option<&'b [u8]>,
    tools: Option<&'b [u8]>,
    altered_by: Option<&'static str>,
    prompt: Option<Prompt<'b>>,
}

impl<'b> Fields<'b> {
    /// Reads the value of `key`; `field` is the key of the prompt.
    fn read(
        &mut self,
        cursor: &mut Cursor<'b>,
        key: &[u8],
        field: &'static str,
        limits: &Limits,
    ) -> Result<(), ParseError> {
        match key {
            b"model" => self.model = name(cursor, "model")?,
            b"stream" => self.stream = flag(cursor, "stream")?,
            b"user" => self.user = name(cursor, "user")?,
            b"cache_salt" => self.cache_salt = name(cursor, "cache_salt")?,
            b"lora_path" => self.lora = cursor.nullable(Cursor::value)?,
            b"tools" => self.tools = cursor.nullable(Cursor::value)?,
            _ if key != field.as_bytes() => {
                let value = cursor.value()?;
                let altering = ALTERING.iter().find(|name| name.as_bytes() == key);
                self.altered_by = self.altered_by.or(altering.copied().filter(|_| value != b"null"));
            }
            b"messages" => {
                self.prompt = cursor.nullable(|cursor| Chat::read(cursor, limits).map(Prompt::Chat))?;
            }
            _ => self.prompt = cursor.nullable(|cursor| prompt(cursor, field))?,
        }
        Ok(())
    }

    fn finish(self, cursor: &Cursor<'b>, field: &'static str) -> Result<Request<'b>, ParseError> {
        let Self { model, stream, user, cache_salt, lora, tools, altered_by, prompt } = self;
        let prompt = match prompt {
            Some(Prompt::Chat(chat)) => Prompt::Chat(Chat { tools, ..chat }),
            Some(prompt) => prompt,
            None => return cursor.error(Reason::Missing(field)),
        };
        Ok(Request { model, stream, user, cache_salt, lora, altered_by, prompt })
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
