//! What the block table costs: `cargo bench -p warmpath --bench index`.
//!
//! * `query/…`: one chain of 6,250 blocks (100,000 tokens) among 256 pods and 1 million blocks, each query another
//!   chain. `turns` is a table that grew by turns of many conversations, `loaded` the same after a checkpoint was
//!   loaded, when blocks of a chain lie nowhere near each other. `holed`: every tenth pod lacks a block in the middle of
//!   each chain. Queries run `one after another`, or each `after other work`, which took the caches for itself (the
//!   chain apart: it was just computed).
//! * `apply/…`: blocks a second, as deltas of the log bring them.
//! * Printed first: memory for a million blocks, and the most it was for each million on the way there.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use warmpath::index::{Block, BlockHash, Depths, PodSet, SHARDS, Slot, Table};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const BLOCKS: usize = 1_000_000;
const CHAIN: usize = 6_250;
const CHAINS: usize = BLOCKS / CHAIN;
const PODS: u16 = 256;
/// Blocks of one delta: a turn of a conversation.
const TURN: usize = 64;

fn slot(n: usize) -> Slot {
    Slot::new((n % usize::from(PODS)) as u16).expect("below the bound")
}

fn chain(n: usize) -> Vec<BlockHash> {
    let mut hash = n as u64;
    let next = |block: u64| {
        hash = xxh3_64_with_seed(&block.to_le_bytes(), hash);
        hash
    };
    (0..CHAIN as u64).map(next).collect()
}

fn chains() -> Vec<Vec<BlockHash>> {
    (0..CHAINS).map(chain).collect()
}

/// Each conversation takes its turn of `TURN` blocks, round by round, on one pod.
fn grow(table: &mut Table, chains: &[Vec<BlockHash>], mut after_turn: impl FnMut(&Table)) {
    for from in (0..CHAIN).step_by(TURN) {
        for (n, chain) in chains.iter().enumerate() {
            store(table, slot(n), chain, from, (from + TURN).min(CHAIN));
            after_turn(table);
        }
    }
}

fn store(table: &mut Table, slot: Slot, chain: &[BlockHash], from: usize, to: usize) {
    let parent = from.checked_sub(1).map(|n| chain[n]);
    black_box(table.store(slot, parent, from as u32, &chain[from..to], from as u32));
}

/// `pods` pods hold every chain, to `depths` different depths, one of them the whole.
fn spread_out(table: &mut Table, chains: &[Vec<BlockHash>], pods: usize, depths: usize) {
    for (n, chain) in chains.iter().enumerate() {
        for pod in 1..pods {
            store(table, slot(n + pod), chain, 0, depth(n, pod, depths));
        }
    }
}

fn depth(chain: usize, pod: usize, depths: usize) -> usize {
    let step = pod % depths;
    if step == 0 { CHAIN } else { (step * 7919 + chain * 104_729) % CHAIN + 1 }
}

/// Every tenth pod loses a block in the middle of what it holds of each chain.
fn make_holes(table: &mut Table, chains: &[Vec<BlockHash>], pods: usize, depths: usize) {
    for (n, chain) in chains.iter().enumerate() {
        for pod in (0..pods).step_by(10) {
            assert_eq!(table.remove(slot(n + pod), &[chain[depth(n, pod, depths) / 2]]), 1);
        }
    }
}

fn reloaded(table: &Table) -> Table {
    let mut loaded = Table::new(2 * BLOCKS);
    for block in (0..SHARDS).flat_map(|shard| table.shard(shard)).collect::<Vec<Block>>() {
        assert!(loaded.load(&block));
    }
    loaded
}

fn query(c: &mut Criterion) {
    let chains = chains();
    for (pods, depths) in [(1, 1), (256, 1), (256, 16)] {
        let name = |table: &str| format!("{table}, on {pods} pods to {depths} depths");
        let mut table = Table::new(2 * BLOCKS);
        grow(&mut table, &chains, |_| {});
        spread_out(&mut table, &chains, pods, depths);
        query_table(c, &name("turns"), &table, &chains);
        query_table(c, &name("loaded"), &reloaded(&table), &chains);
        make_holes(&mut table, &chains, pods, depths);
        query_table(c, &name("turns, holed"), &table, &chains);
        query_table(c, &name("loaded, holed"), &reloaded(&table), &chains);
    }
}

fn query_table(c: &mut Criterion, name: &str, table: &Table, chains: &[Vec<BlockHash>]) {
    let among: PodSet = (0..usize::from(PODS)).map(slot).collect();
    let mut found = Depths::default();
    table.depths(&chains[0], &among, &mut found);
    println!("{name}: {} blocks, {} distinct depths", table.len(), found.steps.len());
    let mut group = c.benchmark_group(format!("query/{name}"));
    let mut turn = (0..CHAINS).cycle();
    group.bench_function("one after another", |b| {
        b.iter(|| {
            table.depths(black_box(&chains[turn.next().unwrap_or(0)]), &among, &mut found);
            found.steps.len()
        })
    });
    let other_work = vec![1u64; 64 << 17];
    group.sample_size(50).bench_function("after other work", |b| {
        b.iter_batched(
            || {
                black_box(other_work.iter().sum::<u64>());
                let chain = &chains[turn.next().unwrap_or(0)];
                black_box(chain.iter().fold(0, |all, hash| all ^ hash));
                chain
            },
            |chain| {
                table.depths(black_box(chain), &among, &mut found);
                found.steps.len()
            },
            BatchSize::PerIteration,
        )
    });
    group.finish();
}

fn apply(c: &mut Criterion) {
    let chains = chains();
    let mut group = c.benchmark_group("apply");
    group.sample_size(10).throughput(Throughput::Elements(BLOCKS as u64));
    let mut full = Table::new(2 * BLOCKS);
    grow(&mut full, &chains, |_| {});

    group.bench_function("new blocks, growing from nothing", |b| {
        b.iter_batched(
            || Table::new(2 * BLOCKS),
            |mut table| {
                grow(&mut table, &chains, |_| {});
                table
            },
            BatchSize::PerIteration,
        )
    });
    let mut churned = Table::new(2 * BLOCKS);
    grow(&mut churned, &chains, |_| {});
    let (mut old, mut generation) = (chains.clone(), 0);
    group.throughput(Throughput::Elements(2 * BLOCKS as u64));
    group.bench_function("new blocks for old ones, tails first", |b| {
        b.iter_batched(
            || {
                generation += CHAINS;
                let new: Vec<Vec<BlockHash>> = (0..CHAINS).map(|n| chain(generation + n)).collect();
                let tails: Vec<Vec<BlockHash>> =
                    old.iter().map(|chain| chain.iter().rev().copied().collect()).collect();
                old.clone_from(&new);
                (new, tails)
            },
            |(new, tails)| {
                for from in (0..CHAIN).step_by(TURN) {
                    let to = (from + TURN).min(CHAIN);
                    for (n, (new, tail)) in new.iter().zip(&tails).enumerate() {
                        assert_eq!(churned.remove(slot(n), &tail[from..to]), to - from);
                        store(&mut churned, slot(n), new, from, to);
                    }
                }
            },
            BatchSize::PerIteration,
        )
    });
    group.throughput(Throughput::Elements(BLOCKS as u64));
    let mut pod = 1;
    group.bench_function("known blocks, another pod", |b| {
        b.iter(|| {
            // After a few rounds each block is on many pods.
            pod += 1;
            for from in (0..CHAIN).step_by(TURN) {
                for (n, chain) in chains.iter().enumerate() {
                    store(&mut full, slot(n + pod), chain, from, (from + TURN).min(CHAIN));
                }
            }
        })
    });
    group.bench_function("a checkpoint loaded", |b| b.iter(|| reloaded(&churned).len()));
    group.finish();
}

/// Memory in MB (10^6 bytes).
fn memory(_: &mut Criterion) {
    let chains = chains();
    for pods in [1, 2, 4] {
        let mut table = Table::new(2 * BLOCKS);
        let mut worst = (0.0, 0);
        grow(&mut table, &chains, |table| {
            let per_million = table.memory_bytes() as f64 / table.len() as f64;
            // Below this, chunks count for more than blocks.
            if table.len() > BLOCKS / 4 && per_million > worst.0 {
                worst = (per_million, table.len());
            }
        });
        let mut others = table;
        for pod in 1..pods {
            chains
                .iter()
                .enumerate()
                .for_each(|(n, chain)| store(&mut others, slot(n + pod), chain, 0, CHAIN));
        }
        println!(
            "memory: {} blocks on {pods} pods each: {:.1} MB; most for a million on the way: {:.1} MB, at {} blocks",
            others.len(),
            others.memory_bytes() as f64 / 1e6,
            worst.0,
            worst.1
        );
    }
}

criterion_group!(benches, memory, query, apply);
criterion_main!(benches);
