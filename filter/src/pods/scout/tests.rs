//! One VM asks, and all know: on the fake host.

use crate::host::fake::{FakeHost, FakeShared};
use crate::plugin::{Plugin, Vm};
use std::collections::BTreeSet;
use std::rc::Rc;

/// By cluster and path, the status and body of an answer, if there is any.
type Answers<'a> = &'a dyn Fn(&str, &str) -> Option<(&'static str, String)>;

struct Stand {
    host: FakeHost,
    plugin: Rc<Plugin>,
    /// Calls that were answered.
    answered: usize,
}

const ADMIN: &str = r#"{"cluster_statuses": [{"name": "pods", "host_statuses": [HOSTS]}]}"#;

impl Stand {
    fn new(shared: &FakeShared, config: &str) -> Self {
        let host = FakeHost::new(shared);
        host.state.borrow_mut().configuration = config.as_bytes().to_vec();
        let plugin = Vm::default().configure(&host, 1).unwrap();
        Self { host, plugin, answered: 0 }
    }

    /// Ticks, and answers every call: by the path, with status and body, or not at all.
    fn tick(&mut self, ticks: usize, answer: Answers<'_>) {
        for _ in 0..ticks {
            self.host.state.borrow_mut().now += std::time::Duration::from_millis(100);
            self.plugin.tick(&self.host);
            let calls = self.host.state.borrow().calls.len();
            for call in self.answered..calls {
                let made = self.host.state.borrow().calls[call].clone();
                let Some((status, body)) = answer(&made.cluster, made.path()) else { continue };
                let mut state = self.host.state.borrow_mut();
                state.answer = [(":status".to_owned(), status.as_bytes().to_vec())].into();
                state.answer_body = body.into_bytes();
                drop(state);
                self.plugin.on_answer(&self.host, call as u32);
            }
            self.answered = calls;
        }
    }

    fn calls(&self) -> Vec<(String, String)> {
        let calls = &self.host.state.borrow().calls;
        calls.iter().map(|call| (call.cluster.clone(), call.path().to_owned())).collect()
    }

    fn pods(&self) -> Vec<String> {
        self.plugin.router().pods().iter().map(|pod| pod.target.clone()).collect()
    }

    fn waiting(&self) -> Vec<Option<f32>> {
        let of = |engine: &Option<crate::pods::Engine>| engine.as_ref().and_then(|engine| engine.waiting);
        self.plugin.with_current(|current| current.engines.iter().map(of).collect()).unwrap()
    }

    fn count(&self, name: &str) -> i64 {
        self.host.metric(&format!("warmpath.{name}"))
    }

    fn logs(&self) -> String {
        self.host.state.borrow().logs.iter().map(|(_, line)| format!("{line}\n")).collect()
    }
}

fn hosts(ports: &[u16]) -> String {
    let host = |port: &u16| {
        format!(r#"{{"address": {{"socket_address": {{"address": "10.0.0.1", "port_value": {port}}}}}}}"#)
    };
    ADMIN.replace("HOSTS", &ports.iter().map(host).collect::<Vec<_>>().join(","))
}

fn metrics(waiting: u32, queries: u32) -> String {
    format!(
        "vllm:num_requests_waiting{{engine=\"0\"}} {waiting}\nvllm:prefix_cache_queries_total{{engine=\"0\"}} {queries}\n\
         vllm:cache_config_info{{block_size=\"32\",num_gpu_blocks=\"100\"}} 1\n"
    )
}

const BOTH: &str = r#"{
    "discovery": {"cluster": "admin", "pods_of": ["pods"], "period_seconds": 1},
    "metrics": {"period_milliseconds": 1000, "stale_seconds": 3}
}"#;

#[test]
fn answers_over_their_bounds_are_passed() {
    let mut one = Stand::new(&FakeShared::default(), BOTH);
    let long = |text: String, length: usize| Some(("200", text + &"\n".repeat(length)));
    let answer = |admin: usize, engine: usize| {
        move |cluster: &str, _: &str| match cluster {
            "admin" => long(hosts(&[1, 2]), admin),
            _ => long(metrics(7, 10), engine),
        }
    };
    one.tick(20, &answer(7 << 20, 1_000_000));
    assert_eq!((one.pods().len(), one.waiting()), (2, vec![Some(7.0); 2]));
    one.tick(100, &answer(8 << 20, 1 << 20));
    assert_eq!((one.pods().len(), one.waiting()), (2, vec![None; 2]), "the pods stay, and old figures fade");
    let logs = one.logs();
    assert!(logs.contains("more than 8388608 bytes") && logs.contains("more than 1048576 bytes"), "{logs}");
}

#[test]
fn one_asks_and_all_know() {
    let shared = FakeShared::default();
    let (mut one, mut two) = (Stand::new(&shared, BOTH), Stand::new(&shared, BOTH));
    let all = |cluster: &str, path: &str| match cluster {
        "admin" => {
            assert_eq!(path, "/clusters?format=json&filter=%5E%28%3F%3Apods%29%24");
            Some(("200", hosts(&[1, 2, 3])))
        }
        _ => Some(("200", metrics(7, 10))),
    };
    for _ in 0..40 {
        one.tick(1, &all);
        two.tick(1, &all);
    }
    assert!(two.calls().is_empty(), "who doesn't keep house asks nobody");
    for stand in [&one, &two] {
        assert_eq!(stand.pods(), ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]);
        assert_eq!(stand.waiting(), [Some(7.0); 3]);
    }
    assert_eq!((one.count("pods"), one.count("engines_heard")), (3, 3));
    let asked = one.calls().iter().filter(|(cluster, _)| cluster == "pods").count();
    assert!((9..=12).contains(&asked), "three pods for three seconds and a bit: {asked}");
    // In one tick at most one of three is due.
    let before = one.calls().len();
    one.tick(1, &all);
    assert!(one.calls().len() - before <= 2);
    // The asker dies; the other takes over with what was known.
    for _ in 0..80 {
        two.tick(1, &all);
    }
    assert!(!two.calls().is_empty());
    assert_eq!((two.pods().len(), two.waiting()), (3, vec![Some(7.0); 3]));
}

#[test]
fn engines_are_asked_by_the_clusters_in_which_they_were_found() {
    let config = BOTH.replace(r#"["pods"]"#, r#"["decode", "prefill-*"]"#);
    let of =
        |name: &str, port: u16| hosts(&[port]).replace(r#""name": "pods""#, &format!("\"name\": \"{name}\""));
    let (decode, prefill) = (of("decode", 1), of("prefill-1", 2));
    let statuses = |answer: &str| answer.replace(r#"{"cluster_statuses": ["#, "").replace("]}]}", "]}");
    let admin = format!(r#"{{"cluster_statuses": [{}, {}]}}"#, statuses(&decode), statuses(&prefill));
    let mut one = Stand::new(&FakeShared::default(), &config);
    one.tick(40, &|cluster, _| Some(("200", if cluster == "admin" { admin.clone() } else { metrics(1, 1) })));
    assert_eq!(one.pods(), ["10.0.0.1:1", "10.0.0.1:2"]);
    let state = one.host.state.borrow();
    let asked: BTreeSet<_> = state
        .calls
        .iter()
        .filter(|call| call.path() == "/metrics")
        .map(|call| (call.cluster.as_str(), call.headers.get(":authority").map_or("", String::as_str)))
        .collect();
    assert_eq!(asked, [("decode", "10.0.0.1:1"), ("prefill-1", "10.0.0.1:2")].into());
}

#[test]
fn silence_changes_nothing_but_that_old_figures_fade() {
    let shared = FakeShared::default();
    let mut stand = Stand::new(&shared, BOTH);
    stand.tick(40, &|cluster, _| {
        Some(("200", if cluster == "admin" { hosts(&[1, 2]) } else { metrics(1, 1) }))
    });
    assert_eq!(stand.waiting(), [Some(1.0); 2]);
    stand.tick(60, &|cluster, _| if cluster == "admin" { None } else { Some(("503", String::new())) });
    assert_eq!((stand.pods().len(), stand.waiting()), (2, vec![None; 2]));
    assert!(stand.logs().contains("/metrics of pod 10.0.0.1:1: answered 503"), "{}", stand.logs());
    assert!(
        stand.logs().contains(r#"Envoy's admin, by cluster "admin": no answer came"#),
        "{}",
        stand.logs()
    );
    let complaints = stand.logs().lines().filter(|line| line.contains("/metrics of pod")).count();
    assert_eq!(complaints, 1, "once a minute");
    stand.host.state.borrow_mut().failing.push("call");
    stand.tick(60, &|_, _| None);
    assert_eq!(stand.pods().len(), 2);
}

#[test]
fn nobody_found_must_be_found_three_times() {
    let shared = FakeShared::default();
    let mut stand = Stand::new(&shared, BOTH);
    stand.tick(15, &|cluster, _| (cluster == "admin").then(|| ("200", hosts(&[1]))));
    assert_eq!(stand.pods().len(), 1);
    stand.tick(10, &|cluster, _| (cluster == "admin").then(|| ("200", "{}".to_owned())));
    assert_eq!(stand.pods().len(), 1, "something else may have answered");
    stand.tick(40, &|cluster, _| (cluster == "admin").then(|| ("200", "{}".to_owned())));
    assert_eq!(stand.pods().len(), 0);
    stand.tick(15, &|cluster, _| (cluster == "admin").then(|| ("200", "not json".to_owned())));
    assert!(stand.count("asked_in_vain") > 0);
}

#[test]
fn an_engine_that_counts_anew_has_an_empty_cache() {
    let shared = FakeShared::default();
    let config = r#"{"pods": [{"address": "10.0.0.1:1", "ranks": 2}], "metrics": {"cluster": "pods"}}"#;
    let mut stand = Stand::new(&shared, config);
    stand.tick(20, &|_, _| Some(("200", metrics(0, 500))));
    let held = |stand: &Stand| {
        let fleet = stand.plugin.fleet.borrow();
        let find = |id: &str| fleet.index.find(id).expect("it has joined");
        let caches = ["10.0.0.1:1", "10.0.0.1:1#1"].map(find);
        caches.map(|cache| fleet.index.replica().table().held_by(cache.slot))
    };
    {
        let mut fleet = stand.plugin.fleet.borrow_mut();
        let pods = ["10.0.0.1:1", "10.0.0.1:1#1"].map(|id| fleet.index.find(id).unwrap());
        let stored =
            pods.map(|pod| crate::index::Delta::Stored { pod, parent: None, depth: 0, hashes: vec![4, 8] });
        let _ = fleet.index.append(&stand.host, &stored, crate::index::OnUnseen::Go);
    }
    assert_eq!(held(&stand), [2, 2]);
    stand.tick(20, &|_, _| Some(("200", metrics(0, 600))));
    assert_eq!(held(&stand), [2, 2]);
    stand.tick(20, &|_, _| Some(("200", metrics(0, 3))));
    assert_eq!((held(&stand), stand.count("engines_restarted")), ([0, 0], 1));
}

#[test]
fn blocks_of_another_size_are_named() {
    let shared = FakeShared::default();
    let config = r#"{
        "pods": [{"name": "a", "address": "10.0.0.1:1", "models": ["m"]}, {"name": "b", "address": "10.0.0.1:2", "models": ["other"]}],
        "tokenizers": [{"models": ["m"], "cluster": "t", "path": "/m", "block_tokens": 16}],
        "metrics": {"cluster": "pods", "api_key": "very-secret"}
    }"#;
    let mut stand = Stand::new(&shared, config);
    stand.tick(40, &|cluster, _| (cluster == "pods").then(|| ("200", metrics(0, 1))));
    assert_eq!(stand.count("engines_other_block_size"), 1);
    assert!(
        stand.logs().contains("a has blocks of 32 tokens, while tokenizers[].block_tokens is 16"),
        "{}",
        stand.logs()
    );
    assert!(!stand.logs().contains("very-secret"));
}

#[test]
fn who_was_down_when_nothing_more_could_be_learnt_is_not_down_for_ever() {
    let shared = FakeShared::default();
    let mut stand = Stand::new(&shared, BOTH);
    let sick = hosts(&[1]).replacen(
        "{\"address\"",
        "{\"health_status\": {\"failed_active_health_check\": true}, \"address\"",
        1,
    );
    stand.tick(15, &|cluster, _| (cluster == "admin").then(|| ("200", sick.clone())));
    let down = |stand: &Stand| stand.plugin.with_current(|current| current.down.contains(0)).unwrap();
    assert!(down(&stand));
    stand.tick(100, &|_, _| None);
    assert!(!down(&stand));
}
