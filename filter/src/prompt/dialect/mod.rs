//! A request's body to what vLLM gives its chat template.
//!
//! Engines reshape messages before they render them. What is reshaped in a way that isn't known here, is refused: the prompt is
//! then compared as text. What is known was read in vLLM 0.32: its `renderers/chat_utils.py` and `renderers/hf.py` for every
//! chat, and what the modules here name.

mod developer;
mod messages;
mod responses;

use super::template::{Chat, ChatTemplate};
use crate::request::{BILLING, Endpoint};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Bytes of arguments of calls in a chat. Their values take many times as much memory.
const MAX_ARGUMENTS: usize = 1 << 20;

/// What a body says, in the form of `/v1/chat/completions`.
struct Said {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
}

/// The chat of a body, for this template.
///
/// # Errors
/// Says what in the body is not followed.
pub fn chat(
    endpoint: Endpoint,
    body: &mut Value,
    template: &ChatTemplate,
    now: Duration,
) -> Result<Chat, String> {
    let Some(body) = body.as_object_mut() else { return Err("the body is no object".to_owned()) };
    let kwargs = kwargs(body.remove("chat_template_kwargs"))?;
    let said = match endpoint {
        Endpoint::Messages => messages::said(body),
        Endpoint::Responses => responses::said(body),
        _ => said(body),
    }?;
    let parts = template.takes_parts();
    let mut arguments = MAX_ARGUMENTS;
    let messages = said.messages.into_iter().map(|message| reshape(message, parts, &mut arguments));
    let mut messages = messages.collect::<Result<_, _>>()?;
    if !template.names_developer(said.tools.is_some()) {
        messages = developer::as_system(messages);
    }
    let Said { tools, add_generation_prompt, continue_final_message, .. } = said;
    Ok(Chat { messages, tools, kwargs, add_generation_prompt, continue_final_message, now })
}

/// What a body of `/v1/chat/completions` says.
fn said(body: &mut Map<String, Value>) -> Result<Said, String> {
    let Some(Value::Array(mut messages)) = body.remove("messages") else {
        return Err("no messages".to_owned());
    };
    for message in &mut messages {
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            calls.iter_mut().for_each(order_call);
        }
    }
    let tools = match body.remove("tools") {
        Some(Value::Array(tools)) if !tools.is_empty() => {
            Some(tools.into_iter().map(tool).collect::<Result<_, _>>()?)
        }
        _ => None,
    };
    let flag = |name: &str, default| body.get(name).and_then(Value::as_bool).unwrap_or(default);
    Ok(Said {
        messages,
        tools,
        add_generation_prompt: flag("add_generation_prompt", true),
        continue_final_message: flag("continue_final_message", false),
    })
}

fn kwargs(kwargs: Option<Value>) -> Result<Map<String, Value>, String> {
    let kwargs = match kwargs {
        Some(Value::Object(kwargs)) => kwargs,
        _ => return Ok(Map::new()),
    };
    // Whether they or the engine's own values count is the engine's affair.
    let own = [
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
    ];
    if let Some(name) = own.iter().find(|name| kwargs.contains_key(**name)) {
        return Err(format!("{name} within chat_template_kwargs"));
    }
    // Not every version hands these on.
    if let Some((name, value)) = kwargs.iter().find(|(_, value)| value.is_null() || *value == "auto") {
        return Err(format!("{name}: {value} within chat_template_kwargs"));
    }
    Ok(kwargs)
}

fn reshape(message: Value, parts: bool, arguments: &mut usize) -> Result<Value, String> {
    let Value::Object(mut message) = message else { return Err("a message is no object".to_owned()) };
    let role = message.remove("role").unwrap_or_default();
    let texts = texts(message.remove("content"))?;
    if role == "system" && texts.iter().any(|text| is_billing(text)) {
        return Err(format!("{BILLING} in a system message"));
    }
    // vLLM keeps other fields of a part, such as marks. Templates don't read them.
    let as_part = |text: String| json!({"type": "text", "text": text});
    let content = match (parts, role == "tool") {
        (true, false) => texts.into_iter().map(as_part).collect(),
        (true, true) => Value::String(texts.join("\n")),
        // Here what is empty is dropped.
        (false, _) => {
            let said: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            Value::String(said.join("\n"))
        }
    };
    let mut out = Map::new();
    out.insert("role".to_owned(), role.clone());
    out.insert("content".to_owned(), content);
    if role == "assistant" {
        if let Some(Value::Array(calls)) = message.remove("tool_calls")
            && !calls.is_empty()
        {
            let calls =
                calls.into_iter().map(|call| with_object(call, arguments)).collect::<Result<_, _>>()?;
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        let reasoning = ["reasoning", "reasoning_content"].iter().filter_map(|name| message.remove(*name));
        if let Some(reasoning) = reasoning.into_iter().find(|reasoning| !reasoning.is_null()) {
            out.insert("reasoning".to_owned(), reasoning.clone());
            out.insert("reasoning_content".to_owned(), reasoning);
        }
    }
    if role == "developer" {
        out.insert("tools".to_owned(), message.remove("tools").unwrap_or_default());
    }
    for name in ["tool_call_id", "name"] {
        if let Some(value) = message.remove(name).filter(Value::is_string)
            && (name != "tool_call_id" || role == "tool")
        {
            out.insert(name.to_owned(), value);
        }
    }
    Ok(Value::Object(out))
}

/// The texts that content consists of.
fn texts(content: Option<Value>) -> Result<Vec<String>, String> {
    match content {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(list)) => list.into_iter().map(text).collect(),
        Some(_) => Err("content is neither text nor a list".to_owned()),
    }
}

fn text(part: Value) -> Result<String, String> {
    let mut part = match part {
        Value::String(text) => return Ok(text),
        Value::Object(part) => part,
        _ => return Err("a part is neither text nor an object".to_owned()),
    };
    let kind = part.remove("type");
    let field = match kind.as_ref().and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        _ => return Err(format!("a part of type {}", kind.unwrap_or_default())),
    };
    match part.remove(field) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("a part without its {field}")),
    }
}

fn is_billing(text: &str) -> bool {
    text.starts_with(BILLING)
}

/// The order in which vLLM's schema of `/v1/chat/completions` puts the fields of a call.
fn order_call(call: &mut Value) {
    if let Value::Object(call) = call {
        order(call, &["id", "function", "type"]);
        if let Some(Value::Object(function)) = call.get_mut("function") {
            order(function, &["arguments", "name"]);
        }
    }
}

/// Puts fields that are there before all others.
fn order(object: &mut Map<String, Value>, names: &[&str]) {
    let mut rest = std::mem::take(object);
    object.extend(names.iter().filter_map(|name| rest.shift_remove_entry(*name)));
    object.extend(rest);
}

/// Templates want arguments as an object, clients send them as text. `left`: how long that may be.
fn with_object(call: Value, left: &mut usize) -> Result<Value, String> {
    let Value::Object(mut call) = call else { return Err("a tool call is no object".to_owned()) };
    let kind = call.get("type").is_none_or(|kind| kind == "function");
    let Some(Value::Object(function)) = call.get_mut("function").filter(|_| kind) else {
        return Err("a tool call without a function".to_owned());
    };
    let arguments = function.entry("arguments").or_insert(Value::Null);
    let read = match arguments.take() {
        Value::Null => json!({}),
        Value::String(text) if text.is_empty() => json!({}),
        Value::String(text) => {
            *left = left.checked_sub(text.len()).ok_or("arguments of more than 1 MiB in all")?;
            serde_json::from_str(&text).unwrap_or_default()
        }
        other => other,
    };
    if !read.is_object() {
        return Err("arguments that are no object".to_owned());
    }
    *arguments = read;
    Ok(Value::Object(call))
}

fn tool(tool: Value) -> Result<Value, String> {
    let Value::Object(mut tool) = tool else { return Err("a tool that is no object".to_owned()) };
    let kind = tool.remove("type").is_none_or(|kind| kind == "function");
    match tool.remove("function") {
        Some(Value::Object(own)) if kind && tool.is_empty() => function(own),
        Some(Value::Object(_)) if kind => Err(format!("a tool with {:?}", tool.keys())),
        _ => Err("a tool that is no function".to_owned()),
    }
}

/// A function as a tool: vLLM's own order of its fields, and null for those that are absent. Which others are handed on
/// differs between versions.
fn function(mut function: Map<String, Value>) -> Result<Value, String> {
    let mut own = Map::new();
    for name in ["name", "description", "parameters"] {
        own.insert(name.to_owned(), function.remove(name).unwrap_or_default());
    }
    own.extend(function.remove_entry("strict").filter(|(_, strict)| !strict.is_null()));
    if let Some((name, _)) = function.iter().find(|(_, value)| !value.is_null()) {
        return Err(format!("a function with {name}"));
    }
    Ok(json!({"type": "function", "function": own}))
}

#[cfg(test)]
mod tests;
