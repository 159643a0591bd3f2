//! A chat as a model reads it.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::fields::{Fields, Invalid};
use crate::tokens::{self, CONTENT_START, MESSAGE_END, MESSAGE_START};

/// Tokens of a content part that isn't text, such as an image.
pub const PART_TOKENS: usize = 256;

/// How a block of Claude Code's system prompt begins that differs from request to request; vLLM leaves it out.
const BILLING: &str = "x-anthropic-billing-header";

/// Renders a chat: tools, then the field `system` that stands outside of the messages, then the messages in `list`, then the
/// opening of the answer. Appending the answer and the next message to the list appends tokens and changes none.
pub fn chat(fields: &Fields, system: Option<&str>, list: &str) -> Result<Vec<u32>, Invalid> {
    let mut out = Vec::new();
    let tools: Vec<&RawValue> = fields.get("tools")?.unwrap_or_default();
    if !tools.is_empty() {
        open("tools", &mut out);
        for tool in tools {
            tokens::push_text(&unmarked(tool)?, &mut out);
        }
        out.push(MESSAGE_END);
    }
    if let Some(system) = system.filter(|name| fields.raw(name).is_some()) {
        open("system", &mut out);
        push_content(fields, system, &mut out)?;
        out.push(MESSAGE_END);
    }
    if list == "input" && fields.raw(list).is_some_and(|said| said.starts_with('"')) {
        open("user", &mut out);
        push_content(fields, list, &mut out)?;
        out.push(MESSAGE_END);
    } else {
        let messages: Vec<&RawValue> = fields.required(list)?;
        if messages.is_empty() {
            return Err(Invalid(format!("{list}: at least one message is needed")));
        }
        let push = if list == "input" { push_item } else { push_message };
        for (index, message) in messages.iter().enumerate() {
            push(message, &mut out).map_err(|Invalid(why)| Invalid(format!("{list}[{index}]: {why}")))?;
        }
    }
    open("assistant", &mut out);
    Ok(out)
}

/// Opens a message.
fn open(role: &str, out: &mut Vec<u32>) {
    out.push(MESSAGE_START);
    tokens::push_text(role, out);
    out.push(CONTENT_START);
}

/// An item of the input of `/v1/responses`: a message, or a call, its output, a thought.
fn push_item(item: &RawValue, out: &mut Vec<u32>) -> Result<(), Invalid> {
    match Fields::parse(item.get().as_bytes())?.get::<Cow<str>>("type")? {
        Some(kind) if kind != "message" => {
            open(&kind, out);
            tokens::push_text(item.get(), out);
            out.push(MESSAGE_END);
            Ok(())
        }
        _ => push_message(item, out),
    }
}

fn push_message(message: &RawValue, out: &mut Vec<u32>) -> Result<(), Invalid> {
    let fields = Fields::parse(message.get().as_bytes())?;
    let mut role: String = fields.required("role")?;
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.get::<Cow<str>>(name)? {
            role.push_str(&format!(" {name}={text}"));
        }
    }
    open(&role, out);
    push_content(&fields, "content", out)?;
    if let Some(calls) = fields.raw("tool_calls") {
        tokens::push_text(calls, out);
    }
    out.push(MESSAGE_END);
    Ok(())
}

/// A text or a list of parts.
fn push_content(fields: &Fields, name: &str, out: &mut Vec<u32>) -> Result<(), Invalid> {
    match fields.raw(name) {
        None => {}
        Some(list) if list.starts_with('[') => {
            for part in fields.required::<Vec<&RawValue>>(name)? {
                let fields = Fields::parse(part.get().as_bytes())?;
                let billing = fields.get::<Cow<str>>("text")?.is_some_and(|text| text.starts_with(BILLING));
                if name != "system" || !billing {
                    push_part(part, &fields, out)?;
                }
            }
        }
        Some(_) => tokens::push_text(&fields.required::<Cow<str>>(name)?, out),
    }
    Ok(())
}

fn push_part(part: &RawValue, fields: &Fields, out: &mut Vec<u32>) -> Result<(), Invalid> {
    match &*fields.required::<Cow<str>>("type")? {
        "text" | "input_text" | "output_text" => {
            tokens::push_text(&fields.required::<Cow<str>>("text")?, out);
        }
        "tool_use" => {
            let name: Cow<str> = fields.required("name")?;
            tokens::push_text(&format!("call {name} {}", fields.raw("input").unwrap_or("{}")), out);
        }
        "tool_result" => {
            let id: Cow<str> = fields.required("tool_use_id")?;
            tokens::push_text(&format!("result {id}:"), out);
            push_content(fields, "content", out)?;
        }
        _ => {
            let seed = xxh3_64(unmarked(part)?.as_bytes());
            out.extend((0..PART_TOKENS as u64).map(|index| tokens::id(&(seed ^ index).to_le_bytes())));
        }
    }
    Ok(())
}

/// The JSON of an object without Anthropic's mark of what to cache, which is no part of the prompt and moves from turn to turn.
fn unmarked(object: &RawValue) -> Result<String, Invalid> {
    let mut fields: Map<String, Value> =
        serde_json::from_str(object.get()).map_err(|error| Invalid(format!("not an object: {error}")))?;
    fields.retain(|name, _| name != "cache_control");
    Ok(Value::Object(fields).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;
    use crate::endpoint::Endpoint;
    use proptest::prelude::*;
    use serde_json::json;

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

    /// A turn of each API, with what was said before: Anthropic's marks move, and Claude Code's bill differs.
    fn turn(endpoint: Endpoint, turn: usize) -> Vec<u32> {
        let said = |n: usize| match (endpoint, n % 4) {
            (Endpoint::Messages, 1) => json!({"role": "assistant", "content": [
                {"type": "text", "text": "able"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"n": n}}]}),
            (Endpoint::Messages, 2) => {
                let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]});
                let image = json!({"type": "image", "source": {"data": n}});
                let marked = json!({"cache_control": {}, "type": "image", "source": {"data": n}});
                json!({"role": "user", "content": [result, if n + 1 == turn { marked } else { image }]})
            }
            (Endpoint::Responses, 1) => {
                json!({"type": "message", "id": "m", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "able", "annotations": []}]})
            }
            (Endpoint::Responses, 2) => {
                json!({"type": "function_call_output", "call_id": "c", "output": "x"})
            }
            _ => json!({"role": "user", "content": format!("turn {n}")}),
        };
        let list: Vec<_> = (0..turn).map(said).collect();
        let body = match endpoint {
            Endpoint::Messages => json!({"messages": list, "max_tokens": 1,
                "tools": [{"name": "f", "cache_control": {"ttl": turn}}],
                "system": [{"type": "text", "text": format!("{BILLING}: {turn}")}, {"type": "text", "text": "s"}]}),
            _ if turn == 1 => json!({"input": "turn 0", "instructions": "s"}),
            _ => json!({"input": list, "instructions": "s"}),
        };
        parse(endpoint, &body).unwrap().prompts.remove(0)
    }

    #[test]
    fn turns_of_every_api_extend_each_other() {
        for endpoint in [Endpoint::Responses, Endpoint::Messages] {
            let mut before = turn(endpoint, 1);
            before.push(tokens::id(b"able"));
            for next in [2, 3, 4, 5] {
                let now = turn(endpoint, next);
                let common = now.iter().zip(&before).take_while(|(now, before)| now == before).count();
                // The opening of an answer is followed by it, or it is another's turn after all.
                let kept = if next == 2 { before.len() } else { before.len() - 3 };
                assert!(common >= kept, "{endpoint:?} {next}: {common} of {}", before.len());
                assert!(now.len() > before.len());
                before = now;
            }
        }
    }

    #[test]
    fn what_stands_outside_of_the_messages_is_the_system_s() {
        let inside = [json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "u"})];
        let expected = chat_tokens(&inside);
        let read = |endpoint, body| parse(endpoint, &body).unwrap().prompts.remove(0);
        let user = &inside[1..];
        assert_eq!(read(Endpoint::Responses, json!({"instructions": "s", "input": "u"})), expected);
        assert_eq!(read(Endpoint::Responses, json!({"instructions": "s", "input": user})), expected);
        assert_eq!(
            read(Endpoint::Messages, json!({"system": "s", "messages": user, "max_tokens": 1})),
            expected
        );
        // Elsewhere these are unknown fields.
        assert_eq!(
            read(Endpoint::Chat, json!({"system": "s", "instructions": "s", "messages": inside})),
            expected
        );
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
