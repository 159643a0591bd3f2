//! What the canonical form promises.

use super::bodies::{array, object, string, value};
use crate::blocks::{BlockSize, worth};
use crate::request::{Endpoint, Limits, parse};
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
    let mut form = Vec::new();
    let request = parse(Endpoint::Chat, body.as_bytes(), &Limits::default()).unwrap();
    request.canonical(&mut |piece| form.extend_from_slice(piece));
    form
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
