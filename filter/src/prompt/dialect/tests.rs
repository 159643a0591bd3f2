use super::*;

const STRING: &str = "{{ messages[0].content }}";
const PARTS: &str = "{% for part in message.content %}{% endfor %}";

fn said_to(endpoint: Endpoint, body: &Value, template: &str) -> Result<Chat, String> {
    let config = json!({"chat_template": template}).to_string();
    let template = ChatTemplate::load(config.as_bytes()).unwrap().unwrap();
    chat(endpoint, &mut body.clone(), &template, Duration::ZERO)
}

fn said(endpoint: Endpoint, body: &Value) -> Result<Chat, String> {
    said_to(endpoint, body, STRING)
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
    let one = said(Endpoint::Chat, &body).unwrap();
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
    let listed = said_to(Endpoint::Chat, &body, PARTS).unwrap().messages;
    let listed_text = |text| json!({"type": "text", "text": text});
    assert_eq!(listed[0]["content"], json!([listed_text("a"), listed_text(""), listed_text("b")]));
    assert_eq!(listed[1]["content"], json!([]));
    assert_eq!(listed[2]["content"], json!("do\nne"));
}

#[test]
fn anthropic_s_messages_become_a_chat() {
    let body = json!({"model": "m", "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 2048},
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"},
            {"type": "text", "text": "S", "cache_control": {}}, {"type": "text", "text": "T"}],
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "r", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"}, {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"b": 1, "a": 2}},
                {"type": "tool_use", "id": "d", "name": "g", "input": null}]},
            {"role": "user", "content": [{"type": "text", "text": "and"},
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
                {"type": "text", "text": ""}, {"type": "text", "text": "so"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "d", "is_error": true}]},
            {"role": "assistant", "content": []}],
        "tools": [{"name": "f", "input_schema": {"properties": {}}, "cache_control": {}},
            {"type": "custom", "strict": true, "description": "G", "name": "g", "input_schema": {"type": "object"}}],
        "add_generation_prompt": false});
    let chat = said(Endpoint::Messages, &body).unwrap();
    assert_eq!(
        Value::Array(chat.tools.clone().unwrap()).to_string(),
        json!([
            {"type": "function", "function": {"name": "f", "description": null, "parameters": {"properties": {}, "type": "object"}}},
            {"type": "function", "function": {"name": "g", "description": "G", "parameters": {"type": "object"}, "strict": true}}])
        .to_string()
    );
    assert!(chat.add_generation_prompt);
    assert_messages(
        chat,
        json!([
            {"role": "system", "content": "ST"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a", "tool_calls": [
                {"id": "c", "function": {"arguments": {"b": 1, "a": 2}, "name": "f"}, "type": "function"},
                {"id": "d", "function": {"arguments": {}, "name": "g"}, "type": "function"}],
                "reasoning": "r", "reasoning_content": "r"},
            {"role": "tool", "content": "1\n2", "tool_call_id": "c"},
            {"role": "user", "content": "and\nso"},
            {"role": "tool", "content": "", "tool_call_id": "d"},
            {"role": "assistant", "content": ""}]),
    );
    let empty = json!({"system": "", "messages": [{"role": "user", "content": []}], "tools": []});
    let chat = said(Endpoint::Messages, &empty).unwrap();
    assert_eq!((chat.messages, chat.tools), (vec![], Some(vec![])));
}

#[test]
fn responses_become_a_chat() {
    let body = json!({"instructions": "S", "reasoning": {"summary": "auto"}, "truncation": "disabled", "input": [
            {"role": "user", "content": "q", "name": "n"},
            {"type": "reasoning", "id": "1", "summary": [{"type": "summary_text", "text": "no"}],
                "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "message", "role": "assistant", "id": "2", "status": "completed",
                "content": [{"type": "output_text", "text": "a", "annotations": []}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"b\": 1}", "id": "3"},
            {"type": "function_call", "call_id": "d", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "2"}, {"type": "input_text", "text": "3"}]},
            {"type": "function_call", "call_id": "e", "name": "f", "arguments": "{}"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"type": "reasoning", "summary": []},
            {"role": "assistant", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": null, "description": "F"}]});
    let chat = said(Endpoint::Responses, &body).unwrap();
    assert_eq!(
        Value::Array(chat.tools.clone().unwrap()).to_string(),
        r#"[{"type":"function","function":{"name":"f","description":"F","parameters":{"type":"object"}}}]"#
    );
    assert!(chat.add_generation_prompt && !chat.continue_final_message);
    assert_messages(
        chat,
        json!([
            {"role": "system", "content": "S"},
            {"role": "user", "content": "q", "name": "n"},
            {"role": "assistant", "content": "a", "tool_calls": [
                {"id": "c", "function": {"name": "f", "arguments": {"b": 1}}, "type": "function"},
                {"id": "d", "function": {"name": "g", "arguments": {}}, "type": "function"}],
                "reasoning": "r", "reasoning_content": "r"},
            {"role": "tool", "content": "1", "tool_call_id": "c"},
            {"role": "tool", "content": "2\n3", "tool_call_id": "d"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "e", "function": {"name": "f", "arguments": {}}, "type": "function"}],
                "reasoning": "s", "reasoning_content": "s"},
            {"role": "assistant", "content": "b", "reasoning": "", "reasoning_content": ""},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "x\ny"}]),
    );
    let text = json!({"input": "q", "instructions": "", "tools": []});
    let chat = said(Endpoint::Responses, &text).unwrap();
    assert!(chat.tools.is_none());
    assert_messages(chat, json!([{"role": "user", "content": "q"}]));
}

/// One conversation, asked for in three ways, is one prompt.
#[test]
fn a_conversation_reads_the_same_at_each_endpoint() {
    const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}|{{ m.content }}|{{ m.tool_call_id }}\
        {% for c in m.tool_calls %}{{ c.id }}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}\
        {{ tools | tojson }}{{ add_generation_prompt }}";
    let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    let shapes = [
        (
            Endpoint::Chat,
            json!({"messages": [
                {"role": "system", "content": "S"}, {"role": "user", "content": "q"},
                {"role": "assistant", "reasoning": "r", "content": "a", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": \"é\"}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "1"}, {"role": "user", "content": "z"}],
                "tools": [{"type": "function", "function": {"name": "f", "description": "F", "parameters": schema}}]}),
        ),
        (
            Endpoint::Messages,
            json!({"system": "S", "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"x": "é"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}, {"type": "text", "text": "z"}]}],
                "tools": [{"name": "f", "description": "F", "input_schema": schema}]}),
        ),
        (
            Endpoint::Responses,
            json!({"instructions": "S", "input": [
                {"role": "user", "content": "q"},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"x\": \"é\"}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
                {"role": "user", "content": "z"}],
                "tools": [{"type": "function", "name": "f", "description": "F", "parameters": schema}]}),
        ),
    ];
    let config = json!({"chat_template": TEMPLATE}).to_string();
    let template = ChatTemplate::load(config.as_bytes()).unwrap().unwrap();
    let texts = shapes.map(|(endpoint, body)| {
        template.render(chat(endpoint, &mut body.clone(), &template, Duration::ZERO).unwrap()).unwrap()
    });
    assert_eq!(
        texts[0],
        "<system>|S|<user>|q|<assistant>r|a|cf{\"x\": \"é\"}<tool>|1|c<user>|z|\
        [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"F\", \"parameters\": \
        {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"string\"}}}}}]True"
    );
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
}

#[test]
fn a_developer_is_the_system_to_templates_that_don_t_know_it() {
    let of = |messages: Value, template| {
        let body = json!({"messages": messages});
        Value::Array(said_to(Endpoint::Chat, &body, template).unwrap().messages)
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

fn refusals(endpoint: Endpoint, cases: &[(Value, &str)]) {
    for (body, cause) in cases {
        match said(endpoint, body) {
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
    refusals(
        Endpoint::Chat,
        &[
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
        ],
    );
    assert!(said(Endpoint::Chat, &json!({"messages": messages, "tools": []})).is_ok());
}

#[test]
fn what_is_not_followed_of_anthropic_s_messages_is_refused() {
    let says = |role: &str, block: Value| json!({"messages": [{"role": role, "content": [block]}]});
    let with = |field: &str, value: Value| json!({"messages": [], field: value});
    refusals(
        Endpoint::Messages,
        &[
            (says("user", json!({"type": "image", "source": {}})), "\"image\" from the user"),
            (says("user", json!({"type": "tool_use", "id": "c", "name": "f"})), "tool_use"),
            (says("assistant", json!({"type": "tool_result", "tool_use_id": "c"})), "tool_result"),
            (says("assistant", json!({"type": "tool_use", "id": "", "name": "f"})), "without an id"),
            (
                says("assistant", json!({"type": "tool_use", "id": "c", "name": "f", "input": "{}"})),
                "no object",
            ),
            (
                says(
                    "user",
                    json!({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}),
                ),
                "\"image\"",
            ),
            (says("system", json!({"type": "text", "text": "a"})), "role \"system\""),
            (with("system", json!([{"type": "document"}])), "document"),
            (with("system", json!("x-anthropic-billing-header: 1\nS")), "billing"),
            (with("thinking", json!({"type": "disabled"})), "thinking"),
            (with("output_config", json!({"effort": "low"})), "effort"),
            (with("tools", json!([{"type": "web_search_20250305", "name": "web_search"}])), "input_schema"),
            (
                with("tools", json!([{"name": "f", "input_schema": {}, "defer_loading": true}])),
                "defer_loading",
            ),
            (json!({"messages": "a"}), "no messages"),
        ],
    );
    assert!(said(Endpoint::Messages, &with("output_config", json!({"format": {}}))).is_ok());
}

#[test]
fn what_is_not_followed_of_responses_is_refused() {
    let item = |item: Value| json!({"input": [item]});
    let with = |field: &str, value: Value| json!({"input": "a", field: value});
    let text = json!({"type": "output_text", "text": "a"});
    refusals(
        Endpoint::Responses,
        &[
            (
                item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "i"}]})),
                "input_image",
            ),
            (item(json!({"type": "message", "role": "assistant", "content": [text, text]})), "not one text"),
            (item(json!({"role": "assistant", "content": [text]})), "neither text"),
            (
                item(
                    json!({"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]}),
                ),
                "not one text",
            ),
            (item(json!({"role": "assistant", "content": "a", "status": "in_progress"})), "continued"),
            (item(json!({"type": "reasoning", "summary": [], "encrypted_content": "e"})), "encrypted"),
            (
                item(json!({"type": "function_call", "call_id": "c", "name": "f", "namespace": "n"})),
                "namespace",
            ),
            (
                item(json!({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "a"})),
                "custom_tool_call",
            ),
            (item(json!({"type": "item_reference", "id": "i"})), "item_reference"),
            (item(json!({"id": "i"})), "type None"),
            (item(json!("a")), "no object"),
            (with("tools", json!([{"type": "web_search"}])), "web_search"),
            (
                with("tools", json!([{"type": "function", "name": "f", "defer_loading": true}])),
                "defer_loading",
            ),
            (with("reasoning", json!({"effort": "low"})), "effort"),
            (with("truncation", json!("auto")), "truncation"),
            (with("instructions", json!([])), "instructions"),
            (json!({"messages": []}), "no input"),
        ],
    );
}

#[test]
fn arguments_have_a_bound() {
    let body = |calls: usize| {
        let arguments = format!("{{\"a\": \"{}\"}}", "x".repeat(1000));
        let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        json!({"messages": [{"role": "assistant", "tool_calls": vec![call; calls]}]})
    };
    assert!(said(Endpoint::Chat, &body(1000)).is_ok());
    assert!(said(Endpoint::Chat, &body(1100)).unwrap_err().contains("1 MiB"));
}
