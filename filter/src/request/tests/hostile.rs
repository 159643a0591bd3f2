//! Bodies that are wrong on purpose, and what is said of each.

use crate::blocks::BlockSize;
use crate::request::{Endpoint, Limits, MAX_DEPTH, MAX_NAME_BYTES, ParseError, Prompt, Reason, parse};

fn reason(endpoint: Endpoint, body: &[u8]) -> Reason {
    let limits = Limits { max_messages: 3, max_parts: 4 };
    match parse(endpoint, body, &limits) {
        Ok(request) => panic!("read {request:?}"),
        Err(error) => {
            assert!(error.at <= body.len(), "{error}");
            error.reason
        }
    }
}

fn chat(body: &str) -> Reason {
    reason(Endpoint::Chat, body.as_bytes())
}

#[test]
fn grammar() {
    for (body, expected) in [
        ("", Reason::Empty),
        (" \r\n\t", Reason::Empty),
        ("\u{feff}{}", Reason::ByteOrderMark),
        ("[]", Reason::Expected("an object")),
        ("null", Reason::Expected("an object")),
        ("\"messages\"", Reason::Expected("an object")),
        ("{", Reason::Truncated),
        ("{\"messages\":[", Reason::Truncated),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"hi", Reason::Truncated),
        ("{\"messages\":[]", Reason::Truncated),
        ("{\"x\":tru", Reason::Truncated),
        ("{\"x\":-", Reason::Truncated),
        ("{\"x\":\"\\", Reason::Truncated),
        ("{\"x\":\"\\u12", Reason::Truncated),
        ("{\"messages\":[]} {}", Reason::Expected("nothing after the object")),
        ("{\"messages\":[]}\0", Reason::Expected("nothing after the object")),
        ("{\"messages\":[],}", Reason::Expected("a key in quotes")),
        ("{messages:[]}", Reason::Expected("a key in quotes")),
        ("{\"messages\" []}", Reason::Expected("`:` after a key")),
        ("{\"messages\":[] \"x\":1}", Reason::Expected("`,` or `}`")),
        ("{\"x\":[1 2]}", Reason::Expected("`,` or `]`")),
        ("{\"x\":[1,]}", Reason::Expected("a value")),
        ("{\"x\":[1}}", Reason::Expected("`,` or `]`")),
        ("{\"x\":NaN}", Reason::Expected("a value")),
        ("{\"x\":truth}", Reason::Expected("a value")),
        ("{\"x\":01}", Reason::Expected("`,` or `}`")),
        ("{\"x\":1.}", Reason::BadNumber),
        ("{\"x\":1e}", Reason::BadNumber),
        ("{\"x\":-a}", Reason::BadNumber),
        ("{\"x\":\"a\nb\"}", Reason::ControlCharacter),
        ("{\"x\":\"a\x01b\"}", Reason::ControlCharacter),
        ("{\"x\":\"\\x41\"}", Reason::BadEscape),
        ("{\"x\":\"\\u12g4\"}", Reason::BadEscape),
    ] {
        assert_eq!(chat(body), expected, "{body:?}");
    }
}

#[test]
fn types() {
    let field = |body: &str| match chat(body) {
        Reason::WrongType { field, .. } | Reason::Missing(field) => field,
        other => panic!("{body}: {other:?}"),
    };
    assert_eq!(field("{}"), "messages");
    assert_eq!(field("{\"prompt\":\"hi\"}"), "messages");
    assert_eq!(field("{\"messages\":null}"), "messages");
    assert_eq!(field("{\"messages\":\"hi\"}"), "messages");
    assert_eq!(field("{\"messages\":{}}"), "messages");
    assert_eq!(field("{\"messages\":[\"hi\"]}"), "a message");
    assert_eq!(field("{\"messages\":[{\"content\":\"hi\"}]}"), "role");
    assert_eq!(field("{\"messages\":[{\"role\":1}]}"), "role");
    assert_eq!(field("{\"messages\":[{\"role\":\"user\",\"content\":1}]}"), "content");
    assert_eq!(field("{\"messages\":[{\"role\":\"user\",\"content\":[1]}]}"), "content[]");
    assert_eq!(field("{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":1}]}]}"), "content[].text");
    assert_eq!(field("{\"messages\":[],\"model\":1}"), "model");
    assert_eq!(field("{\"messages\":[],\"model\":[\"a\"]}"), "model");
    assert_eq!(field("{\"messages\":[],\"stream\":\"true\"}"), "stream");
    assert_eq!(field("{\"messages\":[],\"user\":{}}"), "user");
    assert_eq!(field("{\"messages\":[],\"cache_salt\":false}"), "cache_salt");
    for prompt in [
        "1",
        "{}",
        "[1.0]",
        "[-1]",
        "[4294967296]",
        "[1e3]",
        "[01]",
        "[00]",
        "[10000000000]",
        "[18446744073709551617]",
        "[1,\"a\"]",
        "[[1,[2]]]",
        "[[\"a\"]]",
        "[null]",
        "[]",
    ] {
        let body = format!("{{\"prompt\":{prompt}}}");
        let found = reason(Endpoint::Completions, body.as_bytes());
        assert!(
            matches!(found, Reason::WrongType { field: "prompt", .. } | Reason::Missing("prompt")),
            "{body}: {found:?}"
        );
    }
}

#[test]
fn types_of_other_shapes() {
    for (endpoint, body, expected) in [
        (Endpoint::Responses, "{\"messages\":[]}", "input"),
        (Endpoint::Responses, "{\"input\":null}", "input"),
        (Endpoint::Responses, "{\"input\":1}", "input"),
        (Endpoint::Responses, "{\"input\":[\"a\"]}", "a message"),
        (Endpoint::Responses, "{\"input\":[{\"type\":1}]}", "type"),
        (Endpoint::Responses, "{\"input\":\"a\",\"instructions\":1}", "content"),
        (Endpoint::Messages, "{\"input\":\"a\"}", "messages"),
        (Endpoint::Messages, "{\"messages\":\"a\"}", "messages"),
        (Endpoint::Messages, "{\"messages\":[{\"type\":\"message\"}]}", "role"),
        (Endpoint::Messages, "{\"messages\":[],\"system\":[1]}", "content[]"),
        (Endpoint::Generate, "{\"prompt\":\"a\"}", "text"),
        (Endpoint::Generate, "{\"text\":null,\"input_ids\":null}", "text"),
        (Endpoint::Generate, "{\"input_embeds\":[[0.5]]}", "text"),
        (Endpoint::Generate, "{\"input_ids\":[-1]}", "input_ids"),
    ] {
        match reason(endpoint, body.as_bytes()) {
            Reason::WrongType { field, .. } | Reason::Missing(field) => assert_eq!(field, expected, "{body}"),
            other => panic!("{body}: {other:?}"),
        }
    }
}

/// Far deeper than any stack would bear, were there recursion.
#[test]
fn nesting() {
    let limit = MAX_DEPTH as usize;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = |depth: usize| {
            let inner = format!("{}0{}", open.repeat(depth), close.repeat(depth));
            format!("{{\"messages\":[],\"x\":{inner}}}")
        };
        assert!(parse(Endpoint::Chat, nested(limit).as_bytes(), &Limits::default()).is_ok());
        assert_eq!(chat(&nested(limit + 1)), Reason::TooDeep);
        assert_eq!(chat(&nested(1_000_000)), Reason::TooDeep);
        assert_eq!(chat(&format!("{{\"x\":{}", open.repeat(1_000_000))), Reason::TooDeep);
        let batch = format!("{{\"prompt\":[\"\",{}", open.repeat(1_000_000));
        assert_eq!(reason(Endpoint::Completions, batch.as_bytes()), Reason::TooDeep);
        // Marks are looked for in a few levels, not in all.
        for body in [
            format!(
                "{{\"messages\":[{{\"role\":\"user\",\"content\":[{{\"content\":{}",
                open.repeat(1_000_000)
            ),
            format!("{{\"tools\":{}", open.repeat(1_000_000)),
            format!("{{\"messages\":[{{\"content\":[{}", "{\"content\":[".repeat(1_000_000)),
        ] {
            assert_eq!(reason(Endpoint::Messages, body.as_bytes()), Reason::TooDeep);
        }
        let ids = format!("{{\"prompt\":[{}", open.repeat(1_000_000));
        assert!(matches!(reason(Endpoint::Completions, ids.as_bytes()), Reason::WrongType { .. }));
    }
}

#[test]
fn bounds() {
    let messages = |count| format!("{{\"messages\":[{}]}}", vec!["{\"role\":\"user\"}"; count].join(","));
    let limits = Limits { max_messages: 3, max_parts: 4 };
    assert!(parse(Endpoint::Chat, messages(3).as_bytes(), &limits).is_ok());
    assert_eq!(chat(&messages(4)), Reason::TooMany("messages", 3));
    let parts = |count: usize| {
        let half = vec!["\"\""; count / 2].join(",");
        let message = format!("{{\"role\":\"user\",\"content\":[{half}]}}");
        format!("{{\"messages\":[{message},{message}]}}")
    };
    assert!(parse(Endpoint::Chat, parts(4).as_bytes(), &limits).is_ok());
    assert_eq!(chat(&parts(6)), Reason::TooMany("content parts", 4));
    // Each mark cuts a part in two.
    let marks = |count| {
        let part = format!("{{\"a\":1{}}}", ",\"cache_control\":{}".repeat(count));
        format!("{{\"messages\":[{{\"role\":\"user\",\"content\":[{part}]}}]}}")
    };
    assert!(parse(Endpoint::Messages, marks(3).as_bytes(), &limits).is_ok());
    for count in [4, 5, 1000] {
        assert_eq!(reason(Endpoint::Messages, marks(count).as_bytes()), Reason::TooMany("content parts", 4));
    }
    let items = |count| format!("{{\"input\":[{}]}}", vec!["{}"; count].join(","));
    assert!(parse(Endpoint::Responses, items(3).as_bytes(), &limits).is_ok());
    assert_eq!(reason(Endpoint::Responses, items(4).as_bytes()), Reason::TooMany("input", 3));
    let model = |bytes| format!("{{\"messages\":[],\"model\":\"{}\"}}", "m".repeat(bytes));
    assert!(parse(Endpoint::Chat, model(MAX_NAME_BYTES).as_bytes(), &limits).is_ok());
    assert_eq!(chat(&model(MAX_NAME_BYTES + 1)), Reason::NameTooLong("model"));
}

#[test]
fn unicode() {
    let with =
        |key: &str, text: &[u8]| [b"{\"messages\":[],\"", key.as_bytes(), b"\":\"", text, b"\"}"].concat();
    for text in
        [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80", b"caf\xc3", b"\\ud800", b"\\udc00x", b"\\ud800\\ud800"]
    {
        for name in ["model", "user", "cache_salt"] {
            assert_eq!(
                reason(Endpoint::Chat, &with(name, text)),
                Reason::NameNotText(match name {
                    "model" => "model",
                    "user" => "user",
                    _ => "cache_salt",
                })
            );
        }
        // Nobody needs to read the rest.
        assert!(parse(Endpoint::Chat, &with("x", text), &Limits::default()).is_ok());
        let prompt = [b"{\"prompt\":\"", text, b"\"}"].concat();
        let request = parse(Endpoint::Completions, &prompt, &Limits::default()).unwrap();
        assert_eq!(request.prompt, Prompt::Text(text));
    }
    // A key that is no text is none of ours.
    let body = b"{\"\\ud800\":1,\"\xff\":2,\"prompt\":[7]}";
    let request = parse(Endpoint::Completions, body, &Limits::default()).unwrap();
    assert_eq!(request.prompt, Prompt::Tokens(vec![7]));
}

#[test]
fn the_last_of_duplicate_keys_wins() {
    let body = br#"{"model":"a","messages":[{"role":"user","content":"old"}],"mod\u0065l":"b","messages":
        [{"role":"user","content":["x","y"],"content":"new","role":"tool"}],"stream":true,"stream":false}"#;
    let request = parse(Endpoint::Chat, body, &Limits::default()).unwrap();
    assert_eq!(request.model.as_deref(), Some("b"));
    assert!(!request.stream);
    let mut form = Vec::new();
    request.canonical(&mut |piece| form.extend_from_slice(piece));
    assert_eq!(form, b"\x02tool\x06new");
    let body = br#"{"system":"old","input":"old","input":[{"role":"user","content":"new"}],"instructions":"a","instructions":null}"#;
    let request = parse(Endpoint::Responses, body, &Limits::default()).unwrap();
    form.clear();
    request.canonical(&mut |piece| form.extend_from_slice(piece));
    assert_eq!(form, b"\x02user\x06new");
    let nothing = parse(Endpoint::Chat, br#"{"messages":[],"messages":null}"#, &Limits::default());
    assert_eq!(nothing.map_err(|error| error.reason), Err(Reason::Missing("messages")));
}

#[test]
fn names_are_unescaped() {
    let body = br#"{"model":"m\u00e9\/\ud83d\ude00","user":null,"cache_salt":"","lora_path":["a",null],"prompt":["a","b"]}"#;
    let request = parse(Endpoint::Completions, body, &Limits::default()).unwrap();
    assert_eq!(request.model.as_deref(), Some("m\u{e9}/\u{1f600}"));
    assert_eq!((request.user, request.cache_salt.as_deref()), (None, Some("")));
    assert_eq!(request.lora, Some(&br#"["a",null]"#[..]));
    assert_eq!(request.prompt, Prompt::Text(b"a"));
}

#[test]
fn an_error_names_the_place_the_value_and_the_cure() {
    let said = |error: ParseError| error.to_string();
    let body = br#"{"messages":[{"role":"user","content":7}]}"#;
    assert_eq!(
        said(parse(Endpoint::Chat, body, &Limits::default()).unwrap_err()),
        "request body, byte 38: `content` must be a string, an array of parts, or null"
    );
    assert_eq!(
        said(parse(Endpoint::Chat, b"{\"messages\":[", &Limits::default()).unwrap_err()),
        "request body, byte 13: the JSON ends too early, send it whole"
    );
}

/// Every prefix of a body is refused, and wherever the cut falls relative to the scanner's windows.
#[test]
fn truncation_anywhere() {
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}\u00e9\\{}"}}],"x":[1.5e3,{{"y":null}}]}}"#,
        "a".repeat(61),
        "\\\"".repeat(70)
    );
    assert!(parse(Endpoint::Chat, body.as_bytes(), &Limits::default()).is_ok());
    for end in 0..body.len() {
        let found = reason(Endpoint::Chat, &body.as_bytes()[..end]);
        assert_eq!(found, if end == 0 { Reason::Empty } else { Reason::Truncated }, "{end}");
    }
}

#[test]
fn a_short_prompt_has_no_block() {
    let request = parse(Endpoint::Completions, b"{\"prompt\":\"\"}", &Limits::default()).unwrap();
    assert!(request.chain(BlockSize::default()).hashes.is_empty());
}

#[test]
fn fields_that_change_the_prompt_are_noted() {
    let altered_by = |rest: &str| {
        let body = format!(r#"{{"prompt": "a"{rest}}}"#);
        parse(Endpoint::Completions, body.as_bytes(), &Limits::default()).unwrap().altered_by
    };
    assert_eq!(altered_by(r#", "temperature": 0, "truncate_prompt_tokens": null"#), None);
    assert_eq!(altered_by(r#", "truncate_prompt_tokens": 5"#), Some("truncate_prompt_tokens"));
    assert_eq!(altered_by(r#", "add_special_tokens": false"#), Some("add_special_tokens"));
    assert_eq!(altered_by(r#", "previous_response_id": "r""#), None);
    let body = br#"{"input": "a", "previous_response_id": "r"}"#;
    let request = parse(Endpoint::Responses, body, &Limits::default()).unwrap();
    assert_eq!(request.altered_by, Some("previous_response_id"));
}
