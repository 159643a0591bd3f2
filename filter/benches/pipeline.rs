//! Time of a decision by the size of the fleet, without the index's query: `cargo bench -p warmpath --bench pipeline`.
#![allow(missing_docs, reason = "a benchmark has no readers of docs")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use warmpath::blocks::{BlockHash, BlockSize, Chain};
use warmpath::config::load;
use warmpath::pipeline::{Body, Input, Matches, PodState, Positions, Residency, Scratch, Seen, Slots};
use warmpath::pods::Speed;
use warmpath::workflow::Plan;

struct Prompt(Vec<BlockHash>);

impl Body for Prompt {
    fn model(&self) -> Option<&str> {
        Some("llama")
    }

    fn user(&self) -> Option<&str> {
        Some("somebody")
    }

    fn chain(&self, _size: BlockSize) -> Chain {
        Chain { hashes: self.0.clone(), cached: Vec::new() }
    }
}

/// An index that answers at once: half of the pods hold something, at eight depths.
struct Ready(Matches);

impl Residency for Ready {
    fn depths(&self, _chain: &Chain, out: &mut Matches) {
        out.clone_from(&self.0);
    }
}

fn decide(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    for profile in
        ["prefix-aware", "consistent-hash", "sticky-session", "least-requests", "round-robin", "random"]
    {
        for count in [4, 64, 256] {
            let pods: Vec<_> = (0..count)
                .map(|i| format!(r#"{{"address": "10.0.0.1:{}", "models": ["llama"]}}"#, 1000 + i))
                .collect();
            let config = format!(r#"{{"profile": "{profile}", "pods": [{}]}}"#, pods.join(","));
            let router = load(config.as_bytes()).expect("right");
            let states: Vec<_> = (0..count)
                .map(|i| PodState {
                    in_flight: (i * 37 % 16) as u32,
                    healthy: i % 50 != 7,
                    ..PodState::default()
                })
                .collect();
            let mut matches = Matches::default();
            for step in 0..8 {
                matches.push(
                    80 - step * 10,
                    (0..count).filter(|pod| pod % 16 == step as usize).collect::<Positions>(),
                );
            }
            let index = Ready(matches);
            let prompt = Prompt((0..100).collect());
            let profile_of = router.select("/v1/chat/completions", &|_| None, Some("llama"));
            let profile_of = profile_of.and_then(Plan::single).expect("one step");
            let mut slots = Slots::default();
            profile_of.prepare(&Input { header: &|_| None, body: Some(&prompt) }, 1, &mut slots);
            let mut scratch = Scratch::new(1);
            group.bench_function(BenchmarkId::new(profile, count), |b| {
                b.iter(|| {
                    let seen = Seen {
                        states: black_box(&states),
                        engines: &[],
                        speed: Speed::default(),
                        index: &index,
                    };
                    black_box(router.decide(profile_of, &seen, &mut slots, &mut scratch, 3))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, decide);
criterion_main!(benches);
