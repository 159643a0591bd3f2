//! NVIDIA Dynamo's simulated engines publish what they store and evict; the example's relay brings it to Envoy, and what is
//! predicted of each request is held against the `cached_tokens` of their answers.
//!
//! Run by `tests/run.sh`, which installs them.

use serde_json::json;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use warmpath_tests::predictions::{Engine, converse, report};
use warmpath_tests::{Envoy, Process, Request, python, root, temporary_dir, wait_long, wait_until};

const ENGINE: Engine = Engine { model: "sim", block: 16 };
/// A few conversations' worth, so that most are evicted.
const CACHE: &str = "96";
const START: std::time::Duration = std::time::Duration::from_secs(120);

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free")
}

/// A frontend and its one engine, which binds its publisher: a pod.
struct Pod {
    _processes: [Process; 2],
    address: SocketAddr,
    events: u16,
    replay: u16,
}

impl Pod {
    fn start(model: &Path) -> Self {
        let python = std::env::var_os("DYNAMO_PYTHON").expect("DYNAMO_PYTHON is not set; run tests/run.sh");
        let [address, events, replay] = [free(), free(), free()];
        let discovery = temporary_dir("discovery").expect("a directory can be made");
        let run = |module: &str, arguments: &[&str]| {
            let dir = temporary_dir("dynamo").expect("a directory can be made");
            let mut command = Command::new(&python);
            command
                .args(["-m", module])
                .args(arguments)
                .env("DYN_FILE_KV", &discovery)
                .env("HF_HUB_OFFLINE", "1");
            command.env("DYN_LOG", "warn");
            command.envs([
                ("DYN_DISCOVERY_BACKEND", "file"),
                ("DYN_REQUEST_PLANE", "tcp"),
                ("DYN_EVENT_PLANE", "zmq"),
            ]);
            Process::start(module, command, &dir, &[])
        };
        let port = address.port().to_string();
        let frontend = ["--http-host", "127.0.0.1", "--http-port", &port, "--router-mode", "round-robin"];
        let frontend = run("dynamo.frontend", &frontend);
        let (events, replay) = (events.port(), replay.port());
        let engine = [
            ["--model-path", &model.display().to_string()],
            ["--model-name", ENGINE.model],
            ["--num-workers", "1"],
            ["--speedup-ratio", "100"],
            ["--block-size", &ENGINE.block.to_string()],
            ["--num-gpu-blocks-override", CACHE],
            ["--zmq-kv-events-ports", &events.to_string()],
            ["--zmq-replay-ports", &replay.to_string()],
        ];
        let engine = run("dynamo.mocker", engine.as_flattened());
        Self { _processes: [frontend, engine], address, events, replay }
    }

    /// Waits without a chat, whose events nobody would hear.
    fn wait(&self) {
        wait_long(START, "Dynamo to serve the model", || {
            let answer = Request::get("/v1/models").try_send(self.address).ok()?;
            (answer.status == 200 && answer.text().contains(ENGINE.model)).then_some(())
        });
    }
}

#[test]
#[ignore = "wants NVIDIA Dynamo; run tests/run.sh"]
fn predictions_are_what_dynamo_s_engines_find() {
    let folder = temporary_dir("mocker").expect("a directory can be made");
    let cache = std::env::var_os("WARMPATH_CACHE").map_or_else(|| root().join(".envoy"), PathBuf::from);
    let vocabulary = cache.join("vocabularies/qwen3");
    let made = Command::new("python3")
        .arg(root().join("tests/real-vllm/model.py"))
        .arg(&vocabulary)
        .arg(&folder)
        .status();
    assert!(made.is_ok_and(|status| status.success()), "no model could be made of {}", vocabulary.display());
    let pods = [Pod::start(&folder), Pod::start(&folder)];
    pods.iter().for_each(Pod::wait);
    let envoy = Envoy::with_kv_events(&folder, &folder.join("files"), ENGINE.model)
        .plugin("/tokenizers/0/block_tokens", json!(ENGINE.block))
        .addresses(&pods.each_ref().map(|pod| pod.address))
        .concurrency(2)
        .start();
    let to = format!("http://{}", envoy.listener("kv-events-http"));
    let relays = (1..).zip(&pods).map(|(n, pod)| {
        let mut command = Command::new(python());
        command.arg(root().join("examples/kv-events/relay.py")).args([
            "--to",
            &to,
            "--pod",
            &format!("pod-{n}"),
        ]);
        command.args(["--events", &format!("tcp://127.0.0.1:{}", pod.events)]);
        command.args(["--replay", &format!("tcp://127.0.0.1:{}", pod.replay)]);
        Process::start("relay", command, &temporary_dir("relay").expect("a directory can be made"), &[])
    });
    let _relays: Vec<_> = relays.collect();
    wait_until("all workers to have the tokenizer", || {
        let hello =
            json!({"model": ENGINE.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        (0..20).all(|_| {
            let answer =
                Request::json("/v1/chat/completions", &hello).header("x-warmpath-debug", "1").send(&envoy);
            answer.header("x-warmpath-prompt") == Some("tokens")
        })
    });
    let outcomes = converse(&envoy, ENGINE, 0..60, 5, 1);
    let equal = report("one request at a time", &outcomes);
    let mode = |n: usize| envoy.stat(&format!("wasmcustom.warmpath.kv_events.pod-{n}.mode"));
    assert_eq!((mode(1), mode(2)), (2, 2), "both are exact");
    assert!(envoy.stat("wasmcustom.warmpath.kv_events_blocks_removed") > 100, "there were evictions");
    envoy.assert_no_trap();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(equal >= 99.0, "{equal:.1} %");
}
