//! Requests that are wrong, odd or hostile. Each goes to a pod as it came, gets the pod's own answer, and leaves the
//! filter able to serve the next one: one worker takes them all, so that the next meets the same VM.

use serde_json::json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use warmpath_tests::{Envoy, Head, Pods, Raw, Request, Response, Seen, root};

const CHAT: &str = "/v1/chat/completions";

/// The most that the shipped Envoy configuration lets Envoy hold of a request, 32 MiB.
const ENVOYS_LIMIT: usize = 33_554_432;

struct Stand {
    pods: Pods,
    envoy: Envoy,
}

/// The stand that all tests of this file share, in the hands of one of them.
struct Shared(&'static Stand);

fn stand() -> Shared {
    static STAND: LazyLock<Stand> = LazyLock::new(|| {
        let pods = Pods::start(3, &["--journal", "64"]);
        // HTTP/1.1 trailers pass only where Envoy is told so; HTTP/2 trailers always do.
        let envoy = Envoy::builder()
            .pods(&pods)
            .concurrency(1)
            .hcm("/http_protocol_options", json!({"enable_trailers": true}))
            .upstream_http("/explicit_http_config/http_protocol_options", json!({"enable_trailers": true}))
            .start();
        Stand { pods, envoy }
    });
    Shared(&STAND)
}

impl Deref for Shared {
    type Target = Stand;

    fn deref(&self) -> &Stand {
        self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.envoy.print_log();
        }
    }
}

impl Stand {
    /// Sends a request; returns the answer and the pods' only record of it.
    #[track_caller]
    fn send(&self, request: Request) -> (Response, Seen) {
        let mark = mark();
        let answer = request.header("x-mark", &mark).send(&self.envoy);
        (answer, self.only(&mark))
    }

    /// The pods' only record of the request with this mark.
    #[track_caller]
    fn only(&self, mark: &str) -> Seen {
        let mut seen = self.pods.seen_with("x-mark", mark);
        assert_eq!(seen.len(), 1, "one pod gets the request once: {seen:?}");
        seen.remove(0)
    }

    /// The worker's VM is alive and takes the next request at once; a trapped one would answer 503.
    #[track_caller]
    fn serves_the_next(&self) {
        let answer = Request::chat("And now?").send(&self.envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.envoy.assert_no_trap();
    }

    /// The filter chose the pod; it wasn't Envoy's fallback.
    #[track_caller]
    fn assert_named(&self, seen: &Seen) {
        let named = seen.header("x-gateway-destination-endpoint").expect("the filter names a pod");
        let first: SocketAddr =
            named.split(',').next().unwrap_or_default().trim().parse().expect("an address");
        assert_eq!(first, self.pods.addresses()[seen.pod]);
    }

    /// The request reaches one pod, which the filter named, with exactly this body; the client gets what that pod
    /// answers, and the next request is served.
    #[track_caller]
    fn passes(&self, request: Request, body: &[u8]) -> (Response, Seen) {
        let (answer, seen) = self.send(request);
        seen.assert_body(body);
        self.assert_named(&seen);
        assert_eq!(Some(u64::from(answer.status)), seen.record["status"].as_u64(), "{}", answer.text());
        assert!(answer.header("x-pod").is_some(), "the answer is a pod's");
        self.serves_the_next();
        (answer, seen)
    }

    /// A body that an engine refuses: by HTTP/1.1 of known length, in chunks, and by HTTP/2.
    #[track_caller]
    fn pod_refuses(&self, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let whole = Request::post(CHAT, body.to_vec()).header("content-type", "application/json");
        let pieces: Vec<_> = body.chunks(body.len() / 3 + 1).collect();
        for request in [whole.clone(), Request::chunked(CHAT, &pieces), whole.http2()] {
            let (answer, _) = self.passes(request, body);
            assert_eq!(answer.status, 400, "{}", answer.text());
        }
    }
}

fn mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("mark-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn chat_of_bytes(content: &[u8]) -> Vec<u8> {
    [br#"{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":""#, content, br#""}]}"#].concat()
}

#[test]
fn malformed_json() {
    for body in ["{", "nonsense", "{\"model\":\"sim\",}", "[1,2", "{\"model\" \"sim\"}", "\u{0}", "{}{}", "'"]
    {
        stand().pod_refuses(body);
    }
}

#[test]
fn json_of_another_shape() {
    for body in [
        "[]",
        "null",
        "7",
        "\"text\"",
        "{}",
        r#"{"model":7,"messages":[{"role":"user","content":"x"}]}"#,
        r#"{"model":"sim","messages":{}}"#,
        r#"{"model":"sim","messages":[7]}"#,
        r#"{"model":"sim","messages":[{"role":"user","content":{"a":1}}]}"#,
        r#"{"model":"sim","messages":[],"stream":"yes"}"#,
    ] {
        stand().pod_refuses(body);
    }
}

#[test]
fn truncated_json() {
    let whole =
        json!({"model": "sim", "messages": [{"role": "user", "content": "Grüße \u{1f30d}"}]}).to_string();
    for end in [1, whole.len() / 3, whole.len() / 2, whole.len() - 12, whole.len() - 2, whole.len() - 1] {
        stand().pod_refuses(&whole.as_bytes()[..end]);
    }
}

#[test]
fn deep_nesting() {
    for depth in [200, 100_000] {
        stand().pod_refuses([vec![b'['; depth], vec![b']'; depth]].concat());
        stand().pod_refuses(r#"{"a":"#.repeat(depth));
        let within = [b"{\"model\":\"sim\",\"messages\":".as_slice(), &vec![b'['; depth], b"}"].concat();
        stand().pod_refuses(within);
    }
}

#[test]
fn deep_nesting_where_nobody_looks() {
    let deep = [vec![b'['; 100], vec![b']'; 100]].concat();
    let body = [b"{\"metadata\":".as_slice(), &deep, b",", &chat_of_bytes(b"x")[1..]].concat();
    let (answer, _) = stand().passes(Request::post(CHAT, body.clone()), &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn duplicate_keys() {
    let body = r#"{"model":"none","model":"sim","messages":[{"role":"user","content":"a","content":"b"}],
        "messages":[{"role":"user","role":"user","content":"c"}],"max_tokens":1,"stream":true,"stream":false}"#;
    let (answer, _) = stand().passes(Request::post(CHAT, body), body.as_bytes());
    // What a repeated key means is the engine's to say, and whatever it says is what the client gets.
    assert!([200, 400].contains(&answer.status), "{}", answer.text());
}

#[test]
fn invalid_utf8() {
    for bytes in
        [b"\xff".as_slice(), b"\xc3", b"a\xe2\x82", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80"]
    {
        stand().pod_refuses(chat_of_bytes(bytes));
    }
    stand().pod_refuses(b"{\"model\":\"si\xffm\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
}

#[test]
fn lone_surrogates() {
    for escape in [r"\ud800", r"\udc00", r"\ud83c\ud83c", r"\ud800x", r"\uD800\n"] {
        let body = chat_of_bytes(escape.as_bytes());
        let (answer, _) = stand().passes(Request::post(CHAT, body.clone()), &body);
        assert!([200, 400].contains(&answer.status), "{}", answer.text());
    }
    stand().pod_refuses(chat_of_bytes(br"\u12"));
    stand().pod_refuses(chat_of_bytes(br"\x41"));
    stand().pod_refuses(chat_of_bytes(b"a\nb"));
}

#[test]
fn empty_body() {
    let stand = stand();
    for request in [
        Request::post(CHAT, ""),
        Request::post(CHAT, "").http2(),
        Request::chunked(CHAT, &[]),
        Request::get(CHAT).method("POST"),
        Request::get(CHAT).method("POST").http2(),
        // Chunked, with no chunk but the last.
        Request::chunked(CHAT, &[b""]).trailer("x-end", "1"),
        Request::chunked(CHAT, &[]).trailer("x-end", "1").http2(),
    ] {
        let (answer, _) = stand.passes(request, b"");
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
}

fn chat_of_length(length: usize) -> Vec<u8> {
    let body = chat_of_bytes(&vec![b'a'; length - chat_of_bytes(b"").len()]);
    assert_eq!(body.len(), length);
    body
}

#[test]
fn a_body_at_the_filters_limit_is_read_and_one_over_it_goes_on_unread() {
    let limit = 2 << 20;
    let pods = Pods::start(2, &[]);
    let envoy =
        Envoy::builder().pods(&pods).concurrency(1).plugin("/limits/max_body_bytes", json!(limit)).start();
    let stand = Stand { pods, envoy };
    let unread = || stand.envoy.stat("wasmcustom.warmpath.step_down_too_large");
    for request in Request::all_ways(CHAT, &chat_of_length(limit)) {
        stand.passes(request, &chat_of_length(limit));
    }
    assert_eq!(unread(), 0);
    for request in Request::all_ways(CHAT, &chat_of_length(limit + 1)) {
        stand.passes(request, &chat_of_length(limit + 1));
    }
    assert_eq!(unread(), 4, "each is counted");
    // Longer even than what Envoy would hold: it isn't held.
    let body = chat_of_length(ENVOYS_LIMIT + 1);
    let [whole, _, _, chunked_http2] = Request::all_ways(CHAT, &body);
    for request in [whole, chunked_http2] {
        stand.passes(request, &body);
    }
    assert_eq!(unread(), 6);
}

#[test]
fn a_body_over_envoys_limit_is_answered_with_413() {
    let limit = 1 << 20;
    let pods = Pods::start(2, &[]);
    // By HTTP/2, Envoy holds as much as the stream's window where that is more.
    let envoy = Envoy::builder()
        .pods(&pods)
        .concurrency(1)
        .hcm("/route_config/virtual_hosts/0/request_body_buffer_limit", json!(limit))
        .hcm("/http2_protocol_options/initial_stream_window_size", json!(limit))
        .start();
    let stand = Stand { pods, envoy };
    for request in Request::all_ways(CHAT, &chat_of_length(limit)) {
        stand.passes(request, &chat_of_length(limit));
    }
    for request in Request::all_ways(CHAT, &chat_of_length(limit + 1)) {
        let mark = mark();
        let answer = request.header("x-mark", &mark).send(&stand.envoy);
        assert_eq!(answer.status, 413, "{}", answer.text());
        assert!(stand.pods.seen_with("x-mark", &mark).is_empty(), "it reaches no pod");
        stand.serves_the_next();
    }
}

#[test]
fn wrong_content_type() {
    let stand = stand();
    let body = chat_of_bytes(b"x");
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "", "nonsense"]
    {
        let (answer, _) = stand.passes(Request::post(CHAT, body.clone()).header("content-type", kind), &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    stand.passes(Request::post(CHAT, body.clone()), &body);
    let form = "model=sim&prompt=x";
    stand.pod_refuses(form);
}

#[test]
fn gzip() {
    let stand = stand();
    let body = gzipped(&chat_of_bytes(b"compressed"));
    let request = Request::post(CHAT, body.clone()).header("content-encoding", "gzip");
    let (_, seen) = stand.passes(request.clone(), &body);
    assert_eq!(seen.header("content-encoding"), Some("gzip"));
    stand.passes(request.http2(), &body);
    // Not what it says it is.
    stand.passes(
        Request::post(CHAT, chat_of_bytes(b"x")).header("content-encoding", "gzip"),
        &chat_of_bytes(b"x"),
    );
}

/// A gzip stream with one stored block (RFC 1951, 3.2.4). Its checksum is left 0: nobody here unpacks it.
fn gzipped(data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("a short text");
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    let lengths = [length.to_le_bytes(), (!length).to_le_bytes()].concat();
    [&header, &*lengths, data, &[0; 4], &u32::from(length).to_le_bytes()].concat()
}

#[test]
fn trailers() {
    let stand = stand();
    let body = chat_of_bytes(b"with trailers");
    for request in [
        Request::post(CHAT, body.clone()).trailer("x-sum", "abc"),
        Request::chunked(CHAT, &[&body[..9], &body[9..]]).trailer("x-sum", "abc"),
        Request::post(CHAT, body.clone()).trailer("x-sum", "abc").http2(),
        Request::chunked(CHAT, &[&body[..9], &body[9..]]).trailer("x-sum", "abc").http2(),
    ] {
        let (answer, seen) = stand.passes(request, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(seen.record["trailers"]["x-sum"], "abc");
    }
    let (_, seen) = stand.passes(Request::post("/unknown", "x").trailer("x-sum", "abc").http2(), b"x");
    assert_eq!(seen.record["trailers"]["x-sum"], "abc");
}

#[test]
fn trailers_as_the_shipped_configuration_takes_them() {
    let pods = Pods::start(1, &[]);
    let envoy = Envoy::builder().pods(&pods).concurrency(1).start();
    let body = chat_of_bytes(b"with trailers");
    for request in [Request::post(CHAT, body.clone()), Request::post(CHAT, body.clone()).http2()] {
        let answer = request.trailer("x-sum", "abc").send(&envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for seen in pods.seen() {
        seen.assert_body(&body);
    }
    envoy.assert_no_trap();
}

#[test]
fn http2() {
    let stand = stand();
    let body = chat_of_bytes(&vec![b'a'; 300_000]);
    for request in [Request::post(CHAT, body.clone()), Request::chunked(CHAT, &[&body])] {
        stand.passes(request.http2(), &body);
    }
    let (answer, _) = stand.passes(Request::get("/v1/models").http2(), b"");
    assert_eq!(answer.status, 200);
}

#[test]
fn routing_headers_of_a_client_steer_nothing() {
    let stand = stand();
    let forged = |request: Request| {
        let target = stand.pods.addresses()[0].to_string();
        request
            .header("x-gateway-destination-endpoint", &target)
            .header("X-Gateway-Destination-Endpoint", format!("{target},{target}"))
            .header("x-gateway-destination-endpoint-subset", &target)
            .header("x-gateway-destination-endpoint-served", &target)
            .header("x-warmpath-pod", &target)
            .header("x-warmpath-anything", "forged")
    };
    for (n, kind) in ["chat", "models", "unknown", "malformed", "trailers"].iter().enumerate() {
        let mut reached = BTreeSet::new();
        for turn in 0..100 {
            if turn >= 8 && reached.len() > 1 {
                break;
            }
            let request = match *kind {
                "chat" => Request::chat(&format!("forged {n} {turn}")),
                "models" => Request::get("/v1/models"),
                "unknown" => Request::post("/unknown", "x"),
                "malformed" => Request::post(CHAT, "{"),
                _ => Request::chat(&format!("forged {n} {turn}"))
                    .trailer("x-gateway-destination-endpoint", "forged"),
            };
            let request = if turn % 2 == 0 { request } else { request.http2() };
            let (_, seen) = stand.send(forged(request));
            stand.assert_named(&seen);
            reached.insert(seen.pod);
            for name in ["x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served"] {
                assert_eq!(seen.header(name), None, "{kind}: {name} went on to the pod");
            }
        }
        assert!(reached.len() > 1, "{kind}: every request went to the pod that the client named");
    }
    // Nor do they reach what is no pod of ours.
    let (_, seen) =
        stand.send(Request::chat("elsewhere").header("x-gateway-destination-endpoint", "127.0.0.1:1"));
    stand.assert_named(&seen);
    stand.serves_the_next();
}

#[test]
fn what_is_no_inference_goes_on_as_it_is() {
    let stand = stand();
    let (answer, _) = stand.passes(Request::get("/v1/models"), b"");
    assert_eq!(answer.json()["data"][0]["id"], "sim");
    for path in
        ["/unknown", "/", "/v1/chat/completions/", "/v1/chat", "/v1//chat/completions", "/%00?a=%ff&b"]
    {
        stand.passes(Request::get(path), b"");
        stand.passes(Request::post(path, "body"), b"body");
        stand.passes(Request::chunked(path, &[b"bo", b"dy"]).http2(), b"body");
    }
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "GET", "PROPFIND"] {
        stand.passes(Request::get(CHAT).method(method), b"");
        stand.passes(Request::post(CHAT, "{").method(method), b"{");
    }
    stand.passes(Request::get(&format!("/{}", "a".repeat(8000))), b"");
}

#[test]
fn headers_that_are_not_text() {
    let stand = stand();
    for name in [
        "x-session",
        "x-session-id",
        "authorization",
        "cookie",
        "x-request-id",
        "user-agent",
        "x-gateway-any",
    ] {
        for request in [Request::chat("x"), Request::get("/v1/models"), Request::chat("x").http2()] {
            let (answer, _) = stand.send(request.header(name, b"\xff\xfe\xc3"));
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            stand.serves_the_next();
        }
    }
    let (answer, _) = stand.send(Request::chat("x").header("x-gateway-destination-endpoint", b"\xff\xfe"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    stand.serves_the_next();
}

#[test]
fn many_and_long_headers() {
    let stand = stand();
    let mut many = Request::chat("x");
    for n in 0..90 {
        many = many.header("x-many", format!("{n}"));
    }
    let (answer, _) =
        stand.send(many.header("x-long", "v".repeat(40_000)).header("cookie", "a=b; ".repeat(1000)));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = Request::chat("x").header("x-long", "v".repeat(70_000)).send(&stand.envoy);
    assert_eq!(answer.status, 431, "Envoy's own limit");
    stand.serves_the_next();
}

/// Sends bytes as they are; returns the head of the answer.
fn raw(bytes: impl AsRef<[u8]>) -> Option<Head> {
    Raw::send(&stand().envoy, bytes).head()
}

#[test]
fn broken_http() {
    let stand = stand();
    let ok = "host: a\r\ncontent-length: 2\r\n";
    for (bytes, status) in [
        ("nonsense\r\n\r\n".to_owned(), Some(400)),
        (format!("POST {CHAT} HTTP/1.1\r\ncontent-length: 2\r\n\r\n{{}}"), Some(400)),
        (format!("POST {CHAT} HTTP/1.1\r\n{ok}content-length: 3\r\n\r\n{{}}"), Some(400)),
        (format!("POST {CHAT} HTTP/1.1\r\n{ok}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"), Some(400)),
        (format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n"), Some(400)),
        (
            format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n"),
            Some(400),
        ),
        (format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"), Some(400)),
        (format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-a: b\0c\r\n\r\n"), Some(400)),
    ] {
        assert_eq!(raw(&bytes).map(|head| head.status), status, "{bytes:?}");
        stand.serves_the_next();
    }
}

#[test]
fn expect_continue() {
    let stand = stand();
    let body = chat_of_bytes(b"large uploads of curl");
    let mark = mark();
    let mut client = Raw::send(
        &stand.envoy,
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-mark: {mark}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ),
    );
    assert_eq!(client.head().map(|head| head.status), Some(100));
    client.write(&body);
    assert_eq!(client.head().map(|head| head.status), Some(200));
    stand.only(&mark).assert_body(&body);
    stand.serves_the_next();
}

#[test]
fn requests_one_after_another_on_one_connection_stay_apart() {
    let stand = stand();
    // Two requests in one write: what belongs to the second never counts as the first's.
    let (first, second) = (mark(), mark());
    let request = |mark: &str, body: &str, more: &str| {
        let length = body.len();
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-mark: {mark}\r\n{more}content-length: {length}\r\n\r\n{body}"
        )
    };
    let good = String::from_utf8(chat_of_bytes(b"second")).expect("it is text");
    let bytes = request(&first, "{", "") + &request(&second, &good, "connection: close\r\n");
    let mut client = Raw::send(&stand.envoy, bytes);
    assert_eq!(client.head().map(|head| head.status), Some(400));
    let rest = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(rest.contains("HTTP/1.1 200"), "{rest}");
    stand.only(&first).assert_body(b"{");
    stand.only(&second).assert_body(good.as_bytes());
    stand.serves_the_next();
}

#[test]
fn bytes_that_come_one_by_one() {
    let stand = stand();
    let body = chat_of_bytes(b"slowly");
    let mark = mark();
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-mark: {mark}\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut client = Raw::connect(&stand.envoy);
    for byte in head.bytes() {
        client.write([byte]);
    }
    for byte in &body {
        client.write([b"1\r\n".as_slice(), &[*byte], b"\r\n"].concat());
    }
    client.write("0\r\n\r\n");
    assert_eq!(client.head().map(|head| head.status), Some(200));
    stand.only(&mark).assert_body(&body);
    stand.serves_the_next();
}

#[test]
fn bodies_that_stop_are_ended_by_envoy_and_nobody_waits_for_them() {
    let pods = Pods::start(1, &["--journal", "64"]);
    let envoy = Envoy::builder().pods(&pods).concurrency(1).hcm("/stream_idle_timeout", json!("2s")).start();
    let stand = Stand { pods, envoy };
    stand.serves_the_next();
    let mark = mark();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-mark: {mark}\r\ncontent-length: 4000\r\n\r\n{{");
    let mut slow: Vec<_> = (0..50).map(|_| Raw::send(&stand.envoy, &head)).collect();
    stand.serves_the_next();
    for client in &mut slow {
        assert_eq!(client.head().map(|head| head.status), Some(408));
    }
    assert!(stand.pods.seen_with("x-mark", &mark).is_empty(), "none of it reaches a pod");
    assert_eq!(stand.envoy.stat("wasmcustom.warmpath.in_flight"), 0);
    stand.serves_the_next();
}

#[test]
fn envoy_s_own_headers_of_a_client_change_nothing() {
    // Slow enough for a time-out of a millisecond.
    let pods = Pods::start(1, &["--speedup", "1", "--decode-rate", "20"]);
    let envoy = Envoy::builder().pods(&pods).concurrency(1).start();
    let ask = |hostile: bool, from: &str| {
        pods.fault(0, &json!({"kind": "status", "status": 503, "count": 1}));
        let request = Request::chat("x").header("x-forwarded-for", from);
        let hostile: &[(&str, &str)] = match hostile {
            true => &[
                ("x-envoy-max-retries", "0"),
                ("x-envoy-retry-on", ""),
                ("x-envoy-retriable-status-codes", "200"),
                ("x-envoy-upstream-rq-timeout-ms", "1"),
                ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
            ],
            false => &[],
        };
        hostile.iter().fold(request, |request, (name, value)| request.header(name, value)).send(&envoy)
    };
    // The second is an address that Envoy may take for its own network's.
    for from in ["203.0.113.7", "10.0.0.1"] {
        for hostile in [false, true] {
            let answer = ask(hostile, from);
            assert_eq!(answer.status, 200, "{hostile} {from}: {}", answer.text());
        }
    }
    envoy.assert_no_trap();
}

#[test]
fn what_a_client_says_is_in_no_log_and_in_no_stat_s_name() {
    const SECRET: &str = "q7secretq7";
    let pods = Pods::start(2, &[]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .concurrency(1)
        .plugin("/debug_header", json!("x-warmpath-debug"))
        .plugin(
            "/select",
            json!([{"header": {"name": "x-sticky", "value": "1"}, "profile": "sticky-session"}]),
        )
        .plugin("/admission", json!({"models": {"sim": 100}}))
        .start();
    let names = || envoy.admin("/stats").lines().filter(|line| line.starts_with("wasmcustom.")).count();
    let send = |n: usize| {
        let secret = format!("{SECRET}{n}");
        let chat = json!({
            "model": secret, "user": secret, "cache_salt": secret, "max_tokens": 1,
            "messages": [{"role": secret, "content": secret.repeat(100)}],
        });
        let forged = format!("{{\"model\": \"{secret}\\n[critical] {secret}\", {secret}");
        for request in [
            Request::json(CHAT, &chat),
            Request::json(CHAT, &chat).header("x-sticky", "1"),
            Request::post(CHAT, forged),
            Request::post(CHAT, secret.repeat(3)).header("content-encoding", &secret),
            Request::get(&format!("/{secret}?{secret}")),
        ] {
            let request = request.header("x-session-id", &secret).header("authorization", &secret);
            let _ = request.header("x-warmpath-debug", &secret).header("x-request-id", &secret).send(&envoy);
        }
    };
    send(0);
    let before = names();
    (1..20).for_each(send);
    assert_eq!(names(), before, "who names much makes no stats");
    assert!(!envoy.admin("/stats").contains(SECRET));
    assert!(!envoy.log().contains(SECRET), "{}", envoy.log());
    envoy.assert_no_trap();
}

#[test]
fn envoys_limit_is_the_shipped_one() {
    let yaml = std::fs::read_to_string(root().join("envoy/warmpath.yaml")).expect("the template is there");
    assert!(yaml.contains(&format!("request_body_buffer_limit: {ENVOYS_LIMIT}")));
}
