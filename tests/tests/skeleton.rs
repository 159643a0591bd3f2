//! The path of an ordinary request: through a worker of a real Envoy, to the pod that the filter names.

use serde_json::json;
use std::collections::BTreeSet;
use warmpath_tests::{Envoy, Pods, Request, wait_until};

#[test]
fn requests_over_all_workers_reach_the_pod_that_the_filter_names() {
    let pods = Pods::start(3, &[]);
    let envoy = Envoy::start(&pods);
    for n in 0..60 {
        let answer = Request::chat(&format!("question {n}")).header("x-test", format!("n{n}")).send(&envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let seen = pods.seen();
    assert_eq!(seen.len(), 60, "each request reaches one pod, once");
    for seen in &seen {
        let named = seen.header("x-gateway-destination-endpoint").expect("the filter names a pod");
        let first = named.split(',').next().unwrap_or_default().trim();
        assert_eq!(first, pods.addresses()[seen.pod].to_string());
    }
    let used: BTreeSet<_> = seen.iter().map(|seen| seen.pod).collect();
    assert_eq!(used.len(), 3, "different prompts spread over the pods");
    let workers = envoy.stats("worker_.*downstream_cx_total");
    assert_eq!(workers.len(), 4);
    assert!(
        workers.values().filter(|count| **count > 0).count() > 1,
        "several workers took part: {workers:?}"
    );
    envoy.assert_no_trap();
}

#[test]
fn a_body_of_megabytes_reaches_the_pod_unchanged() {
    let pods = Pods::start(2, &["--blocks", "100000"]);
    let envoy = Envoy::start(&pods);
    let text = "Grüße, \"Welt\" \u{1f30d}\\ \n".repeat(60_000);
    let body =
        json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 1}).to_string();
    let request =
        Request::post("/v1/chat/completions", body.clone()).header("content-type", "application/json");
    assert_eq!(request.send(&envoy).status, 200);
    let seen = pods.seen();
    assert_eq!(seen.len(), 1);
    seen[0].assert_body(body.as_bytes());
    envoy.assert_no_trap();
}

#[test]
fn a_stream_passes_piece_by_piece() {
    let pods = Pods::start(1, &["--speedup", "1", "--decode-rate", "200"]);
    let envoy = Envoy::start(&pods);
    let body = json!({"model": "sim", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 20, "stream": true});
    let mut stream = Request::json("/v1/chat/completions", &body).stream(&envoy);
    assert_eq!(stream.status(), 200);
    let mut pieces = 0;
    let mut text = Vec::new();
    while let Some(piece) = stream.chunk().expect("the stream goes on") {
        pieces += 1;
        text.extend_from_slice(&piece);
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&text));
    assert!(pieces > 2, "{pieces} pieces: somebody held the response back");
}

#[test]
fn a_metric_says_which_version_serves() {
    let envoy = Envoy::start(&Pods::start(1, &[]));
    // All packages of the workspace have one version.
    let parts =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let [major, minor, patch] = parts.map(|part| part.parse::<u64>().expect("a number"));
    let version = major * 1_000_000 + minor * 1_000 + patch;
    let said = || envoy.stat("wasmcustom.warmpath.version");
    wait_until("a VM to take up work", || said() != 0);
    assert_eq!(said(), version);
}

#[test]
fn a_wrong_configuration_is_refused_at_start() {
    let log = Envoy::builder().plugin_text("{\"pods\": 1").refused();
    assert!(log.contains("warmpath configuration refused"), "{log}");
}
