//! Which profile gives the first token soonest, on a simulated fleet of unequal pods under skewed load.

mod sim;

use sim::fleet::{Figures, Fleet, run};
use sim::{Desk, router};

const PROFILES: [&str; 7] = [
    "cost-aware",
    "prefix-aware",
    "least-requests",
    "round-robin",
    "random",
    "consistent-hash",
    "sticky-session",
];

/// Eight pods of which one is three times slower, and 400 prefixes of which the first is asked for most.
fn uneven(rate: f64) -> Fleet {
    let mut rates = vec![10_000.0; 8];
    rates[3] /= 3.0;
    Fleet {
        rates,
        cache: 2500,
        batch: 32,
        prefixes: 400,
        skew: 1.0,
        prefix_blocks: (16, 64),
        rest_blocks: (4, 16),
        answer: 100.0,
        token_seconds: 0.02,
        rate,
        requests: 6000,
    }
}

fn figures(profile: &str, fleet: &Fleet, seed: u64) -> Figures {
    let mut desk = Desk::new(router(fleet.rates.len(), &format!(r#""profile": "{profile}""#)), seed);
    run(&mut desk, fleet, seed)
}

#[test]
fn cost_aware_gives_the_first_token_sooner_than_every_other_profile() {
    for rate in [15.0, 35.0, 50.0] {
        let fleet = uneven(rate);
        let all: Vec<_> = PROFILES.map(|profile| (profile, figures(profile, &fleet, 7))).into();
        println!(
            "\n{rate} requests a second\n{:16} {:>9} {:>9} {:>9} {:>7}  requests of each pod, the 4th is slow",
            "profile", "mean ms", "p50 ms", "p99 ms", "hits"
        );
        for (profile, Figures { mean, p50, p99, hits, served }) in &all {
            println!("{profile:16} {mean:9.1} {p50:9.1} {p99:9.1} {:6.1}%  {served:?}", hits * 100.0);
        }
        let (_, ours) = &all[0];
        for (profile, theirs) in &all[1..] {
            assert!(
                ours.mean < theirs.mean && ours.p99 < theirs.p99,
                "{profile} at {rate}: {theirs:?}, ours {ours:?}"
            );
        }
    }
}
