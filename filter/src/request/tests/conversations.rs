//! What the canonical form promises.

use super::bodies::{array, object, string, value};
use crate::blocks::{BlockSize, worth};
use crate::request::{Endpoint, Limits, Prompt, parse};
use proptest::prelude::*;
use proptest::sample::{Index, select};

type Fields = Vec<(String, String)>;

/// A message as keys and JSON texts.
fn message() -> impl Strategy<Value = Fields> {
    let field = |key: &str, value: BoxedStrategy<String>| {
        let key = format!("\"{key}\"");
        prop::option::weighted(0.3, value.prop_map(move |value| (key.clone(), value)))
    };
    let parts = prop::collection::vec(string(), 0..3).prop_map(|parts| format!("[{}]", parts.join(",")));
    let content = prop_oneof![3 => string(), 1 => Just("null".to_owned()), 1 => parts];
    (
        select(vec!["\"system\"", "\"user\"", "\"assistant\"", "\"tool\""]),
        content,
        field("name", string().boxed()),
        field("reasoning_content", string().boxed()),
        field("tool_calls", value().boxed()),
        field("tool_call_id", string().boxed()),
    )
        .prop_map(|(role, content, a, b, c, d)| {
            let own = [("\"role\"".to_owned(), role.to_owned()), ("\"content\"".to_owned(), content)];
            own.into_iter().chain([a, b, c, d].into_iter().flatten()).collect()
        })
}

/// A block of Anthropic's that is no text.
fn block() -> impl Strategy<Value = Fields> {
    let field = |key: &str, value: String| (format!("\"{key}\""), value);
    let kind = select(vec!["\"tool_use\"", "\"tool_result\"", "\"image\"", "\"thinking\""]);
    (kind, value(), string()).prop_map(move |(kind, source, content)| {
        vec![field("type", kind.to_owned()), field("source", source), field("content", content)]
    })
}

/// An item of `/v1/responses` that is no message.
fn item() -> impl Strategy<Value = Fields> {
    (select(vec!["\"function_call\"", "\"function_call_output\""]), value()).prop_map(|(kind, value)| {
        vec![("\"type\"".to_owned(), kind.to_owned()), ("\"output\"".to_owned(), value)]
    })
}

fn conversation() -> impl Strategy<Value = Vec<Fields>> {
    prop::collection::vec(message(), 1..8)
}

/// The body of a chat, each time spaced and ordered in another way.
fn written(messages: Vec<Fields>, rest: Fields) -> impl Strategy<Value = String> {
    messages.into_iter().map(object).collect::<Vec<_>>().prop_flat_map(array).prop_flat_map(move |messages| {
        let mut fields = rest.clone();
        fields.push(("\"messages\"".to_owned(), messages));
        object(fields)
    })
}

fn plain(messages: &[Fields], rest: &str) -> String {
    let messages = messages.iter().map(|fields| {
        let fields: Vec<_> = fields.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("{{{}}}", fields.join(","))
    });
    format!("{{\"messages\":[{}]{rest}}}", messages.collect::<Vec<_>>().join(","))
}

fn form(body: &str) -> Vec<u8> {
    form_at(Endpoint::Chat, body)
}

fn form_at(endpoint: Endpoint, body: &str) -> Vec<u8> {
    let mut form = Vec::new();
    let request = parse(endpoint, body.as_bytes(), &Limits::default()).unwrap();
    request.canonical(&mut |piece| form.extend_from_slice(piece));
    form
}

fn seed_at(endpoint: Endpoint, body: &str) -> u64 {
    parse(endpoint, body.as_bytes(), &Limits::default()).unwrap().seed()
}

fn chain(body: &str) -> Vec<u64> {
    let request = parse(Endpoint::Chat, body.as_bytes(), &Limits::default()).unwrap();
    request.chain(BlockSize::new(16).unwrap()).hashes
}

proptest! {
    #[test]
    fn the_next_turn_extends_the_turn_before(messages in conversation(), model in string(), tools in value()) {
        let rest = format!(",\"model\":{model},\"tools\":{tools}");
        for turn in 1..messages.len() {
            let (before, after) = (plain(&messages[..turn], &rest), plain(&messages[..=turn], &rest));
            prop_assert!(form(&after).starts_with(&form(&before)));
            prop_assert!(chain(&after).starts_with(&chain(&before)));
        }
    }

    /// As Claude Code and others do it: the last block is marked, and loses its mark in the next turn.
    #[test]
    fn a_mark_that_moves_makes_no_difference(
        blocks in prop::collection::vec((block(), any::<Index>(), any::<Index>()), 2..8),
    ) {
        let written = |(members, at, _): &(Fields, Index, Index), marked: bool| {
            let mut members = members.clone();
            if marked {
                let mark = ("\"cache_control\"".to_owned(), "{\"type\": \"ephemeral\"}".to_owned());
                members.insert(at.index(members.len() + 1), mark);
            }
            let members: Vec<_> = members.iter().map(|(key, value)| format!("{key}: {value}")).collect();
            format!("{{{}}}", members.join(", "))
        };
        let body = |turn: usize| {
            let messages: Vec<_> = blocks[..turn].iter().enumerate().map(|(i, block)| {
                let role = ["user", "assistant"][i % 2];
                format!("{{\"role\":\"{role}\",\"content\":[{}]}}", written(block, i + 1 == turn))
            }).collect();
            format!("{{\"system\":\"s\",\"messages\":[{}]}}", messages.join(","))
        };
        for turn in 1..blocks.len() {
            let (before, after) = [turn, turn + 1].map(|turn| form_at(Endpoint::Messages, &body(turn))).into();
            prop_assert!(after.starts_with(&before));
            prop_assert!(after.len() > before.len());
        }
        prop_assert!(!String::from_utf8_lossy(&form_at(Endpoint::Messages, &body(blocks.len()))).contains("ephemeral"));
    }

    #[test]
    fn input_that_grows_extends_the_turn_before(
        first in string(),
        items in prop::collection::vec(prop_oneof![message(), item()], 1..8),
        instructions in string(),
        tools in value(),
    ) {
        let rest = format!(",\"instructions\":{instructions},\"tools\":{tools}");
        let said = vec![("\"role\"".to_owned(), "\"user\"".to_owned()), ("\"content\"".to_owned(), first.clone())];
        let items: Vec<_> = std::iter::once(said).chain(items).collect();
        let body = |turn: usize| plain(&items[..turn], &rest).replacen("\"messages\"", "\"input\"", 1);
        let mut before = form_at(Endpoint::Responses, &format!("{{\"input\":{first}{rest}}}"));
        for turn in 1..=items.len() {
            let after = form_at(Endpoint::Responses, &body(turn));
            prop_assert!(after.starts_with(&before));
            before = after;
        }
    }

    #[test]
    fn space_and_order_of_keys_make_no_difference(
        (one, other) in conversation().prop_flat_map(|messages| {
            let rest = vec![("\"model\"".to_owned(), "\"m\"".to_owned()), ("\"seed\"".to_owned(), "1".to_owned())];
            (written(messages.clone(), rest.clone()), written(messages, rest))
        }),
    ) {
        prop_assert_eq!(form(&one), form(&other));
        prop_assert_eq!(chain(&one), chain(&other));
    }

    /// The form can be read back: two conversations with one form are one conversation.
    #[test]
    fn the_form_tells_conversations_apart(one in conversation(), other in conversation(), common in 0_usize..8) {
        // Most pairs share their first messages, and the texts of the others.
        let mut other = other;
        for (to, from) in other.iter_mut().zip(&one).take(common) {
            *to = from.clone();
        }
        let same = meaning(&one) == meaning(&other);
        prop_assert_eq!(form(&plain(&one, "")) == form(&plain(&other, "")), same);
    }

    #[test]
    fn a_character_that_moves_changes_the_form(messages in conversation(), at: Index, take: Index) {
        // The content of a message is cut in two: within one message, as two parts, and as two messages.
        let text = "abcdefghijklmnopqrstuvwxyz0123456789";
        let (i, cut) = (at.index(messages.len()), 1 + take.index(text.len() - 1));
        let with = |contents: &[&str]| {
            let mut messages = messages.clone();
            let role = ("\"role\"".to_owned(), "\"user\"".to_owned());
            let said = contents.iter().map(|content| vec![role.clone(), ("\"content\"".to_owned(), (*content).to_owned())]);
            messages.splice(i..i, said);
            plain(&messages, "")
        };
        let quoted = |text: &str| format!("\"{text}\"");
        let (left, right) = (quoted(&text[..cut]), quoted(&text[cut..]));
        let forms = [
            form(&with(&[&quoted(text)])),
            form(&with(&[&left, &right])),
            form(&with(&[&quoted(&text[..cut - 1]), &quoted(&text[cut - 1..])])),
            form(&with(&[&format!("[{left},{right}]")])),
        ];
        for (i, one) in forms.iter().enumerate() {
            prop_assert!(!forms[i + 1..].contains(one), "{}", i);
        }
    }

    #[test]
    fn chains_part_at_the_first_difference_and_for_good(messages in conversation(), at: Index, role: bool) {
        let i = at.index(messages.len());
        let mut other = messages.clone();
        let (field, value) = if role { (0, "\"critic\"") } else { (1, "\"something else\"") };
        other[i][field].1 = value.to_owned();
        let (one, other) = (plain(&messages, ""), plain(&other, ""));
        let (forms, chains) = ((form(&one), form(&other)), (chain(&one), chain(&other)));
        let same = forms.0.iter().zip(&forms.1).take_while(|(a, b)| a == b).count();
        for (block, (a, b)) in chains.0.iter().zip(&chains.1).enumerate() {
            prop_assert_eq!(a == b, worth(block as u32 + 1) as usize * 16 <= same, "block {}", block);
        }
    }
}

/// A conversation without what makes no difference.
fn meaning(messages: &[Fields]) -> Vec<Vec<(String, String)>> {
    let meaning = |fields: &Fields| {
        let mut fields: Vec<_> = fields
            .iter()
            .filter(|(key, value)| value != "null" && !(key == "\"content\"" && value == "[]"))
            .map(|(key, value)| {
                let single = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
                let single = single.filter(|text| key == "\"content\"" && one_string(text));
                (key.clone(), single.unwrap_or(value).to_owned())
            })
            .collect();
        fields.sort();
        fields
    };
    messages.iter().map(meaning).collect()
}

fn one_string(text: &str) -> bool {
    serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
}

#[test]
fn model_salt_and_lora_share_no_block() {
    let message = vec![
        ("\"role\"".to_owned(), "\"user\"".to_owned()),
        ("\"content\"".to_owned(), format!("\"{}\"", "x".repeat(500))),
    ];
    let chains: Vec<_> = [
        "",
        ",\"model\":\"\"",
        ",\"model\":\"a\"",
        ",\"model\":\"b\"",
        ",\"model\":\"a\",\"cache_salt\":\"b\"",
        ",\"model\":\"ab\"",
        ",\"model\":\"a\",\"lora_path\":\"b\"",
        ",\"cache_salt\":\"a\"",
        ",\"cache_salt\":\"ab\"",
        ",\"model\":\"a\",\"extra_key\":\"b\"",
        ",\"model\":\"a\",\"extra_key\":\"c\"",
    ]
    .iter()
    .map(|rest| chain(&plain(std::slice::from_ref(&message), rest)))
    .collect();
    for (i, one) in chains.iter().enumerate() {
        assert!(one.len() > 30);
        assert!(chains[i + 1..].iter().flatten().all(|hash| !one.contains(hash)), "{i}");
    }
    // What a session is called makes no difference.
    let named = chain(&plain(&[message], ",\"model\":\"a\",\"user\":\"u\",\"stream\":true"));
    assert_eq!(named, chains[2]);
}

#[test]
fn kinds_of_prompt_share_no_block() {
    let hashes = |endpoint, body: &str| {
        parse(endpoint, body.as_bytes(), &Limits::default())
            .unwrap()
            .chain(BlockSize::new(16).unwrap())
            .hashes
    };
    // The ids spell what the text says.
    let ids = vec![u32::from_le_bytes(*b"xxxx").to_string(); 40].join(",");
    let tokens = hashes(Endpoint::Completions, &format!("{{\"prompt\":[{ids}]}}"));
    let text = hashes(Endpoint::Completions, &format!("{{\"prompt\":\"{}\"}}", "x".repeat(160)));
    assert_eq!((tokens.len(), text.len()), (10, 10));
    assert!(tokens.iter().all(|hash| !text.contains(hash)));
    // One model's prompt is one prompt, wherever it is asked.
    let batch = hashes(Endpoint::Embeddings, &format!("{{\"input\":[[{ids}],[1,2]]}}"));
    assert_eq!(batch, tokens);
}

#[test]
fn the_form_of_a_chat() {
    let body = r#" { "messages" : [
        {"content":"S","role":"system"},
        {"role":"user","name":"N","content":[{"type":"text","text":"T","cache_control":{}}, "U", {"type":"image_url","image_url":{"url":"I"}}]},
        {"role":"assistant","content":null,"tool_calls":[{"id":"1"}],"reasoning":"R","refusal":null},
        {"role":"tool","tool_call_id":"1","content":"a\n\u00e9é"}
    ], "tools": [{"a": 1}] } "#;
    let expected = "\x01[{\"a\": 1}]\x02system\x06S\
        \x02user\x03N\x06T\x06U\x07{\"type\":\"image_url\",\"image_url\":{\"url\":\"I\"}}\
        \x02assistant\x05R\x08[{\"id\":\"1\"}]\
        \x02tool\x041\x06a\\n\\u00e9é";
    assert_eq!(String::from_utf8(form(body)).unwrap(), expected);
}

#[test]
fn the_form_of_anthropic_s_messages() {
    let body = r#"{"max_tokens": 9, "metadata": {"user_id": "u"}, "temperature": 1,
        "messages": [
            {"role":"user","content":[{"type":"text","text":"T","cache_control":{"type":"ephemeral"}}, {"type":"image","source":{"data":"I"}}]},
            {"role":"assistant","content":[{"type":"thinking","thinking":"R","signature":"s"},
                {"type":"tool_use","id":"1","name":"f","input":{"cache_control":"an argument"}}]},
            {"role":"user","content":[{"cache_control":{}, "type":"tool_result","tool_use_id":"1",
                "content":[{"type":"text","text":"O","cache_control":null}],"is_error":false}]}],
        "tools":[{"name":"f","input_schema":{"cache_control":{}},"cache_control":{}}],
        "system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"S","cache_control":{}}]}"#;
    let expected = "\x01[{\"name\":\"f\",\"input_schema\":{\"cache_control\":{}}}]\x02system\x06S\
        \x02user\x06T\x07{\"type\":\"image\",\"source\":{\"data\":\"I\"}}\
        \x02assistant\x07{\"type\":\"thinking\",\"thinking\":\"R\",\"signature\":\"s\"}\
        \x07{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"cache_control\":\"an argument\"}}\
        \x02user\x07{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\n                \
        \"content\":[{\"type\":\"text\",\"text\":\"O\"}],\"is_error\":false}";
    assert_eq!(String::from_utf8(form_at(Endpoint::Messages, body)).unwrap(), expected);
    // A text is no block, and what it says after its first line counts.
    let text = r#"{"system":"x-anthropic-billing-header: 1\nS","messages":[]}"#;
    assert_eq!(form_at(Endpoint::Messages, text), b"\x02system\x06x-anthropic-billing-header: 1\\nS");
}

#[test]
fn the_form_of_responses() {
    let body = r#"{"input": [
            {"role":"developer","content":"D"},
            {"type":"message","id":"m1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"A","annotations":[]}]},
            {"type":"reasoning","id":"r","content":[{"type":"reasoning_text","text":"R"}]},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
            {"id":"ref"},
            {"role":"user","content":[{"type":"input_text","text":"T"},{"type":"input_image","image_url":"I"}]}],
        "instructions":"S","tools":[1],"text":{"verbosity":"low"}}"#;
    let expected = "\x01[1]\x02system\x06S\x02developer\x06D\x02assistant\x06A\
        \x0b\x07{\"type\":\"reasoning\",\"id\":\"r\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"R\"}]}\
        \x0b\x07{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}\
        \x0b\x07{\"id\":\"ref\"}\
        \x02user\x06T\x07{\"type\":\"input_image\",\"image_url\":\"I\"}";
    assert_eq!(String::from_utf8(form_at(Endpoint::Responses, body)).unwrap(), expected);
}

#[test]
fn what_is_not_in_the_body_keeps_prompts_apart() {
    for (endpoint, prompt, names) in [
        (
            Endpoint::Responses,
            "\"input\":\"a\"",
            &["previous_response_id", "conversation", "prompt", "previous_input_messages"][..],
        ),
        (
            Endpoint::Generate,
            "\"text\":\"a\"",
            &["image_data", "audio_data", "video_data", "input_embeds", "session_params"][..],
        ),
    ] {
        let bodies = names
            .iter()
            .flat_map(|name| ["\"1\"", "\"2\""].map(|value| format!("{{{prompt},\"{name}\":{value}}}")));
        let mut seeds: Vec<_> = bodies.map(|body| seed_at(endpoint, &body)).collect();
        seeds.push(seed_at(endpoint, &format!("{{{prompt}}}")));
        let all = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), all);
        // The order of two makes no difference, the last of one counts, and null is absence.
        let [a, b] = [names[0], names[1]];
        assert_eq!(
            seed_at(endpoint, &format!("{{\"{a}\":1,{prompt},\"{b}\":2}}")),
            seed_at(endpoint, &format!("{{\"{b}\":2,\"{a}\":3,\"{a}\":1,{prompt}}}"))
        );
        assert_eq!(
            seed_at(endpoint, &format!("{{\"{a}\":null,{prompt}}}")),
            seed_at(endpoint, &format!("{{{prompt}}}"))
        );
    }
    // Elsewhere these are unknown fields.
    let chat = |rest: &str| seed_at(Endpoint::Chat, &format!("{{\"messages\":[]{rest}}}"));
    assert_eq!(chat(",\"previous_response_id\":\"1\""), chat(""));
}

#[test]
fn one_form_at_two_endpoints_is_two_prompts() {
    let body = |name| format!("{{\"{name}\":[{{\"role\":\"user\",\"content\":\"a\"}}]}}");
    let mut seeds = [
        seed_at(Endpoint::Chat, &body("messages")),
        seed_at(Endpoint::Messages, &body("messages")),
        seed_at(Endpoint::Responses, &body("input")),
    ];
    seeds.sort_unstable();
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2]);
    // SGLang's text is what `/v1/completions` calls a prompt.
    assert_eq!(
        seed_at(Endpoint::Generate, "{\"text\":\"a\"}"),
        seed_at(Endpoint::Completions, "{\"prompt\":\"a\"}")
    );
}

#[test]
fn ids_count_more_than_text() {
    for body in ["{\"text\":\"a\",\"input_ids\":[[1,2],[3]]}", "{\"input_ids\":[1,2],\"text\":\"a\"}"] {
        let request = parse(Endpoint::Generate, body.as_bytes(), &Limits::default()).unwrap();
        assert_eq!(request.prompt, Prompt::Tokens(vec![1, 2]), "{body}");
    }
}
