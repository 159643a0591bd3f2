//! A model's tokenizer reaches every worker from an Envoy cluster, and prompts are compared as its tokens.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use warmpath_tests::{Builder, Envoy, Pods, Request, Response, root, temporary_dir, wait_until};

const DEBUG: &str = "x-warmpath-debug";
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

/// The files of a tokenizer of bytes, whose added tokens are its template's.
fn files(dir: &Path) {
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let from = root().join("tests/data/bytes").join(name);
        std::fs::copy(from, dir.join(name)).expect("a file can be copied");
    }
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
        assert_eq!(said, format!("{before}/{}", blocks(&chat)), "turn {turn}");
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
        assert_eq!(matched, kept(before.1), "turn {turn}");
        match of == before.1 {
            true => assert_eq!(of, blocks(&document)),
            // Up to the limit more, and what the last time lay between the last hash that is kept and the limit.
            false => {
                assert!(of - before.1 <= 16_384 / 16 + before.1 / 31, "turn {turn}: {of} after {}", before.1)
            }
        }
        assert_eq!(answer.header("x-warmpath-step-down").is_some(), of < blocks(&document), "turn {turn}");
        before = (matched, of);
    }
    assert!(before.0 == kept(before.1), "the document isn't known after eight requests: {before:?}");
    assert!(envoy.stat("wasmcustom.warmpath.step_down_prompt_cut") >= 2);
    envoy.assert_no_trap();
}

/// Starts Envoy with a folder that is no good, and sees its fault named and prompts compared as text.
fn refused(spoil: impl FnOnce(&Path, Builder) -> Builder, cause: &str) {
    let folder = Folder::new();
    let dir = &folder.0;
    files(dir);
    let pods = Pods::start(2, &[]);
    let envoy = spoil(dir, envoy(dir, &pods)).start();
    wait_until("the tokenizer to be refused", || envoy.stat("wasmcustom.warmpath.tokenizer_failures") > 0);
    assert!(envoy.log().contains(cause), "{cause} isn't in {}", envoy.log());
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

fn write(dir: &Path, content: &[u8]) {
    std::fs::write(dir.join("tokenizer.json"), content).expect("a file can be written");
}

#[test]
fn a_file_of_another_kind_is_named_and_traffic_goes_on() {
    let spoil = |dir: &Path, envoy: Builder| {
        write(dir, br#"{"model": {"type": "Unigram\n[forged]", "vocab": []}}"#);
        envoy
    };
    // What it quotes stays one entry of the log.
    refused(spoil, "tokenizer.json needs what is not supported: the model type Unigram\n  [forged]");
}

#[test]
fn a_file_that_was_cut_off_is_named_and_traffic_goes_on() {
    let spoil = |dir: &Path, envoy: Builder| {
        let whole = std::fs::read(dir.join("tokenizer.json")).expect("a file");
        write(dir, &whole[..whole.len() / 2]);
        envoy
    };
    refused(spoil, "tokenizer.json cannot be read: EOF while parsing");
}

#[test]
fn a_file_that_is_missing_is_named_and_traffic_goes_on() {
    let spoil = |_: &Path, envoy: Builder| envoy.plugin("/tokenizers/0/path", json!("/other/"));
    refused(spoil, "GET /other/tokenizer.json from \"tokenizers\": answered 404");
}

#[test]
fn a_file_that_is_too_large_is_named_and_traffic_goes_on() {
    let spoil = |dir: &Path, envoy: Builder| {
        write(dir, &vec![b' '; 33 << 20]);
        envoy
    };
    // Envoy's own limit, below the filter's.
    refused(spoil, "over Envoy's http.async_response_buffer_limit");
}

#[test]
fn a_tokenizer_is_built_into_the_module() {
    let pods = Pods::start(2, &[]);
    let builder = || Envoy::builder().pods(&pods).plugin("/debug_header", json!(DEBUG));
    // The module that tests/run.sh makes with --tokenizer tests/data/bytes.
    let module = root().join("warmpath-trap.wasm");
    let tokenizers = |name| json!([{"models": ["sim"], "built_in": name}]);
    let envoy = builder().module(&module).plugin("/tokenizers", tokenizers("bytes")).start();
    let chat = json!([{"role": "user", "content": "some words ".repeat(20)}]);
    wait_until("all workers to have the tokenizer", || {
        (0..20).all(|_| ask(&envoy, &chat).header("x-warmpath-prompt") == Some("tokens"))
    });
    let whole = format!("{0}/{0}", blocks(&chat));
    assert_eq!(ask(&envoy, &chat).header("x-warmpath-matched"), Some(whole.as_str()));
    let said = builder().module(&module).plugin("/tokenizers", tokenizers("other")).refused();
    assert!(
        said.contains(r#"tokenizers[0].built_in: "other" is not in this module, which has ["bytes"]"#),
        "{said}"
    );
}
