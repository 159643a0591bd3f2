//! The manifests of `examples/istio`, as what Istio makes of them for the gateway's Envoy, in front of simulated pods.

use serde_json::json;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;
use warmpath_tests::{
    Envoy, IstioGateway, Pods, Request, Response, heeds_limits_of_routes, wait_until, words,
};

const CHAT: &str = "/v1/chat/completions";
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Both ways: by EnvoyFilter alone, and by WasmPlugin.
const WAYS: [&str; 2] = ["envoyfilter.yaml", "wasmplugin.yaml"];

fn gateway(way: &str) -> IstioGateway {
    IstioGateway::of(&["gateway.yaml", way])
}

/// The gateway's Envoy, once it has found its pods and heard their engines.
fn start(way: &str, pods: &Pods) -> Envoy {
    start_at(way, pods.addresses(), pods.addresses().len())
}

fn start_at(way: &str, addresses: &[SocketAddr], alive: usize) -> Envoy {
    let envoy = gateway(way).envoy(addresses).start();
    wait_until("the pods to be found by the admin", || stat(&envoy, "pods") == addresses.len() as u64);
    wait_until("their engines to be heard", || stat(&envoy, "engines_heard") == alive as u64);
    // All workers look at the board with their ticks.
    thread::sleep(Duration::from_millis(400));
    envoy
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

fn ask(envoy: &Envoy, text: &str) -> Response {
    let answer = Request::chat(text).header("x-warmpath-debug", "1").send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn pod(answer: &Response) -> String {
    answer.header("x-pod").expect("a pod answered").to_owned()
}

fn assert_quiet(envoy: &Envoy) {
    wait_until("the in-flight counts to return to zero", || stat(envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

#[test]
fn prompts_of_every_size_come_back_to_their_warm_pod_over_all_workers() {
    for way in WAYS {
        let pods = Pods::start(4, &["--blocks", "100000"]);
        let envoy = start(way, &pods);
        let mut used = BTreeMap::<String, usize>::new();
        // Istio 1.29 is the first on Envoy 1.37.
        let is_limited = way == "envoyfilter.yaml" && !heeds_limits_of_routes();
        let longest = if is_limited { 20_000 } else { 200_000 };
        for number in 0..12 {
            // The longest is 2 MB, twice what Envoy would hold by itself.
            let text = words(number, if number == 0 { longest } else { 100 * number });
            let body =
                json!({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 2});
            let mut home = None;
            for turn in 0..6 {
                let mark = format!("{number}-{turn}");
                let answer = Request::json(CHAT, &body)
                    .header("x-mark", &mark)
                    .header("x-warmpath-debug", "1")
                    .send(&envoy);
                let seen = pods.seen_with("x-mark", &mark);
                assert_eq!(seen.len(), 1, "{way} {mark}: {answer:?}");
                seen[0].assert_body(body.to_string().as_bytes());
                assert_eq!(*home.get_or_insert(seen[0].pod), seen[0].pod, "{way} {mark}");
                let named = seen[0].header(DESTINATION).expect("it is named");
                assert!(named.starts_with(&format!("{},", pods.addresses()[seen[0].pod])), "{way}: {named}");
                let matched = answer.header("x-warmpath-matched").and_then(|told| told.split_once('/'));
                let (held, blocks) = matched.expect("asked");
                assert_eq!(held == blocks, turn > 0, "{way} {mark}: {held} of {blocks}");
            }
            *used.entry(format!("{home:?}")).or_default() += 1;
        }
        assert!(used.len() > 1, "{way}: one pod serves all: {used:?}");
        assert_eq!(stat(&envoy, "decided_by_prefix"), 72, "{way}");
        assert_eq!((stat(&envoy, "astray"), stat(&envoy, "step_down_unheld")), (0, 0), "{way}");
        let scraped = envoy.admin("/stats/prometheus");
        assert!(
            scraped.contains("warmpath_decided_by_prefix{} 72"),
            "{way}: Istio's choice of stats has ours"
        );
        assert_quiet(&envoy);
    }
}

#[test]
fn what_a_client_says_of_the_pod_never_steers() {
    for way in WAYS {
        let pods = Pods::start(2, &[]);
        let found = start(way, &pods);
        // Where nobody is found Envoy's own policy serves, and Warmpath sets nothing.
        let mut knows_none = gateway(way);
        knows_none.edit_plugin(|plugin| plugin["discovery"]["pods_of"] = json!(["none"]));
        let unfound = knows_none.envoy(pods.addresses()).start();
        for envoy in [&found, &unfound] {
            let mut served = BTreeMap::<String, usize>::new();
            for n in 0..12 {
                for request in [
                    Request::chat(&words(n, 20)),
                    Request::get("/v1/models"),
                    Request::post("/v1/unknown", "{}").http2(),
                ] {
                    let answer = request.header(DESTINATION, pods.addresses()[1].to_string()).send(envoy);
                    *served.entry(pod(&answer)).or_default() += 1;
                }
            }
            assert!(served.get("pod-1").is_some_and(|count| *count >= 6), "{way}: {served:?}");
            envoy.assert_no_trap();
        }
        assert_eq!(stat(&unfound, "decided_by_round_robin"), 36, "{way}");
    }
}

#[test]
fn a_pod_that_fails_leaves_the_request_to_the_next_of_the_list() {
    for way in WAYS {
        let pods = Pods::start(3, &[]);
        let nobody =
            TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free");
        let envoy = start_at(way, &[pods.addresses(), &[nobody]].concat(), 3);
        let mut prompts = 0..100;
        let mut until_moved = |unless: &str| {
            let before = stat(&envoy, "moved");
            while stat(&envoy, "moved") == before {
                let number =
                    prompts.next().unwrap_or_else(|| panic!("{way}: nobody is sent to the pod that fails"));
                assert_ne!(pod(&ask(&envoy, &words(number, 50))), unless, "{way}");
            }
        };
        until_moved("nobody");
        // It takes the connection and breaks it: Istio's own conditions of a retry lack that.
        pods.fault(0, &json!({"kind": "refuse"}));
        until_moved("pod-1");
        assert_eq!(stat(&envoy, "astray"), 0, "{way}: the first choice was tried first");
        assert_quiet(&envoy);
    }
}

#[test]
fn istios_own_filter_for_a_failed_download_is_accepted_and_denies() {
    for way in WAYS {
        let pods = Pods::start(1, &[]);
        let envoy = gateway(way).without_module().envoy(pods.addresses()).start();
        let answer = Request::chat("hello").send(&envoy);
        assert_eq!(answer.status, 403, "{way}");
        assert!(pods.seen().is_empty(), "{way}");
    }
}

#[test]
fn the_check_has_nothing_to_say_but_what_a_wasm_plugin_cannot_set() {
    for (way, expected) in [
        ("envoyfilter.yaml", &[][..]),
        ("wasmplugin.yaml", &["filters without an own vm_id share data with strangers"]),
    ] {
        let addresses = ["10.0.0.1:8000", "10.0.0.2:8000"].map(|at| at.parse().expect("an address"));
        let report = warmpath::check::check(&gateway(way).inline(&addresses));
        assert!(report.mistakes.is_empty(), "{way}: {report}");
        assert_eq!(report.warnings.len(), expected.len(), "{way}: {report}");
        for (warning, expected) in report.warnings.iter().zip(expected) {
            assert!(warning.problem.contains(expected), "{way}: {report}");
        }
    }
}
