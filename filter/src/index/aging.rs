//! What a pod has probably forgotten: its oldest chains, tail first.
//!
//! Derived from the table, in whichever VM keeps it; never part of the replicated state. The holder of the lease
//! decides with it and appends what it decides to the log, from which every replica removes the same blocks.
//!
//! For each pod it keeps its *leaves*, the blocks that the pod holds without holding a block after them, in a heap by
//! when they were touched. A record is a claim, checked only when it comes up: a block that is gone or no longer a leaf
//! is dropped, one that was touched since goes back with its new time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::table::{Node, worth_at};
use super::{BlockHash, MAX_SLOTS, SHARDS, Slot, Stored, Table};
use crate::blocks::Kind;

/// `touched` and hash of a leaf; the least touched first, and by hash among equals.
type Leaf = Reverse<(u32, BlockHash)>;

/// Records that a pod may have beyond twice its blocks before stale ones are swept out.
const SLACK: usize = 64;

/// How much is to go.
#[derive(Debug, Clone, Copy)]
pub struct Goal {
    /// At least so many blocks.
    pub blocks: usize,
    /// And as many as stand for so much text, in blocks of the configured size.
    pub worth: usize,
    /// But never more than so many.
    pub most: usize,
}

impl Goal {
    /// A number of blocks.
    #[must_use]
    pub fn blocks(count: usize) -> Self {
        Self { blocks: count, worth: 0, most: count }
    }

    fn is_reached(&self, blocks: usize, worth: usize) -> bool {
        blocks >= self.most || (blocks >= self.blocks && worth >= self.worth)
    }
}

/// For each pod and kind of block its leaves, the longest untouched first.
#[derive(Debug)]
pub struct Aging {
    /// By slot and kind. Every leaf of a pod has a record; not every record is a leaf's.
    leaves: Vec<[BinaryHeap<Leaf>; Kind::ALL.len()]>,
}

impl Default for Aging {
    fn default() -> Self {
        Self::new()
    }
}

impl Aging {
    /// For an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { leaves: vec![Default::default(); MAX_SLOTS] }
    }

    /// Reads the leaves of every pod from a table. Scans it whole.
    #[must_use]
    pub fn of(table: &Table) -> Self {
        let mut found = vec![<[Vec<Leaf>; Kind::ALL.len()]>::default(); MAX_SLOTS];
        for entry in (0..SHARDS).flat_map(|shard| table.trees.shard(shard)) {
            let node = table.trees.node(entry.index);
            let mut held = entry.pods.stored(table.trees.sets());
            for child in table.trees.children(node) {
                if held.is_empty() {
                    break;
                }
                held = held.minus(&table.trees.find(child.hash).pods.stored(table.trees.sets()));
            }
            for slot in held.iter() {
                let kinds = found.get_mut(slot.index());
                if let Some(leaves) = kinds.and_then(|kinds| kinds.get_mut(Kind::of(node.hash).index())) {
                    leaves.push(Reverse((node.touched, node.hash)));
                }
            }
        }
        Self { leaves: found.into_iter().map(|kinds| kinds.map(BinaryHeap::from)).collect() }
    }

    /// Notes what a [`Table::store`] did. Call it after.
    pub fn stored(&mut self, table: &Table, slot: Slot, hashes: &[BlockHash], touched: u32, done: Stored) {
        if done.added == 0 {
            // Whatever is a leaf now was one before.
            return;
        }
        // Where blocks are missing in between, any may be a leaf.
        let first = if done.refused == 0 { hashes.len().saturating_sub(1) } else { 0 };
        let Some(kinds) = self.leaves.get_mut(slot.index()) else { return };
        for &hash in hashes.iter().skip(first) {
            push(kinds, Reverse((touched, hash)));
        }
        for (leaves, kind) in kinds.iter_mut().zip(Kind::ALL) {
            if leaves.len() > 2 * table.held_of(slot, kind) + SLACK {
                sweep(leaves, table, slot);
            }
        }
    }

    /// Notes what [`Table::remove`] is about to be called with. Call it before: blocks before removed ones become leaves.
    pub fn removing(&mut self, table: &Table, slot: Slot, hashes: &[BlockHash]) {
        let Some(kinds) = self.leaves.get_mut(slot.index()) else { return };
        let mut bared: Option<Leaf> = None;
        for &hash in hashes.iter().filter(|&&hash| table.trees.stores(hash, slot)) {
            // In a chain that goes from its tail, only the last one's parent stays.
            if let Some(leaf) = bared.take().filter(|&Reverse((_, parent))| parent != hash) {
                push(kinds, leaf);
            }
            let node = table.trees.node(table.trees.find(hash).index);
            let parent = table.trees.node(node.parent);
            bared = (node.follows(&parent) && table.trees.stores(parent.hash, slot))
                .then_some(Reverse((parent.touched, parent.hash)));
        }
        if let Some(leaf) = bared {
            push(kinds, leaf);
        }
    }

    /// Forgets a slot whose column is wiped.
    pub fn forget(&mut self, slot: Slot) {
        if let Some(kinds) = self.leaves.get_mut(slot.index()) {
            *kinds = Default::default();
        }
    }

    /// Appends to `out` the blocks of the pod, of one kind, that were longest untouched, each chain from its tail, so that no block
    /// goes before a block after it. Fewer than the goal only where the pod holds fewer.
    ///
    /// Nothing is removed: append them to the log; until they are removed, the next call names them again.
    pub fn oldest(
        &mut self,
        table: &Table,
        (slot, kind): (Slot, Kind),
        goal: Goal,
        out: &mut Vec<BlockHash>,
    ) {
        self.collect(table, (slot, kind), None, goal, out);
    }

    /// The same for at most `count` blocks of chains that were last touched before `before`, in seconds of the log's
    /// clock.
    pub fn expired(
        &mut self,
        table: &Table,
        (slot, kind): (Slot, Kind),
        before: u32,
        count: usize,
        out: &mut Vec<BlockHash>,
    ) {
        self.collect(table, (slot, kind), Some(before), Goal::blocks(count), out);
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let records: usize = self.leaves.iter().flatten().map(BinaryHeap::capacity).sum();
        records * size_of::<Leaf>()
            + self.leaves.capacity() * size_of::<[BinaryHeap<Leaf>; Kind::ALL.len()]>()
    }

    fn collect(
        &mut self,
        table: &Table,
        (slot, kind): (Slot, Kind),
        before: Option<u32>,
        goal: Goal,
        out: &mut Vec<BlockHash>,
    ) {
        let kinds = self.leaves.get_mut(slot.index());
        let Some(leaves) = kinds.and_then(|kinds| kinds.get_mut(kind.index())) else { return };
        let mut kept = Vec::new();
        let mut going = BTreeSet::new();
        let mut worth = 0;
        while !goal.is_reached(going.len(), worth) {
            let Some(&Reverse((touched, hash))) = leaves.peek() else { break };
            if before.is_some_and(|before| touched >= before) {
                break;
            }
            leaves.pop();
            let mut node = table.trees.node(table.trees.find(hash).index);
            if !is_leaf(table, node, slot, &going) {
                continue;
            }
            if node.touched > touched {
                leaves.push(Reverse((node.touched, hash)));
                continue;
            }
            // Should the caller fail to remove it.
            kept.push(Reverse((touched, hash)));
            // The leaf goes, and with it what of its chain has no other use.
            while !goal.is_reached(going.len(), worth) && is_leaf(table, node, slot, &going) {
                if node.touched > touched {
                    leaves.push(Reverse((node.touched, node.hash)));
                    break;
                }
                going.insert(node.hash);
                worth += worth_at(node.hash, node.depth);
                out.push(node.hash);
                node = table.trees.node(node.parent);
            }
        }
        leaves.extend(kept);
    }
}

/// Records a leaf among those of its kind.
fn push(kinds: &mut [BinaryHeap<Leaf>; Kind::ALL.len()], leaf: Leaf) {
    let Reverse((_, hash)) = leaf;
    if let Some(leaves) = kinds.get_mut(Kind::of(hash).index()) {
        leaves.push(leaf);
    }
}

/// Whether the pod holds a block and none after it, apart from those that are about to go.
fn is_leaf(table: &Table, node: Node, slot: Slot, going: &BTreeSet<BlockHash>) -> bool {
    let stays = |hash: BlockHash| table.trees.stores(hash, slot) && !going.contains(&hash);
    stays(node.hash) && !table.trees.children(node).any(|child| stays(child.hash))
}

/// Drops records of what is no leaf, and second records.
fn sweep(leaves: &mut BinaryHeap<Leaf>, table: &Table, slot: Slot) {
    let nodes = leaves.iter().map(|&Reverse((_, hash))| table.trees.node(table.trees.find(hash).index));
    let still = nodes.filter(|node| is_leaf(table, *node, slot, &BTreeSet::new()));
    let mut records: Vec<Leaf> = still.map(|node| Reverse((node.touched, node.hash))).collect();
    records.sort_unstable();
    records.dedup();
    *leaves = records.into();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const POD: Slot = match Slot::new(3) {
        Some(slot) => slot,
        None => panic!("below the bound"),
    };

    fn text(n: u64) -> BlockHash {
        Kind::Text.name(n << 2)
    }

    /// A table and its ageing, as a replica keeps them together.
    struct Replica {
        table: Table,
        aging: Aging,
    }

    impl Replica {
        fn new() -> Self {
            Self { table: Table::new(256 * 50), aging: Aging::new() }
        }

        fn store(
            &mut self,
            slot: Slot,
            parent: Option<BlockHash>,
            depth: u32,
            hashes: &[BlockHash],
            touched: u32,
        ) {
            let hashes: Vec<_> = hashes.iter().map(|n| text(*n)).collect();
            let done = self.table.store(slot, parent.map(text), depth, &hashes, touched);
            self.aging.stored(&self.table, slot, &hashes, touched, done);
        }

        fn remove(&mut self, slot: Slot, hashes: &[BlockHash]) {
            let hashes: Vec<_> = hashes.iter().map(|n| text(*n)).collect();
            self.aging.removing(&self.table, slot, &hashes);
            self.table.remove(slot, &hashes);
        }

        fn touch(&mut self, n: u64, touched: u32) -> bool {
            self.table.touch(text(n), touched)
        }

        fn oldest(&mut self, count: usize) -> Vec<BlockHash> {
            let mut out = Vec::new();
            self.aging.oldest(&self.table, (POD, Kind::Text), Goal::blocks(count), &mut out);
            out.iter().map(|hash| hash >> 2).collect()
        }

        fn expired(&mut self, before: u32, count: usize) -> Vec<BlockHash> {
            let mut out = Vec::new();
            self.aging.expired(&self.table, (POD, Kind::Text), before, count, &mut out);
            out.iter().map(|hash| hash >> 2).collect()
        }
    }

    #[test]
    fn the_oldest_chain_goes_first_and_from_its_tail() {
        let mut replica = Replica::new();
        replica.store(POD, None, 0, &[1, 2, 3], 10);
        replica.store(POD, None, 0, &[11, 12, 13], 20);
        assert_eq!(replica.oldest(2), [3, 2]);
        // Named again, for nobody removed them.
        assert_eq!(replica.oldest(4), [3, 2, 1, 13]);
        replica.remove(POD, &[3, 2]);
        assert_eq!(replica.oldest(9), [1, 13, 12, 11]);
    }

    #[test]
    fn what_is_shared_goes_after_all_that_hangs_on_it() {
        let mut replica = Replica::new();
        replica.store(POD, None, 0, &[1, 2], 10);
        replica.store(POD, Some(2), 2, &[3, 4], 10);
        replica.store(POD, Some(2), 2, &[5, 6], 20);
        replica.store(POD, None, 0, &[7], 15);
        assert_eq!(replica.oldest(9), [4, 3, 7, 6, 5, 2, 1]);
    }

    #[test]
    fn a_touch_gives_a_second_chance() {
        let mut replica = Replica::new();
        replica.store(POD, None, 0, &[1, 2, 3], 10);
        replica.store(POD, None, 0, &[11, 12], 20);
        // A prefix alone is in use: the tail goes, the prefix waits its turn.
        assert!(replica.touch(2, 30));
        assert_eq!(replica.oldest(9), [3, 12, 11, 2, 1]);
        assert!(replica.touch(3, 40));
        assert_eq!(replica.oldest(9), [12, 11, 3, 2, 1]);
    }

    #[test]
    fn only_what_expired_goes() {
        let mut replica = Replica::new();
        replica.store(POD, None, 0, &[1, 2], 10);
        replica.store(POD, None, 0, &[11], 20);
        assert_eq!(replica.expired(10, 9), [0u64; 0]);
        assert_eq!(replica.expired(11, 9), [2, 1]);
        assert_eq!(replica.expired(11, 1), [2]);
        assert!(replica.touch(2, 15));
        assert_eq!(replica.expired(11, 9), [0u64; 0]);
        assert_eq!(replica.expired(99, 9), [2, 1, 11]);
    }

    #[test]
    fn further_on_fewer_blocks_stand_for_as_much() {
        let mut replica = Replica::new();
        let chain: Vec<BlockHash> = (1..=100).map(|n| 2 * n).collect();
        replica.store(POD, None, 0, &chain, 10);
        assert_eq!(replica.table.worth_of(POD, Kind::Text), 64 + 32 * 2 + 4 * 4);
        let mut oldest = |goal| {
            let mut out = Vec::new();
            replica.aging.oldest(&replica.table, (POD, Kind::Text), goal, &mut out);
            out.len()
        };
        assert_eq!(oldest(Goal { blocks: 0, worth: 17, most: 99 }), 5);
        assert_eq!(oldest(Goal { blocks: 7, worth: 17, most: 99 }), 7);
        assert_eq!(oldest(Goal { blocks: 7, worth: 17, most: 3 }), 3);
        assert_eq!(oldest(Goal { blocks: 0, worth: 0, most: 9 }), 0);
        replica.remove(POD, &chain);
        assert_eq!(replica.table.worth_of(POD, Kind::Text), 0);
    }

    #[test]
    fn other_pods_do_not_hold_a_chain_up_and_lose_nothing() {
        let mut replica = Replica::new();
        let other = Slot::new(4).unwrap();
        replica.store(POD, None, 0, &[1, 2], 10);
        replica.store(other, None, 0, &[1, 2, 3], 10);
        assert_eq!(replica.oldest(9), [2, 1]);
        replica.remove(POD, &[2, 1]);
        assert_eq!(replica.table.held_by(other), 3);
        replica.aging.forget(other);
        let mut out = Vec::new();
        replica.aging.oldest(&replica.table, (other, Kind::Text), Goal::blocks(9), &mut out);
        assert_eq!(out, [0u64; 0]);
    }

    #[test]
    fn records_are_bounded() {
        let mut replica = Replica::new();
        for turn in 0..100_000u32 {
            // The same place, stored and removed again and again.
            replica.store(POD, None, 0, &[1, 2, 3], turn);
            replica.remove(POD, &[3]);
        }
        assert!(
            replica.aging.memory_bytes() < MAX_SLOTS * 72 + 1000 * 16,
            "{}",
            replica.aging.memory_bytes()
        );
        assert_eq!(replica.oldest(9), [2, 1]);
    }

    #[derive(Debug, Clone)]
    enum Op {
        /// Stores the last `count` blocks of the path to a block.
        Store {
            pod: bool,
            to: usize,
            count: usize,
        },
        Remove {
            pod: bool,
            blocks: Vec<usize>,
        },
        Touch {
            block: usize,
        },
        /// The lease moved: another VM reads its leaves from the table.
        Rebuild,
    }

    fn op(blocks: usize) -> impl Strategy<Value = Op> {
        let block = 0..blocks;
        prop_oneof![
            6 => (any::<bool>(), block.clone(), 1..20usize).prop_map(|(pod, to, count)| Op::Store { pod, to, count }),
            2 => (any::<bool>(), prop::collection::vec(block.clone(), 1..4))
                .prop_map(|(pod, blocks)| Op::Remove { pod, blocks }),
            2 => block.prop_map(|block| Op::Touch { block }),
            1 => Just(Op::Rebuild),
        ]
    }

    /// What the pod holds: parent and time of each block.
    fn held(table: &Table) -> BTreeMap<BlockHash, (Option<BlockHash>, u32)> {
        (0..SHARDS)
            .flat_map(|shard| table.shard(shard))
            .filter(|block| block.stored.contains(POD))
            .map(|block| (block.hash >> 2, (block.parent.map(|parent| parent >> 2), block.touched)))
            .collect()
    }

    /// Of the blocks that the pod holds without one after them, the least touched.
    fn oldest_leaf(held: &BTreeMap<BlockHash, (Option<BlockHash>, u32)>) -> Option<u32> {
        let parents: BTreeSet<_> = held.values().filter_map(|&(parent, _)| parent).collect();
        held.iter().filter(|(hash, _)| !parents.contains(hash)).map(|(_, &(_, touched))| touched).min()
    }

    proptest! {
        #[test]
        fn reaches_its_target_in_order(
            tree in prop::collection::vec((any::<prop::sample::Index>(), 0..6u8), 40),
            ops in prop::collection::vec(op(40), 1..40),
            target in 0..20usize,
            step in 1..9usize,
            fails in any::<bool>(),
        ) {
            let parent = |n: usize| match tree[n] {
                (_, 0) => None,
                (index, 1..3) if n > 0 => Some(index.index(n)),
                _ => n.checked_sub(1),
            };
            let names: Vec<BlockHash> = (0..).filter(|&n| Table::shard_of(text(n)) % 64 == 3).take(40).collect();
            let name = |n: usize| names[n];
            let other = Slot::new(4).unwrap();
            // Four shards that do not take all, so that blocks are refused in the middle of a chain, too.
            let mut replica = Replica { table: Table::new(256 * 5), aging: Aging::new() };
            for (op, time) in ops.into_iter().zip(1..) {
                match op {
                    Op::Store { pod, to, count } => {
                        let mut path: Vec<_> = std::iter::successors(Some(to), |&n| parent(n)).collect();
                        path.reverse();
                        let from = path.len().saturating_sub(count);
                        let hashes: Vec<_> = path[from..].iter().map(|&n| name(n)).collect();
                        let above = from.checked_sub(1).map(|n| name(path[n]));
                        replica.store(if pod { POD } else { other }, above, from as u32, &hashes, time);
                    }
                    Op::Remove { pod, blocks } => {
                        let hashes: Vec<_> = blocks.into_iter().map(name).collect();
                        replica.remove(if pod { POD } else { other }, &hashes);
                    }
                    Op::Touch { block } => {
                        replica.touch(name(block), time);
                    }
                    Op::Rebuild => replica.aging = Aging::of(&replica.table),
                }
            }
            let others = replica.table.held_by(other);
            while replica.table.held_by(POD) > target {
                let excess = replica.table.held_by(POD) - target;
                let going = replica.oldest(excess.min(step));
                prop_assert_eq!(going.len(), excess.min(step));
                if fails {
                    prop_assert_eq!(&replica.oldest(excess.min(step)), &going, "nothing was removed");
                }
                for hash in going {
                    let held = held(&replica.table);
                    prop_assert!(held.contains_key(&hash), "not held");
                    prop_assert!(held.values().all(|&(parent, _)| parent != Some(hash)), "a block after it remains");
                    prop_assert_eq!(Some(held[&hash].1), oldest_leaf(&held), "something older remains");
                    replica.remove(POD, &[hash]);
                }
            }
            prop_assert_eq!(replica.table.held_by(other), others);
        }
    }
}
