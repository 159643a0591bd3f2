//! What decisions lead to: where affinity holds, and where load breaks it.

mod sim;

use sim::{Ask, Desk, Load, router, router_of, run};
use std::collections::HashMap;

const PREFIX_AWARE: &str = r#""profile": "prefix-aware""#;

/// Conversations over system prompts that many share, with pauses, on about `clients / 3` requests at a time.
fn conversations(clients: usize, systems: usize) -> Load {
    Load {
        clients,
        systems,
        system_blocks: 20,
        turn_blocks: 4,
        turns: 6,
        answer: 8.0,
        think: 16.0,
        requests: clients * 25,
    }
}

#[test]
fn a_prompt_that_everybody_shares_does_not_pile_up() {
    for (pods, in_flight) in [(4, 16), (4, 64), (16, 64)] {
        let mut desk = Desk::new(router(pods, PREFIX_AWARE), 1);
        let hot = Ask::prompt(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut running = std::collections::VecDeque::new();
        let mut served = vec![0_usize; pods];
        for i in 0..in_flight * 20 {
            if running.len() == in_flight {
                running.pop_front().into_iter().for_each(|pod| desk.done(pod));
            }
            let pod = desk.send(&hot);
            running.push_back(pod);
            let mean = running.len() as f32 / pods as f32;
            let most = desk.states.iter().map(|state| state.in_flight).max().unwrap();
            assert!(most as f32 <= 1.25 * mean + 5.0, "{most} on one pod at a mean of {mean}, request {i}");
            if i >= in_flight * 10 {
                served[pod] += 1;
            }
        }
        // Once it is known everywhere, everybody serves it alike.
        let fair = in_flight * 10 / pods;
        assert!(
            served.iter().all(|served| served.abs_diff(fair) <= fair / 4),
            "{pods} pods: {served:?}, fair {fair}"
        );
    }
}

#[test]
fn equal_prompts_at_once_share_a_pod_while_it_has_room() {
    for seed in 0..20 {
        let mut desk = Desk::new(router(4, PREFIX_AWARE), seed);
        let sent: Vec<_> = (0..12).map(|_| desk.send(&Ask::prompt(&[1, 2, 3]))).collect();
        assert!(sent[..6].iter().all(|pod| *pod == sent[0]), "scattered at once: {sent:?}");
        let mut pods = sent.clone();
        pods.sort_unstable();
        pods.dedup();
        assert_eq!(pods.len(), 2, "one takes what the other has no room for: {sent:?}");
        assert!(desk.states.iter().all(|state| state.in_flight <= 8), "piled up: {sent:?}");
    }
}

#[test]
fn a_new_pod_gets_work_soon() {
    // About 16 requests at a time on three pods that know every system prompt; then a fourth comes, which knows none.
    for seed in 0..10 {
        let load = conversations(48, 6);
        let joins = load.requests / 2;
        let mut desk = Desk::new(router(4, PREFIX_AWARE), seed);
        desk.states[3].healthy = false;
        let outcome = run(&mut desk, &load, seed, |request, desk| {
            if request == joins {
                desk.states[3].healthy = true;
            }
        });
        assert!(outcome.order[..joins].iter().all(|pod| *pod != 3));
        let share = |range: std::ops::Range<usize>| {
            outcome.order[range.clone()].iter().filter(|pod| **pod == 3).count() as f64 / range.len() as f64
        };
        assert!(outcome.order[joins..joins + 32].contains(&3), "nothing in the first 32 requests");
        assert!(
            share(joins..joins + 200) > 0.10,
            "a share of {} in the first 200",
            share(joins..joins + 200)
        );
    }
}

#[test]
fn an_unknown_prompt_goes_to_the_least_loaded_pod() {
    let mut desk = Desk::new(router(4, PREFIX_AWARE), 1);
    for pod in [0, 1, 3] {
        desk.states[pod].in_flight = 1;
    }
    for new in 0..20 {
        assert_eq!(desk.decide(&Ask::prompt(&[1000 + new])).unwrap().pod, 2);
    }
}

#[test]
fn conversations_stay_on_their_pod_unless_load_forbids() {
    let round_robin = r#""profile": "round-robin""#;
    for (clients, stuck, hits) in [(3, 0.99, 0.99), (12, 0.97, 0.98), (48, 0.95, 0.98), (160, 0.9, 0.97)] {
        let load = conversations(clients, 6);
        let outcome = run(&mut Desk::new(router(4, PREFIX_AWARE), 1), &load, 7, |_, _| {});
        let other = run(&mut Desk::new(router(4, round_robin), 1), &load, 7, |_, _| {});
        let figures = format!("{clients} clients: {outcome:?}");
        assert!(outcome.stuck_share() >= stuck, "stuck {}, {figures}", outcome.stuck_share());
        assert!(outcome.hit_share() >= hits, "hits {}, {figures}", outcome.hit_share());
        let (ours, theirs) = (outcome.mean_first_token(), other.mean_first_token());
        assert!(ours < 0.75 * theirs, "first token after {ours}, round robin {theirs}, {figures}");
    }
}

#[test]
fn a_conversation_returns_when_its_pod_has_room_again() {
    let mut desk = Desk::new(router(4, PREFIX_AWARE), 3);
    let pod = desk.send(&Ask::prompt(&[1, 2, 3, 4]));
    desk.done(pod);
    desk.states[pod].in_flight = 40;
    let turn = Ask::prompt(&[1, 2, 3, 4, 5, 6]);
    assert_ne!(desk.decide(&turn).unwrap().pod, pod, "its pod is overloaded");
    desk.states[pod].in_flight = 2;
    let decision = desk.decide(&turn).unwrap();
    assert_eq!((decision.pod, decision.matched, decision.blocks), (pod, 4, 6));
}

#[test]
fn many_pods_behave_like_few() {
    let load = Load { requests: 1500, ..conversations(128, 40) };
    let outcome = run(&mut Desk::new(router(64, PREFIX_AWARE), 1), &load, 3, |_, _| {});
    assert!(outcome.stuck_share() >= 0.97, "{outcome:?}");
    assert!(outcome.hit_share() >= 0.97, "{outcome:?}");
    assert!(outcome.served.iter().filter(|served| **served > 0).count() >= 30, "{outcome:?}");
}

#[test]
fn a_pod_of_twice_the_weight_does_twice_the_work() {
    let pods =
        r#"{"address": "10.0.0.1:1", "weight": 2}, {"address": "10.0.0.1:2"}, {"address": "10.0.0.1:3"}"#;
    for profile in ["prefix-aware", "least-requests"] {
        let rest = format!(r#""profile": "{profile}""#);
        let load = Load { requests: 3000, ..conversations(96, 4) };
        let outcome = run(&mut Desk::new(router_of(pods, &rest), 1), &load, 5, |_, _| {});
        let share = outcome.served[0] as f64 / load.requests as f64;
        assert!((0.42..0.58).contains(&share), "{profile}: {share}, {:?}", outcome.served);
    }
}

#[test]
fn a_hash_spills_to_the_next_of_its_order_and_returns() {
    let mut desk = Desk::new(router(6, r#""profile": "consistent-hash""#), 1);
    for key in 0..50 {
        let ask = Ask::session(&format!("user-{key}"));
        let order: Vec<usize> = {
            let decision = desk.decide(&ask).unwrap();
            std::iter::once(decision.pod)
                .chain(decision.fallbacks().iter().map(|pod| usize::from(*pod)))
                .collect()
        };
        assert_eq!(order.len(), 4);
        for spilled in 1..order.len() {
            desk.states[order[spilled - 1]].in_flight = 50;
            assert_eq!(desk.decide(&ask).unwrap().pod, order[spilled], "key {key}");
        }
        for state in &mut desk.states {
            state.in_flight = 0;
        }
        assert_eq!(desk.decide(&ask).unwrap().pod, order[0], "key {key} returns");
    }
}

#[test]
fn hashing_is_even_and_moves_only_the_keys_of_a_pod_that_left() {
    let mut desk = Desk::new(router(5, r#""profile": "consistent-hash""#), 1);
    let asks: Vec<_> = (0..2000).map(|key| Ask::session(&format!("session {key}"))).collect();
    let before: Vec<_> = asks.iter().map(|ask| desk.decide(ask).unwrap().pod).collect();
    for pod in 0..5 {
        let share = before.iter().filter(|chosen| **chosen == pod).count();
        assert!((330..470).contains(&share), "pod {pod}: {share} of 2000");
    }
    desk.states[2].healthy = false;
    for (ask, before) in asks.iter().zip(before) {
        let after = desk.decide(ask).unwrap().pod;
        assert!(after == before || before == 2, "moved from {before} to {after}");
        assert_ne!(after, 2);
    }
}

#[test]
fn a_hash_follows_its_key_by_prefix_where_there_is_no_session() {
    let mut desk = Desk::new(router(8, r#""profile": "consistent-hash""#), 1);
    for prompt in 0..20 {
        let start = [prompt, prompt + 100, prompt + 200, prompt + 300];
        let pod = desk.decide(&Ask::prompt(&start)).unwrap().pod;
        let longer: Vec<_> = start.iter().copied().chain([7, 8, 9]).collect();
        assert_eq!(desk.decide(&Ask::prompt(&longer)).unwrap().pod, pod);
    }
}

#[test]
fn a_session_sticks_over_changing_load() {
    let mut desk = Desk::new(router(4, r#""profile": "sticky-session""#), 1);
    let home: Vec<_> = (0..20).map(|session| desk.send(&Ask::session(&session.to_string()))).collect();
    assert!((0..4).all(|pod| home.contains(&pod)), "new sessions spread: {home:?}");
    for round in 0..10 {
        for (i, state) in desk.states.iter_mut().enumerate() {
            state.in_flight = ((i as u32 + 1) * 37 + round * 101) % 60;
        }
        for (session, home) in home.iter().enumerate() {
            assert_eq!(desk.send(&Ask::session(&session.to_string())), *home);
        }
    }
    // Its pod is gone: another takes over, and keeps the session even when the first comes back as well as before.
    let gone = home[0];
    desk.states[gone].healthy = false;
    let second = desk.send(&Ask::session("0"));
    assert_ne!(second, gone);
    assert_eq!(desk.send(&Ask::session("0")), second);
    desk.states[gone].healthy = true;
    let settled = desk.send(&Ask::session("0"));
    assert!(settled == gone || settled == second);
    for _ in 0..20 {
        assert_eq!(desk.send(&Ask::session("0")), settled, "swings between the pods that know it");
    }
}

#[test]
fn a_session_by_cookie_or_user_is_found_too() {
    let mut desk = Desk::new(router(4, r#""profile": "sticky-session""#), 1);
    let cookie = Ask { headers: vec![("cookie".into(), "a=b; session=s1".into())], ..Ask::default() };
    let user = Ask { user: Some("u1".into()), ..Ask::default() };
    for ask in [cookie, user] {
        let home = desk.send(&ask);
        for _ in 0..20 {
            assert_eq!(desk.send(&ask), home);
        }
    }
}

/// How often each pod is chosen, first, in `n` decisions that change nothing.
fn counts(desk: &mut Desk, n: usize) -> HashMap<usize, usize> {
    let mut counts = HashMap::new();
    for _ in 0..n {
        *counts.entry(desk.decide(&Ask::default()).unwrap().pod).or_insert(0) += 1;
    }
    counts
}

#[test]
fn weighted_random_follows_weights_and_scores() {
    let pods = r#"{"address": "10.0.0.1:1", "weight": 3}, {"address": "10.0.0.1:2"}, {"address": "10.0.0.1:3", "weight": 0.5}"#;
    let mut desk = Desk::new(router_of(pods, r#""profile": "random""#), 1);
    let counts_of = counts(&mut desk, 9000);
    for (pod, expected) in [(0, 6000), (1, 2000), (2, 1000)] {
        assert!(counts_of[&pod].abs_diff(expected) < 200, "{counts_of:?}");
    }
    let scored = r#""profile": "m", "profiles": {"m": {"scorers": [{"type": "in-flight"}], "picker": {"type": "weighted-random"}}}"#;
    let mut desk = Desk::new(router(3, scored), 1);
    desk.states[1].in_flight = 4;
    desk.states[2].in_flight = 8;
    let counts_of = counts(&mut desk, 9000);
    assert!(counts_of[&0].abs_diff(6000) < 200 && counts_of[&1].abs_diff(3000) < 200, "{counts_of:?}");
    assert!(!counts_of.contains_key(&2), "a score of 0 is never drawn while another has more: {counts_of:?}");
}

#[test]
fn random_is_even() {
    let profile = r#""profile": "m", "profiles": {"m": {"picker": {"type": "random"}}}"#;
    let counts = counts(&mut Desk::new(router(4, profile), 1), 8000);
    assert!((0..4).all(|pod| counts[&pod].abs_diff(2000) < 150), "{counts:?}");
}

#[test]
fn round_robin_is_even_and_takes_up_who_comes_back() {
    let mut desk = Desk::new(router(5, r#""profile": "round-robin""#), 9);
    let first = counts(&mut desk, 500);
    assert!((0..5).all(|pod| first[&pod] == 100), "{first:?}");
    desk.states[3].healthy = false;
    let without = counts(&mut desk, 400);
    assert!([0, 1, 2, 4].iter().all(|pod| without[pod] == 100), "{without:?}");
    desk.states[3].healthy = true;
    let again = counts(&mut desk, 500);
    assert!((0..5).all(|pod| again[&pod].abs_diff(100) <= 1), "{again:?}");
    let decision = desk.decide(&Ask::default()).unwrap();
    let fallback = usize::from(decision.fallbacks()[0]);
    assert_eq!(
        desk.decide(&Ask::default()).unwrap().pod,
        fallback,
        "the first fallback is whose turn is next"
    );
}

#[test]
fn a_request_that_is_decided_again_keeps_its_turn() {
    let mut desk = Desk::new(router(4, r#""profile": "round-robin""#), 9);
    let mut served = [0; 4];
    for _ in 0..100 {
        let first = desk.decide(&Ask::default()).unwrap().pod;
        let again = desk.again().unwrap();
        assert_eq!(again.pod, first);
        served[first] += 1;
    }
    assert_eq!(served, [25; 4]);
}

#[test]
fn power_of_two_takes_the_less_loaded_of_two() {
    let profile = r#""profile": "m", "profiles": {"m": {"picker": {"type": "power-of-two"}}}"#;
    let mut desk = Desk::new(router(4, profile), 1);
    for (pod, state) in desk.states.iter_mut().enumerate() {
        state.in_flight = pod as u32;
    }
    // Of the six pairs the least loaded is in three, the second in two where it wins, the third in one.
    let counts = counts(&mut desk, 6000);
    for (pod, expected) in [(0, 3000), (1, 2000), (2, 1000)] {
        assert!(counts[&pod].abs_diff(expected) < 150, "{counts:?}");
    }
    assert!(!counts.contains_key(&3), "the most loaded never wins: {counts:?}");
    let mut one = Desk::new(router(1, profile), 1);
    assert_eq!(one.decide(&Ask::default()).unwrap().pod, 0);
}

#[test]
fn least_requests_breaks_ties_by_chance() {
    let mut desk = Desk::new(router(4, r#""profile": "least-requests""#), 1);
    desk.states[0].in_flight = 1;
    let counts = counts(&mut desk, 3000);
    assert!(!counts.contains_key(&0), "{counts:?}");
    assert!((1..4).all(|pod| counts[&pod].abs_diff(1000) < 120), "{counts:?}");
}
