//! Request bodies: what an engine reads of an OpenAI chat, completion or embedding request.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::tokens::{self, CONTENT_START, MESSAGE_END, MESSAGE_START};

/// Tokens of a content part that isn't text, such as an image.
pub const PART_TOKENS: usize = 256;

/// The most prompts that one completion or embedding request may carry.
pub const MAX_PROMPTS: usize = 256;

/// The kinds of inference request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
}

/// A request as the engine sees it.
#[derive(Debug)]
pub struct Body {
    /// The model's name; `None` means the first of the pod's.
    pub model: Option<String>,
    /// Keeps this request's blocks apart from those of other salts.
    pub cache_salt: Option<String>,
    /// The tokens of each prompt; a chat has one.
    pub prompts: Vec<Vec<u32>>,
    /// Answer as server-sent events.
    pub stream: bool,
    /// End the stream with a chunk of usage.
    pub include_usage: bool,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Generate exactly `max_tokens`.
    pub ignore_eos: bool,
}

/// Why a body is refused, for the client to read.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

impl Body {
    /// Reads the body of a request to `endpoint`. Unknown fields are ignored; of a repeated field the last counts.
    pub fn parse(endpoint: Endpoint, bytes: &[u8]) -> Result<Self, Invalid> {
        let fields = Fields::parse(bytes)?;
        let prompts = match endpoint {
            Endpoint::Chat => vec![chat(&fields)?],
            Endpoint::Completions => prompts(fields.required("prompt")?, "prompt")?,
            Endpoint::Embeddings => prompts(fields.required("input")?, "input")?,
        };
        if fields.get::<u64>("n")?.is_some_and(|n| n != 1) {
            return Err(Invalid("n: pod-sim gives one choice for each prompt; leave n out".into()));
        }
        let options = fields.get::<StreamOptions>("stream_options")?.unwrap_or_default();
        Ok(Self {
            model: fields.get("model")?,
            cache_salt: fields.get("cache_salt")?,
            prompts,
            stream: fields.get("stream")?.unwrap_or(false),
            include_usage: options.include_usage.unwrap_or(false),
            max_tokens: match fields.get("max_completion_tokens")? {
                Some(most) => Some(most),
                None => fields.get("max_tokens")?,
            },
            ignore_eos: fields.get("ignore_eos")?.unwrap_or(false),
        })
    }
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A JSON object whose values are read on demand.
struct Fields<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Invalid> {
        match serde_json::from_slice(bytes) {
            Ok(fields) => Ok(Self(fields)),
            Err(error) => Err(Invalid(format!("body is not a JSON object: {error}"))),
        }
    }

    /// The value of `name`, `None` where it is absent or null.
    fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, Invalid> {
        let Some(raw) = self.0.get(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map_err(|error| Invalid(format!("{name}: {error}")))
    }

    fn required<T: Deserialize<'a>>(&self, name: &str) -> Result<T, Invalid> {
        self.get(name)?.ok_or_else(|| Invalid(format!("{name}: field required")))
    }

    /// The JSON text of `name` without its outer white space, unless it is absent or null.
    fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|raw| raw.get()).filter(|text| *text != "null")
    }
}

/// Renders a chat: tools, then messages, then the opening of the answer. Appending the answer and the next message to
/// the list appends tokens and changes none.
fn chat(fields: &Fields) -> Result<Vec<u32>, Invalid> {
    let messages: Vec<&RawValue> = fields.required("messages")?;
    if messages.is_empty() {
        return Err(Invalid("messages: at least one message is needed".into()));
    }
    let mut out = Vec::new();
    if let Some(tools) = fields.raw("tools").filter(|tools| *tools != "[]") {
        out.push(MESSAGE_START);
        tokens::push_text("tools", &mut out);
        out.push(CONTENT_START);
        tokens::push_text(tools, &mut out);
        out.push(MESSAGE_END);
    }
    for (index, message) in messages.iter().enumerate() {
        push_message(message, &mut out)
            .map_err(|Invalid(why)| Invalid(format!("messages[{index}]: {why}")))?;
    }
    out.push(MESSAGE_START);
    tokens::push_text("assistant", &mut out);
    out.push(CONTENT_START);
    Ok(out)
}

fn push_message(message: &RawValue, out: &mut Vec<u32>) -> Result<(), Invalid> {
    let fields = Fields::parse(message.get().as_bytes())?;
    let role: Cow<str> = fields.required("role")?;
    out.push(MESSAGE_START);
    tokens::push_text(&role, out);
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.get::<Cow<str>>(name)? {
            tokens::push_text(&format!(" {name}={text}"), out);
        }
    }
    out.push(CONTENT_START);
    match fields.raw("content") {
        None => {}
        Some(list) if list.starts_with('[') => {
            let parts: Vec<&RawValue> = fields.required("content")?;
            for part in parts {
                push_part(part, out)?;
            }
        }
        Some(_) => tokens::push_text(&fields.required::<Cow<str>>("content")?, out),
    }
    if let Some(calls) = fields.raw("tool_calls") {
        tokens::push_text(calls, out);
    }
    out.push(MESSAGE_END);
    Ok(())
}

fn push_part(part: &RawValue, out: &mut Vec<u32>) -> Result<(), Invalid> {
    let fields = Fields::parse(part.get().as_bytes())?;
    if fields.required::<Cow<str>>("type")? == "text" {
        tokens::push_text(&fields.required::<Cow<str>>("text")?, out);
    } else {
        let seed = xxh3_64(part.get().as_bytes());
        out.extend((0..PART_TOKENS as u64).map(|index| tokens::id(&(seed ^ index).to_le_bytes())));
    }
    Ok(())
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn prompts(value: &RawValue, name: &str) -> Result<Vec<Vec<u32>>, Invalid> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Prompts {
        Text(String),
        Texts(Vec<String>),
        Ids(Vec<u32>),
        Lists(Vec<Vec<u32>>),
    }
    let tokens_of = |text: &String| {
        let mut out = Vec::new();
        tokens::push_text(text, &mut out);
        out
    };
    let prompts = match serde_json::from_str(value.get()) {
        Ok(Prompts::Text(text)) => vec![tokens_of(&text)],
        Ok(Prompts::Texts(texts)) => texts.iter().map(tokens_of).collect(),
        Ok(Prompts::Ids(ids)) => vec![ids],
        Ok(Prompts::Lists(lists)) => lists,
        Err(_) => return Err(Invalid(format!("{name}: neither text, nor token ids, nor a list of either"))),
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(Invalid(format!("{name}: a prompt is empty; each needs at least one token")));
    }
    if prompts.len() > MAX_PROMPTS {
        return Err(Invalid(format!("{name}: {} prompts; at most {MAX_PROMPTS} are taken", prompts.len())));
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn parse(endpoint: Endpoint, body: &Value) -> Result<Body, Invalid> {
        Body::parse(endpoint, body.to_string().as_bytes())
    }

    fn chat_tokens(messages: &[Value]) -> Vec<u32> {
        parse(Endpoint::Chat, &json!({"messages": messages})).unwrap().prompts.remove(0)
    }

    fn message() -> impl Strategy<Value = Value> {
        let text = "(\\PC|[ \n\"\\\\])*";
        prop_oneof![
            ("user|system|tool", text).prop_map(|(role, text)| json!({"role": role, "content": text})),
            (text, text).prop_map(|(a, b)| json!({"role": "user", "content": [
                {"type": "text", "text": a}, {"type": "image_url", "image_url": {"url": b}}]})),
            text.prop_map(|text| json!({"role": "assistant", "content": null,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}]})),
        ]
    }

    proptest! {
        #[test]
        fn the_next_turn_extends_this_turn_and_its_answer(
            messages in proptest::collection::vec(message(), 1..5), next in message(), seed: u64, words in 1usize..20,
        ) {
            let prose = tokens::Prose { seed };
            let mut answer = String::new();
            prose.push_words(0, words, &mut answer);
            let mut before = chat_tokens(&messages);
            before.extend((0..words).map(|index| prose.token(index)));
            let mut messages = messages;
            messages.extend([json!({"role": "assistant", "content": answer}), next]);
            prop_assert!(chat_tokens(&messages).starts_with(&before));
        }
    }

    #[test]
    fn a_text_part_reads_as_the_same_text_alone() {
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "hi there"}]});
        assert_eq!(chat_tokens(&[parts]), chat_tokens(&[json!({"role": "user", "content": "hi there"})]));
    }

    #[test]
    fn what_differs_for_an_engine_differs_in_tokens() {
        let bodies = [
            json!({"messages": [{"role": "user", "content": "a"}]}),
            json!({"messages": [{"role": "system", "content": "a"}]}),
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": ""}]}),
            json!({"messages": [{"role": "user", "content": "a", "name": "n"}]}),
            json!({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}),
        ];
        let tokens: Vec<_> = bodies.iter().map(|body| parse(Endpoint::Chat, body).unwrap().prompts).collect();
        for index in 0..tokens.len() {
            assert!(!tokens[..index].contains(&tokens[index]), "{}", bodies[index]);
        }
    }

    #[test]
    fn completions_take_every_shape_of_prompt() {
        let prompts =
            |value: Value| parse(Endpoint::Completions, &json!({"prompt": value})).map(|body| body.prompts);
        let (a, b) = (tokens::id(b"a"), tokens::id(b"b"));
        assert_eq!(prompts(json!("a")), Ok(vec![vec![a]]));
        assert_eq!(prompts(json!(["a", "b"])), Ok(vec![vec![a], vec![b]]));
        assert_eq!(prompts(json!([1, 2])), Ok(vec![vec![1, 2]]));
        assert_eq!(prompts(json!([[1], [2]])), Ok(vec![vec![1], vec![2]]));
        for bad in
            [json!(""), json!([]), json!([[]]), json!({}), json!([-1]), json!(vec!["a"; MAX_PROMPTS + 1])]
        {
            assert!(prompts(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        let refused = |body: &str| Body::parse(Endpoint::Chat, body.as_bytes()).unwrap_err().0;
        assert!(refused("{").starts_with("body is not a JSON object"));
        assert!(refused("{}").starts_with("messages: field required"));
        assert!(
            refused(r#"{"messages":[{"role":"user","content":"a"},{"content":"b"}]}"#)
                .starts_with("messages[1]: role")
        );
        assert!(refused(r#"{"messages":[{"role":"user","content":7}]}"#).starts_with("messages[0]: content"));
        assert!(refused(r#"{"messages":[{"role":"user"}],"stream":"yes"}"#).starts_with("stream: "));
    }

    #[test]
    fn options_are_read_and_the_last_of_a_repeated_field_counts() {
        let body = r#"{"model":"x","model":"y","messages":[{"role":"user","content":"a"}],"stream":true,"cache_salt":"s",
            "stream_options":{"include_usage":true},"max_tokens":3,"max_completion_tokens":5,"unknown":{}}"#;
        let body = Body::parse(Endpoint::Chat, body.as_bytes()).unwrap();
        assert_eq!((body.model.as_deref(), body.cache_salt.as_deref()), (Some("y"), Some("s")));
        assert_eq!((body.stream, body.include_usage, body.max_tokens), (true, true, Some(5)));
    }
}
