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
    pub extra_key: Option<String>,
    pub apart: Vec<(String, String)>,
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
            extra_key: request.extra_key.map(|text| String::from_utf8(text.to_vec()).unwrap()),
            apart: request
                .apart
                .iter()
                .map(|(name, json)| ((*name).to_owned(), String::from_utf8(json.to_vec()).unwrap()))
                .collect(),
            prompt: (kind, form),
        }
    }

    pub fn parse(endpoint: Endpoint, body: &str, limits: &Limits) -> Verdict<Self> {
        use Endpoint::{Chat, Completions, Embeddings, Generate, Messages, Responses};
        let mut this = Self::default();
        let mut apart = std::collections::BTreeMap::new();
        let (mut tools, mut instructions) = (String::new(), String::new());
        let (mut prompt, mut ids) = (None, None);
        for (key, value) in object(body)? {
            let of_chat = matches!(endpoint, Chat | Messages | Responses);
            match (key.as_str(), endpoint) {
                ("model", _) => this.model = name(&value)?,
                ("stream", _) => this.stream = read::<Option<bool>>(&value)?.unwrap_or_default(),
                ("user", _) => this.user = name(&value)?,
                ("cache_salt", _) => this.cache_salt = name(&value)?,
                ("lora_path", _) => this.lora = nullable(&value),
                ("extra_key", _) => this.extra_key = nullable(&value),
                ("tools", _) if of_chat => {
                    tools = nullable(&value)
                        .map_or(String::new(), |tools| format!("\x01{}", unmarked(&tools, 2)));
                }
                ("system", Messages) | ("instructions", Responses) => {
                    instructions = match nullable(&value) {
                        Some(value) => format!("\x02system{}", system(&value)?),
                        None => String::new(),
                    }
                }
                ("messages", Chat | Messages) | ("input", Responses) => {
                    prompt = nullable(&value)
                        .map(|value| chat(&value, limits, endpoint == Responses))
                        .transpose()?;
                }
                ("input_ids", Generate) => ids = nullable(&value).map(|v| batch(&v)).transpose()?,
                ("prompt", Completions) | ("input", Embeddings) | ("text", Generate) => {
                    prompt = nullable(&value).map(|v| batch(&v)).transpose()?;
                }
                (
                    "previous_response_id" | "previous_input_messages" | "prompt" | "conversation",
                    Responses,
                )
                | (
                    "image_data" | "audio_data" | "video_data" | "input_embeds" | "session_params",
                    Generate,
                ) => {
                    apart.insert(key, value);
                }
                _ => {}
            }
        }
        this.apart = apart.into_iter().filter(|(_, value)| value != "null").collect();
        this.prompt = ids.or(prompt).ok_or("no prompt")?;
        if this.prompt.0 == "chat" {
            this.prompt.1.splice(0..0, (tools + &instructions).into_bytes());
        }
        Ok(this)
    }
}

fn chat(text: &str, limits: &Limits, items: bool) -> Verdict<(&'static str, Vec<u8>)> {
    if items && text.starts_with('"') {
        return Ok(("chat", format!("\x02user{}", content(text)?).into_bytes()));
    }
    let messages: Vec<&RawValue> = read(text)?;
    if messages.len() > limits.max_messages {
        return Err("too many messages".to_owned());
    }
    let mut form = String::new();
    for message in messages {
        // Tag of the field -> what the form says of it; in the order of the tags.
        let mut fields: [Option<String>; 9] = Default::default();
        let mut is_message = true;
        for (key, value) in object(message.get())? {
            match key.as_str() {
                "role" => fields[2] = string(&value)?,
                "name" => fields[3] = string(&value)?,
                "tool_call_id" => fields[4] = string(&value)?,
                "reasoning_content" | "reasoning" => fields[5] = string(&value)?,
                "content" => fields[6] = Some(content(&value)?),
                "tool_calls" => fields[8] = nullable(&value),
                "type" => {
                    string(&value)?;
                    is_message =
                        value == "null" || read::<String>(&value).is_ok_and(|kind| kind == "message");
                }
                _ => {}
            }
        }
        if items && !(is_message && fields[2].is_some()) {
            form += &format!("\x0b\x07{}", message.get());
            continue;
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
    read::<Vec<&RawValue>>(text)?.into_iter().map(|part| self::part(part.get())).collect()
}

/// Content without the blocks that vLLM leaves out.
fn system(text: &str) -> Verdict<String> {
    if !text.starts_with('[') {
        return content(text);
    }
    let parts = read::<Vec<&RawValue>>(text)?.into_iter().map(|part| self::part(part.get()));
    let kept = |part: &Verdict<String>| {
        !part.as_ref().is_ok_and(|part| part.starts_with("\x06x-anthropic-billing-header"))
    };
    parts.filter(kept).collect()
}

fn part(text: &str) -> Verdict<String> {
    if text.starts_with('"') {
        return Ok(format!("\x06{}", &text[1..text.len() - 1]));
    }
    let (mut is_text, mut said) = (true, None);
    for (key, value) in object(text)? {
        match key.as_str() {
            "type" => {
                string(&value)?;
                let texts = ["text", "input_text", "output_text"];
                is_text = value == "null" || read::<String>(&value).is_ok_and(|kind| texts.contains(&&*kind));
            }
            "text" => said = string(&value)?,
            _ => {}
        }
    }
    Ok(match said {
        Some(said) if is_text => format!("\x06{said}"),
        _ => format!("\x07{}", unmarked(text, 3)),
    })
}

/// JSON as it would be written without `cache_control` in the value itself and in `levels - 1` containers within.
fn unmarked(text: &str, levels: u32) -> String {
    let at = |inner: &str| inner.as_ptr() as usize - text.as_ptr() as usize;
    let mut out = String::new();
    let mut end = 0;
    match text.chars().next() {
        Some('[') if levels > 0 => {
            for item in read::<Vec<&RawValue>>(text).unwrap() {
                out += &text[end..at(item.get())];
                out += &unmarked(item.get(), levels - 1);
                end = at(item.get()) + item.get().len();
            }
        }
        Some('{') if levels > 0 => {
            let mut kept = 0;
            for (i, (key, value)) in read::<Fields<'_>>(text).unwrap().0.into_iter().enumerate() {
                let start = end + text[end..].find('"').unwrap();
                // With a member goes the comma before it; with the first, the one after it.
                if i == 0 {
                    out += &text[..start];
                }
                if key != "cache_control" {
                    out += &text[if kept == 0 { start } else { end }..at(value.get())];
                    let levels = if key == "content" { levels - 1 } else { 0 };
                    out += &unmarked(value.get(), levels);
                    kept += 1;
                }
                end = at(value.get()) + value.get().len();
            }
        }
        _ => {}
    }
    out + &text[end..]
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
    let fields = read::<Fields<'_>>(text)?.0;
    Ok(fields.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect())
}

struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
