//! Placed where nothing can tell Envoy to hold the headers for it (`routing.via: filter-state`): a stock buffer filter holds
//! them, and the route names the pod that Warmpath left in filter state.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use warmpath_tests::{Builder, Disaggregated, Envoy, Pods, Request, Response, root, wait_until, words};

const CHAT: &str = "/v1/chat/completions";
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Most that the example's buffer filter holds.
const MOST_HELD: usize = 33_554_432;

/// The shipped example, in front of these pods.
fn example(pods: &Pods) -> Builder {
    Envoy::from_template(&root().join("examples/filter-state/envoy.yaml"))
        .pods(pods)
        .plugin("/debug_header", json!("x-warmpath-debug"))
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

fn body(text: &str) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": "sim", "messages": messages, "max_tokens": 4}).to_string().into_bytes()
}

fn assert_quiet(envoy: &Envoy) {
    wait_until("the in-flight counts to return to zero", || stat(envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

#[test]
fn prompts_of_every_size_reach_whole_the_pod_that_was_chosen_and_come_back_to_it() {
    let pods = Pods::start(4, &[]);
    let envoy = example(&pods).start();
    for (number, length) in [(1, 200), (2, 2_000), (3, 20_000), (4, 400_000)] {
        let body = body(&words(number, length));
        let mut home = None;
        for (way, request) in Request::all_ways(CHAT, &body).into_iter().enumerate() {
            let mark = format!("{number}-{way}");
            let answer = request.header("x-mark", &mark).header("x-warmpath-debug", "1").send(&envoy);
            let seen = pods.seen_with("x-mark", &mark);
            assert_eq!(seen.len(), 1, "{mark}: {answer:?}");
            seen[0].assert_body(&body);
            let named = seen[0].header(DESTINATION).expect("it is named").to_owned();
            assert_eq!(named.split(',').count(), 4, "with all that may take its place: {named}");
            assert!(named.starts_with(&pods.addresses()[seen[0].pod].to_string()), "{named}");
            assert_eq!(answer.header("x-warmpath-pod"), answer.header("x-pod"));
            // The last is over what the pods take.
            if answer.status == 200 {
                assert_eq!(*home.get_or_insert(seen[0].pod), seen[0].pod, "{mark}: where it is warm");
            }
        }
        assert_eq!(home.is_some(), number < 4);
    }
    assert_eq!((stat(&envoy, "decided_by_prefix"), stat(&envoy, "astray")), (16, 0));
    assert_quiet(&envoy);
}

#[test]
fn what_a_client_says_of_the_pod_never_steers() {
    let pods = Pods::start(2, &[]);
    let address = pods.addresses()[1].to_string();
    // Nobody is chosen: no pod is known, and what Envoy makes of the missing state must not let the client's word through.
    let nobody =
        json!({"discovery": {"cluster": "admin", "pods_of": ["none"]}, "routing": {"via": "filter-state"}});
    let knows_none = example(&pods).plugin("", nobody).start();
    for envoy in [&example(&pods).start(), &knows_none] {
        let mut served = BTreeMap::new();
        for n in 0..12 {
            for request in [
                Request::post(CHAT, body(&words(n, 20))),
                Request::get("/v1/models"),
                Request::post("/v1/unknown", "{}").http2(),
            ] {
                let answer = request.header(DESTINATION, &address).send(envoy);
                *served.entry(answer.header("x-pod").expect("a pod").to_owned()).or_insert(0) += 1;
            }
        }
        assert!(
            served.get("pod-1").is_some_and(|count| *count >= 6),
            "all went where the client said: {served:?}"
        );
        envoy.assert_no_trap();
    }
    assert_eq!(stat(&knows_none, "decided_by_round_robin"), 36);
}

#[test]
fn where_a_failed_vm_is_passed_by_what_a_client_says_does_not_steer_either() {
    // What `failOpen` leaves of the chain.
    let pods = Pods::start(2, &[]);
    let router = json!([{"name": "router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    }}]);
    let envoy = example(&pods).hcm("/http_filters", router).start();
    let address = pods.addresses()[1].to_string();
    let mut served = BTreeMap::new();
    for n in 0..20 {
        let answer = Request::post(CHAT, body(&words(n, 20))).header(DESTINATION, &address).send(&envoy);
        *served.entry(answer.header("x-pod").expect("a pod").to_owned()).or_insert(0) += 1;
    }
    assert!(
        served.get("pod-1").is_some_and(|count| *count >= 5),
        "all went where the client said: {served:?}"
    );
}

#[test]
fn a_pod_that_fails_leaves_the_request_to_the_next_of_the_list() {
    let pods = Pods::start(3, &[]);
    let envoy = example(&pods).start();
    pods.fault(0, &json!({"kind": "refuse"}));
    for n in 0..12 {
        let answer = Request::post(CHAT, body(&words(n, 50))).header("x-warmpath-debug", "1").send(&envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_ne!(answer.header("x-pod"), Some("pod-1"));
    }
    assert!(stat(&envoy, "moved") > 0, "nobody was sent to the pod that fails");
    assert_eq!(stat(&envoy, "astray"), 0, "it was tried first");
    assert_quiet(&envoy);
}

#[test]
fn what_is_refused_is_answered_here() {
    let pods = Pods::start(2, &["--speedup", "1", "--decode-rate", "5"]);
    let with = |side: &str| json!({"type": "label", "label": "side", "any_of": [side], "strict": true});
    let envoy = example(&pods)
        .plugin("/admission", json!({"max_in_flight": 1}))
        .plugin("/profiles", json!({"none": {"filters": [with("a"), with("b")], "picker": {"type": "best"}}}))
        .plugin("/pods/0/labels", json!({"side": "a"}))
        .plugin("/pods/1/labels", json!({"side": "b"}))
        .plugin("/select", json!([{"header": {"name": "x-none"}, "profile": "none"}]))
        .start();
    for request in Request::all_ways(CHAT, &body("to nobody")) {
        let answer = request.header("x-none", "1").send(&envoy);
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (503, Some("no_pod")));
    }
    let slow = json!({"model": "sim", "prompt": "x", "max_tokens": 100, "stream": true});
    let first = Request::json("/v1/completions", &slow).stream(&envoy);
    wait_until("the first to be counted", || stat(&envoy, "in_flight") == 1);
    std::thread::sleep(std::time::Duration::from_millis(300));
    for request in Request::all_ways(CHAT, &body("one too many")) {
        let answer = request.send(&envoy);
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    drop(first);
    assert_quiet(&envoy);
}

#[test]
fn a_body_over_the_filters_limit_goes_on_unread_and_one_over_envoys_is_answered_with_413() {
    let limit = 1 << 20;
    let pods = Pods::start(2, &[]);
    let envoy = example(&pods).concurrency(1).plugin("/limits/max_body_bytes", json!(limit)).start();
    let over = body(&"a".repeat(limit));
    for (way, request) in Request::all_ways(CHAT, &over).into_iter().enumerate() {
        let mark = format!("over-{way}");
        request.header("x-mark", &mark).send(&envoy);
        let seen = pods.seen_with("x-mark", &mark);
        assert_eq!(seen.len(), 1);
        seen[0].assert_body(&over);
        assert!(seen[0].header(DESTINATION).is_some_and(|named| named.contains(':')), "it is named by load");
    }
    assert_eq!(stat(&envoy, "step_down_too_large"), 4);
    let answer = Request::post(CHAT, body(&"a".repeat(MOST_HELD))).send(&envoy);
    assert_eq!(answer.status, 413);
    assert_eq!(Request::chat("and now?").send(&envoy).status, 200);
    assert_quiet(&envoy);
}

#[test]
fn a_websocket_passes_where_the_buffer_is_switched_off_for_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let envoy =
        Envoy::from_template(&root().join("examples/filter-state/envoy.yaml")).addresses(&[address]).start();
    let mut client = warmpath_tests::Raw::send(
        &envoy,
        "GET /v1/realtime HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
    );
    let mut pod = warmpath_tests::Raw::accept(&listener);
    pod.until(b"\r\n\r\n").expect("the request comes");
    pod.write("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
    assert_eq!(client.head().map(|head| head.status), Some(101));
    client.write("ping;");
    assert_eq!(pod.until(b";"), Some(b"ping;".to_vec()));
}

/// Without what must stand behind it, nothing breaks, no pod is blamed, and the log says what is missing.
#[test]
fn a_chain_that_lacks_the_buffer_is_noticed() {
    let pods = Pods::start(4, &[]);
    let wasm =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config";
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/routing", json!({"via": "filter-state"}))
        .edit(&format!("{wasm}/config/allow_on_headers_stop_iteration"), json!(false))
        .start();
    for n in 0..40 {
        assert_eq!(Request::post(CHAT, body(&words(n, 50))).send(&envoy).status, 200);
    }
    assert!(stat(&envoy, "astray") > 10, "{} of 40", stat(&envoy, "astray"));
    wait_until("the log to name the cure", || {
        let log = envoy.log();
        log.contains("must stand a buffer filter")
            && log.contains("%FILTER_STATE(wasm.warmpath.destination:PLAIN)%")
    });
    assert_quiet(&envoy);
}

fn text(answer: &Response) -> String {
    answer.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

fn split(number: usize) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": words(number, 200)}], "max_tokens": 12})
}

/// A replaced body, longer or shorter than the client's, on connections that are used again.
#[test]
fn prefill_and_decode_at_two_pods_say_what_one_would() {
    for (protocol, field) in [
        ("nixl", "kv_transfer_params"),
        ("sglang", "bootstrap_host"),
        ("mooncake", "kv_transfer_params"),
        ("trtllm", "disaggregated_params"),
    ] {
        let pods = Disaggregated::start(protocol, 2, 2, &[]);
        let envoy = pods.envoy(json!({})).concurrency(2).via_filter_state().start();
        let alone = Pods::start(1, &[]);
        for n in 0..6 {
            let expected = text(&Request::json(CHAT, &split(n)).send(alone.addresses()[0]));
            // A client's own field is taken out of the body, which gets shorter.
            let mut own = split(n);
            own[field] = json!("x".repeat(500));
            for request in Request::all_ways(CHAT, split(n).to_string().as_bytes())
                .into_iter()
                .chain(Request::all_ways(CHAT, own.to_string().as_bytes()))
            {
                let answer = request.header("x-warmpath-debug", "1").send(&envoy);
                assert_eq!((answer.status, text(&answer)), (200, expected.clone()), "{protocol}");
                assert!(answer.header("x-warmpath-prefill-pod").is_some(), "{protocol}");
                assert_eq!(answer.header("x-pod"), answer.header("x-warmpath-pod"), "{protocol}");
            }
        }
        assert_eq!(stat(&envoy, "prefills_remote"), 48, "{protocol}");
        assert_eq!(pods.held(), 0, "all KV was fetched");
        assert_quiet(&envoy);
    }
}

/// Also where the router is told to keep Envoy's own headers to itself, as Envoy Gateway tells it: how often it may retry is said in one.
#[test]
fn a_handoff_is_never_retried_and_a_refused_one_is_started_again() {
    let (pods, alone) = (Disaggregated::start("nixl", 1, 3, &[]), Pods::start(1, &[]));
    pods.decode.fault(0, &json!({"kind": "status", "status": 503}));
    let suppress = "/http_filters/1/typed_config/suppress_envoy_headers";
    let held = pods.envoy(json!({})).hcm(suppress, json!(true));
    let by_state = pods.envoy(json!({})).hcm(suppress, json!(true)).via_filter_state();
    for (round, envoy) in [held.start(), by_state.start()].iter().enumerate() {
        for n in 0..12 {
            let body = split(100 * round + n);
            let answer = Request::json(CHAT, &body).header("x-warmpath-debug", "1").send(envoy);
            let expected = text(&Request::json(CHAT, &body).send(alone.addresses()[0]));
            assert_eq!((answer.status, text(&answer)), (200, expected));
        }
        assert!(stat(envoy, "workflows_started_again") > 0, "nobody was handed to the pod that refuses");
        assert_eq!(envoy.stat("cluster.pods.upstream_rq_retry"), 0);
        assert_quiet(envoy);
    }
}
