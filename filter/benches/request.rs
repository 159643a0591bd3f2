//! Reading a body and hashing its prompt: the scanner, and serde_json in the two ways it could have been used instead.
//!
//! `cargo bench -p warmpath --bench request`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::hint::black_box;
use warmpath::blocks::{BlockSize, ChainBuilder};
use warmpath::request::{Endpoint, Limits, parse};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const PROSE: &str = "The quick brown fox — who had, until \"yesterday\", lived in Zürich — jumps over the café’s table.\n\
    Natural language is mostly long runs of plain letters and spaces, with a line break only at the end of a paragraph, as in \
    this one here, which goes on for a while. 日本語も少し。\n\nfn main() {\n\tprintln!(\"C:\\temp\");\n}\n";

const PLAIN: &str = "Natural language is mostly long runs of plain letters and spaces, with a line break only at the end of a \
    paragraph, as in this one here, which goes on for a while, and then for a while more.\n\n";

const JAPANESE: &str =
    "自然言語の文章は、ふつう長い文字の列で、段落の終わりにだけ改行があります。Rust は速い。\n";

/// A chat of about `bytes` bytes, a message for each 10 KB.
fn chat(paragraph: &str, bytes: usize) -> Vec<u8> {
    let count = (bytes / 10_000).max(2);
    let text = paragraph.repeat(bytes / count / paragraph.len() + 1);
    let messages: Vec<_> = (0..count)
        .map(|i| {
            let role = if i == 0 {
                "system"
            } else if i % 2 == 1 {
                "user"
            } else {
                "assistant"
            };
            serde_json::json!({ "role": role, "content": text })
        })
        .collect();
    serde_json::to_vec(&serde_json::json!({ "model": "llama", "stream": true, "messages": messages }))
        .unwrap()
}

/// Schemas of tools: short strings and much structure.
fn tools(bytes: usize) -> Vec<u8> {
    let tool = |i: usize| {
        serde_json::json!({ "type": "function", "function": {
            "name": format!("tool_{i}"), "description": "Looks something up in the place where it is kept.",
            "parameters": { "type": "object", "required": ["path", "limit"], "properties": {
                "path": { "type": "string", "description": "Where to look" },
                "limit": { "type": "integer", "minimum": 1, "default": 10 } } } } })
    };
    let each = serde_json::to_vec(&tool(0)).unwrap().len();
    let tools: Vec<_> = (0..bytes / each).map(tool).collect();
    let messages = serde_json::json!([{ "role": "user", "content": "Look it up." }]);
    serde_json::to_vec(&serde_json::json!({ "model": "llama", "tools": tools, "messages": messages }))
        .unwrap()
}

fn tokens(bytes: usize) -> Vec<u8> {
    let ids: Vec<u32> = (0..bytes as u32 / 7).map(|i| i.wrapping_mul(2_654_435_761) % 128_000).collect();
    serde_json::to_vec(&serde_json::json!({ "model": "llama", "prompt": ids })).unwrap()
}

#[derive(Deserialize)]
struct Body<'a, C> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: bool,
    #[serde(bound(deserialize = "C: Deserialize<'de>"))]
    messages: Vec<Message<'a, C>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a, C> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    content: C,
}

/// serde_json, contents left as they are written.
type Raw<'a> = &'a RawValue;

/// serde_json, contents unescaped where there are escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn by_serde<'a, C: Deserialize<'a>>(body: &'a [u8], text: impl Fn(&C) -> &[u8]) -> Vec<u64> {
    let body: Body<'a, C> = serde_json::from_slice(body).unwrap();
    let tools = body.tools.map_or("", RawValue::get).as_bytes();
    let messages = body.messages.iter().map(|message| 2 + message.role.len() + text(&message.content).len());
    let seed = body.model.map_or(0, |model| xxh3_64(model.as_bytes())) ^ u64::from(body.stream);
    let mut chain = ChainBuilder::new(seed, BlockSize::default(), tools.len() + messages.sum::<usize>());
    chain.push(tools);
    for message in &body.messages {
        for piece in [b"\x02", message.role.as_bytes(), b"\x06", text(&message.content)] {
            chain.push(piece);
        }
    }
    chain.finish().hashes
}

fn bodies(c: &mut Criterion) {
    for (name, endpoint, body) in [
        ("prose/1KB", Endpoint::Chat, chat(PROSE, 1_000)),
        ("prose/40KB", Endpoint::Chat, chat(PROSE, 40_000)),
        ("prose/400KB", Endpoint::Chat, chat(PROSE, 400_000)),
        ("plain/400KB", Endpoint::Chat, chat(PLAIN, 400_000)),
        ("japanese/400KB", Endpoint::Chat, chat(JAPANESE, 400_000)),
        ("tools/40KB", Endpoint::Chat, tools(40_000)),
        ("tokens/400KB", Endpoint::Completions, tokens(400_000)),
    ] {
        let limits = Limits::default();
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new("scanner", "parse"), &*body, |b, body| {
            b.iter(|| drop(black_box(parse(endpoint, black_box(body), &limits))));
        });
        group.bench_with_input(BenchmarkId::new("scanner", "parse+chain"), &*body, |b, body| {
            b.iter(|| parse(endpoint, black_box(body), &limits).unwrap().chain(BlockSize::default()));
        });
        if endpoint == Endpoint::Chat {
            group.bench_with_input(BenchmarkId::new("serde_json raw", "parse+chain"), &*body, |b, body| {
                b.iter(|| by_serde(black_box(body), |raw: &Raw<'_>| raw.get().as_bytes()));
            });
            group.bench_with_input(BenchmarkId::new("serde_json text", "parse+chain"), &*body, |b, body| {
                b.iter(|| by_serde(black_box(body), |text: &Text<'_>| text.0.as_bytes()));
            });
        }
        group.finish();
    }
}

/// Ways to chain blocks of 256 bytes.
fn chains(c: &mut Criterion) {
    let text = chat(PROSE, 400_000);
    let mut group = c.benchmark_group("chain/400KB");
    group.throughput(Throughput::Bytes(text.len() as u64));
    let mut way = |name: &str, link: fn(u64, &[u8]) -> u64| {
        group.bench_function(name, |b| b.iter(|| black_box(&*text).chunks_exact(256).fold(7, link)));
    };
    way("the block alone, no chain", |last, block| last ^ xxh3_64(block));
    way("the block, seeded by the last", |last, block| xxh3_64_with_seed(block, last));
    way("the block's hash, seeded by the last (chosen)", |last, block| {
        xxh3_64_with_seed(&xxh3_64(block).to_le_bytes(), last)
    });
    way("the last and the block's hash", |last, block| {
        xxh3_64([last, xxh3_64(block)].map(u64::to_le_bytes).as_flattened())
    });
    way("multiply and fold", |last, block| {
        let mixed = (last.rotate_left(27) ^ xxh3_64(block)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 32
    });
    group.finish();
}

criterion_group!(benches, bodies, chains);
criterion_main!(benches);
