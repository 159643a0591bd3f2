//! `/v1/responses` to the chat that vLLM makes of it, as its `entrypoints/openai/responses/utils.py` does in 0.32.

use super::{Said, function};
use serde_json::{Map, Value, json};

pub(super) fn said(body: &mut Map<String, Value>) -> Result<Said, String> {
    let effort = body.get("reasoning").and_then(|reasoning| reasoning.get("effort"));
    if effort.is_some_and(|effort| !effort.is_null()) {
        return Err("reasoning.effort".to_owned());
    }
    if body.get("truncation").is_some_and(|truncation| !truncation.is_null() && truncation != "disabled") {
        return Err("truncation".to_owned());
    }
    let mut messages = Vec::new();
    match body.remove("instructions") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(text @ Value::String(_)) => messages.push(json!({"role": "system", "content": text})),
        Some(_) => return Err("instructions that are no text".to_owned()),
    }
    match body.remove("input") {
        Some(text @ Value::String(_)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => messages.extend(read_items(items)?),
        _ => return Err("no input".to_owned()),
    }
    let tools = match body.remove("tools") {
        None | Some(Value::Null) => None,
        Some(Value::Array(tools)) if tools.is_empty() => None,
        Some(Value::Array(tools)) => Some(tools.into_iter().map(tool).collect::<Result<_, _>>()?),
        Some(_) => return Err("tools that are no list".to_owned()),
    };
    Ok(Said { messages, tools, add_generation_prompt: true, continue_final_message: false })
}

fn read_items(items: Vec<Value>) -> Result<Vec<Value>, String> {
    let status = items.last().and_then(|item| item.get("status")).and_then(Value::as_str);
    if matches!(status, Some("in_progress" | "incomplete")) {
        return Err("an item that is to be continued".to_owned());
    }
    let mut messages = Vec::new();
    for item in items {
        let Value::Object(mut item) = item else { return Err("an item that is no object".to_owned()) };
        let role = item.get("role").and_then(Value::as_str);
        let kind = item.get("type").and_then(Value::as_str);
        match (kind, role) {
            (None | Some("message"), Some("assistant")) => {
                let typed = kind.is_some();
                let text = answer(item.remove("content"), typed)?;
                of_assistant(&mut messages, "content", text);
            }
            (None | Some("message"), Some(_)) => messages.push(Value::Object(item)),
            (Some("reasoning"), _) => {
                let text = thought(item)?;
                of_assistant(&mut messages, "reasoning", text);
            }
            (Some("function_call"), _) => add_call(&mut messages, item)?,
            (Some("function_call_output"), _) => {
                let [id, output] = ["call_id", "output"].map(|name| item.remove(name).unwrap_or_default());
                messages.push(json!({"role": "tool", "content": output, "tool_call_id": id}));
            }
            (kind, _) => return Err(format!("an item of type {kind:?}")),
        }
    }
    Ok(messages)
}

/// The last message, if it is the assistant's.
fn last_answer(messages: &mut [Value]) -> Option<&mut Map<String, Value>> {
    let last = messages.last_mut()?.as_object_mut()?;
    (last.get("role")? == "assistant").then_some(last)
}

/// Items that make up one answer become one message, as long as they don't say the same field twice.
fn of_assistant(messages: &mut Vec<Value>, field: &str, text: String) {
    match last_answer(messages) {
        Some(last) if !last.contains_key(field) => {
            last.insert(field.to_owned(), Value::String(text));
        }
        _ => messages.push(json!({"role": "assistant", field: text})),
    }
}

fn add_call(messages: &mut Vec<Value>, mut item: Map<String, Value>) -> Result<(), String> {
    if item.get("namespace").is_some_and(|namespace| !namespace.is_null()) {
        return Err("a tool within a namespace".to_owned());
    }
    let [id, name, arguments] =
        ["call_id", "name", "arguments"].map(|name| item.remove(name).unwrap_or_default());
    let call = json!({"id": id, "function": {"name": name, "arguments": arguments}, "type": "function"});
    match last_answer(messages) {
        Some(last) => {
            if let Value::Array(calls) = last.entry("tool_calls").or_insert_with(|| json!([])) {
                calls.push(call);
            }
        }
        None => messages.push(json!({"role": "assistant", "tool_calls": [call]})),
    }
    Ok(())
}

/// Of what an assistant said, vLLM reads the first part alone. `typed`: whether the item says that it is a message.
fn answer(content: Option<Value>, typed: bool) -> Result<String, String> {
    let mut parts = match content {
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) if typed => parts,
        _ => return Err("an answer that is neither text nor a list".to_owned()),
    };
    match (parts.pop(), parts.is_empty()) {
        (Some(mut part), true) if part.get("type").is_some_and(|kind| kind == "output_text") => {
            text(&mut part).ok_or_else(|| "an answer without its text".to_owned())
        }
        _ => Err("an answer that is not one text".to_owned()),
    }
}

/// A thought is its first content, or else its first summary.
fn thought(mut item: Map<String, Value>) -> Result<String, String> {
    if item.get("encrypted_content").is_some_and(|content| !content.is_null() && content != "") {
        return Err("an encrypted thought".to_owned());
    }
    let mut lists = ["content", "summary"].iter().filter_map(|name| match item.remove(*name) {
        Some(Value::Array(parts)) if !parts.is_empty() => Some(parts),
        _ => None,
    });
    match lists.next().map(|mut parts| parts.first_mut().and_then(text)) {
        None => Ok(String::new()),
        Some(Some(text)) => Ok(text),
        Some(None) => Err("a thought without its text".to_owned()),
    }
}

fn text(part: &mut Value) -> Option<String> {
    match part.get_mut("text")?.take() {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn tool(tool: Value) -> Result<Value, String> {
    let Value::Object(mut tool) = tool else { return Err("a tool that is no object".to_owned()) };
    match tool.remove("type") {
        Some(Value::String(kind)) if kind == "function" => function(tool),
        kind => Err(format!("a tool of type {kind:?}")),
    }
}
