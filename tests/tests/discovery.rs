//! Pods that are found by Envoy's admin, and engines that are asked for their load: over several workers, while both come and go.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use warmpath_tests::{Builder, Envoy, Pods, Request, Response, root, wait_until, words};

const CHAT: &str = "/v1/chat/completions";
const CLUSTERS: &str = "/static_resources/clusters";

fn ask(envoy: &Envoy, prompt: &str) -> Response {
    let answer = Request::chat(prompt).header("x-warmpath-debug", "1").send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn pod(answer: &Response) -> String {
    answer.header("x-pod").expect("a pod answered").to_owned()
}

/// Blocks that Warmpath expected at the pod, and blocks of the prompt.
fn matched(answer: &Response) -> (u32, u32) {
    let told = answer.header("x-warmpath-matched").expect("asked");
    let (matched, of) = told.split_once('/').expect("matched/blocks");
    (matched.parse().expect("a number"), of.parse().expect("a number"))
}

fn stat(envoy: &Envoy, name: &str) -> u64 {
    envoy.stat(&format!("wasmcustom.warmpath.{name}"))
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free")
}

fn endpoint(address: SocketAddr, hostname: &str) -> Value {
    let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
    json!({"endpoint": {"hostname": hostname, "address": {"socket_address": socket}}})
}

/// Endpoints of a cluster, in a file that Envoy watches.
struct Endpoints {
    dir: PathBuf,
    cluster: &'static str,
}

impl Endpoints {
    fn new(cluster: &'static str) -> Self {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("warmpath-eds-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder can be made");
        Self { dir, cluster }
    }

    /// Envoy takes note of files that are moved there.
    fn set(&self, endpoints: &[Value]) {
        let assignment = json!({
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": self.cluster, "endpoints": [{"lb_endpoints": endpoints}],
        });
        let (new, file) = (self.dir.join("new"), self.dir.join("eds.json"));
        fs::write(&new, json!({"resources": [assignment]}).to_string()).expect("a file can be written");
        fs::rename(new, file).expect("it can be moved");
    }

    fn config(&self) -> Value {
        json!({"eds_config": {"resource_api_version": "V3", "path_config_source": {"path": self.dir.join("eds.json")}}})
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The example, with its pods by EDS from a file and the admin at a free port.
fn example(endpoints: &Endpoints) -> Builder {
    let admin = free();
    Envoy::from_template(&root().join("examples/discovery/envoy.yaml"))
        .share(&endpoints.dir)
        .edit("/node", json!({"id": "test", "cluster": "test"}))
        .edit("/admin/address/socket_address/port_value", json!(admin.port()))
        .edit(&format!("{CLUSTERS}/0/type"), json!("EDS"))
        .edit(&format!("{CLUSTERS}/0/eds_cluster_config"), endpoints.config())
        .edit(&format!("{CLUSTERS}/0/load_assignment"), Value::Null)
        .edit(&format!("{CLUSTERS}/0/health_checks/0/interval"), json!("0.5s"))
        .edit(&format!("{CLUSTERS}/0/health_checks/0/no_traffic_interval"), json!("0.5s"))
        .edit(&format!("{CLUSTERS}/1/load_assignment/endpoints/0/lb_endpoints"), json!([endpoint(admin, "")]))
        .plugin("/discovery/period_seconds", json!(1))
        .plugin("/discovery/rules", json!([{"match": {"hostname": "big-*"}, "weight": 2}]))
}

fn wait_for_pods(envoy: &Envoy, count: u64) {
    wait_until(&format!("{count} pods to be found"), || stat(envoy, "pods") == count);
    // All workers look at the board with their ticks.
    thread::sleep(Duration::from_millis(400));
}

#[test]
fn pods_come_and_go_without_a_request_lost() {
    let (pods, late) = (Pods::start(2, &[]), Pods::start(1, &["--name", "late"]));
    let [one, two] = [0, 1].map(|n| endpoint(pods.addresses()[n], ""));
    let third = endpoint(late.addresses()[0], "big-late");
    let endpoints = Endpoints::new("pods");
    endpoints.set(&[one.clone(), two.clone()]);
    let envoy = example(&endpoints).start();
    wait_for_pods(&envoy, 2);
    let homes: BTreeSet<_> = (0..20).map(|n| pod(&ask(&envoy, &words(n, 100)))).collect();
    assert_eq!(homes.len(), 2, "both serve: {homes:?}");
    let known = (0..20).find(|n| pod(&ask(&envoy, &words(*n, 100))) == "pod-2").expect("pod-2 serves some");
    let (warm, blocks) = matched(&ask(&envoy, &words(known, 100)));
    assert_eq!(warm, blocks);

    endpoints.set(&[one.clone(), two.clone(), third.clone()]);
    wait_for_pods(&envoy, 3);
    wait_until("the new pod to serve", || (0..8).any(|n| pod(&ask(&envoy, &words(fresh(n), 100))) == "late"));
    let shown = ask(&envoy, &words(fresh(9), 100));
    assert!(
        shown.header("x-warmpath-scores").is_some_and(|scores| scores.contains("big-late ")),
        "named by its host"
    );

    let body = json!({"model": "sim", "messages": [{"role": "user", "content": words(known, 100)}], "max_tokens": 3, "stream": true});
    endpoints.set(&[one.clone(), third.clone()]);
    wait_until("the pod to be gone from decisions", || stat(&envoy, "pods") == 2);
    thread::sleep(Duration::from_millis(400));
    let gone: Vec<_> = (0..12).map(|_| Request::json(CHAT, &body).send(&envoy)).collect();
    assert!(
        gone.iter().all(|answer| answer.status == 200 && pod(answer) != "pod-2"),
        "who left is out of answers"
    );

    endpoints.set(&[one, two, third]);
    wait_for_pods(&envoy, 3);
    for n in 0..20 {
        let answer = ask(&envoy, &words(n, 100));
        assert!(pod(&answer) != "pod-2" || matched(&answer).0 == 0, "who returns starts clean: {n}");
    }
    wait_until("nothing to be in flight", || stat(&envoy, "in_flight") == 0);
    envoy.assert_no_trap();
}

/// A number that no prompt had.
fn fresh(n: usize) -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(1000);
    NEXT.fetch_add(100, Ordering::Relaxed) + n
}

#[test]
fn what_envoy_holds_to_be_down_is_passed_over() {
    let pods = Pods::start(3, &[]);
    let all: Vec<_> = pods.addresses().iter().map(|address| endpoint(*address, "")).collect();
    let endpoints = Endpoints::new("pods");
    endpoints.set(&all);
    let envoy = example(&endpoints).start();
    wait_for_pods(&envoy, 3);
    pods.fault(1, &json!({"kind": "status", "status": 503, "path": "/health"}));
    let healthy = || envoy.stat("cluster.pods.membership_healthy");
    wait_until("the health check to fail", || healthy() == 2);
    thread::sleep(Duration::from_millis(2500));
    let used: BTreeSet<_> = (0..20).map(|n| pod(&ask(&envoy, &words(n, 50)))).collect();
    assert!(!used.contains("pod-2"), "{used:?}");
    pods.clear_faults(1);
    wait_until("the pod to serve again", || {
        let used: BTreeSet<_> = (0..10).map(|n| pod(&ask(&envoy, &words(fresh(n), 50)))).collect();
        used.contains("pod-2")
    });
}

/// A profile that goes by the engines' own queues.
fn by_queue() -> Value {
    json!({"q": {"filters": [{"type": "health"}], "scorers": [{"type": "queue"}], "picker": {"type": "weighted-random"}}})
}

#[test]
fn engines_are_asked_by_one_and_heard_by_all_and_silence_refuses_nobody() {
    let pods = Pods::start(3, &["--speedup", "1", "--decode-rate", "2", "--max-running", "2"]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/profiles", by_queue())
        .plugin("/profile", json!("q"))
        .plugin("/metrics", json!({"cluster": "pods", "period_milliseconds": 500, "stale_seconds": 3}))
        .start();
    wait_until("all engines to be heard", || stat(&envoy, "engines_heard") == 3);
    // What others send there is known by the engine alone.
    let body = |n: usize| json!({"model": "sim", "messages": [{"role": "user", "content": words(n, 20)}], "max_tokens": 500, "stream": true});
    let foreign = (0..8).map(|n| {
        let (request, address) = (Request::json(CHAT, &body(n)), pods.addresses()[1]);
        thread::spawn(move || request.try_send(address).is_ok())
    });
    let foreign: Vec<_> = foreign.collect();
    wait_until("the engine to have a queue", || pods.get(1, "/sim/stats")["waiting"].as_u64() == Some(6));
    thread::sleep(Duration::from_millis(1500));
    let models = || -> Vec<_> { (0..16).map(|_| Request::get("/v1/models").send(&envoy)).collect() };
    let counts = |answers: &[Response]| answers.iter().filter(|answer| pod(answer) == "pod-2").count();
    for _ in 0..4 {
        assert_eq!(counts(&models()), 0, "its queue is long, as all workers know");
    }
    (0..3).for_each(|pod| pods.fault(pod, &json!({"kind": "status", "status": 500, "path": "/metrics"})));
    wait_until("what was heard to be forgotten", || stat(&envoy, "engines_heard") == 0);
    thread::sleep(Duration::from_millis(400));
    let answers: Vec<_> = (0..4).flat_map(|_| models()).collect();
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert!(counts(&answers) > 0, "nothing is known of anybody any more");
    assert!(envoy.log().contains("/metrics of pod pod-"), "the log names what fails");
    // The streams end with their pods.
    (0..3).for_each(|pod| drop(Request::post("/sim/reset", "").send(pods.addresses()[pod])));
    for client in foreign {
        assert!(!client.join().expect("a client finished"));
    }
    envoy.assert_no_trap();
}

#[test]
fn with_the_admin_and_every_metrics_endpoint_down_routing_goes_on() {
    let pods = Pods::start(3, &[]);
    let all: Vec<_> = pods.addresses().iter().map(|address| endpoint(*address, "")).collect();
    let (endpoints, admin_at) = (Endpoints::new("pods"), Endpoints::new("envoy-admin"));
    endpoints.set(&all);
    let admin = free();
    admin_at.set(&[endpoint(admin, "")]);
    let envoy = example(&endpoints)
        .edit("/admin/address/socket_address/port_value", json!(admin.port()))
        .edit(&format!("{CLUSTERS}/1/type"), json!("EDS"))
        .share(&admin_at.dir)
        .edit(&format!("{CLUSTERS}/1/eds_cluster_config"), admin_at.config())
        .edit(&format!("{CLUSTERS}/1/load_assignment"), Value::Null)
        .plugin("/metrics/stale_seconds", json!(2))
        .start();
    wait_for_pods(&envoy, 3);
    wait_until("all engines to be heard", || stat(&envoy, "engines_heard") == 3);
    admin_at.set(&[endpoint(free(), "")]);
    (0..3).for_each(|pod| pods.fault(pod, &json!({"kind": "status", "status": 500, "path": "/metrics"})));
    let before = stat(&envoy, "asked_in_vain");
    wait_until("both to be asked in vain", || {
        stat(&envoy, "engines_heard") == 0 && stat(&envoy, "asked_in_vain") > before + 10
    });
    let used: BTreeSet<_> = (0..40).map(|n| pod(&ask(&envoy, &words(n, 50)))).collect();
    assert_eq!((used.len(), stat(&envoy, "pods")), (3, 3), "who was found stays: {used:?}");
    assert!(envoy.log().contains("Envoy's admin, by cluster \"envoy-admin\""), "the log names what fails");
    envoy.assert_no_trap();
}

#[test]
fn before_anybody_is_found_envoy_answers_for_itself_and_configured_pods_serve() {
    let pods = Pods::start(2, &[]);
    let endpoints = Endpoints::new("pods");
    endpoints.set(&[endpoint(pods.addresses()[0], ""), endpoint(pods.addresses()[1], "")]);
    let nowhere = json!([endpoint(free(), "")]);
    let lb = format!("{CLUSTERS}/1/load_assignment/endpoints/0/lb_endpoints");
    let named = json!([{"name": "named", "address": pods.addresses()[1].to_string()}]);
    let envoy = example(&endpoints).edit(&lb, nowhere.clone()).plugin("/pods", named).start();
    let used: BTreeSet<_> = (0..6).map(|n| pod(&ask(&envoy, &words(n, 50)))).collect();
    assert_eq!(used, BTreeSet::from(["pod-2".to_owned()]), "the one that is configured");
    let envoy = example(&endpoints).edit(&lb, nowhere).start();
    let answer = Request::chat("hello").send(&envoy);
    assert_eq!(answer.status, 200, "Envoy's own policy takes over: {}", answer.text());
    assert_eq!(stat(&envoy, "decided_by_round_robin"), 1);
}

#[test]
fn clusters_can_be_the_pods() {
    let pods = Pods::start(3, &[]);
    let admin = free();
    let cluster = |name: &str, at: SocketAddr| json!({"name": name, "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint(at, "")]}]}});
    let clusters: Vec<_> = (0..3).map(|n| cluster(&format!("engine-{n}"), pods.addresses()[n])).collect();
    let clusters = [clusters, vec![cluster("envoy-admin", admin), cluster("other", free())]].concat();
    let route = json!({"cluster_header": "x-gateway-destination-endpoint", "timeout": "0s"});
    let envoy = Envoy::builder()
        .edit(CLUSTERS, json!(clusters))
        .edit("/admin/address/socket_address/port_value", json!(admin.port()))
        .hcm("/route_config/virtual_hosts/0/routes/0/route", route)
        .plugin("", json!({
            "discovery": {"cluster": "envoy-admin", "pods_of": ["engine-*"], "period_seconds": 1},
            "metrics": {"engine": "vllm"}, "routing": {"by": "cluster"}, "debug_header": "x-warmpath-debug",
        }))
        .start();
    wait_for_pods(&envoy, 3);
    wait_until("all engines to be heard", || stat(&envoy, "engines_heard") == 3);
    let mut used = BTreeSet::new();
    for n in 0..12 {
        let home = pod(&ask(&envoy, &words(n, 100)));
        assert_eq!(pod(&ask(&envoy, &words(n, 100))), home, "its prompt is known there");
        used.insert(home);
    }
    assert!(used.len() > 1, "{used:?}");
}

#[test]
fn engines_tell_their_load_with_each_answer_where_that_is_wanted() {
    let pods = Pods::start(2, &[]);
    let envoy = Envoy::builder()
        .pods(&pods)
        .plugin("/metrics", json!({"cluster": "pods", "path": "/v1/models", "api_key": "secret-key", "period_milliseconds": 500, "orca": true}))
        .start();
    let answer = Request::chat("hello").header("x-test", "orca").send(&envoy);
    assert_eq!(
        (answer.status, answer.header("endpoint-load-metrics")),
        (200, None),
        "it is not the client's"
    );
    assert_eq!(pods.seen_with("x-test", "orca")[0].header("endpoint-load-metrics-format"), Some("TEXT"));
    let answer = Request::chat("hello").header("endpoint-load-metrics-format", "JSON").send(&envoy);
    assert!(
        answer.header("endpoint-load-metrics").is_some_and(|told| told.starts_with("JSON ")),
        "what it asks for is"
    );
    wait_until("an engine to be asked with the key", || {
        pods.seen().iter().any(|seen| seen.header("authorization") == Some("Bearer secret-key"))
    });
    // What they answer there is no metrics: all that is known came with the answer.
    let start = Instant::now();
    while stat(&envoy, "engines_heard") > 1 && start.elapsed() < Duration::from_secs(1) {}
    assert!(stat(&envoy, "asked_in_vain") > 0);
}
