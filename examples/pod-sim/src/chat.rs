//! A chat as a model reads it.

use std::borrow::Cow;

use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::fields::{Fields, Invalid};
use crate::tokens::{self, CONTENT_START, MESSAGE_END, MESSAGE_START};

/// Tokens of a content part that isn't text, such as an image.
pub const PART_TOKENS: usize = 256;

/// Renders a chat: tools, then messages, then the opening of the answer. Appending the answer and the next message to
/// the list appends tokens and changes none.
pub fn chat(fields: &Fields) -> Result<Vec<u32>, Invalid> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;
    use crate::endpoint::Endpoint;
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
}
