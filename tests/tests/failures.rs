//! Pods that fail, hang, are slow or busy, over several workers: traffic goes on, what can be retried is, and counts return to zero.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use warmpath_tests::{Envoy, Pods, Request, Response, wait_until, words};

const CHAT: &str = "/v1/chat/completions";

fn chat(prompt: &str, stream: bool) -> Request {
    let body = json!({
        "model": "sim", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "stream": stream,
        "stream_options": {"include_usage": true},
    });
    Request::json(CHAT, &body)
}

fn pod(answer: &Response) -> &str {
    answer.header("x-pod").unwrap_or("none")
}

/// Sends `count` requests of as many prompts from `clients` threads, one after the other in each; what each was answered.
fn load(envoy: &Envoy, clients: usize, count: usize, length: usize, stream: bool) -> Vec<Response> {
    static ROUND: AtomicUsize = AtomicUsize::new(1);
    let base = ROUND.fetch_add(1, Ordering::Relaxed) * 10_000;
    let (next, address) = (AtomicUsize::new(0), envoy.address());
    thread::scope(|scope| {
        let client = || {
            let mut answers = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return answers;
                }
                answers.push(chat(&words(base + n, length), stream).send(address));
            }
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client finished")).collect()
    })
}

fn shares(answers: &[Response]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(pod(answer)).or_default() += 1;
    }
    counts
}

fn assert_all_served(answers: &[Response]) {
    let failed: Vec<_> = answers.iter().filter(|answer| answer.status != 200).map(Response::text).collect();
    assert!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), answers.len());
}

fn assert_nothing_in_flight(envoy: &Envoy) {
    wait_until("the in-flight counts to return to zero", || envoy.stat("wasmcustom.warmpath.in_flight") == 0);
    envoy.assert_no_trap();
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

#[test]
fn a_pod_that_is_three_times_slower_gets_a_fair_share_less() {
    let pods = Pods::start(4, &["--speedup", "1", "--prefill-rate", "20000", "--decode-rate", "400"]);
    pods.fault(0, &json!({"kind": "slow", "factor": 3}));
    let envoy = Envoy::builder().pods(&pods).plugin("/profile", json!("cost-aware")).start();
    load(&envoy, 8, 120, 600, true);
    let answers = load(&envoy, 8, 240, 600, true);
    assert_all_served(&answers);
    let shares = shares(&answers);
    let slow = shares.get("pod-1").copied().unwrap_or(0);
    let others: Vec<_> = shares.iter().filter(|(pod, _)| **pod != "pod-1").map(|(_, count)| *count).collect();
    assert_eq!(others.len(), 3, "{shares:?}");
    assert!(others.iter().all(|count| *count > slow), "{shares:?}");
    assert!(slow <= 240 / 8, "no more than half of an even share: {shares:?}");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_pod_that_is_killed_mid_stream_is_left_and_what_can_be_retried_is() {
    let pods = Pods::start(2, &["--speedup", "1", "--decode-rate", "100"]);
    let doomed = Pods::start(1, &["--name", "doomed", "--speedup", "1", "--decode-rate", "100"]);
    let addresses = [pods.addresses(), doomed.addresses()].concat();
    let envoy = Envoy::builder().addresses(&addresses).start();
    let body = |n: usize| json!({"model": "sim", "messages": [{"role": "user", "content": words(n, 60)}], "max_tokens": 500, "ignore_eos": true, "stream": true});
    let mut streams: Vec<_> = (0..9).map(|n| Request::json(CHAT, &body(n)).stream(&envoy)).collect();
    for stream in &mut streams {
        assert!(matches!(stream.chunk(), Ok(Some(_))), "a first token");
    }
    wait_until("nine streams to be counted", || stat(&envoy, "in_flight") == 9);
    drop(doomed);
    let broken =
        streams.into_iter().filter(|stream| stream.headers().get("x-pod").is_some_and(|pod| pod == "doomed"));
    let ends: Vec<_> = broken.map(|stream| stream.finish().is_err()).collect();
    assert!(
        !ends.is_empty() && ends.iter().all(|broken| *broken),
        "the streams of the pod broke off: {ends:?}"
    );
    let answers = load(&envoy, 4, 60, 60, false);
    assert_all_served(&answers);
    assert!(stat(&envoy, "pods_failed") > 0);
    assert_nothing_in_flight(&envoy);
    let more = load(&envoy, 1, 20, 60, false);
    assert_all_served(&more);
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_pod_that_hangs_is_left_until_it_answers_again() {
    let pods = Pods::start(3, &[]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/breaker", json!({"first_token_seconds": 1, "open_seconds": 2}))
        .start();
    pods.fault(1, &json!({"kind": "hang"}));
    thread::scope(|scope| {
        let hanging: Vec<_> = (0..24)
            .map(|n| {
                let address = envoy.address();
                scope.spawn(move || chat(&words(n, 60), true).send(address))
            })
            .collect();
        wait_until("the pod to be left", || stat(&envoy, "pods_passed_over") == 1);
        let requests = || pods.get(1, "/sim/stats")["requests"].as_u64().expect("a number");
        let before = requests();
        let answers = load(&envoy, 4, 30, 60, true);
        assert_all_served(&answers);
        let tried = requests();
        assert!(tried <= before + 4, "hardly anybody waits there: {before}, then {tried}");
        // It restarts: who waited there is sent elsewhere.
        Request::post("/sim/reset", "").send(pods.addresses()[1]);
        let answers: Vec<_> =
            hanging.into_iter().map(|client| client.join().expect("a client finished")).collect();
        assert_all_served(&answers);
    });
    wait_until("the pod to be tried again", || {
        load(&envoy, 4, 12, 60, true).iter().any(|answer| pod(answer) == "pod-2")
    });
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_request_that_hangs_before_its_headers_is_retried_where_envoy_is_told_to() {
    let pods = Pods::start(3, &[]);
    let route = "/route_config/virtual_hosts/0/routes/0/route/retry_policy/per_try_idle_timeout";
    let envoy = Envoy::builder().pods(&pods).hcm(route, json!("0.5s")).start();
    pods.fault(2, &json!({"kind": "hang"}));
    let answers = load(&envoy, 6, 24, 60, true);
    assert_all_served(&answers);
    assert!(stat(&envoy, "moved") > 0);
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_pod_that_mostly_fails_is_left_and_one_bad_request_is_no_reason() {
    let pods = Pods::start(3, &[]);
    let envoy = Envoy::builder().pods(&pods).plugin("/breaker", json!({"open_seconds": 2})).start();
    pods.fault(0, &json!({"kind": "status", "status": 400}));
    pods.fault(1, &json!({"kind": "status", "status": 500, "count": 1}));
    let answers = load(&envoy, 3, 60, 60, false);
    assert_eq!(
        stat(&envoy, "pods_failed"),
        0,
        "4xx never counts, and one failure is not many: {:?}",
        shares(&answers)
    );
    pods.clear_faults(0);
    pods.fault(0, &json!({"kind": "status", "status": 500}));
    wait_until("the pod to be left", || {
        load(&envoy, 3, 30, 60, false);
        stat(&envoy, "pods_passed_over") == 1
    });
    let answers = load(&envoy, 3, 30, 60, false);
    assert!(
        shares(&answers).get("pod-1").is_none_or(|count| *count <= 4),
        "only tries: {:?}",
        shares(&answers)
    );
    pods.clear_faults(0);
    wait_until("the pod to be used again", || {
        load(&envoy, 3, 12, 60, false).iter().any(|answer| pod(answer) == "pod-1")
    });
    let answers = load(&envoy, 3, 30, 60, false);
    assert_all_served(&answers);
    assert_nothing_in_flight(&envoy);
}

#[test]
fn pods_that_all_fail_are_all_still_tried() {
    let pods = Pods::start(2, &[]);
    let envoy = Envoy::start(&pods);
    (0..2).for_each(|pod| pods.fault(pod, &json!({"kind": "status", "status": 500, "count": 60})));
    wait_until("the faults to be used up", || {
        let answers = load(&envoy, 4, 20, 60, false);
        answers.iter().all(|answer| answer.status == 200)
    });
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_busy_pod_is_sent_less_and_not_left() {
    let pods = Pods::start(2, &["--speedup", "1", "--decode-rate", "100"]);
    let envoy =
        Envoy::builder().pods(&pods).concurrency(1).plugin("/profile", json!("least-requests")).start();
    let before = load(&envoy, 8, 80, 30, false);
    let even = shares(&before)["pod-1"];
    assert!((25..=55).contains(&even), "{:?}", shares(&before));
    pods.fault(0, &json!({"kind": "status", "status": 429, "retry_after": 20, "count": 4}));
    let during = load(&envoy, 8, 120, 30, false);
    let busy = during.iter().filter(|answer| answer.status == 429).count();
    assert_eq!(busy, 4, "429 goes to the client");
    assert_eq!((stat(&envoy, "pods_busy"), stat(&envoy, "pods_failed")), (4, 0));
    let after = load(&envoy, 8, 80, 30, false);
    let counts = shares(&after);
    let (busy, other) = (counts["pod-1"], counts["pod-2"]);
    assert!(busy > 0 && busy * 4 < other * 3, "a smaller part, about half as much: {counts:?}");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn what_is_one_too_many_is_answered_429() {
    let pods = Pods::start(2, &["--speedup", "1", "--decode-rate", "5"]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/admission", json!({"max_in_flight": 6, "models": {"sim": 4}, "retry_after_seconds": 3}))
        .start();
    let body = |model: &str, n: usize| json!({"model": model, "messages": [{"role": "user", "content": words(n, 30)}], "max_tokens": 100, "stream": true});
    let streams: Vec<_> = (0..4).map(|n| Request::json(CHAT, &body("sim", n)).stream(&envoy)).collect();
    wait_until("four streams to be counted", || stat(&envoy, "in_flight") == 4);
    thread::sleep(Duration::from_millis(300));
    let refused = Request::json(CHAT, &body("sim", 9)).send(&envoy);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("3")));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(Request::get("/v1/models").send(&envoy).status, 200, "nothing else is counted by model");
    drop(streams);
    assert_nothing_in_flight(&envoy);
    wait_until("the model to be served again", || {
        Request::json(CHAT, &body("sim", 10)).stream(&envoy).status() == 200
    });
    assert_nothing_in_flight(&envoy);
}

#[test]
fn a_pod_that_restarted_empty_is_found_out_by_what_it_answers() {
    let pods = Pods::start(2, &["--enable-prompt-tokens-details"]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .concurrency(1)
        .plugin("/debug_header", json!("x-warmpath-debug"))
        .start();
    let system = words(1, 300);
    let ask = |n: usize| {
        let text = format!("{system} question {n}: {}", words(n, 120));
        chat(&text, n.is_multiple_of(2)).header("x-warmpath-debug", "1").send(&envoy)
    };
    let matched = |answer: &Response| {
        let told = answer.header("x-warmpath-matched").expect("asked").to_owned();
        let (matched, of) = told.split_once('/').expect("matched/blocks");
        (matched.parse::<u32>().expect("a number"), of.parse::<u32>().expect("a number"))
    };
    for n in 2..8 {
        assert_eq!(ask(n).status, 200);
    }
    let warm = ask(2);
    let home = pod(&warm).trim_start_matches("pod-").parse::<usize>().expect("pod-N") - 1;
    let (known, blocks) = matched(&warm);
    assert!(known + 1 >= blocks, "{known} of {blocks}: {:?}", warm.header("x-warmpath-scores"));
    assert!(stat(&envoy, "feedback_requests") > 0);
    assert_eq!(stat(&envoy, "feedback_blocks_withdrawn"), 0);
    // Until a block's last use is a second ago, it may be one that came after the restart.
    thread::sleep(Duration::from_millis(2100));
    Request::post("/sim/reset", "").send(pods.addresses()[home]);
    let cold = ask(2);
    assert_eq!(pod(&cold), pod(&warm), "nobody knows yet");
    wait_until("the others' blocks to be withdrawn", || stat(&envoy, "feedback_blocks_withdrawn") > 0);
    let (believed, of) = matched(&ask(3));
    assert!(believed * 10 <= of * 8, "only what the last request brought is believed: {believed} of {of}");
    assert_nothing_in_flight(&envoy);
}

#[test]
fn with_half_of_the_pods_gone_requests_do_not_wait_for_them() {
    let pods = Pods::start(2, &[]);
    let gone = Pods::start(2, &[]);
    let addresses = [pods.addresses(), gone.addresses()].concat();
    drop(gone);
    let envoy = Envoy::builder().addresses(&addresses).start();
    let start = Instant::now();
    let answers = load(&envoy, 4, 200, 30, false);
    assert_all_served(&answers);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let moved = stat(&envoy, "moved");
    assert!(moved <= 40, "{moved} of 200 met a pod that is gone");
    assert_nothing_in_flight(&envoy);
    let _: Value = pods.get(0, "/sim/stats");
}
