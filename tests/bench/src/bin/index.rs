//! The index of KV events beside `kv-index` 2.0.0 (SMG's), in one process and on the same events: from an event with its tokens to
//! the index, and from a prompt's hashes to the depth of each pod.
//!
//! What each needs of a block is computed from the tokens on both sides. Ours is the feed (own hashes, the engine's names) and the
//! table of one replica; kv-index keeps its names in a map for each worker that its caller owns.

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock, compute_content_hash};
use std::hint::black_box;
use std::time::Instant;
use warmpath::blocks::{Apart, ChainBuilder};
use warmpath::events::batch::{Batch, Event, Removed, Stored};
use warmpath::events::feed::{Feed, Model};
use warmpath::index::{Delta, Depths, PodRef, PodSet, Slot, Table};

const PODS: usize = 16;
/// Blocks of a prompt: 6,400 tokens.
const CHAIN: usize = 400;
/// Blocks of an event.
const EVENT: usize = 16;
const TOKENS: usize = 16;
/// Chains of each pod: a million blocks in all.
const CHAINS: usize = 156;
/// Blocks that a chain has in common with all of its pod and of three others.
const SHARED: usize = 100;
const ROUNDS: usize = 5;
const MODEL: Model<'static> = Model { name: "m", block_tokens: TOKENS };

/// The tokens of a pod's chain. Four pods have the same beginnings.
fn tokens(pod: usize, chain: usize) -> Vec<u32> {
    let block = |n: usize| {
        let of = if n < SHARED { (pod / 4) * 7 } else { 1000 + pod * CHAINS + chain };
        (of * 100_000 + n * TOKENS) as u32
    };
    (0..CHAIN).flat_map(|n| (0..TOKENS as u32).map(move |i| block(n) + i)).collect()
}

fn name(pod: usize, chain: usize, block: usize) -> u64 {
    let of = if block < SHARED { 0 } else { 1 + chain };
    ((pod as u64) << 48 | (of as u64) << 24 | block as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn event(pod: usize, chain: usize, first: usize, tokens: &[u32]) -> Stored {
    Stored {
        names: (first..first + EVENT).map(|block| name(pod, chain, block)).collect(),
        parent: first.checked_sub(1).map(|block| name(pod, chain, block)),
        tokens: tokens[first * TOKENS..(first + EVENT) * TOKENS].to_vec(),
        block_size: TOKENS as u32,
        is_main: true,
        ..Stored::default()
    }
}

/// The first blocks of events of what a chain has for itself, from its tail.
fn own_blocks() -> impl Iterator<Item = usize> {
    (SHARED.next_multiple_of(EVENT)..CHAIN).step_by(EVENT).rev()
}

/// Every event in the order in which pods would send them: one chain of each pod after the other.
fn events() -> Vec<(usize, Stored)> {
    let mut events = Vec::new();
    for chain in 0..CHAINS {
        for pod in 0..PODS {
            let tokens = tokens(pod, chain);
            // What is there is not stored again.
            let first = if chain == 0 { 0 } else { SHARED / EVENT * EVENT };
            events
                .extend((first..CHAIN).step_by(EVENT).map(|first| (pod, event(pod, chain, first, &tokens))));
        }
    }
    events
}

/// Nanoseconds for each of `count`, of a run.
fn each(count: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

struct Times {
    store: Vec<f64>,
    lookup: Vec<f64>,
    remove: Vec<f64>,
}

fn report(name: &str, times: &mut Times) {
    let best = |times: &mut Vec<f64>| times.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "{name:<10} | {:>6.0} ns = {:>5.2} M/s | {:>6.2} us | {:>6.0} ns",
        best(&mut times.store),
        1e3 / best(&mut times.store),
        best(&mut times.lookup) / 1e3,
        best(&mut times.remove)
    );
}

fn ours(
    events: &[(usize, Batch)],
    removed: &[(usize, Batch)],
    blocks: usize,
    times: &mut Times,
) -> Vec<(u32, usize)> {
    let mut feeds: Vec<_> = (0..PODS).map(|_| Feed::new(1 << 20)).collect();
    let mut table = Table::new(2_000_000);
    let pod = |pod: usize| PodRef { slot: Slot::new(pod as u16).expect("below the bound"), generation: 0 };
    let mut deltas = Vec::new();
    let mut numbers = [0; PODS];
    let mut apply = |table: &mut Table, of: usize, batch: &Batch| {
        let number = Some(numbers[of]);
        numbers[of] += 1;
        let sequence = feeds[of].sequence(number, false, Some(pod(of)));
        feeds[of].apply(batch, number, (sequence, false), pod(of), MODEL, &mut deltas);
        for delta in deltas.drain(..) {
            match delta {
                Delta::Stored { pod, parent, depth, hashes } => {
                    black_box(table.store(pod.slot, parent, depth, &hashes, 1));
                }
                Delta::Removed { pod, hashes } => {
                    black_box(table.remove(pod.slot, &hashes));
                }
                _ => {}
            }
        }
    };
    times.store.push(each(blocks, || events.iter().for_each(|(pod, batch)| apply(&mut table, *pod, batch))));
    let apart = Apart { model: Some("m"), ..Apart::default() };
    let chains: Vec<_> = (0..PODS * 4)
        .map(|n| {
            let mut chain = ChainBuilder::tokens(apart.seed(TOKENS), TOKENS, CHAIN * TOKENS);
            chain.push_tokens(&tokens(n % PODS, 3 + n));
            chain.finish().cached
        })
        .collect();
    let mut depths = Depths::default();
    times.lookup.push(each(chains.len() * 100, || {
        for chain in std::iter::repeat_n(&chains, 100).flatten() {
            table.depths(black_box(chain), &PodSet::FULL, &mut depths);
        }
    }));
    table.depths(&chains[0], &PodSet::FULL, &mut depths);
    let found = depths.steps.iter().map(|(depth, pods)| (*depth, pods.len())).collect();
    times.remove.push(each(removed.len() * EVENT, || {
        removed.iter().for_each(|(pod, batch)| apply(&mut table, *pod, batch))
    }));
    found
}

fn theirs(events: &[(usize, Stored)], blocks: usize, times: &mut Times) -> Vec<(u32, usize)> {
    let index = ChainIndex::new();
    let mut maps: Vec<_> = (0..PODS).map(|_| ChainBlockMap::default()).collect();
    let workers: Vec<_> =
        (0..PODS).map(|n| index.intern_worker(&format!("pod-{n}")).expect("few workers")).collect();
    times.store.push(each(blocks, || {
        for (pod, stored) in events {
            let hashes = stored.tokens.chunks_exact(TOKENS).map(compute_content_hash);
            let blocks: Vec<_> = stored
                .names
                .iter()
                .zip(hashes)
                .map(|(name, content_hash)| StoredBlock { seq_hash: SequenceHash(*name), content_hash })
                .collect();
            let parent = stored.parent.map(SequenceHash);
            index.apply_stored(workers[*pod], &blocks, parent, &mut maps[*pod]).expect("its parent is there");
        }
    }));
    let chains: Vec<Vec<ContentHash>> = (0..PODS * 4)
        .map(|n| tokens(n % PODS, 3 + n).chunks_exact(TOKENS).map(compute_content_hash).collect())
        .collect();
    times.lookup.push(each(chains.len() * 100, || {
        for chain in std::iter::repeat_n(&chains, 100).flatten() {
            black_box(index.find_matches(black_box(chain), false));
        }
    }));
    let mut found = std::collections::BTreeMap::<u32, usize>::new();
    index
        .find_matches(&chains[0], false)
        .scores
        .values()
        .for_each(|depth| *found.entry(*depth).or_default() += 1);
    times.remove.push(each(PODS * own_blocks().count() * EVENT, || {
        for pod in 0..PODS {
            for first in own_blocks() {
                let names: Vec<_> =
                    (first..first + EVENT).map(|block| SequenceHash(name(pod, 1, block))).collect();
                index.apply_removed(workers[pod], &names, &mut maps[pod]);
            }
        }
    }));
    found.into_iter().rev().collect()
}

fn main() {
    let events = events();
    let blocks = events.len() * EVENT;
    let batches: Vec<_> = events
        .iter()
        .map(|(pod, stored)| {
            (*pod, Batch { events: vec![Event::Stored(stored.clone())], ..Batch::default() })
        })
        .collect();
    // Of a chain of each pod goes what it has for itself, from its tail.
    let removed: Vec<_> = (0..PODS)
        .flat_map(|pod| own_blocks().map(move |first| (pod, first)))
        .map(|(pod, first)| {
            let names = (first..first + EVENT).map(|block| name(pod, 1, block)).collect();
            let event = Event::Removed(Removed { names, ..Removed::default() });
            (pod, Batch { events: vec![event], ..Batch::default() })
        })
        .collect();
    let new = || Times { store: Vec::new(), lookup: Vec::new(), remove: Vec::new() };
    let (mut warmpath, mut kv_index) = (new(), new());
    for round in 0..ROUNDS {
        let found = ours(&batches, &removed, blocks, &mut warmpath);
        let their = theirs(&events, blocks, &mut kv_index);
        assert_eq!(found, their, "both find the same");
        eprintln!("round {} of {ROUNDS}", round + 1);
    }
    println!(
        "{blocks} blocks of {PODS} pods in events of {EVENT}; lookups of {CHAIN} blocks; the best of {ROUNDS} rounds"
    );
    println!("{:<10} | {:<22} | {:<9} | a removed block", "", "a stored block", "a lookup");
    report("warmpath", &mut warmpath);
    report("kv-index", &mut kv_index);
}
