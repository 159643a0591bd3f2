//! Two real vLLM engines hand over KV by NIXL, through Warmpath, and answer what one of them does; and vLLM's own classes read the
//! bodies that Warmpath makes.
//!
//! Run by `tests/real-nixl.sh`, which installs vLLM and NIXL and makes a model for them.

use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use warmpath_tests::{Disaggregated, Envoy, Process, Request, Response, root, temporary_dir, wait_long};

const START: Duration = Duration::from_secs(400);
const ENDPOINTS: [&str; 4] = ["chat", "completions", "responses", "messages"];

fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name).map(PathBuf::from);
    value.unwrap_or_else(|| panic!("{name} is not set; run tests/real-nixl.sh"))
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free")
}

fn engine(role: &str, address: SocketAddr) -> Process {
    let dir = temporary_dir("vllm").expect("a temporary directory can be made");
    let mut command = Command::new(variable("VLLM_PYTHON"));
    let transfer = json!({"kv_connector": "NixlConnector", "kv_role": role}).to_string();
    command.args(["-m", "vllm.entrypoints.openai.api_server", "--model"]).arg(variable("VLLM_MODEL"));
    command.args(["--served-model-name", "tiny", "--dtype", "bfloat16", "--enforce-eager"]);
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--max-model-len", "2048"]);
    command.args(["--block-size", "32", "--num-gpu-blocks-override", "256", "--max-num-seqs", "8"]);
    command.args(["--enable-prompt-tokens-details", "--kv-transfer-config", &transfer]);
    for (name, value) in [
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("UCX_TLS", "tcp"),
        ("UCX_NET_DEVICES", "lo"),
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1"),
    ] {
        command.env(name, value);
    }
    command.env("PYTHONPATH", variable("NIXL_SITE"));
    command.env("VLLM_NIXL_SIDE_CHANNEL_PORT", free().port().to_string());
    Process::start("vllm", command, &dir, &[])
}

/// About 250 tokens, other ones for each number.
fn prompt(number: usize) -> String {
    (0..60).map(|i| format!("word{} ", (number * 7919 + i * 104_729) % 99_991)).collect()
}

fn path(endpoint: &str) -> &'static str {
    match endpoint {
        "chat" => "/v1/chat/completions",
        "completions" => "/v1/completions",
        "responses" => "/v1/responses",
        _ => "/v1/messages",
    }
}

fn body(endpoint: &str, prompt: &str, stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": prompt}]);
    match endpoint {
        "chat" => {
            json!({"model": "tiny", "messages": messages, "max_completion_tokens": 24, "temperature": 0, "stream": stream})
        }
        "completions" => {
            json!({"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": stream})
        }
        "responses" => {
            json!({"model": "tiny", "input": prompt, "max_output_tokens": 24, "temperature": 0, "stream": stream})
        }
        _ => {
            json!({"model": "tiny", "messages": messages, "max_tokens": 24, "temperature": 0, "stream": stream})
        }
    }
}

/// The text of an answer, whole or in events.
fn text(endpoint: &str, answer: &Response, stream: bool) -> String {
    let piece = |json: &Value| {
        let part = match (endpoint, stream) {
            ("chat", false) => &json["choices"][0]["message"]["content"],
            ("chat", true) => &json["choices"][0]["delta"]["content"],
            ("completions", _) => &json["choices"][0]["text"],
            ("responses", false) => &json["output"][0]["content"][0]["text"],
            ("responses", true) if json["type"] == "response.output_text.delta" => &json["delta"],
            ("messages", false) => &json["content"][0]["text"],
            ("messages", true) => &json["delta"]["text"],
            _ => &Value::Null,
        };
        part.as_str().unwrap_or_default().to_owned()
    };
    if !stream {
        return piece(&answer.json());
    }
    let text = answer.text();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    events.map(|data| piece(&serde_json::from_str(data).expect("JSON"))).collect()
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

#[test]
#[ignore = "wants a real vLLM with NIXL, twice; run tests/real-nixl.sh"]
fn two_engines_answer_what_one_does() {
    let (prefill, decode) = (free(), free());
    let mut engines = [engine("kv_producer", prefill), engine("kv_consumer", decode)];
    let envoy = Envoy::builder()
        .addresses(&[prefill, decode])
        .plugin(
            "/pods",
            json!([
                {"name": "p", "address": prefill.to_string(), "labels": {"role": "prefill"}},
                {"name": "d", "address": decode.to_string(), "labels": {"role": "decode"}},
            ]),
        )
        .plugin(
            "/workflows",
            json!({"pd": {"protocol": {"type": "nixl"}, "cluster": "pods", "remote_prefill": {"min_tokens": 64, "max_slowdown": 1000}}}),
        )
        .plugin("/workflow", json!("pd"))
        .plugin("/debug_header", json!("x-warmpath-debug"))
        .concurrency(2)
        .start();
    let start = Instant::now();
    for (process, address) in engines.iter_mut().zip([prefill, decode]) {
        wait_long(START, "an engine", || {
            process.assert_running();
            Request::get("/health").try_send(address).is_ok_and(|answer| answer.status == 200).then_some(())
        });
    }
    eprintln!("both engines are up after {:.0} s", start.elapsed().as_secs_f64());
    let mut handed_over = 0;
    for round in 0..2 {
        for (n, endpoint) in ENDPOINTS.into_iter().enumerate() {
            for stream in [false, true] {
                let prompt = prompt(100 * round + 10 * n + usize::from(stream));
                let body = body(endpoint, &prompt, stream);
                let request = Request::json(path(endpoint), &body).header("x-warmpath-debug", "1");
                let start = Instant::now();
                let answer = request.send(&envoy);
                assert_eq!(answer.status, 200, "{endpoint}: {}", answer.text());
                assert_eq!(answer.header("x-warmpath-prefill-pod"), Some("p"), "{endpoint}");
                let got = text(endpoint, &answer, stream);
                let took = start.elapsed().as_secs_f64();
                // The prefill pod has had the prompt, so it is the one that computes all of it by itself: the decode pod holds it by now.
                let alone = Request::json(path(endpoint), &body).send(prefill);
                assert_eq!(got, text(endpoint, &alone, stream), "{endpoint}, stream: {stream}");
                assert!(!got.is_empty());
                handed_over += 1;
                eprintln!("{endpoint:12} stream {stream:5}: {took:.2} s, the same text");
            }
        }
    }
    assert_eq!(stat(&envoy, "prefills_remote"), handed_over);
    let metrics = Request::get("/metrics").send(decode).text();
    let pulled = metrics.lines().find(|line| line.contains("external_kv_transfer") && !line.starts_with('#'));
    let pulled: f64 = pulled.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).expect("a counter");
    println!("{handed_over} handoffs; the decode engine took {pulled} prompt tokens from the other");
    assert!(pulled > 200.0 * handed_over as f64);

    // A short one is the decode pod's alone.
    let short = Request::json(path("chat"), &body("chat", "hello", false))
        .header("x-warmpath-debug", "1")
        .send(&envoy);
    assert_eq!((short.status, short.header("x-warmpath-prefill-pod")), (200, None));
    // What the prefill engine refuses is the client's to read.
    let long = Request::json(path("completions"), &body("completions", &prompt(1).repeat(20), false));
    let (answer, there) = (long.clone().send(&envoy), long.send(prefill));
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(there.status, 400);
    // A client that names a handoff of its own crashes no engine.
    let mut hostile = body("chat", "hello", false);
    hostile["kv_transfer_params"] = json!({"do_remote_prefill": true});
    assert_eq!(Request::json(path("chat"), &hostile).send(&envoy).status, 200);
    // Without its prefill engine the other does all.
    let [gone, _stays] = engines;
    drop(gone);
    let answer = Request::json(path("chat"), &body("chat", &prompt(999), false))
        .header("x-warmpath-debug", "1")
        .send(&envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("x-warmpath-aggregated").is_some());
    envoy.assert_no_trap();
}

#[test]
#[ignore = "wants vLLM's classes; run tests/real-nixl.sh"]
fn vllm_s_own_classes_take_the_bodies() {
    let mut lines = String::new();
    for protocol in ["nixl", "mooncake"] {
        let pods = Disaggregated::start(protocol, 1, 1, &["--model", "tiny"]);
        let envoy = pods.envoy(json!({})).start();
        for (n, endpoint) in ENDPOINTS.into_iter().enumerate() {
            for stream in [false, true] {
                let mut body = body(endpoint, &prompt(10 * n + usize::from(stream)), stream);
                if endpoint != "responses" && endpoint != "messages" {
                    body["min_tokens"] = json!(5);
                    body["stop"] = json!(["never"]);
                    if stream {
                        body["stream_options"] = json!({"include_usage": true});
                    }
                }
                if endpoint == "chat" {
                    let function = json!({"name": "f", "parameters": {"type": "object", "properties": {}}});
                    body["tools"] = json!([{"type": "function", "function": function}]);
                    body["tool_choice"] = json!("auto");
                    body["logprobs"] = json!(true);
                    body["top_logprobs"] = json!(2);
                }
                let answer = Request::json(path(endpoint), &body).send(&envoy);
                assert_eq!(answer.status, 200, "{protocol} {endpoint}: {}", answer.text());
            }
        }
        let seen = [pods.prefill.seen(), pods.decode.seen()].concat();
        assert_eq!(seen.len(), 16);
        for seen in seen {
            let body: Value =
                serde_json::from_str(seen.record["body"].as_str().expect("a body")).expect("JSON");
            let seen_path = seen.record["path"].as_str().expect("a path");
            let endpoint =
                ENDPOINTS.into_iter().find(|endpoint| path(endpoint) == seen_path).expect("one of them");
            let line = json!({"endpoint": endpoint, "leg": seen.record["kv"]["leg"], "connector": protocol, "body": body});
            lines += &format!("{line}\n");
        }
    }
    let mut check = Command::new(variable("VLLM_PYTHON"))
        .arg(root().join("tests/real-vllm/validate.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    check.stdin.take().expect("it is piped").write_all(lines.as_bytes()).expect("it reads");
    let output = check.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{lines}");
    assert_eq!(said.lines().count(), 32);
}
