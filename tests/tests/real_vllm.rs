//! Two real vLLM engines say what they hold, and what Warmpath predicts of each request is held against `cached_tokens`.
//!
//! Run by `tests/real-vllm.sh`, which installs vLLM and makes a model for it.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use warmpath_tests::{Envoy, Process, Request, temporary_dir, wait_long, wait_until};

/// vLLM's smallest on CPU.
const BLOCK: u64 = 32;
/// Blocks of an engine's cache: a few conversations' worth, so that most are evicted.
const CACHE: u64 = 40;
const MODEL: &str = "tiny";
const START: Duration = Duration::from_secs(400);

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name)
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("{name} is not set; run tests/real-vllm.sh"))
}

fn engine(n: usize, address: SocketAddr, events: SocketAddr) -> Process {
    let dir = temporary_dir("vllm").expect("a temporary directory can be made");
    let mut command = Command::new(variable("VLLM_PYTHON"));
    let events = json!({
        "enable_kv_cache_events": true, "publisher": "zmq",
        "endpoint": format!("tcp://{events}"), "topic": format!("kv@pod-{n}@{MODEL}"),
    });
    command.args(["-m", "vllm.entrypoints.openai.api_server", "--model"]).arg(variable("VLLM_MODEL"));
    command.args([
        "--served-model-name",
        MODEL,
        "--load-format",
        "dummy",
        "--dtype",
        "bfloat16",
        "--enforce-eager",
    ]);
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--max-model-len", "1024"]);
    command.args(["--block-size", &BLOCK.to_string(), "--num-gpu-blocks-override", &CACHE.to_string()]);
    command.args([
        "--enable-prompt-tokens-details",
        "--max-num-seqs",
        "16",
        "--kv-events-config",
        &events.to_string(),
    ]);
    for (name, value) in [
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ] {
        command.env(name, value);
    }
    Process::start("vllm", command, &dir, &[])
}

fn wait_for_engine(n: usize, process: &mut Process, address: SocketAddr) {
    let start = Instant::now();
    wait_long(START, "an engine", || {
        process.assert_running();
        let answer = Request::get("/health").try_send(address);
        answer.is_ok_and(|answer| answer.status == 200).then_some(())
    });
    eprintln!("engine {n} is up after {:.0} s", start.elapsed().as_secs_f64());
}

/// A request: what was predicted of its prompt, and what the engine says.
struct Outcome {
    conversation: usize,
    turn: usize,
    pod: String,
    prompt: u64,
    predicted: u64,
    cached: u64,
}

fn ask(envoy: &Envoy, conversation: usize, turn: usize, messages: &[Value]) -> (Outcome, String) {
    let body = json!({"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0, "seed": 1});
    let answer = Request::json("/v1/chat/completions", &body).header("x-warmpath-debug", "1").send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-warmpath-prompt"), Some("tokens"));
    let said = answer.json();
    let prompt = said["usage"]["prompt_tokens"].as_u64().expect("a number");
    let matched =
        answer.header("x-warmpath-matched").and_then(|text| text.split_once('/')).expect("it is explained");
    let matched: u64 = matched.0.parse().expect("a number");
    let outcome = Outcome {
        conversation,
        turn,
        pod: answer.header("x-warmpath-pod").expect("it is explained").to_owned(),
        prompt,
        // The last token is always computed.
        predicted: (matched * BLOCK).min((prompt - 1) / BLOCK * BLOCK),
        cached: said["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
    };
    let text = said["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    (outcome, text)
}

/// A number that looks drawn, always the same.
fn drawn(seed: u64) -> u64 {
    let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
}

fn question(conversation: usize, turn: usize) -> Value {
    const WORDS: [&str; 12] =
        ["river", "engine", "of", "the", "cache", "größer", "prefix", "漢字", "and", "token", "warm", "path"];
    let seed = (conversation * 1000 + turn) as u64;
    let count = 20 + drawn(seed) % 60;
    let words: Vec<_> = (0..count).map(|n| WORDS[(drawn(seed * 100 + n) % 12) as usize]).collect();
    json!({"role": "user", "content": format!("{conversation}.{turn}: {}", words.join(" "))})
}

fn system() -> Value {
    json!({"role": "system", "content": "You are a careful assistant who answers in few words. ".repeat(6)})
}

/// Conversations of several turns: `side` of them at a time, in an order that looks drawn.
fn converse(envoy: &Envoy, first: usize, count: usize, turns: usize, side: usize) -> Vec<Outcome> {
    let run = |conversations: Vec<usize>| {
        let mut open: BTreeMap<usize, Vec<Value>> =
            conversations.iter().map(|conversation| (*conversation, vec![system()])).collect();
        let mut outcomes = Vec::new();
        let mut step = 0;
        while !open.is_empty() {
            step += 1;
            // Mostly one of the two oldest, so that some are still cached when they go on.
            let pick = (drawn(step) % open.len().min(3) as u64) as usize;
            let conversation = *open.keys().nth(pick).expect("there are so many");
            let messages = open.get_mut(&conversation).expect("it is open");
            let turn = messages.len() / 2;
            messages.push(question(conversation, turn));
            let (outcome, text) = ask(envoy, conversation, turn, messages);
            messages.push(json!({"role": "assistant", "content": text}));
            outcomes.push(outcome);
            if turn + 1 == turns {
                open.remove(&conversation);
            }
        }
        outcomes
    };
    let run = &run;
    let shares =
        (0..side).map(|part| (first..first + count).filter(|n| n % side == part).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let threads: Vec<_> = shares.map(|share| scope.spawn(move || run(share))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    })
}

/// Prints every difference, and the share of requests without one.
fn report(what: &str, outcomes: &[Outcome]) -> f64 {
    let differ: Vec<_> = outcomes.iter().filter(|outcome| outcome.predicted != outcome.cached).collect();
    for outcome in &differ {
        let Outcome { conversation, turn, pod, prompt, predicted, cached } = outcome;
        eprintln!(
            "  {conversation}.{turn} at {pod}: of {prompt} tokens {predicted} predicted, {cached} cached"
        );
    }
    let equal = 100.0 * (outcomes.len() - differ.len()) as f64 / outcomes.len() as f64;
    let warm = outcomes.iter().filter(|outcome| outcome.cached > 0).count();
    let tokens = |of: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    eprintln!(
        "{what}: {} requests, {warm} with cached tokens; of {} prompt tokens {} were predicted and {} were cached; equal in \
         {equal:.1} % of requests",
        outcomes.len(),
        tokens(&|outcome| outcome.prompt),
        tokens(&|outcome| outcome.predicted),
        tokens(&|outcome| outcome.cached),
    );
    equal
}

#[test]
#[ignore = "wants a real vLLM, twice; run tests/real-vllm.sh"]
fn predictions_are_what_the_engines_find() {
    let folder = temporary_dir("real").expect("a temporary directory can be made");
    let free =
        || TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free");
    let addresses = [free(), free()];
    let model = variable("VLLM_MODEL");
    let envoy = Envoy::with_kv_events(Path::new(&model), &folder.join("files"), MODEL)
        .plugin("/tokenizers/0/block_tokens", json!(BLOCK))
        .addresses(&addresses)
        .concurrency(2)
        .start();
    let events = envoy.listener("kv-events");
    let mode = |n: usize| envoy.stat(&format!("wasmcustom.warmpath.kv_events.pod-{n}.mode"));
    let mut engines: Vec<_> = (1..).zip(addresses).map(|(n, address)| engine(n, address, events)).collect();
    for (n, (process, address)) in (1..).zip(engines.iter_mut().zip(addresses)) {
        wait_for_engine(n, process, address);
    }

    let warm = converse(&envoy, 0, 2, 1, 1);
    report("the first", &warm);
    let alone = converse(&envoy, 100, 60, 5, 1);
    let alone = report("one request at a time", &alone);
    let beside = converse(&envoy, 500, 60, 5, 4);
    let beside = report("four at a time", &beside);
    assert_eq!((mode(1), mode(2)), (2, 2), "both are exact");
    assert!(envoy.stat("wasmcustom.warmpath.kv_events_blocks_removed") > 100, "there were evictions");
    assert_eq!(envoy.stat("wasmcustom.warmpath.kv_events_gaps"), 0);

    // An engine that starts anew in the same place.
    drop(engines.remove(0));
    wait_until("its end to be seen", || mode(1) == 0);
    engines.insert(0, engine(1, addresses[0], events));
    wait_for_engine(1, &mut engines[0], addresses[0]);
    let again = converse(&envoy, 900, 20, 5, 1);
    let again = report("after a restart", &again);
    wait_until("the new one to be exact", || mode(1) == 2);
    envoy.assert_no_trap();
    let _ = std::fs::remove_dir_all(&folder);
    // Of requests that overlap, some lose a block between the decision and their turn.
    assert!(alone >= 99.0 && again >= 99.0, "{alone:.1} %, {again:.1} %");
    assert!(beside >= 95.0, "{beside:.1} %");
}
