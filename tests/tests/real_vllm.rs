//! Two real vLLM engines say what they hold, and what Warmpath predicts of each request is held against `cached_tokens`.
//!
//! Run by `tests/real-vllm.sh`, which installs vLLM and makes a model for it.

use serde_json::json;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use warmpath_tests::predictions::{Engine, converse, report};
use warmpath_tests::{Envoy, Process, Request, temporary_dir, wait_long, wait_until};

/// Blocks of 32 are vLLM's smallest on CPU.
const ENGINE: Engine = Engine { model: "tiny", block: 32 };
/// Blocks of an engine's cache: a few conversations' worth, so that most are evicted.
const CACHE: u64 = 40;
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
        "endpoint": format!("tcp://{events}"), "topic": format!("kv@pod-{n}@{}", ENGINE.model),
    });
    command.args(["-m", "vllm.entrypoints.openai.api_server", "--model"]).arg(variable("VLLM_MODEL"));
    command.args([
        "--served-model-name",
        ENGINE.model,
        "--load-format",
        "dummy",
        "--dtype",
        "bfloat16",
        "--enforce-eager",
    ]);
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--max-model-len", "1024"]);
    command.args([
        "--block-size",
        &ENGINE.block.to_string(),
        "--num-gpu-blocks-override",
        &CACHE.to_string(),
    ]);
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

#[test]
#[ignore = "wants a real vLLM, twice; run tests/real-vllm.sh"]
fn predictions_are_what_the_engines_find() {
    let folder = temporary_dir("real").expect("a temporary directory can be made");
    let free =
        || TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free");
    let addresses = [free(), free()];
    let model = variable("VLLM_MODEL");
    let envoy = Envoy::with_kv_events(Path::new(&model), &folder.join("files"), ENGINE.model)
        .plugin("/tokenizers/0/block_tokens", json!(ENGINE.block))
        .plugin("/metrics", json!({"cluster": "pods"}))
        .addresses(&addresses)
        .concurrency(2)
        .start();
    let events = envoy.listener("kv-events");
    let mode = |n: usize| envoy.stat(&format!("wasmcustom.warmpath.kv_events.pod-{n}.mode"));
    let mut engines: Vec<_> = (1..).zip(addresses).map(|(n, address)| engine(n, address, events)).collect();
    for (n, (process, address)) in (1..).zip(engines.iter_mut().zip(addresses)) {
        wait_for_engine(n, process, address);
    }

    wait_until("both engines to tell their load", || envoy.stat("wasmcustom.warmpath.engines_heard") == 2);
    assert_eq!(envoy.stat("wasmcustom.warmpath.engines_other_block_size"), 0);
    let warm = converse(&envoy, ENGINE, 0..2, 1, 1);
    report("the first", &warm);
    let alone = converse(&envoy, ENGINE, 100..160, 5, 1);
    let alone = report("one request at a time", &alone);
    let beside = converse(&envoy, ENGINE, 500..560, 5, 2);
    let beside = report("two at a time", &beside);
    assert_eq!((mode(1), mode(2)), (2, 2), "both are exact");
    assert!(envoy.stat("wasmcustom.warmpath.kv_events_blocks_removed") > 100, "there were evictions");
    assert_eq!(envoy.stat("wasmcustom.warmpath.kv_events_gaps"), 0);

    let told = |name: &str| envoy.stat(&format!("wasmcustom.warmpath.feedback_{name}"));
    let [answers, predicted, cached] = ["requests", "predicted_tokens", "cached_tokens"].map(told);
    println!("{answers} answers told of {cached} cached tokens; {predicted} were predicted");
    assert!(answers > 300 && predicted.abs_diff(cached) * 50 < predicted, "{predicted}, not {cached}");

    // An engine that starts anew in the same place.
    drop(engines.remove(0));
    wait_until("its end to be seen", || mode(1) == 0);
    engines.insert(0, engine(1, addresses[0], events));
    wait_for_engine(1, &mut engines[0], addresses[0]);
    let again = converse(&envoy, ENGINE, 900..920, 5, 1);
    let again = report("after a restart", &again);
    wait_until("the new one to be exact", || mode(1) == 2);
    envoy.assert_no_trap();
    let _ = std::fs::remove_dir_all(&folder);
    // Of requests that overlap, some lose a block between the decision and their turn.
    assert!(alone >= 99.0 && again >= 99.0, "{alone:.1} %, {again:.1} %");
    assert!(beside >= 95.0, "{beside:.1} %");
}
