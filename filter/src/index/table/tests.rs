//! The table and its query, held to a literal reference.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::*;
use crate::index::Depths;

const PODS: u16 = 9;
const UNIVERSE: usize = 64;
/// Few enough that shards fill up.
const PER_SHARD: usize = 11;
const USED_SHARDS: usize = 4;

fn slot(n: u16) -> Slot {
    // Both ends of the range.
    Slot::new(if n.is_multiple_of(2) { n } else { 511 - n }).unwrap()
}

/// Names that fall in few shards, so that what is local to a shard is exercised.
fn names() -> Vec<BlockHash> {
    (0u64..)
        .map(|n| xxh3_64(&n.to_le_bytes()))
        .filter(|&hash| shard_of(hash) % 64 == 3)
        .take(UNIVERSE)
        .collect()
}

/// The table as its documentation has it: records by name, and nothing else.
#[derive(Debug, Clone, Default)]
struct Reference {
    blocks: HashMap<BlockHash, Record>,
    frozen: BTreeSet<usize>,
}

#[derive(Debug, Clone, PartialEq)]
struct Record {
    parent: Option<BlockHash>,
    depth: u32,
    touched: u32,
    pods: BTreeSet<Slot>,
}

impl Reference {
    fn store(
        &mut self,
        pod: Slot,
        mut parent: Option<BlockHash>,
        depth: u32,
        hashes: &[BlockHash],
        touched: u32,
    ) -> Stored {
        let mut done = Stored::default();
        for (&hash, depth) in hashes.iter().zip(depth..) {
            let shard = shard_of(hash);
            let held = self.blocks.keys().filter(|&&other| shard_of(other) == shard).count();
            if !self.frozen.contains(&shard) {
                let accept = match self.blocks.get(&hash) {
                    Some(known) => known.parent == parent && known.depth == depth,
                    None => held < PER_SHARD && parent.is_none() == (depth == 0) && parent != Some(hash),
                };
                if accept {
                    let new = Record { parent, depth, touched, pods: BTreeSet::new() };
                    let record = self.blocks.entry(hash).or_insert(new);
                    record.touched = record.touched.max(touched);
                    done.added += usize::from(record.pods.insert(pod));
                } else {
                    done.refused += 1;
                }
            }
            parent = Some(hash);
        }
        done
    }

    fn remove(&mut self, pod: Slot, hashes: &[BlockHash]) -> usize {
        let mut removed = 0;
        for hash in hashes {
            let Some(record) = self.blocks.get_mut(hash).filter(|_| !self.frozen.contains(&shard_of(*hash)))
            else {
                continue;
            };
            removed += usize::from(record.pods.remove(&pod));
            if record.pods.is_empty() {
                self.blocks.remove(hash);
            }
        }
        removed
    }

    /// The walk: block by block, each pod out at the first one it lacks.
    fn depths(&self, chain: &[BlockHash], among: &PodSet) -> Vec<(u32, PodSet)> {
        let mut deepest: BTreeMap<u32, PodSet> = BTreeMap::new();
        for pod in among.iter() {
            let mut depth = 0;
            for (&hash, position) in chain.iter().zip(0..) {
                match self.blocks.get(&hash) {
                    Some(block) if block.depth == position && block.pods.contains(&pod) => depth += 1,
                    _ => break,
                }
            }
            if depth > 0 {
                deepest.entry(depth).or_default().insert(pod);
            }
        }
        deepest.into_iter().rev().collect()
    }

    /// The path to a block, by what is recorded, else by what `tree` says.
    fn path(&self, to: BlockHash, tree: &HashMap<BlockHash, Option<BlockHash>>) -> Vec<BlockHash> {
        let above = |hash: &BlockHash| match self.blocks.get(hash) {
            Some(block) => block.parent,
            None => tree.get(hash).copied().flatten(),
        };
        // Records that contradict each other may lead in a circle.
        let mut path: Vec<_> = std::iter::successors(Some(to), above).take(2 * UNIVERSE).collect();
        path.reverse();
        path
    }

    fn block(&self, hash: BlockHash) -> Option<Block> {
        let Record { parent, depth, touched, pods } = self.blocks.get(&hash)?.clone();
        Some(Block { hash, parent, depth, touched, stored: pods.into_iter().collect() })
    }
}

#[derive(Debug, Clone)]
enum Op {
    /// A pod stores the last `count` blocks of the path to a block.
    Store {
        pod: u16,
        to: usize,
        count: usize,
        touched: u32,
    },
    /// The same with a parent or depth that need not be the right one.
    Misplace {
        pod: u16,
        to: usize,
        parent: Option<usize>,
        depth: u32,
        count: usize,
    },
    Remove {
        pod: u16,
        blocks: Vec<usize>,
    },
    Touch {
        block: usize,
        touched: u32,
    },
    Wipe {
        pod: u16,
    },
    WipeShard {
        pod: u16,
        shard: usize,
    },
    Freeze {
        shard: usize,
        frozen: bool,
    },
    /// All shards are written and read into a new table, in another order.
    Reload {
        order: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (pod, block) = (0..PODS, 0..UNIVERSE);
    prop_oneof![
        12 => (pod.clone(), block.clone(), 1..30usize, 0..99u32)
            .prop_map(|(pod, to, count, touched)| Op::Store { pod, to, count, touched }),
        1 => (pod.clone(), block.clone(), prop::option::of(block.clone()), 0..6u32, 1..4usize)
            .prop_map(|(pod, to, parent, depth, count)| Op::Misplace { pod, to, parent, depth, count }),
        5 => (pod.clone(), prop::collection::vec(block.clone(), 1..6))
            .prop_map(|(pod, blocks)| Op::Remove { pod, blocks }),
        2 => (block, 0..99u32).prop_map(|(block, touched)| Op::Touch { block, touched }),
        1 => pod.clone().prop_map(|pod| Op::Wipe { pod }),
        1 => (pod, 0..USED_SHARDS).prop_map(|(pod, shard)| Op::WipeShard { pod, shard }),
        1 => (0..USED_SHARDS, any::<bool>()).prop_map(|(shard, frozen)| Op::Freeze { shard, frozen }),
        1 => any::<u64>().prop_map(|order| Op::Reload { order }),
    ]
}

/// A tree over the universe: chains for the most part, with branches and several roots.
fn tree() -> impl Strategy<Value = Vec<Option<usize>>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0..10u8), UNIVERSE).prop_map(|picks| {
        let pick = |(n, (index, kind)): (usize, (prop::sample::Index, u8))| match kind {
            _ if n == 0 => None,
            0 => None,
            1..4 => Some(index.index(n)),
            _ => Some(n - 1),
        };
        picks.into_iter().enumerate().map(pick).collect()
    })
}

fn reload(table: &Table, order: u64) -> Table {
    let mut blocks: Vec<Block> = (0..SHARDS).flat_map(|shard| table.shard(shard)).collect();
    blocks.sort_by_key(|block| xxh3_64_with_seed(&block.hash.to_le_bytes(), order));
    let mut loaded = Table::new(PER_SHARD * SHARDS);
    for block in &blocks {
        assert!(loaded.load(block), "{block:?}");
        assert!(!loaded.load(block), "twice: {block:?}");
    }
    loaded
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn agrees_with_the_reference(
        tree in tree(),
        ops in prop::collection::vec(op(), 1..60),
        among in prop::collection::btree_set(0..PODS, 0..PODS as usize + 1),
    ) {
        let names = names();
        let parents: HashMap<BlockHash, Option<BlockHash>> =
            tree.iter().enumerate().map(|(n, parent)| (names[n], parent.map(|p| names[p]))).collect();
        let among: PodSet = among.into_iter().map(slot).collect();
        let shards: Vec<usize> = names.iter().map(|&hash| shard_of(hash)).collect::<BTreeSet<_>>().into_iter().collect();
        prop_assert_eq!(shards.len(), USED_SHARDS);
        let (mut table, mut reference) = (Table::new(PER_SHARD * SHARDS), Reference::default());
        let mut found = Depths::default();

        for op in ops {
            match op {
                Op::Store { pod, to, count, touched } => {
                    let path = Reference::default().path(names[to], &parents);
                    let from = path.len().saturating_sub(count);
                    let parent = from.checked_sub(1).map(|n| path[n]);
                    let done = table.store(slot(pod), parent, from as u32, &path[from..], touched);
                    prop_assert_eq!(done, reference.store(slot(pod), parent, from as u32, &path[from..], touched));
                }
                Op::Misplace { pod, to, parent, depth, count } => {
                    let path = Reference::default().path(names[to], &parents);
                    let hashes = &path[path.len().saturating_sub(count)..];
                    let parent = parent.map(|n| names[n]);
                    let done = table.store(slot(pod), parent, depth, hashes, 50);
                    prop_assert_eq!(done, reference.store(slot(pod), parent, depth, hashes, 50));
                }
                Op::Remove { pod, blocks } => {
                    let hashes: Vec<_> = blocks.into_iter().map(|n| names[n]).collect();
                    prop_assert_eq!(table.remove(slot(pod), &hashes), reference.remove(slot(pod), &hashes));
                }
                Op::Touch { block, touched } => {
                    let frozen = reference.frozen.contains(&shard_of(names[block]));
                    let known = reference.blocks.get_mut(&names[block]).filter(|_| !frozen);
                    prop_assert_eq!(table.touch(names[block], touched), known.is_some());
                    if let Some(block) = known {
                        block.touched = block.touched.max(touched);
                    }
                }
                Op::Wipe { pod } => {
                    let held = names.iter().copied().filter(|hash| reference.blocks.contains_key(hash)).collect::<Vec<_>>();
                    let removed = reference.remove(slot(pod), &held);
                    prop_assert_eq!((0..SHARDS).map(|shard| table.wipe(slot(pod), shard)).sum::<usize>(), removed);
                }
                Op::WipeShard { pod, shard } => {
                    let held: Vec<_> = names.iter().copied().filter(|&hash| shard_of(hash) == shards[shard]).collect();
                    prop_assert_eq!(table.wipe(slot(pod), shards[shard]), reference.remove(slot(pod), &held));
                }
                Op::Freeze { shard, frozen: true } => {
                    table.freeze(shards[shard]);
                    reference.frozen.insert(shards[shard]);
                }
                Op::Freeze { shard, frozen: false } => {
                    table.thaw(shards[shard]);
                    reference.frozen.remove(&shards[shard]);
                }
                Op::Reload { order } => {
                    let loaded = reload(&table, order);
                    prop_assert_eq!(loaded.digest(&PodSet::FULL), table.digest(&PodSet::FULL));
                    prop_assert_eq!(loaded.digest(&among), table.digest(&among));
                    table = loaded;
                    reference.frozen.iter().for_each(|&shard| table.freeze(shard));
                }
            }
            prop_assert_eq!(table.len(), reference.blocks.len());
            for &name in &names {
                prop_assert_eq!(table.get(name), reference.block(name));
                let chain = reference.path(name, &parents);
                table.depths(&chain, &among, &mut found);
                prop_assert_eq!(&found.steps, &reference.depths(&chain, &among));
            }
            for pod in (0..PODS).map(slot) {
                let held = reference.blocks.values().filter(|block| block.pods.contains(&pod)).count();
                prop_assert_eq!(table.held_by(pod), held);
            }
        }

        (0..SHARDS).for_each(|shard| table.thaw(shard));
        for pod in (0..PODS).map(slot) {
            (0..SHARDS).for_each(|shard| { table.wipe(pod, shard); });
        }
        // Placeholders too are gone with the last pod.
        prop_assert!(table.is_empty());
        prop_assert_eq!((0..SHARDS).map(|shard| table.trees.shard(shard).count()).sum::<usize>(), 0);
        prop_assert_eq!(table.digest(&PodSet::FULL), 0);
    }
}

#[test]
fn a_digest_tells_apart_whatever_is_replicated() {
    let block =
        Block { hash: 7, parent: Some(6), depth: 1, touched: 5, stored: Slot::all().take(3).collect() };
    let others = [
        Block { hash: 8, ..block },
        Block { parent: Some(5), ..block },
        Block { depth: 2, ..block },
        Block { touched: 6, ..block },
        Block { stored: Slot::all().take(2).collect(), ..block },
    ];
    let digest = |block: &Block| {
        let mut table = Table::new(1000);
        assert!(table.load(block));
        table.digest(&PodSet::FULL)
    };
    for other in &others {
        assert_ne!(digest(&block), digest(other), "{other:?}");
    }
    // A pod outside the mask makes no difference.
    let mut table = Table::new(1000);
    assert!(table.load(&block));
    assert_eq!(table.digest(&Slot::all().take(2).collect()), digest(&others[4]));
}

#[test]
fn what_contradicts_itself_is_not_loaded() {
    let pods: PodSet = Slot::all().take(1).collect();
    let good = Block { hash: 7, parent: Some(6), depth: 1, touched: 0, stored: pods };
    let mut table = Table::new(1000);
    for bad in [
        Block { stored: PodSet::EMPTY, ..good },
        Block { depth: 0, ..good },
        Block { parent: None, ..good },
        Block { parent: Some(7), ..good },
    ] {
        assert!(!table.load(&bad), "{bad:?}");
    }
    assert!(table.is_empty());
    assert!(table.load(&good));
    assert_eq!(table.get(7), Some(good));
    assert_eq!(table.get(6), None);
}

#[test]
fn depths_end_where_numbers_do() {
    let mut table = Table::new(1000);
    let pod = Slot::new(0).unwrap();
    let refused = Stored { added: 0, refused: 2 };
    assert_eq!(table.store(pod, Some(1), u32::MAX - 1, &[2, 3], 0), refused);
    assert_eq!(table.store(pod, Some(1), u32::MAX - 2, &[2, 3], 0), Stored { added: 2, refused: 0 });
    assert!(table.load(&Block {
        hash: 4,
        parent: Some(3),
        depth: u32::MAX,
        touched: 0,
        stored: PodSet::FULL
    }));
    let mut depths = Depths::default();
    table.depths(&[2, 3, 4], &PodSet::FULL, &mut depths);
    assert_eq!(depths.steps, []);
    table.depths(&[], &PodSet::FULL, &mut depths);
    assert_eq!(depths.steps, []);
}

#[test]
fn removing_and_storing_under_a_crowd_stays_local() {
    // A pod without holes does not look at the children of others.
    let mut table = Table::new(1_000_000);
    let (crowd, pod) = (Slot::new(1).unwrap(), Slot::new(2).unwrap());
    table.store(crowd, None, 0, &[1, 2], 0);
    (100..20_000).for_each(|child| assert_eq!(table.store(crowd, Some(2), 2, &[child], 0).added, 1));
    table.store(pod, None, 0, &[1], 0);
    for _ in 0..1000 {
        table.store(pod, Some(1), 1, &[2, 100], 0);
        table.remove(pod, &[100]);
    }
    let mut depths = Depths::default();
    table.depths(&[1, 2, 100], &PodSet::FULL, &mut depths);
    let expected = [(3, [crowd].into_iter().collect()), (2, [pod].into_iter().collect())];
    assert_eq!(depths.steps, expected);
}

#[test]
fn a_block_at_another_depth_than_its_parent_says_is_not_visible() {
    let pod = Slot::new(0).unwrap();
    let one: PodSet = [pod].into_iter().collect();
    let mut depths = Depths::default();
    // The parent is known before its child, then after it.
    for order in [[(None, 0, 1), (Some(1), 5, 2)], [(Some(1), 5, 2), (None, 0, 1)]] {
        let mut table = Table::new(1000);
        for (parent, depth, hash) in order {
            assert_eq!(table.store(pod, parent, depth, &[hash], 0).added, 1);
        }
        table.depths(&[1, 2], &one, &mut depths);
        assert_eq!(depths.steps, [(1, one)]);
    }
}
