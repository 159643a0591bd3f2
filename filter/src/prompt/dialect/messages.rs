//! Anthropic's `/v1/messages` to the chat that vLLM makes of it, as its `entrypoints/anthropic/serving.py` does in 0.32.

use super::{Said, function, is_billing};
use serde_json::{Map, Value, json};

pub(super) fn said(body: &mut Map<String, Value>) -> Result<Said, String> {
    let thinking = body.get("thinking").and_then(|thinking| thinking.get("type")).and_then(Value::as_str);
    if thinking == Some("disabled") {
        return Err("thinking that is disabled".to_owned());
    }
    let effort = body.get("output_config").and_then(|config| config.get("effort"));
    if effort.is_some_and(|effort| !effort.is_null()) {
        return Err("output_config.effort".to_owned());
    }
    let mut messages = Vec::new();
    let system = system(body.remove("system").unwrap_or_default())?;
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    let Some(Value::Array(list)) = body.remove("messages") else { return Err("no messages".to_owned()) };
    for message in list {
        read_message(message, &mut messages)?;
    }
    let tools = match body.remove("tools") {
        None | Some(Value::Null) => None,
        Some(Value::Array(tools)) => Some(tools.into_iter().map(tool).collect::<Result<_, _>>()?),
        Some(_) => return Err("tools that are no list".to_owned()),
    };
    // Never a continuation: an answer that was begun is rendered as a whole one.
    Ok(Said { messages, tools, add_generation_prompt: true, continue_final_message: false })
}

/// The text of the system prompt, whose blocks are joined without anything between them.
fn system(system: Value) -> Result<String, String> {
    match system {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let texts = blocks.into_iter().map(|mut block| match kind(&block) {
                "text" => Ok(Some(take(&mut block, "text")?).filter(|text| !is_billing(text))),
                kind => Err(format!("a system block of type {kind:?}")),
            });
            texts.filter_map(Result::transpose).collect()
        }
        _ => Err("a system prompt that is neither text nor a list".to_owned()),
    }
}

/// Appends what becomes of a message. Results of tools are messages of their own, before what else it says.
fn read_message(mut message: Value, messages: &mut Vec<Value>) -> Result<(), String> {
    let role = take(&mut message, "role")?;
    if !matches!(&*role, "user" | "assistant") {
        return Err(format!("a message of role {role:?} in /v1/messages"));
    }
    let blocks = match message.get_mut("content").map(Value::take) {
        Some(text @ Value::String(_)) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        _ => return Err("content is neither text nor a list".to_owned()),
    };
    let (mut texts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), Vec::new());
    for mut block in blocks {
        match (kind(&block), &*role) {
            ("text", _) => {
                let text = take(&mut block, "text")?;
                if !text.is_empty() {
                    texts.push(json!({"type": "text", "text": text}));
                }
            }
            ("thinking", "assistant") => thoughts.push(take(&mut block, "thinking")?),
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => calls.push(call(block)?),
            ("tool_result", "user") => messages.push(result(block)?),
            (kind, role) => return Err(format!("a block of type {kind:?} from the {role}")),
        }
    }
    let mut out = Map::new();
    if !texts.is_empty() {
        out.insert("content".to_owned(), Value::Array(texts));
    }
    if !thoughts.is_empty() {
        out.insert("reasoning".to_owned(), Value::String(thoughts.concat()));
    }
    if !calls.is_empty() {
        out.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    if role == "assistant" || !out.is_empty() {
        out.insert("role".to_owned(), Value::String(role));
        messages.push(Value::Object(out));
    }
    Ok(())
}

fn call(mut block: Value) -> Result<Value, String> {
    let [id, name] = [take(&mut block, "id")?, take(&mut block, "name")?];
    if id.is_empty() {
        return Err("a tool call without an id".to_owned());
    }
    let input = match block.get_mut("input").map(Value::take) {
        Some(input @ Value::Object(_)) => input,
        None | Some(Value::Null) => json!({}),
        Some(_) => return Err("a tool's input that is no object".to_owned()),
    };
    Ok(json!({"id": id, "function": {"arguments": input, "name": name}, "type": "function"}))
}

fn result(mut block: Value) -> Result<Value, String> {
    let id = take(&mut block, "tool_use_id")?;
    let content = match block.get_mut("content").map(Value::take) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(items)) => {
            let texts = items.into_iter().map(|mut item| match kind(&item) {
                "text" => take(&mut item, "text"),
                kind => Err(format!("a tool's result of type {kind:?}")),
            });
            texts.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(_) => return Err("a tool's result that is neither text nor a list".to_owned()),
    };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

/// Of a tool, what isn't asked for here is dropped.
fn tool(mut tool: Value) -> Result<Value, String> {
    let Some(Value::Object(mut schema)) = tool.get_mut("input_schema").map(Value::take) else {
        return Err("a tool without an input_schema".to_owned());
    };
    schema.entry("type").or_insert_with(|| json!("object"));
    let mut out = Map::from_iter([("parameters".to_owned(), Value::Object(schema))]);
    for name in ["name", "description", "strict", "defer_loading"] {
        out.extend(tool.get_mut(name).map(|value| (name.to_owned(), value.take())));
    }
    function(out)
}

fn kind(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The text of a field.
fn take(value: &mut Value, name: &str) -> Result<String, String> {
    match value.get_mut(name).map(Value::take) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("a {name} that is no text")),
    }
}
