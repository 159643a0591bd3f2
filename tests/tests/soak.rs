//! Mixed load for a while: every kind of request, clients that leave, pods that fail. At its end nothing is in flight,
//! no VM trapped, and memory has stopped growing. Minutes of it: `WARMPATH_SOAK_SECONDS=120 tests/run.sh --e2e --test soak`.

use serde_json::json;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use warmpath_tests::{Envoy, Pods, Request, wait_until};

const CLIENTS: u64 = 8;
/// From this length on, the ring of the log has gone round and memory must be flat.
const LONG: u64 = 100;

/// One request of one of the kinds; whether it succeeds is not the question here.
fn one(to: SocketAddr, n: u64) {
    let system = format!("instructions number {} ", n % 5).repeat(60);
    let user = format!("question {n} ").repeat((n % 40) as usize + 1);
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": user}]);
    let chat = |stream| json!({"model": "sim", "messages": messages, "max_tokens": 8, "stream": stream});
    const CHAT: &str = "/v1/chat/completions";
    match n % 10 {
        0..=3 => drop(Request::json(CHAT, &chat(false)).try_send(to)),
        4 | 5 => drop(Request::json(CHAT, &chat(true)).try_send(to)),
        // Leaves after the first piece, or before the body is whole.
        6 => {
            if let Ok(mut stream) =
                Request::json(CHAT, &chat(true)).start(to).and_then(|exchange| exchange.head())
            {
                let _ = stream.chunk();
            }
        }
        7 => drop(Request::chunked(CHAT, &[b"{\"messages\": ["]).unfinished().start(to)),
        8 => drop(Request::post(CHAT, "{not json").header("content-type", "application/json").try_send(to)),
        _ => drop(Request::get("/v1/models").try_send(to)),
    }
}

/// Resident memory of a process, in MB.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Envoy runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux tells it");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("a number") / 1024
}

#[test]
fn mixed_load_leaves_nothing_in_flight_and_memory_flat() {
    let seconds =
        std::env::var("WARMPATH_SOAK_SECONDS").ok().map_or(10, |text| text.parse().expect("a number"));
    let pods = Pods::start(4, &["--speedup", "20", "--blocks", "2000"]);
    let small = json!({"max_blocks": 20_000, "pod_blocks": 3000, "ttl_seconds": 60});
    let envoy = Envoy::builder().pods(&pods).plugin("/index", small).start();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut middle = 0;
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (stop, sent, to) = (&stop, &sent, envoy.address());
            scope.spawn(move || {
                for n in (client..).step_by(CLIENTS as usize) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    one(to, n);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let start = Instant::now();
        let faults = [
            json!({"kind": "status", "status": 503, "count": 5}),
            json!({"kind": "refuse", "count": 3}),
            json!({"kind": "cut", "after_tokens": 2, "count": 5}),
        ];
        let mut round = 0;
        while start.elapsed().as_secs() < seconds {
            pods.fault(round % 4, &faults[round % faults.len()]);
            thread::sleep(Duration::from_millis(500));
            if middle == 0 && start.elapsed().as_secs() >= seconds * 2 / 3 {
                middle = resident(envoy.process_id());
            }
            round += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let end = resident(envoy.process_id());
    let sent = sent.load(Ordering::Relaxed);
    println!("{sent} requests in {seconds} s; Envoy's memory {middle} MB at two thirds, {end} MB at the end");
    wait_until("the in-flight counts to return to zero", || envoy.stat("wasmcustom.warmpath.in_flight") == 0);
    assert!(envoy.stat("wasmcustom.warmpath.requests") > 0);
    assert_eq!(envoy.stat("wasmcustom.warmpath.shared_data_unreadable"), 0);
    envoy.assert_no_trap();
    if seconds >= LONG {
        assert!(end <= middle + middle / 20, "memory grew from {middle} to {end} MB in the last third");
    }
}
