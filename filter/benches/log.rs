//! What the replicated log costs: a request's two hostcalls with what surrounds them, applying what others appended, and
//! loading a checkpoint. On the fake host, whose hostcalls cost less than Envoy's microsecond.
//!
//! `cargo bench -p warmpath --bench log`

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use warmpath::host::fake::{FakeHost, FakeShared};
use warmpath::index::{Appended, BlockHash, Budget, Delta, Index, IndexSettings, OnUnseen, Standing};
use warmpath::pods::Job;

const ENTRIES: u64 = 1600;
const BLOCKS: u64 = 625;
const PODS: u64 = 256;

fn vm(shared: &FakeShared, settings: &IndexSettings) -> (FakeHost, Index) {
    let host = FakeHost::new(shared);
    host.state.borrow_mut().now = Duration::from_secs(1_700_000_000);
    let mut index = Index::new(settings.clone());
    let pods: Vec<_> = (0..PODS).map(|n| format!("pod-{n}")).collect();
    index.set_pods(pods.iter().map(String::as_str));
    (host, index)
}

fn chain(root: u64, length: u64) -> Vec<BlockHash> {
    (0..length).map(|depth| (root << 20 | depth).wrapping_mul(0xD6E8_FEB8_6659_FD93)).collect()
}

/// A log that stores a million blocks; `tick`: with a checkpoint.
fn filled(settings: &IndexSettings, tick: bool) -> FakeShared {
    let shared = FakeShared::default();
    let (host, mut index) = vm(&shared, settings);
    index.tick(&host);
    for entry in 0..ENTRIES {
        let pod = index.find(&format!("pod-{}", entry % PODS)).expect("joined");
        let hashes = chain(entry, BLOCKS);
        let deltas = [
            Delta::Stored { pod, parent: None, depth: 0, hashes },
            Delta::Routed { pod, job: Job::default() },
        ];
        assert_eq!(index.append(&host, &deltas, OnUnseen::Go), Appended::Done);
        if tick {
            host.state.borrow_mut().now += Duration::from_millis(100);
            index.tick(&host);
        }
    }
    shared
}

fn request(c: &mut Criterion) {
    let shared = FakeShared::default();
    let (host, mut index) = vm(&shared, &IndexSettings::default());
    index.tick(&host);
    let pod = index.find("pod-7").expect("joined");
    let mut root = 0;
    c.bench_function("request: catch up, append 64 blocks", |b| {
        b.iter(|| {
            root += 1;
            if root % 64 == 0 {
                index.tick(&host);
            }
            black_box(index.catch_up(&host, Budget { entries: 256, hashes: 8192 }));
            let hashes = chain(root % 1000, 64);
            let deltas = [
                Delta::Stored { pod, parent: None, depth: 0, hashes },
                Delta::Routed { pod, job: Job::default() },
            ];
            black_box(index.append(&host, &deltas, OnUnseen::Return))
        });
    });
}

fn apply(c: &mut Criterion) {
    let settings = IndexSettings::default();
    let shared = filled(&settings, false);
    let mut group = c.benchmark_group("a million blocks");
    group.sample_size(10).throughput(Throughput::Elements(ENTRIES * BLOCKS));
    group.bench_function("read, decode and apply", |b| {
        b.iter_batched(
            || vm(&shared, &settings),
            |(host, mut index)| {
                while index.catch_up(&host, Budget { entries: 4096, hashes: 1 << 20 }) != Standing::Exact {}
                index
            },
            BatchSize::PerIteration,
        );
    });
    let settings = IndexSettings { ring: 1024, ..settings };
    let shared = filled(&settings, true);
    println!("shared data with a checkpoint of them: {} MB", shared.bytes() >> 20);
    group.bench_function("load a checkpoint", |b| {
        b.iter_batched(
            || vm(&shared, &settings),
            |(host, mut index)| {
                while index.tick(&host) != Standing::Exact {}
                index
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, request, apply);
criterion_main!(benches);
