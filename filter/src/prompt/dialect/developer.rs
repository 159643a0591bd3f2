//! Messages of a developer, for templates that don't know that role: vLLM makes them the system's.

use serde_json::{Value, json};

/// Messages of a developer as the system's, and if there were any, all of the system's as one, before the others.
pub(super) fn as_system(mut messages: Vec<Value>) -> Vec<Value> {
    let mut found = false;
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        if message.get("role").is_some_and(|role| role == "developer") {
            found = true;
            message.insert("role".to_owned(), json!("system"));
            message.shift_remove("tools");
        }
    }
    let is_system = |message: &Value| message.get("role").is_some_and(|role| role == "system");
    if !found || !messages.iter().skip(1).any(is_system) {
        return messages;
    }
    let (system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    let texts: Vec<_> = system.iter().map(text).filter(|text| !text.is_empty()).collect();
    let mut messages = vec![json!({"role": "system", "content": texts.join("\n\n")})];
    messages.extend(others);
    messages
}

fn text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<_> =
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}
