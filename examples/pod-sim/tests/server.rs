//! The server on real sockets, and the load against it.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PATIENCE, ask, chat, last_record, open, pod, pod_with, read_until, stats};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pod_sim::replay::{Client, Session, conversations, trace};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_repeated_prompt_is_cached_up_to_its_last_token_until_the_cache_is_reset() {
    let pod = pod().await;
    let body = chat(100, json!({"max_tokens": 4}));
    let usage = async || ask(pod, "POST", CHAT, &body).await.2["usage"].clone();
    let first = usage().await;
    assert_eq!(first["prompt_tokens_details"], Value::Null);
    let prompt = first["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage().await["prompt_tokens_details"]["cached_tokens"], (prompt - 1) / 16 * 16);
    let salted = chat(100, json!({"max_tokens": 4, "cache_salt": "tenant"}));
    assert_eq!(ask(pod, "POST", CHAT, &salted).await.2["usage"]["prompt_tokens_details"], Value::Null);
    for reset in ["/reset_prefix_cache", "/sim/reset"] {
        assert_eq!(ask(pod, "POST", reset, &Value::Null).await.0, 200);
        assert_eq!(usage().await["prompt_tokens_details"], Value::Null, "{reset}");
        assert_ne!(usage().await["prompt_tokens_details"], Value::Null);
    }
}

#[tokio::test]
async fn what_came_in_is_on_record() {
    let pod = pod().await;
    let body = chat(5, json!({"max_tokens": 3}));
    ask(pod, "POST", "/v1/chat/completions?x=1", &body).await;
    let record = last_record(pod).await;
    assert_eq!(record["path"], "/v1/chat/completions?x=1");
    assert_eq!(record["headers"]["x-test"], "yes");
    assert_eq!(record["body_bytes"], body.to_string().len());
    assert_eq!(
        record["body_hash"],
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body.to_string().as_bytes()))
    );
    assert_eq!((&record["body"], &record["kv"]), (&json!(body.to_string()), &Value::Null));
    assert_eq!((&record["completion_tokens"], &record["status"]), (&json!(3), &json!(200)));
    assert_eq!((&record["protocol"], &record["outcome"]), (&json!("HTTP/1.1"), &json!("done")));
    assert!(record["ttft_ms"].is_f64());
    let mut socket = open(pod, "POST", CHAT, "{\"messages\":").await;
    assert!(read_until(&mut socket, "}}").await.starts_with("HTTP/1.1 400"));
    let record = last_record(pod).await;
    assert_eq!((&record["status"], &record["outcome"]), (&json!(400), &json!("rejected")));
    assert_ne!(record["connection"], 0);
}

#[tokio::test]
async fn refusals_say_why() {
    let pod = pod().await;
    let message = async |method: &str, path: &str, body: Value| {
        let (status, head, answer) = ask(pod, method, path, &body).await;
        assert!(head.contains("x-pod: pod-1"), "{head}");
        (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let (status, why) = message("POST", CHAT, chat(1, json!({"model": "gone"}))).await;
    assert!(status == 404 && why.contains("`gone`"), "{status} {why}");
    let (status, why) =
        message("POST", CHAT, chat(1, json!({"max_tokens": 16000, "ignore_eos": true}))).await;
    assert!(status == 400 && why.contains("maximum context length is 16000"), "{status} {why}");
    let (status, why) = message("POST", CHAT, chat(1, json!({"max_tokens": 0}))).await;
    assert!(status == 400 && why.contains("max_tokens"), "{status} {why}");
    let (status, why) = message("POST", CHAT, chat(300_000, json!({}))).await;
    assert!(status == 413 && why.contains("1048576"), "{status} {why}");
    assert_eq!(message("GET", CHAT, Value::Null).await.0, 405);
    assert_eq!(message("GET", "/v2", Value::Null).await.0, 404);
}

#[tokio::test]
async fn each_of_n_choices_has_its_text_and_the_prompt_is_counted_once() {
    let pod = pod().await;
    let body = |n: usize, stream: bool| chat(100, json!({"n": n, "stream": stream}));
    let one = ask(pod, "POST", CHAT, &body(1, false)).await.2;
    let three = ask(pod, "POST", CHAT, &body(3, false)).await.2;
    let texts: Vec<&str> =
        (0..3).map(|index| three["choices"][index]["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts[0], one["choices"][0]["message"]["content"]);
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(three["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_eq!(three["usage"]["completion_tokens"], 24);
    let stream = read_until(&mut open(pod, "POST", CHAT, &body(3, true).to_string()).await, "[DONE]").await;
    let mut streamed = vec![String::new(); 3];
    for event in stream.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        let index = chunk["choices"][0]["index"].as_u64().unwrap() as usize;
        streamed[index].push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(streamed, texts);
    assert_eq!(ask(pod, "POST", CHAT, &chat(1, json!({"n": 0}))).await.0, 400);
    assert_eq!(
        ask(pod, "POST", "/generate", &json!({"text": "a", "sampling_params": {"n": 2}})).await.0,
        400
    );
}

#[tokio::test]
async fn metrics_have_vllm_s_names_and_count() {
    let pod = pod().await;
    for _ in 0..2 {
        ask(pod, "POST", CHAT, &chat(100, json!({"max_tokens": 4}))).await;
    }
    let stats = stats(pod).await;
    let text = read_until(&mut open(pod, "GET", "/metrics", "").await, "cache_config_info{").await;
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("vllm:{name}{{"))).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("num_requests_running"), 0.0);
    assert_eq!(value("num_requests_waiting"), 0.0);
    assert_eq!(value("kv_cache_usage_perc"), 0.0);
    assert_eq!(value("prefix_cache_queries_total"), stats["prompt_tokens"].as_f64().unwrap());
    assert_eq!(value("prefix_cache_hits_total"), stats["cached_tokens"].as_f64().unwrap());
    assert_eq!(value("generation_tokens_total"), 8.0);
    assert!(text.contains("vllm:cache_config_info{"));
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_time_is_over() {
    let pod = pod_with(|_, options| options.keep_alive = Duration::from_millis(200)).await;
    let mut socket = open(pod, "GET", "/health", "").await;
    assert!(read_until(&mut socket, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    let start = Instant::now();
    read_until(&mut socket, "never").await;
    assert!((100..5000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
}

#[tokio::test]
async fn http2_with_prior_knowledge_works_with_other_kinds_of_request() {
    let pod = pod().await;
    let socket = TcpStream::connect(pod).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await;
    let (mut sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let mut post = async |path: &str, body: Value| -> Value {
        let request =
            hyper::Request::post(format!("http://pod{path}")).header("endpoint-load-metrics-format", "JSON");
        let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let load =
            response.headers()["endpoint-load-metrics"].to_str().unwrap().strip_prefix("JSON ").unwrap();
        assert_eq!(serde_json::from_str::<Value>(load).unwrap()["named_metrics"]["num_requests_waiting"], 0);
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    };
    let texts = post("/v1/completions", json!({"prompt": ["one", "two"], "max_tokens": 2})).await;
    assert_eq!(texts["choices"].as_array().unwrap().len(), 2);
    assert_ne!(texts["choices"][0]["text"], texts["choices"][1]["text"]);
    let vectors = post("/v1/embeddings", json!({"input": ["a", "b", "a"]})).await;
    assert_eq!(vectors["data"][0]["embedding"], vectors["data"][2]["embedding"]);
    assert_ne!(vectors["data"][0]["embedding"], vectors["data"][1]["embedding"]);
    assert_eq!(vectors["usage"]["completion_tokens"], 0);
    assert_eq!(last_record(pod).await["protocol"], "HTTP/2.0");
}

#[tokio::test]
async fn a_client_waits_for_a_server_that_starts_late() {
    // Taken, but nobody listens yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let client = Client::new(&format!("http://{address}"), std::iter::empty(), PATIENCE).unwrap();
    let complaint = client.wait(Duration::ZERO).await.unwrap_err();
    assert!(complaint.contains(&address.to_string()), "{complaint}");
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        socket.listen(1).unwrap()
    };
    let (waited, _late) = tokio::join!(client.wait(PATIENCE), late);
    assert_eq!(waited, Ok(()));
}

#[tokio::test]
async fn one_pod_s_hits_are_exactly_what_one_cache_can_give() {
    let pod = pod_with(|settings, _| settings.blocks = 100_000).await;
    let session = || {
        let client = Client::new(&format!("http://{pod}"), ["x-a: b"].into_iter(), PATIENCE).unwrap();
        Arc::new(Session::new(client, 16, true))
    };
    let talks = session();
    let settings = conversations::Settings {
        model: "sim".into(),
        seed: 3,
        conversations: 6,
        turns: 3,
        skew: 0.0,
        system_prompts: 2,
        system_words: 100,
        turn_words: 30,
        answer_tokens: 20,
        concurrency: 1,
        think_ms: 0,
    };
    conversations::play(&talks, &settings).await;
    let recorded = session();
    let lines = |id: u64| trace::Line {
        timestamp: id,
        input_length: 1100,
        output_length: 9,
        hash_ids: vec![1, id / 2, id],
    };
    let settings = trace::Settings { model: "other".into(), speed: 1.0, scale: 0.5, concurrency: 1 };
    trace::play(&recorded, &settings, (0..6).map(lines).collect()).await;
    for (session, requests) in [(talks, 18), (recorded, 6)] {
        let summary = Arc::into_inner(session).unwrap().finish("run".into(), BTreeMap::new());
        assert_eq!((summary.totals.requests, summary.totals.errors), (requests, 0));
        assert_eq!(summary.totals.pods, BTreeMap::from([("pod-1".into(), requests)]));
        assert!(summary.totals.cached_tokens > 0);
        for row in &summary.rows {
            assert_eq!(row.prompt_tokens, row.own_tokens, "{row:?}");
            assert_eq!(row.cached_tokens, row.bound_tokens, "{row:?}");
            assert_eq!(
                row.cached_tokens, row.ideal_tokens,
                "one request at a time leaves nothing under way: {row:?}"
            );
        }
    }
}
