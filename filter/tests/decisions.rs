//! Single decisions: filters, fallbacks, refusals, and which profile decides.

mod sim;

use sim::{Ask, Desk, router, router_of};
use warmpath::pipeline::{Input, Refused};
use warmpath::pods::{Engine, Lora, Speed, adapter};
use warmpath::request::{Endpoint, parse};

/// A profile `m` that decides.
fn profile(json: &str) -> String {
    format!(r#""profile": "m", "profiles": {{"m": {json}}}"#)
}

#[test]
fn fallbacks_follow_in_order_without_the_chosen_and_within_their_bound() {
    for built_in in sim::for_one_step() {
        for (fallbacks, expected) in [(0, 0), (3, 3), (8, 5)] {
            let rest = format!(r#""profile": "{}", "routing": {{"fallbacks": {fallbacks}}}"#, built_in.name);
            let mut desk = Desk::new(router(6, &rest), 1);
            let decision = desk.decide(&Ask::prompt(&[1, 2])).unwrap();
            let mut all = decision.fallbacks().to_vec();
            assert_eq!(all.len(), expected, "{}", built_in.name);
            all.push(decision.pod as u16);
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), expected + 1, "{}: a pod twice", built_in.name);
        }
    }
}

#[test]
fn the_destination_names_targets_in_order() {
    let mut desk = Desk::new(router(3, r#""profile": "least-requests""#), 1);
    for (pod, in_flight) in [(0, 2), (1, 0), (2, 1)] {
        desk.states[pod].in_flight = in_flight;
    }
    let decision = desk.decide(&Ask::default()).unwrap();
    let mut out = "old".to_owned();
    desk.router.destination(&decision, &mut out);
    assert_eq!(out, "10.0.0.1:1001,10.0.0.1:1002,10.0.0.1:1000");

    let pods = r#"{"cluster": "blue"}, {"cluster": "green"}"#;
    let mut desk =
        Desk::new(router_of(pods, r#""routing": {"by": "cluster"}, "profile": "least-requests""#), 1);
    desk.states[0].in_flight = 1;
    let decision = desk.decide(&Ask::default()).unwrap();
    desk.router.destination(&decision, &mut out);
    assert_eq!(out, "green");
    assert!(decision.fallbacks().is_empty());
}

#[test]
fn an_unhealthy_pod_is_out_until_nobody_is_left() {
    let filters = r#"{"filters": [{"type": "health"}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router(2, &profile(filters)), 1);
    desk.states[0].healthy = false;
    desk.states[1].in_flight = 9;
    let decision = desk.decide(&Ask::default()).unwrap();
    assert_eq!((decision.pod, decision.relaxed), (1, 0));
    assert!(decision.fallbacks().is_empty(), "an unhealthy pod is no fallback");
    desk.states[1].healthy = false;
    let decision = desk.decide(&Ask::default()).unwrap();
    assert_eq!(decision.pod, 0, "rather a pod that doesn't answer than none");
    let names: Vec<_> = desk.router.profiles()[0].relaxed(&decision).collect();
    assert_eq!(names, ["health"]);
}

#[test]
fn a_strict_filter_that_leaves_nobody_refuses() {
    let filters = r#"{"filters": [{"type": "concurrency-cap", "max_in_flight": 2, "strict": true}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router(2, &profile(filters)), 1);
    let served: Vec<_> = (0..4).map(|_| desk.send(&Ask::default())).collect();
    assert_eq!(served.iter().filter(|pod| **pod == 0).count(), 2);
    assert_eq!(desk.decide(&Ask::default()), Err(Refused { filter: "concurrency-cap", busy: true }));
    desk.done(1);
    assert_eq!(desk.decide(&Ask::default()).unwrap().pod, 1);
}

#[test]
fn a_pods_own_maximum_holds() {
    let pods = r#"{"address": "10.0.0.1:1", "max_in_flight": 1}, {"address": "10.0.0.1:2"}"#;
    let filters = r#"{"filters": [{"type": "concurrency-cap", "slack": 100}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router_of(pods, &profile(filters)), 1);
    desk.states[0].in_flight = 1;
    desk.states[1].in_flight = 50;
    assert_eq!(desk.decide(&Ask::default()).unwrap().pod, 1);
}

#[test]
fn the_relative_cap_always_leaves_the_least_loaded() {
    let filters = r#"{"filters": [{"type": "concurrency-cap", "factor": 1, "slack": 0, "strict": true}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router(7, &profile(filters)), 1);
    let mut rng = warmpath::pipeline::Rng::new(4);
    for _ in 0..1000 {
        for state in &mut desk.states {
            state.in_flight = rng.below(30) as u32;
        }
        let least = desk.states.iter().map(|state| state.in_flight).min().unwrap();
        let decision = desk.decide(&Ask::default()).unwrap();
        assert_eq!(desk.states[decision.pod].in_flight, least);
    }
}

#[test]
fn the_floor_fills_whoever_is_nearly_idle() {
    let filters = r#"{"prepare": [{"type": "prefix"}], "filters": [{"type": "concurrency-floor", "share": 0.25}],
        "scorers": [{"type": "prefix"}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router(4, &profile(filters)), 1);
    desk.index.store(0, &[1, 2, 3]);
    for (loads, expected) in
        [([3, 3, 3, 0], 0), ([5, 5, 5, 0], 3), ([20, 20, 20, 2], 3), ([20, 20, 20, 4], 0)]
    {
        for (state, in_flight) in desk.states.iter_mut().zip(loads) {
            state.in_flight = in_flight;
        }
        assert_eq!(desk.decide(&Ask::prompt(&[1, 2, 3])).unwrap().pod, expected, "{loads:?}");
    }
}

#[test]
fn models_choose_among_pods_and_an_undeclared_one_goes_by_load() {
    let pods = r#"{"address": "10.0.0.1:1", "models": ["llama"]}, {"address": "10.0.0.1:2", "models": ["qwen", "llama"]},
        {"address": "10.0.0.1:3", "models": ["qwen"]}"#;
    let mut desk = Desk::new(router_of(pods, r#""profile": "least-requests""#), 1);
    desk.states[1].in_flight = 5;
    let mut pod = |model: &str| {
        desk.decide(&Ask { model: Some(model.into()), ..Ask::default() })
            .map(|decision| (decision.pod, decision.relaxed))
    };
    for _ in 0..10 {
        assert_eq!(pod("llama"), Ok((0, 0)));
        assert_eq!(pod("qwen"), Ok((2, 0)));
        assert!(matches!(pod("my-lora"), Ok((0 | 2, 0))));
    }
    desk.states[0].healthy = false;
    desk.states[2].healthy = false;
    assert_eq!(desk.decide(&Ask { model: Some("llama".into()), ..Ask::default() }).unwrap().pod, 1);
}

#[test]
fn a_pod_without_a_list_of_models_may_serve_any() {
    let pods = r#"{"address": "10.0.0.1:1", "models": ["llama"]}, {"address": "10.0.0.1:2"}"#;
    let mut desk = Desk::new(router_of(pods, r#""profile": "least-requests""#), 1);
    desk.states[0].in_flight = 5;
    assert_eq!(desk.decide(&Ask { model: Some("llama".into()), ..Ask::default() }).unwrap().pod, 1);
    assert_eq!(desk.decide(&Ask { model: Some("qwen".into()), ..Ask::default() }).unwrap().pod, 1);
}

#[test]
fn labels_choose_among_pods() {
    let pods = r#"{"address": "10.0.0.1:1", "labels": {"role": "prefill"}}, {"address": "10.0.0.1:2", "labels": {"role": "decode"}},
        {"address": "10.0.0.1:3"}"#;
    let filters = r#"{"filters": [{"type": "label", "label": "role", "any_of": ["decode", "both"]}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router_of(pods, &profile(filters)), 1);
    desk.states[1].in_flight = 50;
    let decision = desk.decide(&Ask::default()).unwrap();
    assert_eq!(decision.pod, 1);
    assert!(decision.fallbacks().is_empty());
}

#[test]
fn a_threshold_keeps_only_warm_pods() {
    let filters = r#"{"prepare": [{"type": "prefix"}], "filters": [{"type": "prefix-threshold", "min_share": 0.5}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router(3, &profile(filters)), 1);
    desk.index.store(0, &[1, 2]);
    desk.index.store(1, &[1]);
    desk.states[0].in_flight = 9;
    assert_eq!(desk.decide(&Ask::prompt(&[1, 2, 3, 4])).unwrap().pod, 0, "half of it is enough");
    desk.states[1].in_flight = 1;
    let cold = desk.decide(&Ask::prompt(&[1, 2, 3, 4, 5])).unwrap();
    assert_eq!((cold.pod, cold.relaxed), (2, 1), "nobody holds half of it");
    assert_eq!(desk.decide(&Ask::default()).unwrap().relaxed, 0, "without a prompt there is nothing to hold");
}

#[test]
fn a_shared_prefix_binds_less_than_one_that_a_single_pod_holds() {
    let scorers = r#"{"prepare": [{"type": "prefix"}], "scorers": [{"type": "prefix", "sharing": 1}], "picker": {"type": "best"}}"#;
    let mut desk = Desk::new(router(3, &profile(scorers)), 1);
    desk.index.store(0, &[1, 2, 3, 4]);
    desk.index.store(1, &[1, 2]);
    desk.decide(&Ask::prompt(&[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    let score = |pod| desk.router.profiles()[0].scores(&desk.scratch, pod).next().unwrap().2;
    // Pod 0 alone holds two of eight blocks; pods 0 and 1 share two, which count half each.
    assert_eq!((score(0), score(1), score(2)), (3.0 / 8.0, 1.0 / 8.0, 0.0));
}

#[test]
fn the_first_rule_that_matches_chooses_the_profile() {
    let rest = r#""profile": "round-robin", "select": [
        {"path": "/v1/embeddings", "profile": "least-requests"},
        {"model": "big", "header": {"name": "X-Tier", "value": "gold"}, "profile": "prefix-aware"},
        {"header": {"name": "x-session-id"}, "profile": "sticky-session"},
        {"path": "/v1/*", "model": "small", "profile": "random"}]"#;
    let router = router(2, rest);
    let name = |path: &str, headers: &[(&str, &str)], model: Option<&str>| {
        let header = |name: &str| {
            headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes().to_vec())
        };
        let needs = router.needs_body(path, &header);
        (router.select(path, &header, model).unwrap().single().unwrap().name().to_owned(), needs)
    };
    let chosen = |profile: &str, needs| (profile.to_owned(), needs);
    assert_eq!(name("/v1/embeddings?x=/v1/y", &[], Some("small")), chosen("least-requests", false));
    assert_eq!(name("/v1/chat", &[("x-tier", "gold")], Some("big")), chosen("prefix-aware", true));
    assert_eq!(name("/v1/chat", &[("x-tier", "gold")], None), chosen("round-robin", true));
    // Sessions may stand in the body's user.
    assert_eq!(name("/v1/chat", &[("x-session-id", "1")], None), chosen("sticky-session", true));
    assert_eq!(name("/v1/chat", &[("x-tier", "tin")], Some("small")), chosen("random", true));
    assert_eq!(name("/v1/chat", &[], Some("large")), chosen("round-robin", true));
    assert_eq!(name("/v2/chat", &[], Some("small")), chosen("round-robin", false));
}

#[test]
fn a_profile_waits_for_the_body_only_if_a_part_reads_it() {
    let needs = |rest: &str| router(2, rest).needs_body("/v1/chat/completions", &|_| None);
    for (name, expected) in [
        ("prefix-aware", true),
        ("sticky-session", true),
        ("consistent-hash", true),
        ("least-requests", false),
        ("round-robin", false),
        ("random", false),
    ] {
        assert_eq!(needs(&format!(r#""profile": "{name}""#)), expected, "{name}");
    }
    let by_header = r#"{"prepare": [{"type": "session", "from": [{"header": "x"}]}], "scorers": [{"type": "session"}], "picker": {"type": "best"}}"#;
    assert!(!needs(&profile(by_header)));
    let with_models = r#"{"address": "10.0.0.1:1", "models": ["a"]}"#;
    let router = router_of(with_models, r#""profile": "round-robin""#);
    assert!(router.needs_body("/", &|_| None), "the model can only be read in the body");
}

#[test]
fn turns_of_a_real_conversation_meet_and_tenants_with_other_salts_do_not() {
    let mut desk = Desk::new(router(4, r#""blocks": {"size": 64}"#), 1);
    let body = |turns: usize, salt: &str| {
        let turn = |i| format!(r#"{{"role": "user", "content": "Question {i}: {}"}}"#, "why? ".repeat(40));
        let messages: Vec<_> = (0..turns).map(turn).collect();
        format!(r#"{{"model": "llama", "cache_salt": "{salt}", "messages": [{}]}}"#, messages.join(","))
    };
    let mut send = |json: &str, keep: bool| {
        let request = parse(Endpoint::Chat, json.as_bytes(), &desk.router.settings().limits).unwrap();
        let profile = desk
            .router
            .select("/v1/chat/completions", &|_| None, request.model.as_deref())
            .unwrap()
            .single()
            .unwrap();
        profile.prepare(&Input { header: &|_| None, body: Some(&request) }, 1, &mut desk.slots);
        let decision = desk.again().unwrap();
        if keep {
            desk.index.store(decision.pod, &desk.slots.chain.hashes);
        }
        decision
    };
    let first = send(&body(1, "a"), true);
    assert_eq!((first.matched, first.blocks >= 3), (0, true));
    let second = send(&body(2, "a"), false);
    assert_eq!((second.pod, second.matched), (first.pod, first.blocks));
    assert_eq!(send(&body(2, "b"), false).matched, 0);
}

#[test]
fn without_a_body_every_profile_still_decides() {
    for built_in in sim::for_one_step() {
        let mut desk = Desk::new(router(3, &format!(r#""profile": "{}""#, built_in.name)), 1);
        desk.states[0].in_flight = 50;
        desk.states[1].in_flight = 50;
        let profile = &desk.router.profiles()[0];
        profile.prepare(&Input { header: &|_| None, body: None }, 1, &mut desk.slots);
        let decision = desk.again().unwrap();
        let by_load = !matches!(built_in.name, "round-robin" | "random");
        assert!(decision.pod == 2 || !by_load, "{}: not by load", built_in.name);
    }
}

/// A profile of scorers, on prompts of four blocks of which pod 0 holds all.
fn scored(scorers: &str, filters: &str) -> Desk {
    let json = format!(
        r#"{{"prepare": [{{"type": "prefix"}}], "filters": [{filters}], "scorers": [{scorers}], "picker": {{"type": "best"}}}}"#
    );
    let mut desk = Desk::new(router(3, &profile(&json)), 1);
    desk.index.store(0, &[1, 2, 3, 4]);
    desk
}

/// The scores of each pod in the last decision.
fn scores(desk: &mut Desk, ask: &Ask) -> Vec<f32> {
    desk.decide(ask).unwrap();
    let profile = &desk.router.profiles()[0];
    (0..3).map(|pod| profile.scores(&desk.scratch, pod).next().unwrap().2).collect()
}

#[test]
fn a_first_token_is_predicted_from_what_waits_what_is_held_and_how_fast_a_pod_is() {
    let mut desk = scored(r#"{"type": "predicted-ttft", "tolerance": 0, "tolerance_milliseconds": 0}"#, "");
    desk.speed = Speed { base: 0.1, per_thousand: 1.0 };
    let ask = Ask::prompt(&[1, 2, 3, 4]);
    // 4.5 blocks of 64 tokens; the first pod holds four of them.
    let cold = 0.1 + 0.288;
    let warm = 0.1 + 0.032;
    let close = |desk: &mut Desk, expected: [f32; 3]| {
        for (score, expected) in scores(desk, &ask).into_iter().zip(expected) {
            assert!((score - expected).abs() < 1e-3, "{score}, not {expected}");
        }
    };
    close(&mut desk, [1.0, warm / cold, warm / cold]);
    desk.states[0].prefill = 1000;
    let waits = 0.1 + 1.032;
    close(&mut desk, [cold / waits, 1.0, 1.0]);
    desk.states[1].slowness = 2.0;
    desk.states[2].share = 0.25;
    close(&mut desk, [2.0 * cold / waits, 1.0, 0.5]);
    // What others sent there waits, too, and is taken to be like this.
    desk.states[1].foreign = 3.0;
    let foreign = 2.0 * (0.1 + 0.288 + 3.0 * 0.288);
    close(&mut desk, [1.0, waits / foreign, waits / (4.0 * cold)]);
}

#[test]
fn token_load_counts_what_is_to_be_prefilled_and_what_is_held() {
    let ask = Ask::prompt(&[1, 2, 3, 4]);
    let mut desk = scored(r#"{"type": "token-load"}"#, "");
    assert_eq!(scores(&mut desk, &ask), [1.0, 0.0, 0.0]);
    desk.states[0].prefill = 256;
    desk.states[1].prefill = 256;
    assert_eq!(scores(&mut desk, &ask), [1.0, 0.0, 1.0], "the first and the third have as much to do");
    let mut desk = scored(r#"{"type": "token-load", "prefill": 0, "context": 1}"#, "");
    for (pod, context) in [100, 300, 200].into_iter().enumerate() {
        desk.states[pod].context = context;
    }
    assert_eq!(scores(&mut desk, &ask), [1.0, 0.0, 0.5]);
    let mut desk = scored(r#"{"type": "token-load", "bound": 1000}"#, "");
    desk.states[1].prefill = 5000;
    let bounded = scores(&mut desk, &ask);
    assert!(
        (bounded[0] - 0.968).abs() < 1e-3 && bounded[1] == 0.0 && (bounded[2] - 0.712).abs() < 1e-3,
        "{bounded:?}"
    );
}

#[test]
fn a_warm_pod_is_kept_until_waiting_there_costs_more_than_it_saves() {
    let ask = Ask::prompt(&[1, 2, 3, 4]);
    for (filter, stays_at, leaves_at) in [
        (r#"{"type": "stick-or-spill"}"#, 250, 260),
        (r#"{"type": "stick-or-spill", "patience_milliseconds": 500}"#, 750, 760),
        (r#"{"type": "stick-or-spill", "count_prompt": false}"#, 0, 1),
        (r#"{"type": "stick-or-spill", "patience_milliseconds": null}"#, 1_000_000, u32::MAX),
    ] {
        // Whoever is kept, the least loaded of them is chosen: never the warm one, if others are kept.
        let mut desk = scored(r#"{"type": "in-flight"}"#, filter);
        desk.speed = Speed { base: 0.1, per_thousand: 1.0 };
        desk.states[0].in_flight = 5;
        desk.states[0].prefill = stays_at;
        assert_eq!(desk.decide(&ask).unwrap().pod, 0, "{filter} at {stays_at}");
        if leaves_at < u32::MAX {
            desk.states[0].prefill = leaves_at;
            assert_ne!(desk.decide(&ask).unwrap().pod, 0, "{filter} at {leaves_at}");
        }
        assert_ne!(desk.decide(&Ask::prompt(&[1, 9, 9, 9])).unwrap().pod, 0, "a quarter is not warm");
    }
}

#[test]
fn what_engines_say_of_adapters_and_speed_is_scored() {
    let lora = |running: &[&str], waiting: &[&str]| {
        let digests = |names: &[&str]| names.iter().map(|name| adapter(name)).collect();
        let lora = Lora { max: 2, running: digests(running), waiting: digests(waiting) };
        Some(Engine { lora: Some(lora), ..Engine::default() })
    };
    let ask = Ask { model: Some("sql".into()), ..Ask::prompt(&[1]) };
    let mut desk = scored(r#"{"type": "lora"}"#, "");
    desk.engines = vec![lora(&["sql"], &[]), lora(&["a"], &["a"]), lora(&["a", "b"], &["sql"])];
    assert_eq!(scores(&mut desk, &ask), [1.0, 0.8, 0.6]);
    desk.engines = vec![lora(&["a", "b"], &[]), None, lora(&["sql"], &[])];
    assert_eq!(scores(&mut desk, &ask), [0.0, 0.5, 1.0], "silence is neither a merit nor a fault");
    let mut desk = scored(r#"{"type": "latency"}"#, "");
    desk.states[1].slowness = 4.0;
    assert_eq!(scores(&mut desk, &ask), [1.0, 0.25, 1.0]);
    let told = |running, waiting, kv_usage| {
        Some(Engine {
            running: Some(running),
            waiting: Some(waiting),
            kv_usage: Some(kv_usage),
            ..Engine::default()
        })
    };
    for (scorer, expected) in
        [("queue", [1.0, 0.0, 0.75]), ("running", [0.0, 1.0, 0.5]), ("kv-usage", [0.75, 0.5, 0.0])]
    {
        let mut desk = scored(&format!(r#"{{"type": "{scorer}"}}"#), "");
        desk.engines = vec![told(8.0, 0.0, 0.25), told(2.0, 8.0, 0.5), told(5.0, 2.0, 1.0)];
        assert_eq!(scores(&mut desk, &ask), expected, "{scorer}");
    }
}

#[test]
fn a_full_pod_is_out_and_when_all_are_the_request_is_one_too_many() {
    let mut desk = Desk::new(router(3, r#""profile": "least-requests""#), 1);
    desk.states[0].full = true;
    desk.states[1].in_flight = 9;
    desk.states[2].in_flight = 9;
    assert!((0..20).all(|_| desk.decide(&Ask::default()).unwrap().pod != 0));
    desk.states[1].full = true;
    desk.states[2].healthy = false;
    let busy = Err(Refused { filter: "max_in_flight", busy: true });
    assert_eq!(desk.decide(&Ask::default()), busy, "who doesn't answer is no room");
    desk.states[2].full = true;
    assert_eq!(desk.decide(&Ask::default()), busy);
    (0..3).for_each(|pod| desk.states[pod].healthy = false);
    assert_eq!(desk.decide(&Ask::default()), busy);
    (0..3).for_each(|pod| desk.states[pod].full = false);
    assert!(desk.decide(&Ask::default()).is_ok());
}
