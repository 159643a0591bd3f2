//! Every fault, as it looks from the other end of a socket.

mod common;

use std::time::{Duration, Instant};

use common::{ask, chat, last_record, open, pod, pod_with, read_until, stats};
use serde_json::{Value, json};
use tokio::time::timeout;

const CHAT: &str = "/v1/chat/completions";

async fn fault(pod: std::net::SocketAddr, fault: Value) {
    let (status, _, answer) = ask(pod, "POST", "/sim/fault", &fault).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn refuse_closes_without_a_byte() {
    let pod = pod().await;
    fault(pod, json!({"kind": "refuse", "count": 1})).await;
    let mut socket = open(pod, "POST", CHAT, &chat(3, json!({})).to_string()).await;
    assert_eq!(read_until(&mut socket, "never").await, "");
    assert_eq!(last_record(pod).await["outcome"], "faulted");
    assert_eq!(ask(pod, "POST", CHAT, &chat(3, json!({}))).await.0, 200, "the fault is used up");
}

#[tokio::test]
async fn status_answers_an_error_with_its_headers() {
    let pod = pod().await;
    fault(pod, json!({"kind": "status", "status": 429, "retry_after": 7, "count": 1})).await;
    fault(pod, json!({"kind": "status", "status": 503, "path": "/health", "count": 1})).await;
    let (status, head, body) = ask(pod, "POST", CHAT, &chat(3, json!({}))).await;
    assert_eq!(status, 429);
    assert!(head.contains("retry-after: 7") && head.contains("x-pod: pod-1"), "{head}");
    assert_eq!(body["error"]["code"], 429);
    assert_eq!(ask(pod, "GET", "/health", &Value::Null).await.0, 503);
    assert_eq!(ask(pod, "GET", "/health", &Value::Null).await.0, 200);
}

#[tokio::test]
async fn hang_says_nothing_until_the_pod_is_reset() {
    let pod = pod().await;
    fault(pod, json!({"kind": "hang"})).await;
    let mut socket = open(pod, "POST", CHAT, &chat(3, json!({})).to_string()).await;
    let silence = timeout(Duration::from_millis(100), read_until(&mut socket, "HTTP")).await;
    assert!(silence.is_err(), "{silence:?}");
    ask(pod, "POST", "/sim/reset", &Value::Null).await;
    assert_eq!(read_until(&mut socket, "never").await, "");
}

#[tokio::test]
async fn cut_ends_a_stream_after_exactly_so_many_tokens() {
    let pod = pod().await;
    fault(pod, json!({"kind": "cut", "after_tokens": 3, "count": 1})).await;
    let body = chat(3, json!({"stream": true})).to_string();
    let cut = read_until(&mut open(pod, "POST", CHAT, &body).await, "never").await;
    let words: Vec<String> = contents(&cut).concat().split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.len(), 3, "{cut}");
    assert!(!cut.contains("[DONE]") && !cut.ends_with("0\r\n\r\n"), "{cut}");
    let whole = read_until(&mut open(pod, "POST", CHAT, &body).await, "0\r\n\r\n").await;
    assert!(contents(&whole).concat().starts_with(&words.join(" ")));
    assert_eq!(contents(&whole).concat().split_whitespace().count(), 8);
    assert!(whole.contains("data: [DONE]"));
}

#[tokio::test]
async fn cut_ends_a_whole_answer_at_half() {
    let pod = pod().await;
    fault(pod, json!({"kind": "cut", "count": 1})).await;
    let text = read_until(&mut open(pod, "POST", CHAT, &chat(3, json!({})).to_string()).await, "never").await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let promised = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert_eq!(promised.parse::<usize>().unwrap() / 2, body.len());
}

#[tokio::test]
async fn hang_stalls_a_stream_after_so_many_tokens_until_the_client_leaves() {
    let pod = pod().await;
    fault(pod, json!({"kind": "hang", "after_tokens": 2, "count": 1})).await;
    let body = chat(3, json!({"stream": true})).to_string();
    let mut socket = open(pod, "POST", CHAT, &body).await;
    until(async || last_record(pod).await["completion_tokens"] == 2).await;
    let more = timeout(Duration::from_millis(100), read_until(&mut socket, "[DONE]")).await;
    assert!(more.is_err(), "{more:?}");
    let record = last_record(pod).await;
    assert_eq!((&record["completion_tokens"], &record["outcome"]), (&json!(2), &json!("running")));
    assert_eq!(stats(pod).await["running"], 1);
    drop(socket);
    until(async || stats(pod).await["running"] == 0).await;
    assert_eq!(last_record(pod).await["outcome"], "aborted");
}

#[tokio::test]
async fn slow_makes_a_request_take_longer() {
    let pod = pod_with(|settings, _| settings.time.speedup = 100.0).await;
    let spent = async || {
        let start = Instant::now();
        // At least 1000 tokens, 10 ms; each time another salt, so that none is cached.
        let body = chat(1000, json!({"max_tokens": 1, "cache_salt": format!("{start:?}")}));
        assert_eq!(ask(pod, "POST", CHAT, &body).await.0, 200);
        start.elapsed()
    };
    assert!(spent().await >= Duration::from_millis(10));
    fault(pod, json!({"kind": "slow", "factor": 20, "count": 1})).await;
    assert!(spent().await >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_wrong_fault_is_refused_and_cleared_ones_are_gone() {
    let pod = pod().await;
    let (status, _, answer) = ask(pod, "POST", "/sim/fault", &json!({"kind": "explode"})).await;
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("explode"));
    fault(pod, json!({"kind": "status", "status": 500})).await;
    assert_eq!(ask(pod, "GET", "/sim/fault", &Value::Null).await.2[0]["status"], 500);
    ask(pod, "DELETE", "/sim/fault", &Value::Null).await;
    assert_eq!(ask(pod, "GET", "/v1/models", &Value::Null).await.0, 200);
}

/// The contents of a chat's chunks.
fn contents(text: &str) -> Vec<String> {
    let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks = events.map(|json| serde_json::from_str::<Value>(&format!("{{{json}")).unwrap());
    chunks.filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect()
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let patience = Instant::now() + common::PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < patience, "it never came to be");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
