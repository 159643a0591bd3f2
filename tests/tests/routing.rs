//! Where requests go, over several workers: to the pod that is warm, unless load or failure says otherwise.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Barrier;
use std::thread;
use warmpath_tests::{Envoy, Pods, Request, Response, wait_until, words};

const CHAT: &str = "/v1/chat/completions";

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn chat(messages: &[Value]) -> Request {
    Request::json(CHAT, &json!({"model": "sim", "messages": messages, "max_tokens": 16}))
}

fn pod(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-pod").expect("a pod answered").to_owned()
}

/// Sends all at once, each from a thread and a connection of its own; returns how many each pod got.
fn together(envoy: &Envoy, requests: Vec<Request>) -> BTreeMap<String, usize> {
    let barrier = Barrier::new(requests.len());
    let address = envoy.address();
    let pods: Vec<_> = thread::scope(|scope| {
        let sends = requests.into_iter().map(|request| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                pod(&request.send(address))
            })
        });
        let threads: Vec<_> = sends.collect();
        threads.into_iter().map(|thread| thread.join().expect("a client finished")).collect()
    });
    let mut counts = BTreeMap::new();
    for pod in pods {
        *counts.entry(pod).or_default() += 1;
    }
    counts
}

fn assert_nothing_in_flight(envoy: &Envoy) {
    wait_until("the in-flight counts to return to zero", || envoy.stat("wasmcustom.warmpath.in_flight") == 0);
}

#[test]
fn every_turn_of_a_conversation_reaches_the_pod_of_the_turn_before() {
    let pods = Pods::start(4, &["--enable-prompt-tokens-details"]);
    let envoy = Envoy::start(&pods);
    let (mut turns, mut stayed) = (0, 0);
    let mut used = BTreeSet::new();
    for conversation in 0..16 {
        let mut messages = vec![message("system", &words(conversation % 8, 200))];
        let mut before = None;
        for turn in 0..5 {
            messages.push(message("user", &words(1000 + conversation * 10 + turn, 60)));
            let answer = chat(&messages).send(&envoy);
            let now = pod(&answer);
            messages.push(answer.json()["choices"][0]["message"].clone());
            if let Some(before) = before.replace(now.clone()) {
                turns += 1;
                stayed += usize::from(before == now);
                let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
                assert!(before != now || cached.as_u64() > Some(0), "the pod was warm: {}", answer.text());
            }
            used.insert(now);
        }
    }
    assert!(stayed * 100 >= turns * 95, "{stayed} of {turns} turns stayed on their pod");
    assert!(used.len() > 1, "conversations spread over pods: {used:?}");
    assert_eq!(envoy.stat("wasmcustom.warmpath.decided_by_prefix"), 16 * 5);
    assert_nothing_in_flight(&envoy);
    envoy.assert_no_trap();
}

#[test]
fn a_burst_of_equal_prompts_over_all_workers_does_not_scatter() {
    let pods = Pods::start(4, &["--speedup", "1", "--prefill-rate", "4000"]);
    let envoy = Envoy::start(&pods);
    for round in 0..5 {
        let prompt = words(round, 400);
        let burst = (0..8).map(|_| chat(&[message("user", &prompt)])).collect();
        let counts = together(&envoy, burst);
        assert_eq!(counts.len(), 1, "round {round}: equal prompts went to {counts:?}");
    }
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_prefix_that_everybody_shares_does_not_pile_up_on_one_pod() {
    let pods = Pods::start(4, &["--speedup", "1", "--prefill-rate", "100000", "--decode-rate", "60"]);
    let envoy = Envoy::start(&pods);
    let system = words(0, 400);
    let prompt = |n| [message("system", &system), message("user", &words(n, 8))];
    let mut total = BTreeMap::<String, usize>::new();
    for round in 0..3 {
        let requests = (0..64).map(|n| chat(&prompt(1 + round * 64 + n))).collect();
        for (pod, count) in together(&envoy, requests) {
            *total.entry(pod).or_default() += count;
        }
    }
    assert_eq!(total.len(), 4, "all pods serve the hot prefix: {total:?}");
    let most = total.values().max().copied().unwrap_or_default();
    assert!(most <= 96, "no pod got more than half of 192: {total:?}");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_pod_that_comes_late_gets_work() {
    let pods = Pods::start(3, &[]);
    let envoy = Envoy::start(&pods);
    pods.fault(2, &json!({"kind": "status", "status": 503}));
    let system = words(0, 100);
    for n in 0..24 {
        let answer = chat(&[message("system", &system), message("user", &words(n, 60))]).send(&envoy);
        assert_ne!(pod(&answer), "pod-3", "it answers 503, so another pod serves");
    }
    Request::get("/sim/fault").method("DELETE").send(pods.addresses()[2]);
    wait_until("the pod to get work", || {
        let new = chat(&[message("user", &words(rand(), 60))]).send(&envoy);
        pod(&new) == "pod-3"
    });
}

/// A number that differs from call to call.
fn rand() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(5000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A conversation's pod fails once: the retry must take the next pod of the list, and the counts must follow.
fn retry_after(fault: &Value) {
    let pods = Pods::start(3, &[]);
    // One worker: which pods failed lately is known to the VM that saw it.
    let envoy = Envoy::builder()
        .pods(&pods)
        .concurrency(1)
        .plugin("/debug_header", json!("x-warmpath-debug"))
        .start();
    let conversation = [message("user", &words(1, 200))];
    let home = pod(&chat(&conversation).send(&envoy));
    let position = home.trim_start_matches("pod-").parse::<usize>().expect("pod-N") - 1;
    pods.fault(position, fault);
    let served = pod(&chat(&conversation).header("x-test", "retried").send(&envoy));
    let seen = pods.seen_with("x-test", "retried");
    let named = seen[0].header("x-gateway-destination-endpoint").expect("the filter names pods");
    let order: Vec<_> = named.split(',').map(str::trim).collect();
    assert_eq!(order.len(), 3, "the pod and its fallbacks: {named}");
    assert_eq!(order[0], pods.addresses()[position].to_string(), "the warm pod comes first");
    let second = pods.addresses().iter().position(|address| address.to_string() == order[1]);
    assert_eq!(Some(&served), second.map(|n| format!("pod-{}", n + 1)).as_ref(), "the next of {named}");
    assert_eq!(envoy.stat("wasmcustom.warmpath.moved"), 1);
    let next = chat(&conversation).header("x-warmpath-debug", "1").send(&envoy);
    let scores = next.header("x-warmpath-scores").expect("asked");
    let served =
        scores.split("; ").find(|scores| scores.starts_with(&format!("{served} "))).expect("a candidate");
    assert!(!served.contains(" prefix=0.000"), "the pod that served is warm now: {scores}");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_retry_after_503_takes_the_next_best_pod() {
    retry_after(&json!({"kind": "status", "status": 503, "count": 1}));
}

#[test]
fn a_retry_after_a_reset_takes_the_next_best_pod() {
    retry_after(&json!({"kind": "refuse", "count": 1}));
}

#[test]
fn what_nobody_declared_and_what_has_no_prompt_goes_by_load() {
    let pods = Pods::start(2, &["--model", "sim", "--model", "lora-7"]);
    let declared: Value = pods
        .addresses()
        .iter()
        .zip(1..)
        .map(|(address, n)| json!({"name": format!("pod-{n}"), "address": address.to_string(), "models": ["sim"]}))
        .collect();
    let envoy = Envoy::builder().pods(&pods).plugin("/pods", declared).start();
    let body = json!({"model": "lora-7", "messages": [message("user", &words(1, 60))], "max_tokens": 1});
    assert_eq!(Request::json(CHAT, &body).send(&envoy).status, 200, "a LoRA's name is served");
    assert_eq!(Request::get("/v1/models").send(&envoy).status, 200);
    assert_eq!(Request::get("/health").send(&envoy).status, 200);
    assert_eq!(envoy.stat("wasmcustom.warmpath.decided_by_prefix"), 1);
    assert_eq!(envoy.stat("wasmcustom.warmpath.decided_by_load"), 2);
}

#[test]
fn salts_models_and_users_do_not_share_blocks() {
    let pods = Pods::start(2, &["--model", "a", "--model", "b"]);
    let envoy = Envoy::builder().pods(&pods).plugin("/debug_header", json!("x-warmpath-debug")).start();
    let ask = |model: &str, salt: Option<&str>| {
        let mut body =
            json!({"model": model, "messages": [message("user", &words(1, 100))], "max_tokens": 1});
        if let Some(salt) = salt {
            body["cache_salt"] = json!(salt);
        }
        let answer = Request::json(CHAT, &body).header("x-warmpath-debug", "1").send(&envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("x-warmpath-matched").expect("asked to be told").to_owned()
    };
    let blocks = |told: String| {
        let (matched, of) = told.split_once('/').expect("matched/blocks");
        (matched.parse::<u32>().expect("a number"), of.parse::<u32>().expect("a number"))
    };
    let (matched, of) = blocks(ask("a", None));
    assert_eq!(matched, 0);
    assert!(of > 0);
    assert_eq!(blocks(ask("a", None)), (of, of), "the same again is known");
    assert_eq!(blocks(ask("b", None)).0, 0, "another model");
    assert_eq!(blocks(ask("a", Some("tenant-1"))).0, 0, "another salt");
    assert_eq!(blocks(ask("a", Some("tenant-2"))).0, 0);
    assert_eq!(blocks(ask("a", Some("tenant-2"))).0, of);
}

#[test]
fn a_choice_is_explained_on_demand_and_in_access_logs() {
    let pods = Pods::start(2, &[]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/debug_header", json!("x-warmpath-debug"))
        .hcm(
            "/access_log",
            json!([{"name": "log", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
                "log_format": {"text_format_source": {"inline_string": "LOG %FILTER_STATE(wasm.warmpath:PLAIN)%\n"}}
            }}]),
        )
        .start();
    let prompt = [message("user", &words(3, 100))];
    let quiet = chat(&prompt).send(&envoy);
    assert_eq!(quiet.header("x-warmpath-pod"), None, "nobody asked");
    let answer = chat(&prompt).header("x-warmpath-debug", "1").send(&envoy);
    let told = answer.header("x-warmpath-pod").expect("asked").to_owned();
    assert_eq!(told, pod(&answer));
    assert_eq!(answer.header("x-warmpath-profile"), Some("prefix-aware"));
    assert_eq!(answer.header("x-warmpath-mode"), Some("approximate"));
    assert!(answer.header("x-warmpath-scores").is_some_and(|scores| scores.contains("prefix=1.000")));
    wait_until("the access log", || envoy.log().contains(&format!("LOG pod={told} profile=prefix-aware")));
}

#[test]
fn client_abort_and_refused_pods_leave_no_count_behind() {
    let pods = Pods::start(2, &["--speedup", "1", "--decode-rate", "5"]);
    let envoy = Envoy::start(&pods);
    let body = json!({"model": "sim", "messages": [message("user", &words(1, 60))], "max_tokens": 100, "stream": true});
    let streams: Vec<_> = (0..8).map(|_| Request::json(CHAT, &body).stream(&envoy)).collect();
    wait_until("eight streams to be counted", || envoy.stat("wasmcustom.warmpath.in_flight") == 8);
    drop(streams);
    assert_nothing_in_flight(&envoy);
    envoy.assert_no_trap();
}

#[test]
fn without_the_flag_requests_are_sent_on_and_the_cure_is_named() {
    let pods = Pods::start(2, &[]);
    let wasm =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config";
    let envoy = Envoy::builder()
        .pods(&pods)
        .concurrency(1)
        .edit(&format!("{wasm}/config/allow_on_headers_stop_iteration"), json!(false))
        .start();
    for n in 0..5 {
        assert_eq!(chat(&[message("user", &words(n, 60))]).send(&envoy).status, 200);
    }
    wait_until("the log to name the setting", || {
        envoy.log().contains("allow_on_headers_stop_iteration: true")
    });
    assert_eq!(envoy.stat("wasmcustom.warmpath.step_down_unheld"), 5);
    assert_nothing_in_flight(&envoy);
}

/// An Envoy in which each pod is a cluster, beside one that is no pod.
fn clusters(pods: &Pods, no_pod: SocketAddr) -> Envoy {
    let cluster = |name: &str, address: &SocketAddr| {
        let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
        let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": {"socket_address": socket}}}]}]);
        json!({"name": name, "load_assignment": {"cluster_name": name, "endpoints": endpoints}})
    };
    let names = (0..).map(|n| format!("engine-{n}"));
    let mut clusters: Vec<_> =
        names.zip(pods.addresses()).map(|(name, address)| cluster(&name, address)).collect();
    let named: Value = clusters.iter().map(|cluster| json!({"cluster": cluster["name"]})).collect();
    clusters.push(cluster("no-pod", &no_pod));
    let route = json!({"cluster_header": "x-gateway-destination-endpoint", "timeout": "0s"});
    Envoy::builder()
        .pods(pods)
        .edit("/static_resources/clusters", json!(clusters))
        .hcm("/route_config/virtual_hosts/0/routes/0/route", route)
        .plugin("/pods", named)
        .plugin("/routing", json!({"by": "cluster"}))
        .start()
}

#[test]
fn a_client_that_names_a_cluster_does_not_reach_it() {
    let pods = Pods::start(2, &[]);
    let office = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let envoy = clusters(&pods, office.local_addr().expect("an address"));
    for n in 0..8 {
        for request in [
            chat(&[message("user", &words(n, 20))]),
            Request::get("/v1/models"),
            Request::post("/unknown", "x").http2(),
            Request::post(CHAT, "{"),
            Request::post(CHAT, "").trailer("x-gateway-destination-endpoint", "no-pod").http2(),
        ] {
            let request = request.header("x-gateway-destination-endpoint", "no-pod");
            let answer = request.header("X-Gateway-Destination-Endpoint", "no-pod").send(&envoy);
            assert!(answer.header("x-pod").is_some(), "{}: {}", answer.status, answer.text());
        }
    }
    office.set_nonblocking(true).expect("it can be asked");
    assert!(office.accept().is_err(), "nobody came there");
    envoy.assert_no_trap();
}

#[test]
fn the_debug_header_can_be_kept_from_clients_by_envoy() {
    let pods = Pods::start(2, &[]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/debug_header", json!("x-warmpath-debug"))
        .hcm("/route_config/internal_only_headers", json!(["x-warmpath-debug"]))
        .start();
    let prompt = [message("user", &words(3, 100))];
    for from in ["203.0.113.7", "10.0.0.1"] {
        let request = chat(&prompt).header("x-forwarded-for", from).header("x-warmpath-debug", "1");
        let answer = request.send(&envoy);
        let told: Vec<_> = answer.headers.keys().filter(|name| name.as_str().contains("warmpath")).collect();
        assert_eq!((answer.status, told.len()), (200, 0), "{from}: {told:?}");
    }
}

#[test]
fn pods_that_are_clusters_of_their_own_are_reached_by_cluster_header() {
    let pods = Pods::start(3, &[]);
    let envoy = clusters(&pods, pods.addresses()[0]);
    let mut used = BTreeSet::new();
    for conversation in 0..12 {
        let mut messages = vec![message("user", &words(conversation, 100))];
        let home = pod(&chat(&messages).send(&envoy));
        messages.push(message("user", &words(conversation + 50, 60)));
        assert_eq!(pod(&chat(&messages).send(&envoy)), home, "the next turn stays");
        used.insert(home);
    }
    assert!(used.len() > 1, "{used:?}");
    assert_eq!(envoy.stat("wasmcustom.warmpath.moved"), 0);
    assert_nothing_in_flight(&envoy);
}
