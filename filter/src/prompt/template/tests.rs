//! What a template sees and does. That real templates render as transformers does is the parity suite's to show.

use super::*;
use serde_json::json;

fn template(source: &str) -> ChatTemplate {
    let config = json!({"chat_template": source, "bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null});
    ChatTemplate::load(config.to_string().as_bytes()).unwrap().unwrap()
}

fn render(source: &str, messages: Json) -> Result<String, String> {
    let Json::Array(messages) = messages else { panic!("a list") };
    let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
    template(source).render(chat).map_err(|error| error.to_string())
}

#[test]
fn blocks_are_trimmed_as_transformers_has_it() {
    let source = "{{ bos_token }}\n  {% for m in messages %}\n{{ m.role }}: {{ m['content'] }}{{ eos_token }}\n  {% endfor %}\n{{ pad_token }}{% if add_generation_prompt %}>{% endif %}\n";
    let messages = json!([{"role": "user", "content": "<&>'"}, {"role": "assistant", "content": "b"}]);
    assert_eq!(render(source, messages).unwrap(), "<s>\nuser: <&>'</s>\nassistant: b</s>\n>");
}

#[test]
fn tojson_is_python_s() {
    let messages = json!([{"z": 1, "a": ["é\u{7f}\u{1}\"/<", null, true, 1.0, 1e20], "n": {}}]);
    let said = render("{{ messages[0] | tojson }}", messages).unwrap_err();
    assert!(said.contains("100000000000000000000"), "{said}");
    let messages = json!([{"z": 1, "a": ["é\u{7f}\u{1}\"/<", null, true, 1.0, 1.5e30, 1e-7], "n": {}}]);
    assert!(render("{{ messages[0] | tojson }}", messages.clone()).is_err());
    let messages = json!([{"z": 1, "a": ["é\u{7f}\u{1}\"/<", null, true, 1.0, 1e-7], "n": {}}]);
    assert_eq!(
        render("{{ messages[0] | tojson }}", messages.clone()).unwrap(),
        "{\"z\": 1, \"a\": [\"é\u{7f}\\u0001\\\"/<\", null, true, 1.0, 1e-07], \"n\": {}}"
    );
    assert_eq!(
        render("{{ messages[0] | tojson(indent=2, sort_keys=true, ensure_ascii=true) }}", messages).unwrap(),
        "{\n  \"a\": [\n    \"\\u00e9\\u007f\\u0001\\\"/<\",\n    null,\n    true,\n    1.0,\n    1e-07\n  ],\n  \"n\": {},\n  \"z\": 1\n}"
    );
}

#[test]
fn what_a_template_raises_is_said() {
    let said = render("\n{{ raise_exception('roles must alternate') }}", json!([])).unwrap_err();
    assert!(said.contains("roles must alternate") && said.contains("line 2"), "{said}");
    assert!(ChatTemplate::load(b"{\"chat_template\": \"{% if %}\"}").is_err());
    assert!(ChatTemplate::load(b"[]").unwrap_err().to_string().contains("tokenizer_config.json"));
    assert!(ChatTemplate::load(b"{}").unwrap().is_none());
}

#[test]
fn a_template_that_does_not_end_is_ended() {
    let said =
        render("{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}", json!([]));
    assert!(said.unwrap_err().contains("fuel"));
}

#[test]
fn loop_controls_dates_and_generation_tags_are_known() {
    let source = "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{%- generation %} {{ m }}{% endgeneration -%} {% endfor %} {{ strftime_now('%d %b %Y') }}";
    assert_eq!(render(source, json!(["a", "b"])).unwrap(), " a 01 Jan 1970");
}

#[test]
fn a_loop_over_content_asks_for_parts() {
    for (source, parts) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", false),
        ("{%- for part in message.content -%}{% endfor %}", true),
        ("{% for part in m['content'] | reverse %}{% endfor %}", true),
        ("{% for c in content if c.type == 'text' %}{% endfor %}", true),
        ("{% if content in messages %}{% endif %}", false),
    ] {
        assert_eq!(template(source).takes_parts(), parts, "{source}");
    }
}

#[test]
fn a_template_is_chosen_by_its_name() {
    let config = json!({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools | length }}"}]});
    let template = ChatTemplate::load(config.to_string().as_bytes()).unwrap().unwrap();
    assert_eq!(template.render(Chat::default()).unwrap(), "D");
    assert_eq!(template.render(Chat { tools: Some(vec![json!({})]), ..Chat::default() }).unwrap(), "T1");
}

#[test]
fn a_final_message_is_continued() {
    let chat = |content: Json| Chat {
        messages: vec![json!({"role": "assistant", "content": content})],
        continue_final_message: true,
        ..Chat::default()
    };
    let whole = template("{% for m in messages %}<{{ m.content }}>{% endfor %}");
    assert_eq!(whole.render(chat(json!("a b "))).unwrap(), "<a b ");
    let parts = template("{% for m in messages %}<{{ m.content[0].text }}>{% endfor %}");
    assert_eq!(parts.render(chat(json!([{"type": "text", "text": "x"}]))).unwrap(), "<x");
    let trimmed = template("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}");
    assert_eq!(trimmed.render(chat(json!("a "))).unwrap(), "<a");
    assert!(template("nothing").render(chat(json!("a"))).is_err());
    assert!(whole.render(chat(json!(null))).is_err());
}
