//! The request as serde_json sees it, field by field: slow, and too simple to be wrong.

use crate::request::{Endpoint, Limits, MAX_NAME_BYTES, Prompt, Request};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// What [`crate::request::parse`] should find.
#[derive(Debug, PartialEq, Default)]
pub struct Reference {
    pub model: Option<String>,
    pub stream: bool,
    pub user: Option<String>,
    pub cache_salt: Option<String>,
    pub lora: Option<String>,
    /// `chat`, `text` or `tokens`, and the canonical form.
    pub prompt: (&'static str, Vec<u8>),
}

pub type Verdict<T> = Result<T, String>;

impl Reference {
    /// The same view of a parsed request.
    pub fn of(request: &Request<'_>) -> Self {
        let mut form = Vec::new();
        request.canonical(&mut |piece| form.extend_from_slice(piece));
        let kind = match request.prompt {
            Prompt::Chat(_) => "chat",
            Prompt::Text(_) => "text",
            Prompt::Tokens(_) => "tokens",
        };
        let owned = |name: &Option<std::borrow::Cow<'_, str>>| name.as_ref().map(ToString::to_string);
        Self {
            model: owned(&request.model),
            stream: request.stream,
            user: owned(&request.user),
            cache_salt: owned(&request.cache_salt),
            lora: request.lora.map(|text| String::from_utf8(text.to_vec()).unwrap()),
            prompt: (kind, form),
        }
    }

    pub fn parse(endpoint: Endpoint, body: &str, limits: &Limits) -> Verdict<Self> {
        let mut this = Self::default();
        let mut tools = None;
        let mut prompt = None;
        for (key, value) in object(body)? {
            match (key.as_str(), endpoint) {
                ("model", _) => this.model = name(&value)?,
                ("stream", _) => this.stream = read::<Option<bool>>(&value)?.unwrap_or_default(),
                ("user", _) => this.user = name(&value)?,
                ("cache_salt", _) => this.cache_salt = name(&value)?,
                ("lora_path", _) => this.lora = nullable(&value),
                ("tools", _) => tools = nullable(&value),
                ("messages", Endpoint::Chat) => {
                    prompt = nullable(&value).map(|v| chat(&v, limits)).transpose()?
                }
                ("prompt", Endpoint::Completions) | ("input", Endpoint::Embeddings) => {
                    prompt = nullable(&value).map(|v| batch(&v)).transpose()?;
                }
                _ => {}
            }
        }
        this.prompt = prompt.ok_or("no prompt")?;
        if let (true, Some(tools)) = (endpoint == Endpoint::Chat, tools) {
            this.prompt.1 = ["\x01", &tools].concat().into_bytes().into_iter().chain(this.prompt.1).collect();
        }
        Ok(this)
    }
}

fn chat(text: &str, limits: &Limits) -> Verdict<(&'static str, Vec<u8>)> {
    let messages: Vec<&RawValue> = read(text)?;
    if messages.len() > limits.max_messages {
        return Err("too many messages".to_owned());
    }
    let mut form = String::new();
    for message in messages {
        // Tag of the field -> what the form says of it; in the order of the tags.
        let mut fields: [Option<String>; 9] = Default::default();
        for (key, value) in object(message.get())? {
            match key.as_str() {
                "role" => fields[2] = string(&value)?,
                "name" => fields[3] = string(&value)?,
                "tool_call_id" => fields[4] = string(&value)?,
                "reasoning_content" | "reasoning" => fields[5] = string(&value)?,
                "content" => fields[6] = Some(content(&value)?),
                "tool_calls" => fields[8] = nullable(&value),
                _ => {}
            }
        }
        fields[2].as_ref().ok_or("no role")?;
        for (tag, field) in fields.iter().enumerate() {
            match (tag, field) {
                (6, Some(parts)) => form += parts,
                (_, Some(field)) => form += &format!("{}{field}", char::from(tag as u8)),
                (_, None) => {}
            }
        }
    }
    Ok(("chat", form.into_bytes()))
}

fn content(text: &str) -> Verdict<String> {
    if !text.starts_with('[') {
        return Ok(string(text)?.map_or_else(String::new, |text| format!("\x06{text}")));
    }
    let mut form = String::new();
    for part in read::<Vec<&RawValue>>(text)? {
        let part = part.get();
        if part.starts_with('"') {
            form += &format!("\x06{}", &part[1..part.len() - 1]);
            continue;
        }
        let (mut is_text, mut text) = (true, None);
        for (key, value) in object(part)? {
            match key.as_str() {
                "type" => {
                    string(&value)?;
                    is_text = value == "null" || read::<String>(&value).is_ok_and(|kind| kind == "text");
                }
                "text" => text = string(&value)?,
                _ => {}
            }
        }
        form += &match text {
            Some(text) if is_text => format!("\x06{text}"),
            _ => format!("\x07{part}"),
        };
    }
    Ok(form)
}

fn batch(text: &str) -> Verdict<(&'static str, Vec<u8>)> {
    if text.starts_with('"') {
        return Ok(("text", text.as_bytes()[1..text.len() - 1].to_vec()));
    }
    let list: Vec<&RawValue> = read(text)?;
    match list.first().ok_or("empty")?.get() {
        first if first.starts_with('"') => batch(first),
        first if first.starts_with('[') => tokens(first),
        _ => tokens(text),
    }
}

fn tokens(text: &str) -> Verdict<(&'static str, Vec<u8>)> {
    Ok(("tokens", read::<Vec<u32>>(text)?.iter().flat_map(|id| id.to_le_bytes()).collect()))
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Verdict<T> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn nullable(text: &str) -> Option<String> {
    (text != "null").then(|| text.to_owned())
}

/// The inside of a string, as it is written.
fn string(text: &str) -> Verdict<Option<String>> {
    match text.as_bytes() {
        b"null" => Ok(None),
        [b'"', .., b'"'] => Ok(Some(text[1..text.len() - 1].to_owned())),
        _ => Err("not a string".to_owned()),
    }
}

fn name(text: &str) -> Verdict<Option<String>> {
    if text.len() > MAX_NAME_BYTES + 2 {
        return Err("too long".to_owned());
    }
    read(text)
}

/// The fields of an object in their order, duplicates included.
fn object(text: &str) -> Verdict<Vec<(String, String)>> {
    read::<Fields>(text).map(|fields| fields.0)
}

struct Fields(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    fields.push((key, value.get().to_owned()));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
