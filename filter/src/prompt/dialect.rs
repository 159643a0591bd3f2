//! A chat request's body to what vLLM gives its chat template.
//!
//! Engines reshape messages before they render them. What is reshaped in a way that isn't known here, is refused: the prompt is
//! then compared as text.

use super::template::Chat;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The chat of a body. `parts`: whether the template takes content as a list of parts.
///
/// # Errors
/// Says what in the body is not followed.
pub fn chat(body: &mut Value, parts: bool, now: Duration) -> Result<Chat, String> {
    let Some(body) = body.as_object_mut() else { return Err("the body is no object".to_owned()) };
    let Some(Value::Array(messages)) = body.remove("messages") else { return Err("no messages".to_owned()) };
    let messages = messages.into_iter().map(|message| reshape(message, parts)).collect::<Result<_, _>>()?;
    let tools = match body.remove("tools") {
        Some(Value::Array(tools)) if !tools.is_empty() => Some(tools.into_iter().map(tool).collect()),
        _ => None,
    };
    let kwargs = match body.remove("chat_template_kwargs") {
        Some(Value::Object(kwargs)) => kwargs,
        _ => Map::new(),
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
    let flag = |name: &str, default| body.get(name).and_then(Value::as_bool).unwrap_or(default);
    Ok(Chat {
        messages,
        tools,
        kwargs,
        add_generation_prompt: flag("add_generation_prompt", true),
        continue_final_message: flag("continue_final_message", false),
        now,
    })
}

fn reshape(message: Value, parts: bool) -> Result<Value, String> {
    let Value::Object(mut message) = message else { return Err("a message is no object".to_owned()) };
    let role = message.remove("role").unwrap_or_default();
    let content = content(message.remove("content"), parts)?;
    let mut out = Map::new();
    out.insert("role".to_owned(), role.clone());
    out.insert("content".to_owned(), content);
    if role == "assistant" {
        if let Some(Value::Array(calls)) = message.remove("tool_calls") {
            let calls = calls.into_iter().map(call).collect::<Result<_, _>>()?;
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        let reasoning = ["reasoning", "reasoning_content"].iter().find_map(|name| message.remove(*name));
        if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
            out.insert("reasoning".to_owned(), reasoning.clone());
            out.insert("reasoning_content".to_owned(), reasoning);
        }
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

/// Content as the template takes it: one text, or a list of parts.
fn content(content: Option<Value>, parts: bool) -> Result<Value, String> {
    let texts = match content {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.into_iter().map(text).collect::<Result<_, _>>()?,
        Some(_) => return Err("content is neither text nor a list".to_owned()),
    };
    Ok(match parts {
        true => texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect(),
        false => Value::String(texts.join("\n")),
    })
}

fn text(part: Value) -> Result<String, String> {
    match part {
        Value::String(text) => Ok(text),
        Value::Object(mut part) => {
            let kind = part.remove("type");
            match (kind.as_ref().and_then(Value::as_str), part.remove("text")) {
                (Some("text" | "input_text" | "output_text" | "refusal"), Some(Value::String(text))) => {
                    Ok(text)
                }
                (kind, _) => Err(format!("a part of type {kind:?}")),
            }
        }
        _ => Err("a part is neither text nor an object".to_owned()),
    }
}

/// Templates want arguments as an object, clients send them as text.
fn call(call: Value) -> Result<Value, String> {
    let Value::Object(mut call) = call else { return Err("a tool call is no object".to_owned()) };
    let arguments = call.get_mut("function").and_then(|function| function.get_mut("arguments"));
    if let Some(arguments) = arguments {
        *arguments = match arguments.as_str() {
            None | Some("") => json!({}),
            Some(text) => serde_json::from_str(text).map_err(|_| "arguments that are no JSON".to_owned())?,
        };
    }
    Ok(Value::Object(call))
}

/// vLLM's own order of a tool's fields, with those that are absent as null.
fn tool(tool: Value) -> Value {
    let Value::Object(mut tool) = tool else { return tool };
    let mut out = Map::new();
    out.insert("type".to_owned(), tool.remove("type").unwrap_or_else(|| json!("function")));
    if let Some(Value::Object(mut function)) = tool.remove("function") {
        let mut ordered = Map::new();
        for name in ["name", "description", "parameters"] {
            ordered.insert(name.to_owned(), function.remove(name).unwrap_or_default());
        }
        ordered.extend(function);
        out.insert("function".to_owned(), Value::Object(ordered));
    }
    out.extend(tool);
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: Value, parts: bool) -> Result<Chat, String> {
        chat(&mut body.clone(), parts, Duration::ZERO)
    }

    #[test]
    fn messages_are_reshaped_as_vllm_does() {
        let body = json!({"model": "m", "messages": [
            {"content": [{"type": "text", "text": "a"}, "b"], "role": "user", "name": "n", "tool_call_id": "x"},
            {"role": "assistant", "content": null, "reasoning": "r", "refusal": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
                {"id": "d", "type": "function", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c", "content": "done"}],
            "tools": [{"function": {"parameters": {}, "name": "f", "x": 1}, "type": "function"}],
            "chat_template_kwargs": {"enable_thinking": false}});
        let one = said(body.clone(), false).unwrap();
        assert_eq!(
            Value::Array(one.messages).to_string(),
            json!([
                {"role": "user", "content": "a\nb", "name": "n"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
                    {"id": "d", "type": "function", "function": {"name": "g", "arguments": {}}}],
                    "reasoning": "r", "reasoning_content": "r"},
                {"role": "tool", "content": "done", "tool_call_id": "c"}])
            .to_string()
        );
        assert_eq!(
            Value::Array(one.tools.unwrap()).to_string(),
            r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{},"x":1}}]"#
        );
        assert_eq!(one.kwargs["enable_thinking"], json!(false));
        assert!(one.add_generation_prompt && !one.continue_final_message);
        let listed = said(body, true).unwrap();
        assert_eq!(
            listed.messages[0]["content"],
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
        );
        assert_eq!(listed.messages[1]["content"], json!([]));
    }

    #[test]
    fn what_is_not_followed_is_refused() {
        let messages = json!([{"role": "user", "content": "a"}]);
        for (body, cause) in [
            (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "image_url"),
            (
                json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}),
                "arguments",
            ),
            (json!({"messages": messages, "chat_template_kwargs": {"tools": []}}), "chat_template_kwargs"),
            (json!({"messages": [1]}), "no object"),
            (json!({"prompt": "a"}), "no messages"),
            (json!([]), "no object"),
        ] {
            let error = said(body, false).unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
        assert!(said(json!({"messages": messages, "tools": []}), false).is_ok());
    }
}
