use super::*;

const STRING: &str = "{{ messages[0].content }}";
const PARTS: &str = "{% for part in message.content %}{% endfor %}";

fn said_to(body: &Value, template: &str) -> Result<Chat, String> {
    let config = json!({"chat_template": template}).to_string();
    let template = ChatTemplate::load(config.as_bytes()).unwrap().unwrap();
    chat(&mut body.clone(), &template, Duration::ZERO)
}

fn said(body: &Value) -> Result<Chat, String> {
    said_to(body, STRING)
}

/// Key for key: templates may print an object as a whole.
fn assert_messages(chat: Chat, expected: Value) {
    assert_eq!(Value::Array(chat.messages).to_string(), expected.to_string());
}

#[test]
fn messages_are_reshaped_as_vllm_does() {
    let body = json!({"model": "m", "messages": [
        {"content": [{"type": "text", "text": "a"}, "", "b"], "role": "user", "name": "n", "tool_call_id": "x"},
        {"role": "assistant", "content": null, "reasoning": null, "reasoning_content": "r", "refusal": null, "tool_calls": [
            {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
            {"id": "d", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "do"}, {"type": "text", "text": "ne"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": []}],
        "tools": [{"function": {"parameters": {}, "strict": null, "name": "f"}, "type": "function"},
            {"function": {"strict": true, "name": "g"}, "type": "function"}],
        "chat_template_kwargs": {"enable_thinking": false}});
    let one = said(&body).unwrap();
    assert_eq!(
        Value::Array(one.tools.clone().unwrap()).to_string(),
        r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{}}},{"type":"function","function":{"name":"g","description":null,"parameters":null,"strict":true}}]"#
    );
    assert_eq!(one.kwargs["enable_thinking"], json!(false));
    assert!(one.add_generation_prompt && !one.continue_final_message);
    assert_messages(
        one,
        json!([
            {"role": "user", "content": "a\nb", "name": "n"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c", "function": {"arguments": {"b": 1, "a": 2}, "name": "f"}, "type": "function", "index": 0},
                {"id": "d", "function": {"arguments": {}, "name": "g"}, "type": "function"}],
                "reasoning": "r", "reasoning_content": "r"},
            {"role": "tool", "content": "do\nne", "tool_call_id": "c"},
            {"role": "assistant", "content": "no"}]),
    );
    let listed = said_to(&body, PARTS).unwrap().messages;
    let listed_text = |text| json!({"type": "text", "text": text});
    assert_eq!(listed[0]["content"], json!([listed_text("a"), listed_text(""), listed_text("b")]));
    assert_eq!(listed[1]["content"], json!([]));
    assert_eq!(listed[2]["content"], json!("do\nne"));
}

/// One conversation, asked for in three ways, is one prompt.
#[test]
fn a_developer_is_the_system_to_templates_that_don_t_know_it() {
    let of = |messages: Value, template| {
        let body = json!({"messages": messages});
        Value::Array(said_to(&body, template).unwrap().messages)
    };
    let known = "{% if messages[0].role == 'developer' %}{% endif %}";
    let alone = json!([{"role": "developer", "content": "d"}, {"role": "user", "content": "q"}]);
    assert_eq!(of(alone.clone(), STRING)[0], json!({"role": "system", "content": "d"}));
    assert_eq!(of(alone, known)[0], json!({"role": "developer", "content": "d", "tools": null}));
    let among = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
        {"role": "system", "content": ""}]);
    let merged = json!([{"role": "system", "content": "s\n\nd\ne"}, {"role": "user", "content": "q"}]);
    assert_eq!(of(among.clone(), STRING), merged);
    assert_eq!(of(among.clone(), PARTS)[0], merged[0]);
    assert_eq!(of(among, known).as_array().unwrap().len(), 4);
    // Without a developer, the system may speak where it likes.
    let system = json!([{"role": "user", "content": "q"}, {"role": "system", "content": "s"}]);
    assert_eq!(of(system.clone(), STRING), system);
}

fn refusals(cases: &[(Value, &str)]) {
    for (body, cause) in cases {
        match said(body) {
            Ok(chat) => panic!("{body}: {chat:?}"),
            Err(error) => assert!(error.contains(cause), "{body}: {error}"),
        }
    }
}

#[test]
fn what_is_not_followed_is_refused() {
    let messages = json!([{"role": "user", "content": "a"}]);
    let says = |message: Value| json!({"messages": [message]});
    let calls = |call: Value| says(json!({"role": "assistant", "tool_calls": [call]}));
    let offers = |tool: Value| json!({"messages": messages, "tools": [tool]});
    refusals(&[
        (says(json!({"role": "user", "content": [{"type": "image_url"}]})), "image_url"),
        (says(json!({"role": "user", "content": [{"text": "a"}]})), "a part of type null"),
        (says(json!({"role": "user", "content": [{"type": "refusal", "text": "a"}]})), "its refusal"),
        (says(json!({"role": "system", "content": "x-anthropic-billing-header: 1\nS"})), "billing"),
        (calls(json!({"function": {"arguments": "{"}})), "arguments"),
        (calls(json!({"function": {"arguments": "[1]"}})), "arguments"),
        (calls(json!({"function": {"arguments": 1}})), "arguments"),
        (calls(json!({"type": "custom", "function": {}})), "without a function"),
        (offers(json!({"type": "function", "function": {"name": "f", "x": 1}})), "a function with x"),
        (offers(json!({"type": "function", "function": {"name": "f"}, "y": 1})), "a tool with"),
        (offers(json!({"type": "web_search"})), "no function"),
        (json!({"messages": messages, "chat_template_kwargs": {"tools": []}}), "chat_template_kwargs"),
        (json!({"messages": messages, "chat_template_kwargs": {"a": null}}), "a: null within"),
        (json!({"messages": [1]}), "no object"),
        (json!({"prompt": "a"}), "no messages"),
        (json!([]), "no object"),
    ]);
    assert!(said(&json!({"messages": messages, "tools": []})).is_ok());
}
