//! A model's tokenizer reaches every worker from an Envoy cluster, and prompts are compared as its tokens.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use warmpath_tests::{Builder, Envoy, Pods, Request, Response, temporary_dir, wait_until};

const DEBUG: &str = "x-warmpath-debug";
/// Content on one line, which must not be trimmed.
const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// A folder that ends with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(temporary_dir("tokens").expect("a temporary directory can be made"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tokenizer of bytes, whose added tokens are the template's.
fn files(dir: &Path) {
    let name = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            let before = (0..byte).filter(|b| !matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)).count();
            char::from_u32(256 + before as u32).expect("a letter")
        }
    };
    let vocab: serde_json::Map<String, Value> =
        (0..=u8::MAX).map(|byte| (name(byte).to_string(), json!(byte))).collect();
    let added = ["<|user|>", "<|assistant|>"].iter().zip(256..);
    let added: Vec<_> =
        added.map(|(content, id)| json!({"id": id, "content": content, "special": true})).collect();
    let tokenizer = json!({"version": "1.0", "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).expect("a file can be written");
    let config = json!({"chat_template": TEMPLATE});
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).expect("a file can be written");
}

fn envoy(dir: &Path, pods: &Pods) -> Builder {
    Envoy::with_tokenizer(dir, &dir.join("files"), "sim").pods(pods)
}

fn ask(envoy: &Envoy, messages: &Value) -> Response {
    let body = json!({"model": "sim", "messages": messages, "max_tokens": 1});
    let answer = Request::json("/v1/chat/completions", &body).header(DEBUG, "1").send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// Blocks of 16 of what the template makes of these messages: a token a byte, and one for each role.
fn blocks(messages: &Value) -> usize {
    let messages = messages.as_array().expect("messages");
    let bytes = messages.iter().map(|m| 1 + m["content"].as_str().expect("text").len()).sum::<usize>();
    (bytes + 1) / 16
}

/// Blocks up to the last of so many at which a hash is kept: at each of the first 64, then ever more rarely.
fn kept(blocks: usize) -> usize {
    let (mut kept, mut hashes) = (0, 0);
    loop {
        let next = kept + if hashes < 64 { 1 } else { 1 << (hashes / 32 - 1) };
        if next > blocks {
            return kept;
        }
        (kept, hashes) = (next, hashes + 1);
    }
}

#[test]
fn turns_of_a_conversation_match_to_the_token() {
    let folder = Folder::new();
    let dir = &folder.0;
    files(dir);
    let pods = Pods::start(3, &[]);
    let envoy = envoy(dir, &pods).start();
    // Every worker loads it for itself; connections spread over four.
    let hello = json!([{"role": "user", "content": "hello there, is anybody in?"}]);
    let mut in_a_row = 0;
    wait_until("all workers to have the tokenizer", || {
        let tokens = ask(&envoy, &hello).header("x-warmpath-prompt") == Some("tokens");
        in_a_row = if tokens { in_a_row + 1 } else { 0 };
        in_a_row == 40
    });
    assert_eq!(envoy.stat("wasmcustom.warmpath.tokenizers_ready"), 1);
    assert_eq!(envoy.stat("wasmcustom.warmpath.tokenizer_failures"), 0);

    let mut messages = vec![];
    let (mut before, mut pod) = (0, None);
    for turn in 0..8 {
        let question = format!("question {turn}: {}", "größe 漢字 and words ".repeat(3 + 5 * turn));
        messages.push(json!({"role": "user", "content": question}));
        let chat = Value::Array(messages.clone());
        let answer = ask(&envoy, &chat);
        let said = answer.header("x-warmpath-matched").expect("it is explained").to_owned();
        assert_eq!(said, format!("{before}/{}", kept(blocks(&chat))), "turn {turn}");
        let served = answer.header("x-pod").map(str::to_owned);
        assert!(turn == 0 || served == pod, "turn {turn} left {pod:?} for {served:?}");
        pod = served;
        // All that was in whole blocks before the mark of the answer is there for the next turn.
        let answer = format!("answer {turn}");
        let known = blocks(&chat);
        messages.push(json!({"role": "assistant", "content": answer}));
        let total: usize = messages.iter().map(|m| 1 + m["content"].as_str().map_or(0, str::len)).sum();
        before = kept(known.min(total / 16));
    }
    // Tools are rendered by no template of this kind, but the request goes on.
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let answer = ask(&envoy, &image);
    assert_eq!(answer.header("x-warmpath-prompt"), Some("text"));
    assert!(answer.header("x-warmpath-step-down").expect("why").contains("image_url"));
    assert_eq!(envoy.stat("wasmcustom.warmpath.step_down_not_followed"), 1);
    envoy.assert_no_trap();
}

#[test]
fn new_text_is_tokenized_up_to_the_limit_and_further_each_time() {
    let folder = Folder::new();
    let dir = &folder.0;
    files(dir);
    let pods = Pods::start(3, &[]);
    let envoy = envoy(dir, &pods).plugin("/tokenizers/0/max_new_bytes", json!(16_384)).concurrency(1).start();
    wait_until("the tokenizer to be loaded", || {
        let answer = ask(&envoy, &json!([{"role": "user", "content": "is anybody in?"}]));
        answer.header("x-warmpath-prompt") == Some("tokens")
    });
    let document = json!([{"role": "user", "content": "some words and more ".repeat(2500)}]);
    let mut before = (0, 0);
    for turn in 0..8 {
        let answer = ask(&envoy, &document);
        let said = answer
            .header("x-warmpath-matched")
            .and_then(|said| said.split_once('/'))
            .expect("it is explained");
        let (matched, of) =
            (said.0.parse::<usize>().expect("a number"), said.1.parse::<usize>().expect("a number"));
        // All that was compared the last time is held; as much again is compared this time.
        assert_eq!(matched, before.1, "turn {turn}");
        match of == before.1 {
            true => assert_eq!(of, kept(blocks(&document))),
            false => assert!(of - before.1 <= 2 * 16_384 / 16, "turn {turn}: {of} after {}", before.1),
        }
        assert_eq!(
            answer.header("x-warmpath-step-down").is_some(),
            of < kept(blocks(&document)),
            "turn {turn}"
        );
        before = (matched, of);
    }
    assert!(before.0 == before.1, "the document isn't known after eight requests: {before:?}");
    assert!(envoy.stat("wasmcustom.warmpath.step_down_prompt_cut") >= 2);
    envoy.assert_no_trap();
}

#[test]
fn a_file_that_is_no_tokenizer_is_named_and_traffic_goes_on() {
    let folder = Folder::new();
    let dir = &folder.0;
    files(dir);
    std::fs::write(dir.join("tokenizer.json"), r#"{"model": {"type": "Unigram", "vocab": []}}"#)
        .expect("written");
    let pods = Pods::start(2, &[]);
    let envoy = envoy(dir, &pods).start();
    wait_until("the tokenizer to be refused", || envoy.stat("wasmcustom.warmpath.tokenizer_failures") > 0);
    assert!(envoy.log().contains("the model type Unigram"), "{}", envoy.log());
    let long = json!([{"role": "user", "content": "some words ".repeat(100)}]);
    for n in 0..8 {
        let answer = ask(&envoy, &long);
        assert_eq!(answer.header("x-warmpath-prompt"), Some("text"));
        assert!(n == 0 || answer.header("x-warmpath-matched").is_some_and(|said| !said.starts_with("0/")));
    }
    assert_eq!(envoy.stat("wasmcustom.warmpath.tokenizers_ready"), 0);
    assert_eq!(envoy.stat("wasmcustom.warmpath.step_down_tokenizer_not_ready"), 8);
    envoy.assert_no_trap();
}
