//! Disaggregated prefill and decode by every protocol. The test plays the router: first as it should, then with each mistake.

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{ask, ask_as, chat, last_record, open, open_as, pod, read_until, start, stats};
use pod_sim::pod::Options;
use pod_sim::transfer::{Kind, Role, Settings, Transfer, wire};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// How long the legs of these tests wait for each other.
const TIMEOUT: Duration = Duration::from_secs(1);

async fn member(kind: Kind, role: Role) -> SocketAddr {
    member_with(kind, role, |_| {}).await
}

async fn member_with(kind: Kind, role: Role, change: impl FnOnce(&mut Options)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Settings { kind, role, timeout: TIMEOUT, ttl: Duration::from_secs(60) };
    let transfer = Arc::new(Transfer::new(settings, listener.local_addr().unwrap()));
    tokio::spawn(wire::listen(transfer.clone(), listener));
    start(Some(transfer), |_, options| change(options)).await
}

async fn pair(kind: Kind) -> (SocketAddr, SocketAddr) {
    (member(kind, Role::Prefill).await, member(kind, Role::Decode).await)
}

fn with(body: &Value, extra: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The text of a whole answer of any API.
fn text(answer: &Value) -> String {
    let at = [
        "/choices/0/message/content",
        "/choices/0/text",
        "/output/0/content/0/text",
        "/content/0/text",
        "/text",
    ];
    let found = at.iter().find_map(|at| answer.pointer(at).and_then(Value::as_str));
    found.unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
}

/// Sends it whole and gives the text.
async fn whole(id: &str, pod: SocketAddr, path: &str, body: &Value) -> String {
    let (status, _, answer) = ask_as(id, pod, "POST", path, body).await;
    assert_eq!(status, 200, "{answer}");
    text(&answer)
}

/// Sends it as a stream and gives the text.
async fn streamed(id: &str, pod: SocketAddr, path: &str, body: &Value) -> String {
    let body = with(body, json!({"stream": true})).to_string();
    let answer = read_until(&mut open_as(id, pod, "POST", path, &body).await, "0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let events: Vec<Value> =
        answer.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    if path == "/generate" {
        return text(events.last().unwrap());
    }
    let piece = |event: &Value| -> String {
        let at = ["/choices/0/delta/content", "/choices/0/text", "/delta/text", "/delta"];
        at.iter().find_map(|at| Some(event.pointer(at)?.as_str()?.to_owned())).unwrap_or_default()
    };
    events.iter().map(piece).collect()
}

/// What is refused, and why.
async fn refused(id: &str, pod: SocketAddr, path: &str, body: &Value) -> (u16, String) {
    let (status, _, answer) = ask_as(id, pod, "POST", path, body).await;
    let record = last_record(pod).await;
    assert_eq!(record["status"], status, "{record}");
    (status, answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}")).to_owned())
}

/// What an ordinary pod answers.
async fn ordinary(path: &str, body: &Value) -> String {
    whole("", pod().await, path, body).await
}

async fn counts(pod: SocketAddr) -> [u64; 3] {
    let stats = stats(pod).await;
    ["kv_held", "kv_fetched", "kv_expired"].map(|name| stats[name].as_u64().unwrap())
}

/// A value as a router would write it that reads numbers as doubles.
fn through_doubles(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            let double = number.as_f64().unwrap();
            if double < 0.0 { json!(double as i64) } else { json!(double as u64) }
        }
        Value::Array(values) => values.iter().map(through_doubles).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), through_doubles(value))).collect())
        }
        other => other.clone(),
    }
}

// NIXL

fn nixl_prefill(body: &Value) -> Value {
    let params = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null});
    let body = with(body, json!({"kv_transfer_params": params, "stream": false}));
    if body.get("input").is_some() {
        with(&body, json!({"max_output_tokens": 1}))
    } else {
        with(&body, json!({"max_tokens": 1, "max_completion_tokens": 1}))
    }
}

async fn nixl_handoff(prefill: SocketAddr, path: &str, body: &Value) -> Value {
    let (status, _, answer) = ask(prefill, "POST", path, &nixl_prefill(body)).await;
    assert_eq!(status, 200, "{answer}");
    answer["kv_transfer_params"].clone()
}

#[tokio::test]
async fn nixl_hands_over_in_every_api_of_vllm() {
    let words = "word ".repeat(100);
    let messages = json!([{"role": "user", "content": words}]);
    for (path, body) in [
        (CHAT, json!({"messages": messages, "max_tokens": 6})),
        (COMPLETIONS, json!({"prompt": words, "max_tokens": 6})),
        ("/v1/responses", json!({"input": words, "max_output_tokens": 6})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 6})),
    ] {
        let expected = ordinary(path, &body).await;
        for stream in [false, true] {
            let (prefill, decode) = pair(Kind::Nixl).await;
            let params = nixl_handoff(prefill, path, &body).await;
            assert_eq!(counts(prefill).await, [1, 0, 0], "{path}");
            assert_ne!(stats(prefill).await["blocks_in_use"], 0);
            let body = with(&body, json!({"kv_transfer_params": params}));
            let told = if stream {
                streamed("", decode, path, &body).await
            } else {
                whole("", decode, path, &body).await
            };
            assert_eq!(told, expected, "{path}");
            assert_eq!(counts(prefill).await, [0, 1, 0], "{path}");
            assert_eq!(stats(prefill).await["blocks_in_use"], 0);
            let record = last_record(decode).await;
            let prompt = record["prompt_tokens"].as_u64().unwrap();
            assert_eq!(record["cached_tokens"], 0, "what the prefill pod had cached");
            let from = stats(prefill).await["bootstrap"].clone();
            assert_eq!(record["kv"], json!({"leg": "decode", "fetched_tokens": prompt, "from": from}));
            assert_eq!(last_record(prefill).await["kv"]["leg"], "prefill");
        }
    }
}

#[tokio::test]
async fn what_was_fetched_stays_in_the_caches_of_both() {
    let (prefill, decode) = pair(Kind::Nixl).await;
    let body = chat(100, json!({"max_tokens": 2}));
    let params = nixl_handoff(prefill, CHAT, &body).await;
    whole("", decode, CHAT, &with(&body, json!({"kv_transfer_params": params}))).await;
    for pod in [prefill, decode] {
        whole("", pod, CHAT, &body).await;
        let record = last_record(pod).await;
        let prompt = record["prompt_tokens"].as_u64().unwrap();
        assert_eq!(record["cached_tokens"], (prompt - 1) / 16 * 16);
        assert_eq!(record["kv"], json!({"leg": "alone", "fetched_tokens": 0, "from": null}));
    }
    // Of what the decode pod has by now, no more than the rest is fetched.
    let params = nixl_handoff(prefill, CHAT, &body).await;
    whole("", decode, CHAT, &with(&body, json!({"kv_transfer_params": &params}))).await;
    let record = last_record(decode).await;
    let prompt = record["prompt_tokens"].as_u64().unwrap();
    assert_eq!(record["kv"]["fetched_tokens"], prompt - (prompt - 1) / 16 * 16);
    assert_eq!(record["cached_tokens"], params["remote_prefill_cached_tokens"]);
    assert_eq!(record["cached_tokens"], (prompt - 1) / 16 * 16);
}

#[tokio::test]
async fn nixl_refuses_what_is_not_the_handoff() {
    let (prefill, decode) = pair(Kind::Nixl).await;
    let body = chat(100, json!({"max_tokens": 2}));
    let params = nixl_handoff(prefill, CHAT, &body).await;
    let given = |params: &Value| with(&body, json!({"kv_transfer_params": params}));
    assert_ne!(through_doubles(&params), params);
    let mut wrong = vec![through_doubles(&params), with(&params, json!({"x": 1}))];
    for name in params.as_object().unwrap().keys() {
        let mut less = params.clone();
        less.as_object_mut().unwrap().remove(name);
        let null = with(&params, json!({name: null}));
        // Without what asks for it, it is an ordinary request.
        if name != "do_remote_prefill" {
            wrong.push(less);
            if !params[name].is_null() {
                wrong.push(null);
            }
        }
    }
    for params in &wrong {
        let (status, why) = refused("", decode, CHAT, &given(params)).await;
        assert!(matches!(status, 400 | 500), "{status} {why}: {params}");
    }
    for body in [chat(101, json!({"max_tokens": 2})), chat(100, json!({"max_tokens": 2, "model": "other"}))] {
        let (status, why) =
            refused("", decode, CHAT, &with(&body, json!({"kv_transfer_params": params}))).await;
        assert!(status == 500 && why.contains("prompt is another"), "{status} {why}");
    }
    assert_eq!(counts(prefill).await, [1, 0, 0], "none of these had a right to it");
    assert_eq!(refused("", prefill, CHAT, &given(&params)).await.0, 400, "the wrong pod");
    assert_eq!(whole("", decode, CHAT, &given(&params)).await, ordinary(CHAT, &body).await);
    let (status, why) = refused("", decode, CHAT, &given(&params)).await;
    assert!(status == 500 && why.contains("no KV is held"), "{status} {why}");
}

#[tokio::test]
async fn a_stream_whose_kv_fails_is_an_error_and_no_stream() {
    let (prefill, decode) = pair(Kind::Nixl).await;
    let body = chat(100, json!({"max_tokens": 2, "stream": true}));
    for how in ["/sim/kv/drop", "/sim/reset"] {
        let params = nixl_handoff(prefill, CHAT, &body).await;
        assert_eq!(ask(prefill, "POST", how, &Value::Null).await.0, 200);
        assert_eq!(counts(prefill).await, [0, 0, 0]);
        let (status, why) =
            refused("", decode, CHAT, &with(&body, json!({"kv_transfer_params": params}))).await;
        assert!(status == 500 && why.contains("no KV is held"), "{status} {why}");
    }
}

// SGLang

async fn room(prefill: SocketAddr, body: &Value, room: u64) -> Value {
    let port = stats(prefill).await["kv_port"].clone();
    with(body, json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}))
}

#[tokio::test]
async fn sglang_s_servers_wait_for_each_other() {
    let words = "word ".repeat(100);
    for (path, body) in [
        (CHAT, chat(100, json!({"max_tokens": 6}))),
        (COMPLETIONS, json!({"prompt": words, "max_tokens": 6})),
        ("/generate", json!({"text": words, "sampling_params": {"max_new_tokens": 6}})),
    ] {
        let expected = ordinary(path, &body).await;
        let (prefill, decode) = pair(Kind::Sglang).await;
        for number in [1, i64::MAX as u64] {
            let body = room(prefill, &body, number).await;
            let (first, told) = tokio::join!(whole("", prefill, path, &body), whole("", decode, path, &body));
            assert_eq!((told, expected.starts_with(&first)), (expected.clone(), true), "{path}");
            let late = async {
                tokio::time::sleep(TIMEOUT / 4).await;
                streamed("", decode, path, &body).await
            };
            let (first, told) = tokio::join!(streamed("", prefill, path, &body), late);
            assert_eq!((told, expected.starts_with(&first)), (expected.clone(), true), "{path}");
            assert_eq!(first.split(' ').count(), 1, "a prefill server gives one token");
        }
        assert_eq!(counts(prefill).await, [0, 4, 0]);
    }
}

#[tokio::test]
async fn sglang_tells_what_the_prefill_server_had_cached() {
    let (prefill, decode) = pair(Kind::Sglang).await;
    let body = json!({"text": "word ".repeat(100), "sampling_params": {"max_new_tokens": 2}});
    let mut cached = Vec::new();
    for number in 1..3 {
        let body = room(prefill, &body, number).await;
        let (_, told) =
            tokio::join!(ask(prefill, "POST", "/generate", &body), ask(decode, "POST", "/generate", &body));
        cached.push(told.2["meta_info"]["cached_tokens"].clone());
        assert_eq!(last_record(decode).await["kv"]["leg"], "decode");
    }
    assert_eq!(cached[0], 0);
    assert_ne!(cached[1], 0);
}

#[tokio::test]
async fn sglang_refuses_what_does_not_belong_together() {
    let (prefill, decode) = pair(Kind::Sglang).await;
    let body = chat(100, json!({"max_tokens": 2}));
    for pod in [prefill, decode] {
        let (status, why) = refused("", pod, CHAT, &body).await;
        assert!(status == 400 && why.contains("without bootstrap room id"), "{status} {why}");
    }
    let right = room(prefill, &body, 7).await;
    let another = with(&chat(101, json!({"max_tokens": 2})), right.clone());
    let another = with(&another, json!({"messages": chat(101, json!({}))["messages"]}));
    for (wrong, why) in [
        (another, "prompt is another"),
        (with(&right, json!({"bootstrap_room": 8})), "no KV is held for bootstrap_room 8"),
        (with(&right, json!({"bootstrap_host": "localhost"})), "bootstrap_host of the handoff"),
    ] {
        let begun = Instant::now();
        let (p, d) = tokio::join!(refused("", prefill, CHAT, &right), refused("", decode, CHAT, &wrong));
        assert!(p.0 == 500 && d.0 == 500 && d.1.contains(why), "{p:?} {d:?}");
        assert!(begun.elapsed() < TIMEOUT * 4);
    }
    let (status, why) = refused("", decode, CHAT, &with(&right, json!({"bootstrap_port": 1}))).await;
    assert!(status == 500 && why.contains("can't connect"), "{status} {why}");
    // One leg alone gives up, and only one at once may have a room.
    let (first, second) = tokio::join!(ask(prefill, "POST", CHAT, &right), async {
        tokio::time::sleep(TIMEOUT / 4).await;
        ask(prefill, "POST", CHAT, &right).await
    });
    assert!(first.0 == 500 && first.2.to_string().contains("nobody fetched"), "{first:?}");
    assert!(second.0 == 400 && second.2.to_string().contains("in use"), "{second:?}");
    assert_eq!(counts(prefill).await, [0, 0, 2]);
}

// P2P NCCL

async fn p2p_id(prefill: SocketAddr, decode: SocketAddr, number: u32) -> String {
    let [p, d] = [stats(prefill).await, stats(decode).await]
        .map(|stats| stats["bootstrap"].as_str().unwrap().to_owned());
    format!("___prefill_addr_{p}___decode_addr_{d}_{number:032x}")
}

#[tokio::test]
async fn p2p_nccl_hands_over_by_the_request_s_id() {
    let (prefill, decode) = pair(Kind::P2pNccl).await;
    for (number, (path, body)) in [
        (CHAT, chat(100, json!({"max_tokens": 6}))),
        (COMPLETIONS, json!({"prompt": "word word", "max_tokens": 6})),
    ]
    .into_iter()
    .enumerate()
    {
        let expected = ordinary(path, &body).await;
        for stream in [false, true] {
            let id = p2p_id(prefill, decode, number as u32 * 2 + u32::from(stream)).await;
            whole(&id, prefill, path, &with(&body, json!({"max_tokens": 1}))).await;
            let told = if stream {
                streamed(&id, decode, path, &body).await
            } else {
                whole(&id, decode, path, &body).await
            };
            assert_eq!(told, expected, "{path}");
        }
    }
    assert_eq!(counts(prefill).await, [0, 4, 0]);
}

#[tokio::test]
async fn p2p_nccl_refuses_other_ids() {
    let (prefill, decode) = pair(Kind::P2pNccl).await;
    let (body, one) = (chat(100, json!({"max_tokens": 2})), chat(100, json!({"max_tokens": 1})));
    for pod in [prefill, decode] {
        let (status, why) = refused("abc", pod, CHAT, &one).await;
        assert!(status == 500 && why.contains("does not contain hostname"), "{status} {why}");
    }
    let id = p2p_id(prefill, decode, 1).await;
    let swapped = p2p_id(decode, prefill, 1).await;
    assert_eq!(refused(&swapped, prefill, CHAT, &one).await.0, 500);
    assert_eq!(refused(&swapped, decode, CHAT, &body).await.0, 500);
    assert_eq!(refused(&id, prefill, CHAT, &body).await.0, 400, "more than one token");
    let (status, why) = refused(&id, decode, CHAT, &body).await;
    assert!(status == 500 && why.contains("no KV is held"), "{status} {why}");
    whole(&id, prefill, CHAT, &one).await;
    assert_eq!(refused(&id, prefill, CHAT, &one).await.0, 400, "an id serves once");
    assert_eq!(refused(&p2p_id(prefill, decode, 2).await, decode, CHAT, &body).await.0, 500);
    assert_eq!(refused(&id, decode, CHAT, &chat(99, json!({}))).await.0, 500);
    whole(&id, decode, CHAT, &body).await;
}

// Mooncake

async fn mooncake(prefill: SocketAddr, transfer: &str) -> (Value, Value) {
    let bootstrap = stats(prefill).await["bootstrap"].as_str().unwrap().to_owned();
    let (status, _, known) = ask(bootstrap.parse().unwrap(), "GET", "/query", &Value::Null).await;
    assert_eq!(status, 200, "{known}");
    let p = json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer});
    let d = json!({"do_remote_decode": false, "do_remote_prefill": true, "transfer_id": transfer,
        "remote_bootstrap_addr": format!("http://{bootstrap}"), "remote_engine_id": known["0"]["engine_id"]});
    (
        json!({"kv_transfer_params": p, "max_tokens": 1, "max_completion_tokens": 1, "stream": false}),
        json!({"kv_transfer_params": d}),
    )
}

#[tokio::test]
async fn mooncake_s_legs_may_come_in_either_order() {
    let (prefill, decode) = pair(Kind::Mooncake).await;
    let body = chat(100, json!({"max_tokens": 6}));
    let expected = ordinary(CHAT, &body).await;
    for (number, delays) in [[0, 0], [0, 1], [1, 0]].into_iter().enumerate() {
        for stream in [false, true] {
            let (p, d) = mooncake(prefill, &format!("xfer-{number}-{stream}")).await;
            let (p, d) = (with(&body, p), with(&body, d));
            let first = async {
                tokio::time::sleep(TIMEOUT / 4 * delays[0]).await;
                whole("", prefill, CHAT, &p).await
            };
            let second = async {
                tokio::time::sleep(TIMEOUT / 4 * delays[1]).await;
                if stream { streamed("", decode, CHAT, &d).await } else { whole("", decode, CHAT, &d).await }
            };
            let (_, told) = tokio::join!(first, second);
            assert_eq!(told, expected);
        }
    }
    assert_eq!(counts(prefill).await, [0, 6, 0]);
}

#[tokio::test]
async fn mooncake_refuses_other_engines_and_transfers() {
    let (prefill, decode) = pair(Kind::Mooncake).await;
    let body = chat(100, json!({"max_tokens": 2}));
    let (p, d) = mooncake(prefill, "xfer-1").await;
    let (_, other) = mooncake(member(Kind::Mooncake, Role::Prefill).await, "xfer-1").await;
    whole("", prefill, CHAT, &with(&body, p.clone())).await;
    assert_eq!(refused("", prefill, CHAT, &with(&body, p)).await.0, 400, "the id is in use");
    let changed = |name: &str, value: &Value| {
        let mut params = d.clone();
        params["kv_transfer_params"][name] = value.clone();
        params
    };
    let others = &other["kv_transfer_params"];
    for (params, why) in [
        (changed("remote_engine_id", &others["remote_engine_id"]), "not found from bootstrap server"),
        (
            changed("remote_bootstrap_addr", &others["remote_bootstrap_addr"]),
            "not found from bootstrap server",
        ),
        (changed("remote_bootstrap_addr", &json!("http://127.0.0.1:1")), "can't connect"),
        (changed("transfer_id", &json!("xfer-2")), "no KV is held"),
        (other.clone(), "no KV is held"),
    ] {
        let (status, told) = refused("", decode, CHAT, &with(&body, params)).await;
        assert!(status == 500 && told.contains(why), "{status} {told}");
    }
    let (status, why) = refused("", decode, CHAT, &with(&chat(99, json!({})), d.clone())).await;
    assert!(status == 500 && why.contains("prompt is another"), "{status} {why}");
    whole("", decode, CHAT, &with(&body, d)).await;
    // Without parameters each is an ordinary engine.
    whole("", decode, CHAT, &body).await;
}

// TensorRT-LLM

fn context(body: &Value, id: u64) -> Value {
    let params = json!({"request_type": "context_only", "disagg_request_id": id, "schedule_style": 0});
    with(body, json!({"disaggregated_params": params, "stream": false}))
}

/// What a router makes of a context server's answer.
fn generation(path: &str, body: &Value, answer: &Value) -> Value {
    let mut params = answer["choices"][0]["disaggregated_params"].clone();
    params["request_type"] = json!("generation_only");
    params["ctx_usage"] = answer["usage"].clone();
    let ids = if path == CHAT { "prompt_token_ids" } else { "prompt" };
    with(body, json!({"disaggregated_params": params, ids: answer["prompt_token_ids"]}))
}

#[tokio::test]
async fn trtllm_hands_over_context_first() {
    let (prefill, decode) = pair(Kind::Trtllm).await;
    for (path, body) in [
        (CHAT, chat(100, json!({"max_tokens": 6}))),
        (COMPLETIONS, json!({"prompt": "word word", "max_tokens": 6})),
    ] {
        let expected = ordinary(path, &body).await;
        for stream in [false, true] {
            let (status, _, answer) = ask(prefill, "POST", path, &context(&body, (1 << 62) + 1)).await;
            assert_eq!(
                (status, &answer["choices"][0]["finish_reason"]),
                (200, &json!("not_finished")),
                "{answer}"
            );
            let params = &answer["choices"][0]["disaggregated_params"];
            assert_eq!(params["disagg_request_id"], (1_u64 << 62) + 1);
            assert_eq!(params["first_gen_tokens"].as_array().unwrap().len(), 1);
            let body = generation(path, &body, &answer);
            let told = if stream {
                streamed("", decode, path, &body).await
            } else {
                whole("", decode, path, &body).await
            };
            assert_eq!(told, expected, "{path}");
        }
    }
    assert_eq!(counts(prefill).await, [0, 4, 0]);
    let one = context(&chat(3, json!({"max_tokens": 1})), 1 << 50);
    assert_eq!(ask(prefill, "POST", CHAT, &one).await.2["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn trtllm_refuses_what_is_not_the_handoff() {
    let (prefill, decode) = pair(Kind::Trtllm).await;
    let body = chat(100, json!({"max_tokens": 2}));
    let (_, _, answer) = ask(prefill, "POST", CHAT, &context(&body, (1 << 62) + 1)).await;
    let right = generation(CHAT, &body, &answer);
    let params = &right["disaggregated_params"];
    let mut wrong = vec![through_doubles(params), with(params, json!({"x": 1}))];
    for name in
        ["ctx_request_id", "disagg_request_id", "first_gen_tokens", "encoded_opaque_state", "ctx_dp_rank"]
    {
        let mut less = params.clone();
        less.as_object_mut().unwrap().remove(name);
        wrong.extend([less, with(params, json!({name: [1]}))]);
    }
    for params in wrong {
        let (status, why) =
            refused("", decode, CHAT, &with(&right, json!({"disaggregated_params": params}))).await;
        assert!(matches!(status, 400 | 500), "{status} {why}: {params}");
    }
    let mut ids = right["prompt_token_ids"].clone();
    ids[3] = json!(5);
    let (status, why) = refused("", decode, CHAT, &with(&right, json!({"prompt_token_ids": ids}))).await;
    assert!(status == 500 && why.contains("prompt is another"), "{status} {why}");
    assert_eq!(refused("", decode, CHAT, &context(&body, 1 << 50)).await.0, 400, "the wrong pod");
    assert_eq!(counts(prefill).await, [1, 0, 0]);
    whole("", decode, CHAT, &right).await;
    assert_eq!(refused("", decode, CHAT, &right).await.0, 500, "it is fetched once");
}

// All of them

/// A process of two pods, which ends with this.
struct Process(Child, Vec<SocketAddr>);

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pod-sim"))
            .args([
                "--pods",
                "2",
                "--port",
                "0",
                "--speedup",
                "inf",
                "--answer-tokens",
                "8",
                "--exit-with-parent",
            ])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2);
        let addresses =
            lines.map(|line| line.unwrap().strip_prefix("listening on ").unwrap().parse().unwrap());
        let addresses = addresses.collect();
        Self(child, addresses)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn processes_hand_over_to_each_other_and_forget_in_time() {
    // Below what systems give out by themselves, and another one in each run of these tests.
    let port = 10_000 + (std::process::id() % 10_000) as u16 * 2;
    let prefill = Process::start(&[
        "--kv-transfer",
        "nixl",
        "--role",
        "prefill",
        "--bootstrap-port",
        &port.to_string(),
        "--kv-ttl-seconds",
        "0.5",
    ]);
    let decode = Process::start(&["--kv-transfer", "nixl", "--role", "decode"]);
    let body = chat(100, json!({"max_tokens": 4}));
    let expected = ordinary(CHAT, &body).await;
    for (index, (p, d)) in prefill.1.iter().zip(&decode.1).enumerate() {
        let told = stats(*p).await;
        assert_eq!((&told["kv_port"], &told["role"]), (&json!(port + index as u16), &json!("prefill")));
        let params = nixl_handoff(*p, CHAT, &body).await;
        assert_eq!(params["remote_port"], port + index as u16);
        let body = with(&body, json!({"kv_transfer_params": params}));
        assert_eq!(whole("", *d, CHAT, &body).await, expected);
    }
    let params = nixl_handoff(prefill.1[0], CHAT, &body).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(counts(prefill.1[0]).await, [0, 1, 1]);
    assert_eq!(stats(prefill.1[0]).await["blocks_in_use"], 0);
    assert_eq!(
        refused("", decode.1[0], CHAT, &with(&body, json!({"kv_transfer_params": params}))).await.0,
        500
    );
}

#[tokio::test]
async fn an_answer_that_ends_at_its_first_token_may_leave_nothing_to_hand_over() {
    let body = chat(3, json!({"max_tokens": 4}));
    for (kind, hands_over) in [(Kind::Nixl, true), (Kind::Mooncake, false), (Kind::Trtllm, false)] {
        let prefill = member_with(kind, Role::Prefill, |options| options.answer_tokens = 0).await;
        let (asked, end) = match kind {
            Kind::Nixl => (nixl_prefill(&body), "stop"),
            Kind::Mooncake => (with(&body, mooncake(prefill, "xfer-1").await.0), "stop"),
            _ => (context(&body, 1 << 50), "stop"),
        };
        let (_, _, answer) = ask(prefill, "POST", CHAT, &asked).await;
        assert_eq!(answer["choices"][0]["finish_reason"], end, "{answer}");
        assert_eq!(counts(prefill).await[0], u64::from(hands_over), "{kind:?}");
        assert_eq!(answer["choices"][0].get("disaggregated_params"), None);
        if kind == Kind::Mooncake {
            let asked = with(&asked, json!({"min_tokens": 1}));
            let (_, _, answer) = ask(prefill, "POST", CHAT, &asked).await;
            assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
            assert_eq!(counts(prefill).await[0], 1);
        }
    }
}

#[tokio::test]
async fn a_fault_may_strike_one_leg() {
    let both = member(Kind::Nixl, Role::Both).await;
    let body = chat(100, json!({"max_tokens": 4}));
    let fault = async |fault: Value| assert_eq!(ask(both, "POST", "/sim/fault", &fault).await.0, 200);
    fault(json!({"kind": "status", "status": 503, "leg": "decode", "count": 1})).await;
    fault(json!({"kind": "status", "status": 500, "leg": "prefill", "count": 1})).await;
    whole("", both, CHAT, &body).await;
    assert_eq!(ask(both, "POST", CHAT, &nixl_prefill(&body)).await.0, 500);
    assert_eq!(counts(both).await, [0, 0, 0], "nothing was computed");
    let params = nixl_handoff(both, CHAT, &body).await;
    let decode = with(&body, json!({"kv_transfer_params": params}));
    assert_eq!(ask(both, "POST", CHAT, &decode).await.0, 503);
    assert_eq!(counts(both).await, [1, 0, 0], "nothing was fetched");
    fault(json!({"kind": "cut", "after_tokens": 2, "leg": "decode", "count": 1})).await;
    let cut = with(&decode, json!({"stream": true})).to_string();
    let cut = read_until(&mut open(both, "POST", CHAT, &cut).await, "never").await;
    assert!(cut.starts_with("HTTP/1.1 200") && !cut.contains("[DONE]"), "{cut}");
    assert_eq!(counts(both).await, [0, 1, 0]);
    fault(json!({"kind": "cut", "leg": "prefill", "count": 1})).await;
    read_until(&mut open(both, "POST", CHAT, &nixl_prefill(&body).to_string()).await, "never").await;
    assert_eq!(last_record(both).await["outcome"], "faulted");
    assert_eq!(counts(both).await, [1, 1, 0], "the KV is there, and nobody can know of it");
}

#[tokio::test]
async fn an_ordinary_pod_ignores_all_of_it() {
    let pod = pod().await;
    let body = chat(100, json!({"max_tokens": 4}));
    let expected = whole("", pod, CHAT, &body).await;
    let extra = json!({"kv_transfer_params": {"do_remote_prefill": true}, "bootstrap_room": "x",
        "disaggregated_params": {"request_type": "generation_only"}, "prompt_token_ids": [1]});
    assert_eq!(whole("___prefill_addr_", pod, CHAT, &with(&body, extra)).await, expected);
    assert_eq!(last_record(pod).await["kv"], Value::Null);
    assert_eq!(stats(pod).await["bootstrap"], Value::Null);
}
