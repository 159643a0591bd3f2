//! Bodies that go on before they are whole, or are held while more of them comes, lose nothing.
//!
//! Where a filter that held a part of a body goes on by itself, outside of a body callback, Envoy drops the next part
//! (envoyproxy/envoy#46841), or since that was mended sends twice what its router keeps for retries. So Warmpath goes on by
//! itself only where it holds no part of a body, or all of it.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use warmpath_tests::{Builder, Envoy, Pods, Request, wait_until};

const CHAT: &str = "/v1/chat/completions";
/// Bytes that the filter reads at most in these tests.
const LIMIT: usize = 100_000;

/// What stands behind Warmpath: nothing, what takes a body piece by piece, and what stops until it is whole.
fn behind() -> [Option<Value>; 3] {
    let code =
        "function envoy_on_request(request) for piece in request:bodyChunks() do piece:length() end end";
    let lua = json!({"name": "lua", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": code},
    }});
    let buffer = json!({"name": "buffer", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
        "max_request_bytes": 33_554_432,
    }});
    [None, Some(lua), Some(buffer)]
}

fn with(builder: Builder, filter: &Option<Value>) -> Builder {
    match filter {
        Some(filter) => builder.filter_behind(filter.clone()),
        None => builder,
    }
}

fn without_the_flag(builder: Builder) -> Builder {
    let wasm =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config";
    builder.edit(&format!("{wasm}/config/allow_on_headers_stop_iteration"), json!(false))
}

/// A chat of about so many bytes, of which no two pieces are equal.
fn chat(bytes: usize) -> Vec<u8> {
    let text: String = (0..bytes / 8).map(|n| format!("{n:07} ")).collect();
    json!({"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": text}]})
        .to_string()
        .into_bytes()
}

/// Sends it in so many pieces with pauses between, by both versions of HTTP, and holds what the pod gets against it.
#[track_caller]
fn arrives(what: &str, envoy: &Envoy, pods: &Pods, body: &[u8], pieces: usize, pause: Duration) {
    let pieces: Vec<_> = body.chunks(body.len() / pieces + 1).collect();
    for http2 in [false, true] {
        let mark = format!("{what}, http2: {http2}");
        let request = Request::chunked(CHAT, &pieces).paced(pause).header("x-mark", &mark);
        let answer = if http2 { request.http2() } else { request }.send(envoy);
        assert!(answer.header("x-pod").is_some(), "{mark}: {} {}", answer.status, answer.text());
        let seen = pods.seen_with("x-mark", &mark);
        assert_eq!(seen.len(), 1, "{mark}");
        seen[0].assert_body(body);
    }
    envoy.assert_no_trap();
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

#[test]
fn one_that_grows_over_the_filters_limit_goes_on_whole() {
    let pods = Pods::start(2, &[]);
    for filter in behind() {
        for via_filter_state in [false, true] {
            let mut builder = with(Envoy::builder().pods(&pods), &filter).concurrency(1);
            if via_filter_state {
                builder = builder.via_filter_state();
            }
            let envoy = builder.plugin("/limits/max_body_bytes", json!(LIMIT)).start();
            let what = format!("{filter:?} behind, via filter state: {via_filter_state}");
            arrives(&what, &envoy, &pods, &chat(3 * LIMIT), 12, Duration::from_millis(30));
            assert_eq!(stat(&envoy, "step_down_too_large"), 2, "{what}");
        }
    }
}

#[test]
fn one_that_envoy_does_not_show_goes_on_whole() {
    let pods = Pods::start(2, &[]);
    for filter in behind() {
        let envoy = without_the_flag(with(Envoy::builder().pods(&pods), &filter)).concurrency(1).start();
        let what = format!("{filter:?} behind, without the flag");
        // The guard sends it on a second after its headers, between two pieces.
        arrives(&what, &envoy, &pods, &chat(LIMIT), 8, Duration::from_millis(300));
        assert_eq!(stat(&envoy, "step_down_unheld"), 2, "{what}");
    }
}

#[test]
fn one_that_comes_late_goes_on_whole() {
    let pods = Pods::start(2, &[]);
    for filter in behind() {
        let envoy = with(Envoy::builder().pods(&pods), &filter).concurrency(1).start();
        let what = format!("{filter:?} behind, late");
        // The guard has sent it on when its first piece comes.
        arrives(&what, &envoy, &pods, &chat(LIMIT), 2, Duration::from_millis(1500));
        assert_eq!(stat(&envoy, "step_down_unheld"), 2, "{what}");
    }
}

/// Reads a request whose body is JSON.
fn read(socket: &mut TcpStream) {
    let (mut request, mut part) = (Vec::new(), [0; 65536]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") || !request.ends_with(b"}") {
        match socket.read(&mut part) {
            Ok(size @ 1..) => request.extend_from_slice(&part[..size]),
            _ => return,
        }
    }
}

/// Two decode pods. Whoever is asked first refuses in pieces that come over seconds; who is asked next, in its place, fails
/// between two of them.
fn refusing() -> [SocketAddr; 2] {
    let asked = Arc::new(AtomicUsize::new(0));
    [(); 2].map(|()| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = asked.clone();
        thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                let asked = asked.clone();
                thread::spawn(move || {
                    read(&mut socket);
                    const HEAD: &str = "HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\n";
                    if asked.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                        thread::sleep(Duration::from_millis(700));
                        let _ = write!(socket, "{HEAD}content-length: 2\r\n\r\nno");
                        return;
                    }
                    let _ = write!(socket, "{HEAD}transfer-encoding: chunked\r\n\r\n");
                    for piece in REFUSAL.split_inclusive(';') {
                        let _ = write!(socket, "{:x}\r\n{piece}\r\n", piece.len());
                        thread::sleep(Duration::from_millis(500));
                    }
                    let _ = write!(socket, "0\r\n\r\n");
                });
            }
        });
        address
    })
}

const REFUSAL: &str = "first;second;third;fourth;fifth;";

#[test]
fn a_refusal_that_was_held_for_another_pod_comes_whole() {
    let prefill = Pods::start(1, &["--kv-transfer", "nixl", "--role", "prefill", "--name", "prefill-1"]);
    let prefill = prefill.addresses()[0];
    let decode = refusing();
    let pod = |name: &str, role: &str, address: SocketAddr| json!({"name": name, "address": address.to_string(), "labels": {"role": role}});
    let workflow = json!({
        "protocol": {"type": "nixl"},
        "cluster": "pods",
        "remote_prefill": {"min_tokens": 0, "min_share": 0, "max_slowdown": 1000},
    });
    let envoy = Envoy::builder()
        .addresses(&[prefill, decode[0], decode[1]])
        .plugin(
            "/pods",
            json!([
                pod("p", "prefill", prefill),
                pod("d-1", "decode", decode[0]),
                pod("d-2", "decode", decode[1])
            ]),
        )
        .plugin("/workflows", json!({"pd": workflow}))
        .plugin("/workflow", json!("pd"))
        .plugin("/breaker", json!({"failures": 10_000}))
        .concurrency(1)
        .start();
    for (n, http2) in [false, true].into_iter().enumerate() {
        let request = Request::post(CHAT, chat(1000 * (n + 1))).header("content-type", "application/json");
        let answer = if http2 { request.http2() } else { request }.send(&envoy);
        assert_eq!((answer.status, answer.text().as_str()), (500, REFUSAL), "http2: {http2}");
        assert_eq!(stat(&envoy, "workflows_started_again"), n as u64 + 1, "http2: {http2}");
    }
    wait_until("the in-flight counts to return to zero", || stat(&envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}
