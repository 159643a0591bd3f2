//! What was found becomes pods: which, in what order, under what names, and with what settings.

use proptest::prelude::*;
use warmpath::blocks::Chain;
use warmpath::config::{Reach, Router, load, load_with};
use warmpath::index::MAX_SLOTS;
use warmpath::pipeline::{BUILT_IN, Input, Matches, PodState, Refused, Residency, Scratch, Seen, Slots};
use warmpath::pods::discovery::read;
use warmpath::pods::{Found, MAX_PODS, Pod, Speed};

const REAL: &[u8] = include_bytes!("data/admin-clusters-1.40.json");

fn found(cluster: &str, address: &str, hostname: &str) -> Found {
    Found {
        cluster: cluster.into(),
        address: address.parse().ok(),
        hostname: hostname.into(),
        zone: String::new(),
        weight: 1,
        healthy: true,
    }
}

fn configuration(more: &str, rules: &str) -> String {
    format!(
        r#"{{"discovery": {{"cluster": "admin", "pods_of": ["pods", "engine-*"], "rules": [{rules}]}}{more}}}"#
    )
}

fn router(json: &str) -> Router {
    load(json.as_bytes()).unwrap_or_else(|mistakes| panic!("{json}: {mistakes}"))
}

/// Name and target of each pod; a `!` before those that are unhealthy.
fn pods(reach: &Reach) -> Vec<String> {
    assert_eq!(reach.pods.len(), reach.healthy.len());
    let mark = |healthy: bool| if healthy { "" } else { "!" };
    let pods = reach.pods.iter().zip(&reach.healthy);
    pods.map(|(pod, healthy)| format!("{}{} {}", mark(*healthy), pod.name, pod.target)).collect()
}

#[test]
fn a_real_answer_becomes_pods() {
    let reach = router(&configuration("", "")).reach(&read(REAL).unwrap());
    assert_eq!(
        pods(&reach),
        [
            "prefill-1.llm 10.0.1.2:8000",
            "!decode-1.llm 10.0.1.4:8000",
            "!10.0.1.5:8000 10.0.1.5:8000",
            "!10.0.1.6:8000 10.0.1.6:8000",
            "engine-a-1.llm 127.0.0.1:19931",
            "!127.0.0.1:19932 127.0.0.1:19932",
            "prefill-0.llm 127.0.0.1:8001",
            "[::ffff:10.0.1.7]:8000 [::ffff:10.0.1.7]:8000",
            "decode-0.llm [fd00::1]:8000",
        ]
    );
    assert_eq!(reach.left_out, 1, "the pipe");
    assert_eq!(reach.pods[6].weight, 3.0);
}

#[test]
fn clusters_that_are_pods() {
    let json = configuration(r#", "routing": {"by": "cluster"}, "pods": [{"cluster": "own"}]"#, "");
    let reach = router(&json).reach(&read(REAL).unwrap());
    assert_eq!(pods(&reach), ["own own", "engine-a engine-a", "pods pods"]);
    assert_eq!((reach.left_out, reach.pods[2].weight), (0, 1.0), "weights are those within a cluster");
    assert!(reach.pods.iter().all(|pod| pod.called_by(None) == pod.target));
    let mut down = [found("engine-b", "10.0.0.1:1", "h"), found("engine-b", "10.0.0.2:1", "h")];
    down.iter_mut().for_each(|host| host.healthy = false);
    let odd = format!("engine-{}", "x".repeat(128));
    let all = [&down[..], &[found(&odd, "10.0.0.3:1", ""), found("engine-,", "10.0.0.4:1", "")]].concat();
    let reach = router(&json).reach(&all);
    assert_eq!(pods(&reach), ["own own", "!engine-b engine-b"]);
    assert_eq!(reach.left_out, 2, "names that no pod may have");
}

#[test]
fn configured_pods_come_first_and_stay_as_they_are() {
    let own =
        r#", "pods": [{"name": "b", "address": "10.0.0.2:80", "weight": 5}, {"address": "10.0.0.9:80"}]"#;
    let router = router(&configuration(own, r#"{"weight": 7, "models": ["m"]}"#));
    let mut there = [found("pods", "10.0.0.2:80", "x"), found("pods", "10.0.0.1:80", "y")];
    there[0].healthy = false;
    let reach = router.reach(&there);
    assert_eq!(pods(&reach), ["!b 10.0.0.2:80", "10.0.0.9:80 10.0.0.9:80", "y 10.0.0.1:80"]);
    let weights: Vec<_> = reach.pods.iter().map(|pod| (pod.weight, pod.models.len())).collect();
    assert_eq!(weights, [(5.0, 0), (1.0, 0), (7.0, 1)]);
    assert_eq!(pods(&router.reach(&[])), ["b 10.0.0.2:80", "10.0.0.9:80 10.0.0.9:80"]);
}

#[test]
fn names_that_several_bear_or_that_are_unfit_are_none() {
    let router = router(&configuration(r#", "pods": [{"name": "own", "address": "10.0.1.1:80"}]"#, ""));
    let there = [
        found("pods", "10.0.0.1:80", "dns.llm"),
        found("pods", "10.0.0.2:80", "dns.llm"),
        found("pods", "10.0.0.3:80", "a,b"),
        found("pods", "10.0.0.4:80", "own"),
        found("pods", "10.0.0.5:80", "10.0.0.1:80"),
        found("pods", "10.0.0.6:80", "six"),
        // The same endpoint in another cluster is one pod: under the first name, with the first's weight.
        Found { weight: 9, ..found("engine-z", "10.0.0.7:80", "seven") },
        Found { weight: 3, ..found("engine-a", "10.0.0.7:80", "more") },
        found("other", "10.0.0.8:80", "no pod"),
    ];
    let reach = router.reach(&there);
    let names: Vec<_> = reach.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(
        names,
        ["own", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80", "six", "more"]
    );
    assert_eq!((reach.left_out, reach.pods[7].weight), (0, 3.0));
    let called: Vec<_> = [0, 1, 7].map(|i| reach.pods[i].called_by(None)).into();
    assert_eq!(called, ["10.0.1.1:80", "pods", "engine-a"]);
    assert_eq!(reach.pods[7].called_by(Some("named")), "named");
    // A configured pod that is called as another's address keeps the name.
    let json = configuration(r#", "pods": [{"name": "10.0.0.1:80", "address": "10.0.1.1:80"}]"#, "");
    let reach = self::router(&json).reach(&there[..2]);
    assert_eq!(pods(&reach), ["10.0.0.1:80 10.0.1.1:80", "10.0.0.2:80 10.0.0.2:80"]);
    assert_eq!(reach.left_out, 1);
}

#[test]
fn rules_add_up_and_later_ones_win() {
    let rules = r#"
        {"models": ["m"], "labels": {"role": "decode", "pool": "main"}, "max_in_flight": 64},
        {"match": {"hostname": "prefill-*"}, "labels": {"role": "prefill"}, "weight": 2, "ranks": 4},
        {"match": {"zone": "a", "cluster": "pods"}, "labels": {"zone": "a"}, "models": []},
        {"match": {"address": "10.0.1.*"}, "max_in_flight": 8},
        {"match": {"address": "10.0.0.2:80"}, "weight": 0.5},
        {"match": {"address": "10.0.0.2"}, "labels": {"x": "y"}},
        {"match": {"address": "10.0.0.2:8"}, "ranks": 64}"#;
    let there = [
        Found { zone: "a".into(), weight: 7, ..found("pods", "10.0.0.1:80", "prefill-0") },
        Found { zone: "b".into(), weight: 7, ..found("pods", "10.0.0.2:80", "decode-0") },
        Found { zone: "a".into(), weight: 1000, ..found("engine-1", "10.0.1.3:80", "decode-1") },
    ];
    let reach = router(&configuration("", rules)).reach(&there);
    let lines: Vec<_> = reach
        .pods
        .iter()
        .map(|pod| {
            let labels: Vec<_> = pod.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let flight = pod.max_in_flight.unwrap_or(0);
            format!(
                "{} {:?} {} {} {flight} {}",
                pod.name,
                pod.models,
                labels.join(","),
                pod.weight,
                pod.ranks
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            r#"prefill-0 [] pool=main,role=prefill,zone=a 2 64 4"#,
            r#"decode-0 ["m"] pool=main,role=decode,x=y 0.5 64 1"#,
            r#"decode-1 ["m"] pool=main,role=decode 100 8 1"#,
        ]
    );
    // By cluster a rule needs one host for which all its conditions hold.
    let json = configuration(
        r#", "routing": {"by": "cluster"}"#,
        r#"{"match": {"zone": "a", "hostname": "prefill-*"}, "weight": 2}, {"match": {"zone": "b", "hostname": "prefill-*"}, "weight": 3}"#,
    );
    let reach = router(&json).reach(&there[..2]);
    assert_eq!((reach.pods.len(), reach.pods[0].weight), (1, 2.0));
}

#[test]
fn pods_and_ranks_are_bounded() {
    let many: Vec<_> = (0..300).map(|i| found("pods", &format!("10.0.0.1:{}", 1000 + i), "")).collect();
    let own = r#", "pods": [{"address": "10.0.0.9:1"}]"#;
    let reach = router(&configuration(own, "")).reach(&many);
    assert_eq!((reach.pods.len(), reach.left_out), (MAX_PODS, 300 - MAX_PODS + 1));
    assert_eq!((&*reach.pods[0].target, &*reach.pods[255].target), ("10.0.0.9:1", "10.0.0.1:1254"));
    let reach = router(&configuration("", r#"{"ranks": 64}"#)).reach(&many);
    assert_eq!((reach.pods.len(), reach.left_out), (MAX_SLOTS / 64, 300 - MAX_SLOTS / 64));
    let router = load_with(configuration(own, "").as_bytes(), &many).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(router.pods().len(), MAX_PODS);
}

#[test]
fn what_was_loaded_with_pods_knows_which_are_its_own() {
    let json = configuration(r#", "pods": [{"address": "10.0.0.9:1"}]"#, "");
    let there = read(REAL).unwrap();
    let router = load_with(json.as_bytes(), &there).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(router.reach(&there).pods, router.pods());
    assert_eq!(pods(&router.reach(&[])), ["10.0.0.9:1 10.0.0.9:1"]);
    assert_eq!(self::router(&json).pods(), router.reach(&[]).pods);
    // Without discovery nothing is found.
    let json = r#"{"pods": [{"address": "10.0.1.4:8000"}]}"#;
    let router = load_with(json.as_bytes(), &there).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(pods(&router.reach(&there)), ["10.0.1.4:8000 10.0.1.4:8000"]);
    let wrong = r#"{"pods": [{"address": "x"}]}"#;
    assert_eq!(load_with(wrong.as_bytes(), &there).err(), load(wrong.as_bytes()).err());
}

#[test]
fn a_filter_is_an_anchored_expression_of_all_names() {
    let json = r#"{"discovery": {"cluster": "admin", "pods_of": ["pods-1_a", "out|80||a.b+*", "ä (1)"]}}"#;
    let router = router(json);
    let discovery = router.settings().discovery.as_ref().unwrap();
    assert_eq!(
        discovery.filter(),
        "%5E%28%3F%3Apods-1_a%7Cout%5C%7C80%5C%7C%5C%7Ca%5C.b%5C%2B.%2A%7C%C3%A4%20%5C%281%5C%29%29%24"
    );
    assert_eq!((discovery.period.as_secs(), discovery.timeout.as_secs()), (2, 1));
    assert!(discovery.has_pods("out|80||a.b+c") && discovery.has_pods("pods-1_a"));
    assert!(!discovery.has_pods("pods-1_ab") && !discovery.has_pods("admin"));
}

struct Empty;

fn seen(states: &[PodState]) -> Seen<'_> {
    Seen { states, engines: &[], speed: Speed::default(), index: &Empty }
}

impl Residency for Empty {
    fn depths(&self, _chain: &Chain, _out: &mut Matches) {}
}

#[test]
fn nobody_is_chosen_while_nobody_was_found() {
    let for_one_step = |profile: &&str| !matches!(*profile, "prefill" | "decode");
    for profile in BUILT_IN.iter().map(|built_in| built_in.name).filter(for_one_step) {
        for strict in [false, true] {
            let own = format!(
                r#", "profile": "{profile}", "profiles": {{"own": {{"prepare": [{{"type": "prefix"}}],
                    "filters": [{{"type": "concurrency-cap", "strict": {strict}}}, {{"type": "concurrency-floor"}},
                        {{"type": "model"}}, {{"type": "prefix-threshold"}}, {{"type": "health"}},
                        {{"type": "label", "label": "a", "any_of": ["b"]}}],
                    "scorers": [{{"type": "prefix"}}, {{"type": "in-flight"}}], "picker": {{"type": "weighted-random"}}}}}},
                  "select": [{{"path": "/own", "profile": "own"}}]"#
            );
            let router = router(&configuration(&own, ""));
            assert!(router.pods().is_empty() && !router.has_ranks());
            let mut scratch = Scratch::new(1);
            for path in ["/", "/own"] {
                let profile = router.select(path, &|_| None, None).unwrap().single().unwrap();
                let mut slots = Slots::default();
                profile.prepare(&Input { header: &|_| Some(b"x".to_vec()), body: None }, 1, &mut slots);
                let decision = router.decide(profile, &seen(&[]), &mut slots, &mut scratch, 3);
                let refused_by = if strict && path == "/own" { "concurrency-cap" } else { "picker" };
                assert_eq!(
                    decision,
                    Err(Refused { filter: refused_by, busy: false }),
                    "{} {strict}",
                    profile.name()
                );
                // States of pods that are no more harm nobody.
                let states = [PodState { in_flight: 1, ..PodState::default() }];
                assert!(router.decide(profile, &seen(&states), &mut slots, &mut scratch, 3).is_err());
                assert_eq!(profile.scores(&scratch, 0).filter(|(_, _, score)| *score != 0.0).count(), 0);
            }
        }
    }
}

fn any_found() -> impl Strategy<Value = Found> {
    let texts = (r"(pods|engine-[ab]|other)", r"(|h|[a-c]{1,2}|10\.0\.0\.[0-3]:1)", r"[ab]?");
    (texts, 0..5_u8, 0..200_u32, any::<bool>()).prop_map(
        |((cluster, hostname, zone), ip, weight, healthy)| {
            let address = (ip < 4).then(|| ([10, 0, 0, ip], 1).into());
            Found { cluster, address, hostname, zone, weight, healthy }
        },
    )
}

proptest! {
    #[test]
    fn whatever_is_found_makes_pods_that_could_be_configured(
        there in prop::collection::vec(any_found(), 0..12),
        by in prop::sample::select(vec!["address", "cluster"]),
        seed in any::<usize>(),
    ) {
        let own = if by == "address" { r#""name": "h", "address": "10.0.0.0:1""# } else { r#""cluster": "engine-a""# };
        let more = format!(r#", "routing": {{"by": "{by}"}}, "pods": [{{{own}}}]"#);
        let json = configuration(&more, r#"{"match": {"zone": "a"}, "labels": {"zone": "a"}}"#);
        let router = router(&json);
        let reach = router.reach(&there);
        // In any order the same.
        let mut other = there.clone();
        other.reverse();
        let middle = seed % other.len().max(1);
        other.rotate_left(middle);
        prop_assert_eq!(&router.reach(&other), &reach);
        // As written by hand.
        let by_hand: Vec<_> = reach
            .pods
            .iter()
            .map(|pod| {
                let labels: serde_json::Map<_, _> =
                    pod.labels.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
                serde_json::json!({by: pod.target, "name": pod.name, "labels": labels, "weight": pod.weight})
            })
            .collect();
        let by_hand = serde_json::json!({"routing": {"by": by}, "pods": by_hand}).to_string();
        // But for who knows of them.
        let by_hand = self::router(&by_hand).pods().to_vec();
        let by_hand = by_hand.into_iter().zip(&reach.pods);
        let by_hand = by_hand.map(|(pod, Pod { found, cluster, .. })| Pod { found: *found, cluster: cluster.clone(), ..pod });
        prop_assert_eq!(by_hand.collect::<Vec<_>>(), &reach.pods[..]);
        prop_assert!(reach.pods.iter().enumerate().all(|(at, pod)| pod.found == (at > 0)), "one is configured");
        // By which cluster it is called: the first by name of those that have it.
        for pod in reach.pods.iter().filter(|pod| pod.found) {
            let has = |host: &&Found| host.address.map(|address| address.to_string()).as_ref() == Some(&pod.target);
            let first = there.iter().filter(|host| host.cluster != "other").filter(has).map(|host| &host.cluster).min();
            prop_assert_eq!(pod.cluster.as_ref(), first.filter(|_| by == "address"));
        }
        // Nobody is lost.
        let mut targets: Vec<_> = there
            .iter()
            .filter(|host| host.cluster != "other")
            .filter_map(|host| match by {
                "address" => host.address.map(|address| address.to_string()),
                _ => Some(host.cluster.clone()),
            })
            .chain([reach.pods[0].target.clone()])
            .collect();
        targets.sort();
        targets.dedup();
        prop_assert_eq!(targets.len(), reach.pods.len());
    }
}
