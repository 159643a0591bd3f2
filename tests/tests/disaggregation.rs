//! Prefill and decode at two pods, by each protocol, over several workers: the client sees what one pod would have answered.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;
use warmpath_tests::{Disaggregated, Envoy, Pods, Request, Response, breaks_off_http2, wait_until, words};

const CHAT: &str = "/v1/chat/completions";

fn body(number: usize) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": words(number, 200)}], "max_tokens": 12})
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
    let count =
        |pods: &Pods, leg: &str| pods.seen().iter().filter(|seen| seen.record["kv"]["leg"] == leg).count();
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

/// Sends a request that asks why.
fn send(envoy: &Envoy, body: &Value) -> Response {
    Request::json(CHAT, body).header("x-warmpath-debug", "1").send(envoy)
}

/// How many requests the pods got on a leg.
fn legs(pods: &Pods, leg: &str) -> usize {
    pods.seen().iter().filter(|seen| seen.record["kv"]["leg"] == leg).count()
}

/// How many inference requests the pods got.
fn asked(pods: &Pods) -> usize {
    pods.seen().len()
}

fn at(pods: &Pods, fault: Value) {
    for pod in 0..pods.addresses().len() {
        pods.fault(pod, &fault);
    }
}

#[test]
fn what_the_prefill_pod_says_is_wrong_with_a_request_goes_to_the_client_as_it_is() {
    for protocol in ["nixl", "p2p-nccl"] {
        let pods = Disaggregated::start(protocol, 2, 2, &[]);
        let envoy = pods.envoy(json!({})).start();
        let mut wrong = body(1);
        wrong["model"] = json!("no-such-model");
        let there = Request::json(CHAT, &wrong).send(Pods::start(1, &[]).addresses()[0]);
        for stream in [false, true] {
            wrong["stream"] = json!(stream);
            let answer = send(&envoy, &wrong);
            assert_eq!((answer.status, answer.text()), (404, there.text()), "{protocol}");
            assert_eq!(answer.header("content-type"), there.header("content-type"));
        }
        assert_eq!((asked(&pods.prefill), asked(&pods.decode)), (2, 0), "tried once, and nobody decodes");
        assert_eq!(stat(&envoy, "prefills_refused"), 2);
        assert_eq!(stat(&envoy, "pods_failed"), 0, "it is no fault of the pod's");
        assert_nothing_in_flight(&envoy);
    }
}

#[test]
fn a_prefill_pod_that_fails_is_replaced_and_when_all_do_one_pod_does_it() {
    for (protocol, fault) in [
        ("nixl", json!({"kind": "status", "status": 500})),
        ("mooncake", json!({"kind": "refuse"})),
        ("trtllm", json!({"kind": "status", "status": 503, "retry_after": 1})),
    ] {
        let pods = Disaggregated::start(protocol, 2, 2, &[]);
        let envoy = pods.envoy(json!({})).start();
        pods.prefill.fault(0, &fault);
        let mut failed = 0;
        for round in 0..20 {
            // Some at once, or the pod that answers might be the better one every time.
            thread::scope(|scope| {
                for n in 3 * round..3 * round + 3 {
                    let (envoy, fault) = (&envoy, &fault);
                    scope.spawn(move || {
                        let answer = send(envoy, &body(n));
                        assert_eq!(
                            (answer.status, text(&answer)),
                            (200, alone(&body(n))),
                            "{protocol} {fault}"
                        );
                        let prefill = answer.header("x-warmpath-prefill-pod");
                        assert_eq!(prefill, Some("prefill-2"), "{protocol} {fault}");
                    });
                }
            });
            failed = stat(&envoy, "prefills_failed");
            if failed > 0 {
                break;
            }
        }
        assert!(failed > 0, "nobody was sent to the pod that fails");
        assert_eq!(stat(&envoy, "prefills_retried"), failed);
        at(&pods.prefill, fault.clone());
        for n in 100..102 {
            let answer = send(&envoy, &body(n));
            assert_eq!((answer.status, text(&answer)), (200, alone(&body(n))), "{protocol}");
            assert_eq!(answer.header("x-warmpath-prefill-pod"), None);
            assert!(answer.header("x-warmpath-aggregated").is_some());
        }
        assert_eq!(legs(&pods.decode, "alone"), 2, "they prefilled by themselves, and got no handoff");
        assert_nothing_in_flight(&envoy);
    }
}

#[test]
fn a_prefill_that_takes_too_long_is_not_waited_for() {
    let pods = Disaggregated::start("nixl", 1, 1, &[]);
    let envoy = pods.envoy(json!({"prefill": {"timeout_seconds": 1, "attempts": 1}})).start();
    pods.prefill.fault(0, &json!({"kind": "hang"}));
    let (body, start) = (body(1), std::time::Instant::now());
    let answer = send(&envoy, &body);
    let took = start.elapsed().as_secs_f32();
    assert_eq!((answer.status, text(&answer)), (200, alone(&body)));
    assert!(took > 0.8, "{took} s");
    assert_eq!(answer.header("x-warmpath-aggregated"), Some("prefill failed"));
    assert_nothing_in_flight(&envoy);
}

#[test]
fn without_a_pod_that_serves_alone_a_failed_prefill_is_said() {
    let pods = Disaggregated::start("p2p-nccl", 1, 1, &[]);
    let envoy = pods.envoy(json!({})).start();
    pods.prefill.fault(0, &json!({"kind": "status", "status": 500}));
    let answer = send(&envoy, &body(1));
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.json()["error"]["type"], "service_unavailable");
    assert_eq!(asked(&pods.decode), 0, "it would never answer");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_failed_prefill_ends_a_request_that_is_on_its_way_to_decode() {
    let pods = Disaggregated::start("sglang", 1, 1, &["--transfer-timeout-seconds", "60"]);
    let envoy = pods.envoy(json!({})).start();
    for (n, (fault, status)) in [
        (json!({"kind": "status", "status": 500, "count": 1}), 503),
        (json!({"kind": "refuse", "count": 1}), 503),
        (json!({"kind": "status", "status": 422, "count": 1}), 422),
    ]
    .into_iter()
    .enumerate()
    {
        pods.prefill.fault(0, &fault);
        let start = std::time::Instant::now();
        let answer = send(&envoy, &body(n));
        assert_eq!(answer.status, status, "{fault}: {}", answer.text());
        assert!(start.elapsed().as_secs() < 20, "the decode pod would wait for a minute");
    }
    assert_eq!(stat(&envoy, "workflows_unserved"), 3);
    assert_nothing_in_flight(&envoy);
}

/// A pod that reads a request, waits, and then says so much.
fn scripted(wait: Duration, answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || {
                let (mut socket, mut request, mut part) = (socket, Vec::new(), [0; 65536]);
                while !request.windows(4).any(|end| end == b"\r\n\r\n") || !request.ends_with(b"}") {
                    match socket.read(&mut part) {
                        Ok(size @ 1..) => request.extend_from_slice(&part[..size]),
                        _ => return,
                    }
                }
                thread::sleep(wait);
                let _ = socket.write_all(answer.as_bytes());
                // And no more, until the other leaves.
                let _ = socket.read(&mut part);
            });
        }
    });
    address
}

#[test]
fn a_failed_prefill_breaks_off_a_stream_that_has_begun_without_a_token() {
    const BEGUN: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    const FAILED: &str =
        "HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
    let prefill = scripted(Duration::from_millis(1500), FAILED);
    let decode = scripted(Duration::ZERO, BEGUN);
    let pod = |name: &str, role: &str, address: SocketAddr| json!({"name": name, "address": address.to_string(), "labels": {"role": role}});
    let envoy = Envoy::builder()
        .addresses(&[prefill, decode])
        .plugin("/pods", json!([pod("p", "prefill", prefill), pod("d", "decode", decode)]))
        .plugin("/workflows", json!({"pd": {"protocol": {"type": "sglang"}, "cluster": "pods"}}))
        .plugin("/breaker", json!({"failures": 10_000}))
        .plugin("/workflow", json!("pd"))
        .start();
    for http2 in [false, true] {
        for n in 0..2 {
            let mut body = body(n);
            body["stream"] = json!(true);
            let request = Request::json(CHAT, &body);
            let start = std::time::Instant::now();
            let stream = if http2 { request.http2() } else { request }.stream(&envoy);
            if stream.status() != 200 {
                panic!("{n}: {:?}", stream.finish().map(|answer| answer.text()));
            }
            let seems_whole = stream.finish().is_ok();
            assert!(!seems_whole || (http2 && !breaks_off_http2()), "it can't look whole");
            assert!(start.elapsed() < Duration::from_secs(15), "nobody waits for a decode that can't come");
        }
    }
    assert_eq!(stat(&envoy, "workflows_unserved"), 4);
    assert_nothing_in_flight(&envoy);
}

#[test]
fn without_its_prefill_a_pair_is_replaced_by_one_pod_that_does_all() {
    let pods = Disaggregated::start("sglang", 1, 1, &["--transfer-timeout-seconds", "60"]).with_whole(&[]);
    let envoy = pods.envoy(json!({})).start();
    for (n, stream) in [(1, false), (2, true)] {
        pods.prefill.fault(0, &json!({"kind": "status", "status": 500, "count": 1}));
        let mut body = body(n);
        let expected = alone(&body);
        body["stream"] = json!(stream);
        let answer = send(&envoy, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(if stream { streamed(&answer) } else { text(&answer) }, expected);
    }
    assert_eq!(stat(&envoy, "workflows_started_again"), 2);
    assert_eq!(pods.whole.as_ref().map(asked), Some(2));
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_conversation_stays_with_its_pair_though_other_pods_serve_alone() {
    let pods = Disaggregated::start("sglang", 1, 1, &[]).with_whole(&[]);
    let envoy = pods.envoy(json!({"remote_prefill": {"min_tokens": 64, "min_share": 0.3}})).start();
    for turn in 1..4 {
        let mut body = body(1);
        body["messages"][0]["content"] = json!(words(1, 200 * turn));
        let answer = send(&envoy, &body);
        assert_eq!((answer.status, answer.header("x-pod")), (200, Some("decode-1")), "turn {turn}");
    }
    assert_nothing_in_flight(&envoy);
}

#[test]
fn requests_that_can_t_be_split_go_to_pods_that_serve_them_alone() {
    let pods = Disaggregated::start("sglang", 1, 1, &[]).with_whole(&[]);
    let envoy = pods.envoy(json!({})).start();
    let mut several = body(1);
    several["n"] = json!(2);
    let answer = send(&envoy, &several);
    assert_eq!((answer.status, answer.header("x-pod")), (200, Some("whole-1")), "{}", answer.text());
    assert_eq!(answer.json()["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer.header("x-warmpath-aggregated"), Some("several answers are asked for"));
    // A failed prefill ends the pair; the next request is served as a whole.
    let answer = send(&envoy, &body(2));
    assert_eq!((answer.status, answer.header("x-pod")), (200, Some("decode-1")));
    drop(pods.prefill);
    wait_until("the prefill pod to be left", || {
        let answer = send(&envoy, &body(3));
        answer.status == 200 && answer.header("x-pod") == Some("whole-1")
    });
    assert_nothing_in_flight(&envoy);
}

#[test]
fn short_and_cached_prompts_are_not_prefilled_elsewhere() {
    let pods = Disaggregated::start("nixl", 1, 1, &[]);
    let envoy = pods.envoy(json!({"remote_prefill": {"min_tokens": 300, "min_share": 0.3}})).start();
    let mut short = body(1);
    short["messages"][0]["content"] = json!("a few words");
    let answer = send(&envoy, &short);
    assert_eq!(answer.header("x-warmpath-aggregated"), Some("the prompt is short"));
    let mut long = body(1);
    long["messages"][0]["content"] = json!(words(5, 1000));
    let answer = send(&envoy, &long);
    assert_eq!(answer.header("x-warmpath-prefill-pod"), Some("prefill-1"));
    // The decode pod holds it now.
    let answer = send(&envoy, &long);
    assert_eq!(answer.header("x-warmpath-aggregated"), Some("the decode pod holds most of it"));
    assert_eq!(
        (stat(&envoy, "aggregated_short"), stat(&envoy, "aggregated_held"), stat(&envoy, "prefills_remote")),
        (1, 1, 1)
    );
    assert_eq!(legs(&pods.prefill, "prefill"), 1);
}

#[test]
fn a_decode_pod_that_refuses_is_replaced_and_nobody_else_gets_its_handoff() {
    for (protocol, folder) in [
        ("nixl", "prefill-decode-nixl"),
        ("mooncake", "prefill-decode-mooncake"),
        ("trtllm", "prefill-decode-tensorrt-llm"),
    ] {
        for fault in [
            json!({"kind": "status", "status": 503}),
            json!({"kind": "refuse"}),
            json!({"kind": "status", "status": 500}),
        ] {
            let pods = Disaggregated::start(protocol, 1, 2, &[]);
            let envoy = pods.example(folder).start();
            pods.decode.fault(0, &fault);
            let mut again = 0;
            for n in 0..20 {
                let mut body = body(n);
                body["messages"][0]["content"] = json!(words(n, 600));
                let expected = alone(&body);
                let stream = n % 2 == 0;
                body["stream"] = json!(stream);
                let answer = send(&envoy, &body);
                assert_eq!(answer.status, 200, "{protocol} {fault}: {}", answer.text());
                let got = if stream { streamed(&answer) } else { text(&answer) };
                assert_eq!(got, expected, "{protocol} {fault}");
                again = stat(&envoy, "workflows_started_again");
                if again > 1 {
                    break;
                }
            }
            assert!(again > 0, "nobody was sent to the pod that refuses");
            assert_eq!(stat(&envoy, "handoffs_lost"), again, "their KV is held until its time is over");
            let seen = pods.decode.seen();
            let whole =
                seen.iter().filter(|seen| seen.pod == 1 && seen.record["kv"]["leg"] == "alone").count();
            assert_eq!(whole as u64, again, "the other pod did them, without a handoff");
            assert_nothing_in_flight(&envoy);
        }
    }
}

#[test]
fn a_client_that_leaves_during_prefill_is_not_decoded() {
    let pods = Disaggregated::start("nixl", 1, 1, &[]);
    let envoy = pods.envoy(json!({})).start();
    pods.prefill.fault(0, &json!({"kind": "hang"}));
    let request = Request::json(CHAT, &body(1)).http2().start(&envoy).expect("it is sent");
    request.until("the prefill to begin", || asked(&pods.prefill) > 0);
    request.cancel();
    request.until("the client to be missed", || stat(&envoy, "prefills_abandoned") == 1);
    assert!(stat(&envoy, "prefill_tokens_abandoned") > 100);
    // It ends, and nobody waits for it any more.
    Request::post("/sim/reset", "").send(pods.prefill.addresses()[0]);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(asked(&pods.decode), 0);
    assert_nothing_in_flight(&envoy);
}

#[test]
fn what_a_client_may_not_say_reaches_no_pod() {
    let pods = Disaggregated::start("nixl", 1, 1, &[]);
    let envoy = pods.envoy(json!({"remote_prefill": {"min_tokens": 300}})).start();
    for content in ["a few words".to_owned(), words(1, 1000)] {
        let mut body = body(1);
        body["messages"][0]["content"] = json!(content);
        body["kv_transfer_params"] = json!({"do_remote_prefill": true, "remote_host": "10.9.9.9"});
        body["vllm_xargs"] = json!({"kv_transfer_params": "", "mine": 1});
        let request = Request::json(CHAT, &body).header("x-warmpath-handoff", "7");
        assert_eq!(request.send(&envoy).status, 200);
    }
    let seen = [pods.prefill.seen(), pods.decode.seen()].concat();
    assert_eq!(seen.len(), 3);
    for seen in seen {
        let body = seen.record["body"].as_str().expect("a body");
        assert!(!body.contains("10.9.9.9") && body.contains("mine"), "{body}");
        assert_ne!(seen.header("x-warmpath-handoff"), Some("7"));
    }
    // Wherever it is sent: engines have more paths than are known here, and more ways to write them.
    for path in ["/v1/chat/completion%73", "/invocations", "/tokenize"] {
        let hostile = json!({"kv_transfer_params": {"remote_host": "10.9.9.9"}, "mine": 1, "messages": []});
        let _ = Request::json(path, &hostile).send(&envoy);
    }
    for seen in [pods.prefill.seen(), pods.decode.seen()].concat() {
        let body = seen.record["body"].as_str().unwrap_or_default();
        assert!(!body.contains("10.9.9.9"), "{body}");
    }
    // What can't be read can't be looked through.
    for (kind, text, status) in [
        ("application/json", "{\"kv_transfer_params\": {}, \"temperature\": NaN}", 400),
        ("text/plain", "{}", 415),
        ("application/json", "\u{feff}{}", 400),
    ] {
        let answer = Request::post(CHAT, text).header("content-type", kind).send(&envoy);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.json()["error"]["message"].is_string());
    }
    // What is no inference call goes on.
    assert_eq!(Request::get("/v1/models").send(&envoy).status, 200);
}

#[test]
fn the_client_s_own_bytes_reach_both_pods() {
    let pods = Disaggregated::start("nixl", 1, 1, &[]);
    let envoy = pods.envoy(json!({})).start();
    let words = words(3, 100);
    let text = format!(
        "{{ \"model\":\"sim\" , \"messages\":[{{\"role\":\"user\",\"content\":\"{words}\"}}],\"seed\":18446744073709551615,\"x\":1.50e+00,\"max_tokens\" : 7,\"u\":\"\\u00e9\"}}\n"
    );
    for request in [
        Request::post(CHAT, text.clone()),
        Request::chunked(CHAT, &[&text.as_bytes()[..50], &text.as_bytes()[50..]]),
        Request::post(CHAT, text.clone()).trailer("x-end", "1"),
    ] {
        let answer = request
            .header("content-type", "application/json")
            .header("authorization", "Bearer k")
            .send(&envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for (pods, leg) in [(&pods.prefill, "prefill"), (&pods.decode, "decode")] {
        let all = pods.seen();
        assert_eq!(all.len(), 3);
        for seen in all {
            let body = seen.record["body"].as_str().expect("a body");
            let start =
                text.split(", \"max_tokens\"").next().unwrap().split(",\"max_tokens\"").next().unwrap();
            assert!(body.starts_with(start), "{leg}: {body}");
            assert!(body.contains("\"u\":\"\\u00e9\""), "{leg}: {body}");
            assert_eq!(seen.header("content-length"), Some(body.len().to_string().as_str()));
            assert_eq!(seen.header("authorization"), Some("Bearer k"));
        }
    }
    let ids = |pods: &Pods| {
        pods.seen().iter().map(|seen| seen.header("x-request-id").unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&pods.prefill), ids(&pods.decode), "one name for both legs");
}

#[test]
fn a_decode_pod_that_can_t_be_reached_leaves_its_handoff_to_the_next() {
    for (protocol, folder) in [("nixl", "prefill-decode-nixl"), ("trtllm", "prefill-decode-tensorrt-llm")] {
        let mut pods = Disaggregated::start(protocol, 1, 1, &[]);
        // An address at which nobody listens is the more attractive one until it has failed.
        let gone =
            std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        pods.gone.push(gone);
        let envoy = pods.example(folder).start();
        let mut moved = 0;
        for n in 0..12 {
            let mut body = body(n);
            body["messages"][0]["content"] = json!(words(n, 600));
            let expected = alone(&body);
            let answer = send(&envoy, &body);
            assert_eq!((answer.status, text(&answer)), (200, expected), "{protocol}");
            assert_eq!(answer.header("x-pod"), Some("decode-1"));
            moved = stat(&envoy, "moved");
            if moved > 0 {
                break;
            }
        }
        assert!(moved > 0, "nobody was sent to the address");
        assert_eq!((stat(&envoy, "workflows_started_again"), stat(&envoy, "handoffs_lost")), (0, 0));
        assert_eq!(pods.held(), 0, "the one handoff was used");
        assert_nothing_in_flight(&envoy);
    }
}

/// The text of an answer that isn't streamed.
fn said(path: &str, answer: &Response) -> String {
    let json = answer.json();
    let text = match path {
        CHAT => &json["choices"][0]["message"]["content"],
        "/v1/completions" => &json["choices"][0]["text"],
        "/v1/responses" => &json["output"][0]["content"][0]["text"],
        "/v1/messages" => &json["content"][0]["text"],
        _ => &json["text"],
    };
    text.as_str().unwrap_or_else(|| panic!("{path}: {json}")).to_owned()
}

#[test]
fn every_endpoint_and_spelling_comes_out_as_one_pod_says_it() {
    let (words, function) =
        (words(5, 200), json!({"name": "f", "parameters": {"type": "object", "properties": {}}}));
    let messages = json!([{"role": "user", "content": words}]);
    let tools = json!([{"type": "function", "function": function}]);
    let chat = |more: Value| {
        let mut body = json!({"model": "sim", "messages": messages});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        (CHAT, body)
    };
    let completion =
        |prompt: Value| ("/v1/completions", json!({"model": "sim", "prompt": prompt, "max_tokens": 9}));
    let common = [
        chat(json!({"max_tokens": 9})),
        chat(json!({"max_completion_tokens": 9, "temperature": 0, "seed": 18_446_744_073_709_551_615_u64})),
        chat(json!({})),
        chat(json!({"max_tokens": 9, "min_tokens": 3, "stop": ["never"]})),
        chat(json!({"max_tokens": 9, "logprobs": true, "top_logprobs": 2})),
        chat(json!({"max_tokens": 9, "tools": tools, "tool_choice": "required"})),
        chat(
            json!({"max_tokens": 9, "tools": tools, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ),
        chat(json!({"max_tokens": 9, "response_format": {"type": "json_object"}})),
        completion(json!(words)),
        completion(json!([words])),
        completion(json!((0..400).collect::<Vec<u32>>())),
    ];
    let more = [
        ("/v1/responses", json!({"model": "sim", "input": words, "max_output_tokens": 9})),
        ("/v1/messages", json!({"model": "sim", "messages": messages, "max_tokens": 9})),
        ("/generate", json!({"text": words, "sampling_params": {"max_new_tokens": 9}})),
    ];
    let one = Pods::start(1, &[]);
    for (protocol, of_more) in
        [("nixl", 0..2), ("mooncake", 0..2), ("sglang", 0..3), ("trtllm", 0..0), ("p2p-nccl", 0..0)]
    {
        let pods = Disaggregated::start(protocol, 1, 1, &[]);
        let envoy = pods.envoy(json!({})).start();
        for (path, body) in common.iter().chain(&more[of_more]) {
            let answer = Request::json(path, body).header("x-warmpath-debug", "1").send(&envoy);
            assert_eq!(answer.status, 200, "{protocol} {path} {body}: {}", answer.text());
            assert_eq!(
                answer.header("x-warmpath-prefill-pod"),
                Some("prefill-1"),
                "{protocol} {path} {body}"
            );
            let alone = Request::json(path, body).send(one.addresses()[0]);
            assert_eq!(said(path, &answer), said(path, &alone), "{protocol} {path} {body}");
        }
        assert_nothing_in_flight(&envoy);
    }
}
