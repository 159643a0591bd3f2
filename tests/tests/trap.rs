//! What needs a module built for tests (`tests/run.sh` makes it): a VM that traps, and what is left of what it knew and
//! counted; and the contract of shared data, held by Envoy itself.

use serde_json::json;
use std::path::PathBuf;
use warmpath_tests::{Envoy, Pods, Request, root, wait_until};

fn module() -> PathBuf {
    root().join("warmpath-trap.wasm")
}

fn start(pods: &Pods) -> Envoy {
    Envoy::builder().module(&module()).pods(pods).plugin("/debug_header", json!("x-warmpath-debug")).start()
}

/// Sends requests that trap until several workers have answered 503.
fn trap(envoy: &Envoy) {
    for _ in 0..16 {
        let _ = Request::chat("trap").header("x-test-trap", "1").try_send(envoy);
    }
    assert!(envoy.log().contains("warmpath"), "Envoy tells of the plugin that trapped");
}

#[test]
fn a_vm_that_trapped_comes_back_and_knows_the_warm_pod() {
    let pods = Pods::start(4, &[]);
    let envoy = start(&pods);
    let prompt = "a conversation that is known by now ".repeat(40);
    let home = Request::chat(&prompt).send(&envoy).header("x-pod").expect("a pod answered").to_owned();
    let before = envoy.stat("wasmcustom.warmpath.vm_started");
    // A checkpoint or the log has it, whichever comes first; the VM that wrote it may be one of those that trap.
    trap(&envoy);
    let mut in_a_row = 0;
    wait_until("every worker to find the warm pod again", || {
        let answer = Request::chat(&prompt).header("x-warmpath-debug", "1").try_send(&envoy);
        let warm = answer.is_ok_and(|answer| {
            answer.status == 200
                && answer.header("x-warmpath-mode") == Some("approximate")
                && answer.header("x-pod") == Some(&home)
        });
        in_a_row = if warm { in_a_row + 1 } else { 0 };
        in_a_row == 16
    });
    assert!(envoy.stat("wasmcustom.warmpath.vm_started") > before, "new VMs took over");
}

#[test]
fn requests_of_a_vm_that_trapped_do_not_count_for_ever() {
    let pods = Pods::start(2, &["--speedup", "1", "--decode-rate", "2"]);
    let envoy = start(&pods);
    let body = json!({"model": "sim", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 200, "stream": true});
    let streams: Vec<_> =
        (0..12).map(|_| Request::json("/v1/chat/completions", &body).stream(&envoy)).collect();
    wait_until("the streams to be counted", || envoy.stat("wasmcustom.warmpath.in_flight") == 12);
    trap(&envoy);
    drop(streams);
    wait_until("the counts to be right again", || {
        // A reload happens when a request comes.
        let _ = Request::get("/health").try_send(&envoy);
        envoy.stat("wasmcustom.warmpath.in_flight") == 0
    });
}

#[test]
fn shared_data_keeps_the_contract_that_the_fake_keeps() {
    let pods = Pods::start(1, &[]);
    let envoy = start(&pods);
    for n in 0..8 {
        let answer = Request::get("/").header("x-test-contract", format!("contract-{n}")).send(&envoy);
        assert_eq!((answer.status, answer.text().as_str()), (200, "holds"));
    }
}
