//! Prefill and decode at two pods, by each protocol, over several workers: the client sees what one pod would have answered.

use serde_json::{Value, json};
use std::thread;
use warmpath_tests::{Disaggregated, Envoy, Pods, Request, Response, wait_until};

const CHAT: &str = "/v1/chat/completions";
const PROTOCOLS: [&str; 5] = ["nixl", "sglang", "p2p-nccl", "mooncake", "trtllm"];

/// A prompt of its own for each number, about `words` words long.
fn prompt(number: usize, words: usize) -> String {
    (0..words).map(|i| format!("word{} ", (number * 7919 + i * 104_729) % 99_991)).collect()
}

fn body(number: usize) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": prompt(number, 200)}], "max_tokens": 12})
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

fn text(answer: &Response) -> String {
    let json = answer.json();
    json["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// The text of a stream of events.
fn streamed(answer: &Response) -> String {
    let body = answer.text();
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    let events = body.lines().filter_map(|line| line.strip_prefix("data: {"));
    let piece = |event: &str| {
        let json: Value = serde_json::from_str(&format!("{{{event}")).expect("JSON");
        json["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    events.map(piece).collect()
}

fn assert_nothing_in_flight(envoy: &Envoy) {
    wait_until("the in-flight counts to return to zero", || stat(envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

/// What one pod answers to it.
fn alone(body: &Value) -> String {
    let pod = Pods::start(1, &[]);
    text(&Request::json(CHAT, body).send(pod.addresses()[0]))
}

fn serves(protocol: &'static str) {
    let pods = Disaggregated::start(protocol, 2, 2, &[]);
    let envoy = pods.envoy(json!({})).start();
    let expected: Vec<_> = (0..4).map(|n| alone(&body(n))).collect();
    let address = envoy.address();
    thread::scope(|scope| {
        for client in 0..4 {
            let expected = &expected;
            scope.spawn(move || {
                for n in 0..8 {
                    let mut body = body(n % 4);
                    let stream = (n + client) % 2 == 0;
                    if stream {
                        body["stream"] = json!(true);
                        body["stream_options"] = json!({"include_usage": true});
                    }
                    let request = Request::json(CHAT, &body).header("x-warmpath-debug", "1");
                    let request = if client % 2 == 0 { request.http2() } else { request };
                    let answer = request.send(address);
                    assert_eq!(answer.status, 200, "{}: {}", protocol, answer.text());
                    let pod = answer.header("x-pod").expect("a pod").to_owned();
                    assert!(pod.starts_with("decode-"), "{pod}");
                    assert_eq!(answer.header("x-warmpath-pod"), Some(pod.as_str()));
                    assert_eq!(answer.header("x-warmpath-workflow"), Some("pd"));
                    let prefill = answer.header("x-warmpath-prefill-pod").expect("who prefilled");
                    assert!(prefill.starts_with("prefill-"), "{prefill}");
                    let got = if stream { streamed(&answer) } else { text(&answer) };
                    assert_eq!(got, expected[n % 4], "what one pod would have said");
                }
            });
        }
    });
    let count = |pods: &Pods, leg: &str| {
        pods.seen().iter().filter(|seen| seen.record["kv"]["leg"] == leg).count()
    };
    assert_eq!((count(&pods.prefill, "prefill"), count(&pods.decode, "decode")), (32, 32));
    assert_eq!(stat(&envoy, "prefills_remote"), 32);
    assert_eq!(pods.held(), 0, "all KV was fetched");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn nixl_serves_what_one_pod_would() {
    serves("nixl");
}

#[test]
fn sglang_serves_what_one_pod_would() {
    serves("sglang");
}

#[test]
fn p2p_nccl_serves_what_one_pod_would() {
    serves("p2p-nccl");
}

#[test]
fn mooncake_serves_what_one_pod_would() {
    serves("mooncake");
}

#[test]
fn tensorrt_llm_serves_what_one_pod_would() {
    serves("trtllm");
}
