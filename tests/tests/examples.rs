//! Every configuration in `examples/` loads into a real Envoy and does what its README says.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use warmpath_tests::{Disaggregated, Envoy, Pods, Request, Response, root, wait_until};

/// Envoy with an example's configuration in front of these pods.
fn example(name: &str, pods: &Pods, workers: usize) -> Envoy {
    let file = root().join("examples").join(name).join("warmpath.json");
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let config: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    Envoy::builder().plugin("", config).pods(pods).concurrency(workers).start()
}

fn ask(envoy: &Envoy, text: &str, header: Option<(&str, &str)>) -> Response {
    let mut request = Request::chat(text);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let answer = request.send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn pod(answer: &Response) -> String {
    answer.header("x-pod").expect("a pod answered").to_owned()
}

fn shares(answers: impl Iterator<Item = Response>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(pod(&answer)).or_default() += 1;
    }
    counts
}

#[test]
fn every_example_has_a_readme_and_a_test_here() {
    let tested = [
        "consistent-hash",
        "cost-aware",
        "least-requests",
        "prefix-aware",
        "random",
        "round-robin",
        "several-profiles",
        "sticky-session",
    ];
    let folders = fs::read_dir(root().join("examples")).expect("examples/ is there");
    let mut found: Vec<_> = folders
        .map(|folder| folder.expect("a folder can be read").path())
        .filter(|folder| folder.join("warmpath.json").exists())
        .inspect(|folder| assert!(folder.join("README.md").exists(), "{} has no README.md", folder.display()))
        .map(|folder| folder.file_name().expect("it has a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, tested);
}

#[test]
fn round_robin_takes_each_pod_in_its_turn() {
    let pods = Pods::start(4, &[]);
    let envoy = example("round-robin", &pods, 1);
    let counts = shares((0..12).map(|_| ask(&envoy, "the same for all", None)));
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [3; 4]);
}

#[test]
fn random_gives_every_pod_a_part() {
    let pods = Pods::start(4, &[]);
    let envoy = example("random", &pods, 4);
    let counts = shares((0..160).map(|_| ask(&envoy, "the same for all", None)));
    assert_eq!(counts.len(), 4);
    // Binomial with mean 40 and deviation 5.5: outside of this once in 10,000 runs.
    assert!(counts.values().all(|count| (18..=62).contains(count)), "{counts:?}");
}

#[test]
fn least_requests_fills_pods_evenly_over_all_workers() {
    let pods = Pods::start(4, &["--speedup", "1", "--decode-rate", "2"]);
    let envoy = example("least-requests", &pods, 4);
    let body = json!({"model": "sim", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 100, "stream": true});
    let mut streams = Vec::new();
    for n in 1..=8 {
        streams.push(Request::json("/v1/chat/completions", &body).stream(&envoy));
        wait_until("the stream to be counted", || envoy.stat("wasmcustom.warmpath.in_flight") == n);
        // Workers tell each other what they have in flight with their ticks.
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    let running: Vec<_> =
        (0..4).map(|pod| pods.seen().iter().filter(|seen| seen.pod == pod).count()).collect();
    assert_eq!(running, [2; 4]);
}

#[test]
fn consistent_hash_sends_equal_keys_to_one_pod() {
    let pods = Pods::start(4, &[]);
    let envoy = example("consistent-hash", &pods, 4);
    let mut used = BTreeMap::<String, usize>::new();
    for session in 0..16 {
        let name = format!("session-{session}");
        let first = pod(&ask(&envoy, "hello", Some(("x-session-id", &name))));
        for turn in 0..3 {
            let again = ask(&envoy, &format!("turn {turn}"), Some(("x-session-id", &name)));
            assert_eq!(pod(&again), first, "{name}");
        }
        *used.entry(first).or_default() += 1;
    }
    assert!(used.len() >= 3, "16 keys spread: {used:?}");
}

#[test]
fn sticky_session_keeps_a_session_on_its_pod() {
    let pods = Pods::start(4, &[]);
    let envoy = example("sticky-session", &pods, 4);
    for header in ["x-session-id", "cookie"] {
        for session in 0..6 {
            let value =
                if header == "cookie" { format!("a=b; session=c{session}") } else { format!("h{session}") };
            let first = pod(&ask(&envoy, "hello", Some((header, &value))));
            for turn in 0..4 {
                let again = ask(&envoy, &format!("turn {turn}"), Some((header, &value)));
                assert_eq!(pod(&again), first, "{header}: {value}");
            }
        }
    }
}

#[test]
fn prefix_aware_keeps_a_growing_prompt_on_its_pod() {
    let pods = Pods::start(4, &[]);
    let envoy = example("prefix-aware", &pods, 4);
    let mut prompt = "a long beginning that is the same each time ".repeat(30);
    let first = pod(&ask(&envoy, &prompt, None));
    for turn in 0..6 {
        prompt.push_str(&format!("and turn {turn} says more "));
        assert_eq!(pod(&ask(&envoy, &prompt, None)), first);
    }
}

#[test]
fn cost_aware_keeps_a_growing_prompt_on_its_pod() {
    let pods = Pods::start(4, &[]);
    let envoy = example("cost-aware", &pods, 4);
    let mut prompt = "a long beginning that is the same each time ".repeat(30);
    let first = pod(&ask(&envoy, &prompt, None));
    for turn in 0..6 {
        prompt.push_str(&format!("and turn {turn} says more "));
        assert_eq!(pod(&ask(&envoy, &prompt, None)), first);
    }
}

/// An Envoy with the policy of another router, which shows its scores.
fn policy(name: &str, pods: &Pods) -> Envoy {
    let file = root().join("examples/policies").join(format!("{name}.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let config: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    Envoy::builder().plugin("", config).plugin("/debug_header", json!("x-warmpath-debug")).pods(pods).start()
}

#[test]
fn policies_of_other_routers_find_the_warm_pod_and_leave_one_that_is_busy() {
    for (name, scorers) in [
        ("dynamo", &["token-load="][..]),
        ("llm-d", &["queue=", "kv-usage=", "prefix="]),
        ("llm-d-sticky", &["token-load="]),
    ] {
        let pods = Pods::start(3, &["--speedup", "1", "--prefill-rate", "200000", "--decode-rate", "20"]);
        let envoy = policy(name, &pods);
        let prompt = "a long beginning that is the same each time ".repeat(40);
        let home = pod(&ask(&envoy, &prompt, None));
        // Workers tell each other with their ticks what has ended.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let again = ask(&envoy, &prompt, Some(("x-warmpath-debug", "1")));
        assert_eq!(pod(&again), home, "{name}");
        let scores = again.header("x-warmpath-scores").expect("asked");
        assert!(scorers.iter().all(|scorer| scores.contains(scorer)), "{name}: {scores}");
        // New prompts, one after the other while the earlier ones run, spread.
        let body = |n: usize| {
            json!({"model": "sim", "messages": [{"role": "user", "content": format!("{n} ").repeat(800)}],
            "max_tokens": 200, "ignore_eos": true, "stream": true})
        };
        let streams: Vec<_> =
            (0..6).map(|n| Request::json("/v1/chat/completions", &body(n)).stream(&envoy)).collect();
        let used: std::collections::BTreeSet<_> = streams
            .iter()
            .map(|stream| stream.headers()["x-pod"].to_str().expect("text").to_owned())
            .collect();
        assert!(used.len() > 1, "{name}: {used:?}");
    }
}

#[test]
fn prefill_and_decode_are_two_pods_by_each_protocol() {
    for (folder, protocol, has_whole) in [
        ("prefill-decode-nixl", "nixl", false),
        ("prefill-decode-sglang", "sglang", true),
        ("prefill-decode-p2p-nccl", "p2p-nccl", true),
        ("prefill-decode-mooncake", "mooncake", false),
        ("prefill-decode-tensorrt-llm", "trtllm", false),
    ] {
        let pods = Disaggregated::start(protocol, 2, 2, &[]);
        let pods = if has_whole { pods.with_whole(&[]) } else { pods };
        let envoy = pods.example(folder).start();
        let prompt = "a long beginning that is the same each time ".repeat(60);
        let answer = ask(&envoy, &prompt, Some(("x-warmpath-debug", "1")));
        assert!(pod(&answer).starts_with("decode-"), "{folder}");
        assert!(
            answer.header("x-warmpath-prefill-pod").is_some_and(|pod| pod.starts_with("prefill-")),
            "{folder}"
        );
        // A short one isn't worth two steps where the decode pods can do it.
        let short = ask(&envoy, "a few words", Some(("x-warmpath-debug", "1")));
        let expected = if has_whole { "whole-" } else { "decode-" };
        assert!(pod(&short).starts_with(expected), "{folder}: {}", pod(&short));
        assert_eq!(short.header("x-warmpath-aggregated"), Some("the prompt is short"), "{folder}");
        envoy.assert_no_trap();
    }
}

#[test]
fn several_profiles_are_chosen_by_path_and_header() {
    let pods = Pods::start(4, &[]);
    let envoy = example("several-profiles", &pods, 1);
    let profile = |request: Request| {
        let answer = request.header("x-warmpath-debug", "1").send(&envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("x-warmpath-profile").expect("asked").to_owned()
    };
    let embeddings = json!({"model": "sim", "input": "some text"});
    assert_eq!(profile(Request::json("/v1/embeddings", &embeddings)), "least-requests");
    assert_eq!(profile(Request::chat("hello").header("x-batch", "1")), "round-robin");
    assert_eq!(profile(Request::chat("hello").header("x-batch", "0")), "chat");
    assert_eq!(profile(Request::get("/v1/models")), "prefix-aware");
}
