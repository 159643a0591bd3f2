//! Random request bodies: right in grammar, and as odd as the grammar allows.

use crate::request::Endpoint;
use proptest::prelude::*;
use proptest::sample::select;

/// White space between tokens.
pub fn space() -> impl Strategy<Value = String> {
    prop_oneof![6 => Just(String::new()), 1 => "[ \t\n\r]{1,3}"]
}

/// A JSON string with its quotes: any characters, escaped where they must be, and often where they need not be.
pub fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-z ]{0,20}",
        2 => select(vec![
            "\\n", "\\\"", "\\\\", "\\/", "\\u0001", "\\u0002user", "\\u00e9", "\\ud83d\\ude00", "\\t", "é", "日本", "😀",
            "}", "]", "{\\\"role\\\":", "\u{7f}", "\u{80}", "\u{2028}",
        ]).prop_map(str::to_owned),
        // So long that a string spans several windows of the scanner, at any offset.
        1 => (0_usize..150, select(vec!["\\\\", "\\\"", "a", "é", "\\u0041"])).prop_map(|(n, piece)| piece.repeat(n)),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "null",
            "true",
            "false",
            "0",
            "-0",
            "1",
            "-1.5e+30",
            "1e999999",
            "123456789012345678901234567890",
            "0.000",
            "1E-2",
            "-12",
            "7",
        ])
        .prop_map(str::to_owned),
        string(),
    ]
}

/// Any JSON value.
pub fn value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_flat_map(array),
            prop::collection::vec((string(), inner), 0..4).prop_flat_map(object),
        ]
    })
}

fn join(open: char, items: Vec<String>, close: char) -> impl Strategy<Value = String> {
    prop::collection::vec(space(), 2 * items.len() + 1).prop_map(move |spaces| {
        let mut text = format!("{open}{}", spaces[2 * items.len()]);
        for (i, item) in items.iter().enumerate() {
            text += if i > 0 { "," } else { "" };
            text += &[&spaces[2 * i], item.as_str(), &spaces[2 * i + 1]].concat();
        }
        text.push(close);
        text
    })
}

/// The array of these texts, spaced out.
pub fn array(items: Vec<String>) -> impl Strategy<Value = String> {
    join('[', items, ']')
}

/// The object of these keys (with their quotes) and texts, in any order, spaced out.
pub fn object(fields: Vec<(String, String)>) -> impl Strategy<Value = String> {
    (Just(fields).prop_shuffle(), space(), space()).prop_flat_map(|(fields, a, b)| {
        join('{', fields.into_iter().map(|(key, value)| format!("{key}{a}:{b}{value}")).collect(), '}')
    })
}

/// A key of the API, sometimes with a needless escape.
fn key(name: &'static str) -> impl Strategy<Value = String> {
    (0..name.len(), 0..8).prop_map(move |(at, odd)| {
        if odd > 0 {
            return format!("\"{name}\"");
        }
        format!("\"{}\\u{:04x}{}\"", &name[..at], name.as_bytes()[at], &name[at + 1..])
    })
}

type Field = (&'static str, BoxedStrategy<String>);

/// `required` once and any of `known` any number of times, each with a value that fits it or, sometimes, with any; and perhaps an
/// unknown field.
fn fields(required: Vec<Field>, known: Vec<Field>) -> impl Strategy<Value = String> {
    let field = |(name, fitting): Field| (key(name), prop_oneof![40 => fitting, 1 => value()]);
    let required: Vec<_> =
        required.into_iter().map(|required| prop::option::weighted(0.95, field(required))).collect();
    let known = select(known).prop_flat_map(field).boxed();
    let unknown = (string(), value()).boxed();
    let others = prop::collection::vec(prop_oneof![8 => known, 1 => unknown], 0..6);
    (required, others)
        .prop_flat_map(|(required, others)| object(required.into_iter().flatten().chain(others).collect()))
}

/// An object with marks of where to cache, also within its content.
fn marked() -> impl Strategy<Value = String> {
    let known = |content: BoxedStrategy<String>| {
        vec![("cache_control", value().boxed()), ("id", value().boxed()), ("content", content)]
    };
    let inner = fields(vec![], known(value().boxed()));
    let inner = prop::collection::vec(inner, 0..3).prop_flat_map(array);
    fields(vec![], known(prop_oneof![inner, string()].boxed()))
}

fn part() -> impl Strategy<Value = String> {
    let kind = select(vec![
        "\"text\"",
        "\"te\\u0078t\"",
        "\"input_text\"",
        "\"output_text\"",
        "\"image_url\"",
        "null",
        "\"\"",
    ])
    .prop_map(str::to_owned);
    let known = vec![
        ("type", kind.boxed()),
        ("text", prop_oneof![string(), Just("\"x-anthropic-billing-header: 1\"".to_owned())].boxed()),
        ("image_url", value().boxed()),
        ("cache_control", value().boxed()),
    ];
    prop_oneof![2 => string(), 2 => fields(vec![], known), 1 => marked()]
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => string(),
        1 => Just("null".to_owned()),
        2 => prop::collection::vec(part(), 0..4).prop_flat_map(array),
    ]
}

fn message() -> impl Strategy<Value = String> {
    let role = select(vec!["\"user\"", "\"assistant\"", "\"tool\""]).prop_map(str::to_owned).boxed();
    let others = vec![
        ("role", role.clone()),
        ("content", content().boxed()),
        ("content", content().boxed()),
        ("name", string().boxed()),
        ("tool_call_id", string().boxed()),
        ("reasoning_content", string().boxed()),
        ("reasoning", string().boxed()),
        ("tool_calls", value().boxed()),
        ("type", select(vec!["\"message\"", "\"reasoning\"", "null"]).prop_map(str::to_owned).boxed()),
    ];
    fields(vec![("role", role)], others)
}

/// The input of `/v1/responses`.
fn input() -> impl Strategy<Value = String> {
    let item = prop_oneof![
        2 => message().boxed(),
        1 => fields(vec![], vec![("call_id", string().boxed()), ("content", content().boxed())]).boxed(),
    ];
    prop_oneof![1 => string().boxed(), 4 => prop::collection::vec(item, 0..5).prop_flat_map(array).boxed()]
}

fn messages() -> impl Strategy<Value = String> {
    prop::collection::vec(message(), 0..5).prop_flat_map(array)
}

fn ids() -> impl Strategy<Value = String> {
    let ids = prop::collection::vec((0_u32..).prop_map(|id| id.to_string()), 1..100);
    (ids, prop::option::weighted(0.1, value())).prop_flat_map(|(mut ids, odd)| {
        ids.extend(odd);
        array(ids)
    })
}

fn prompt() -> impl Strategy<Value = String> {
    prop_oneof![
        string(),
        prop::collection::vec(prop_oneof![8 => string().boxed(), 1 => value().boxed()], 0..4)
            .prop_flat_map(array),
        ids(),
        prop::collection::vec(ids(), 0..3).prop_flat_map(array),
    ]
}

/// An endpoint and the body of a request to it. Most are what engines take.
pub fn body() -> impl Strategy<Value = (Endpoint, String)> {
    let endpoint = select(vec![
        Endpoint::Chat,
        Endpoint::Responses,
        Endpoint::Messages,
        Endpoint::Completions,
        Endpoint::Generate,
        Endpoint::Embeddings,
    ]);
    (endpoint, space(), space()).prop_flat_map(|(endpoint, before, after)| {
        let flag = select(vec!["true", "false", "null"]).prop_map(str::to_owned).boxed();
        let name = prop_oneof![9 => string().boxed(), 1 => Just("null".to_owned()).boxed()].boxed();
        let required = match endpoint {
            Endpoint::Chat | Endpoint::Messages => ("messages", messages().boxed()),
            Endpoint::Responses => ("input", input().boxed()),
            Endpoint::Completions => ("prompt", prompt().boxed()),
            Endpoint::Generate => ("text", prompt().boxed()),
            Endpoint::Embeddings => ("input", prompt().boxed()),
        };
        let mut others = vec![
            required.clone(),
            ("model", name.clone()),
            ("user", name.clone()),
            ("cache_salt", name),
            ("stream", flag),
            ("lora_path", value().boxed()),
            ("extra_key", value().boxed()),
            ("tools", prop::collection::vec(marked(), 0..3).prop_flat_map(array).boxed()),
            ("tools", value().boxed()),
            ("prompt", string().boxed()),
        ];
        // Often, since they are what differs.
        let own: Vec<Field> = match endpoint {
            Endpoint::Responses => {
                vec![("instructions", content().boxed()), ("previous_response_id", value().boxed())]
            }
            Endpoint::Messages => vec![("system", content().boxed())],
            Endpoint::Generate => {
                vec![("input_ids", ids().boxed()), ("image_data", value().boxed())]
            }
            _ => vec![],
        };
        others.extend(own.iter().cycle().take(own.len() * 5).cloned());
        let fields = fields(vec![required], others);
        (Just(endpoint), fields.prop_map(move |fields| format!("{before}{fields}{after}")))
    })
}
