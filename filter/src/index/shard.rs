//! A shard of the checkpoint, as bytes.
//!
//! Beside its blocks a shard carries the position that it contains, the clock and the pods at that position. So
//! each stands alone: the lowest of them is where a replay begins, whatever the others hold.

use super::replica::State;
use super::wire::{self, Put, Reader};
use super::{Block, FORMAT, PodSet, Replica, SHARDS, Slot, Table};

/// Longest list of pods; from there on a bitmap is shorter.
const LONGEST_LIST: usize = 31;
/// Stands for a bitmap where a list's length would.
const BITMAP: u8 = 0x7f;
/// Says that a block has a parent and a depth.
const HAS_PARENT: u8 = 0x80;
/// Fewest bytes of a block: flags, hash, touched, one pod.
const SMALLEST_BLOCK: usize = 1 + 8 + 4 + 2;

/// The bytes of a shard at the replica's position.
pub(crate) fn write(replica: &Replica, shard: usize) -> Vec<u8> {
    let mut out = wire::begin(64 * 1024);
    out.put_u8(FORMAT);
    replica.put_state(&mut out);
    for block in replica.parts(shard).flat_map(|part| replica.table().shard(part)) {
        put_block(&block, &mut out);
    }
    wire::seal(&mut out);
    out
}

/// The position that a shard contains; `None` where it cannot be read.
pub(crate) fn position(bytes: &[u8]) -> Option<u64> {
    let mut from = wire::open(bytes)?;
    (from.u8()? == FORMAT).then_some(())?;
    from.u64()
}

/// Puts a shard's blocks into `table`. `None`, and nothing done, where not all of it can be read.
pub(crate) fn read(bytes: &[u8], shard: usize, shards: usize, table: &mut Table) -> Option<State> {
    let mut from = wire::open(bytes)?;
    (from.u8()? == FORMAT).then_some(())?;
    let state = Replica::read_state(&mut from)?;
    let mut check = from.clone();
    while check.left() > 0 {
        let block = read_block(&mut check)?;
        (Table::shard_of(block.hash) / (SHARDS / shards.max(1)).max(1) == shard).then_some(())?;
    }
    while from.left() > 0 {
        table.load(&read_block(&mut from)?);
    }
    Some(state)
}

fn put_block(block: &Block, out: &mut Vec<u8>) {
    let pods = block.stored.len();
    let form = if pods <= LONGEST_LIST { pods as u8 } else { BITMAP };
    out.put_u8(form | block.parent.map_or(0, |_| HAS_PARENT));
    out.put_u64(block.hash);
    out.put_u32(block.touched);
    if let Some(parent) = block.parent {
        out.put_u64(parent);
        out.put_u32(block.depth);
    }
    match form {
        BITMAP => out.put_u64s(block.stored.words()),
        _ => block.stored.iter().for_each(|slot| out.put_u16(slot.number())),
    }
}

fn read_block(from: &mut Reader<'_>) -> Option<Block> {
    (from.left() >= SMALLEST_BLOCK).then_some(())?;
    let flags = from.u8()?;
    let (hash, touched) = (from.u64()?, from.u32()?);
    let (parent, depth) = match flags & HAS_PARENT {
        0 => (None, 0),
        _ => (Some(from.u64()?), from.u32()?),
    };
    (parent.is_some() == (depth > 0)).then_some(())?;
    let stored = match flags & !HAS_PARENT {
        BITMAP => PodSet::from_words(from.u64s(MAX_WORDS)?.try_into().ok()?),
        count => {
            let slots = (0..count).map(|_| Slot::new(from.u16()?));
            slots.collect::<Option<PodSet>>()?
        }
    };
    (!stored.is_empty()).then_some(Block { hash, parent, depth, touched, stored })
}

const MAX_WORDS: usize = super::MAX_SLOTS / 64;

#[cfg(test)]
mod tests {
    use super::super::{Delta, Entry, PodRef};
    use super::*;
    use proptest::prelude::*;

    const SHARDS_HERE: usize = 4;

    /// A replica after entries that store chains on many pods, and let some pods leave.
    fn replica(chains: &[(u16, u8, usize)], left: &[u16]) -> Replica {
        let mut replica = Replica::new(10_000, SHARDS_HERE);
        let mut apply = |deltas: Vec<Delta>| {
            let entry = Entry { seq: replica.position(), writer: 1, time: replica.position() as u32, deltas };
            replica.apply(&entry);
        };
        let pod = |slot| PodRef { slot: Slot::new(slot).unwrap(), generation: 0 };
        apply((0..100).map(|n| Delta::Joined { id: format!("pod-{n}").into() }).collect());
        for (slot, root, length) in chains {
            let hashes =
                (0..*length as u64).map(|i| (u64::from(*root) << 32 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            apply(vec![Delta::Stored { pod: pod(*slot), parent: None, depth: 0, hashes: hashes.collect() }]);
        }
        left.iter().for_each(|slot| apply(vec![Delta::Left { pod: pod(*slot) }]));
        replica
    }

    fn load(shards: &[Vec<u8>]) -> Option<Replica> {
        let mut table = Table::new(10_000);
        let mut state = None;
        for (shard, bytes) in shards.iter().enumerate() {
            state = Some(read(bytes, shard, shards.len(), &mut table)?);
        }
        let positions = vec![Some(state.as_ref()?.position); shards.len()];
        Some(Replica::assemble(state?, table, &positions))
    }

    fn chains() -> impl Strategy<Value = Vec<(u16, u8, usize)>> {
        prop::collection::vec((0u16..100, 0u8..3, 1usize..40), 0..80)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_loaded_replica_equals_the_one_that_was_written(
            chains in chains(),
            left in prop::collection::vec(0u16..100, 0..4),
        ) {
            let replica = replica(&chains, &left);
            let shards: Vec<_> = (0..SHARDS_HERE).map(|shard| write(&replica, shard)).collect();
            for bytes in &shards {
                prop_assert_eq!(position(bytes), Some(replica.position()));
            }
            let loaded = load(&shards).expect("readable");
            prop_assert!(loaded.is_whole());
            prop_assert_eq!(loaded.digest(), replica.digest());
            prop_assert_eq!(loaded.roster().free_slots(), replica.roster().free_slots());
        }

        /// Bytes with a right checksum and any content are refused whole, or make a replica that works.
        #[test]
        fn hostile_shards_do_no_harm(
            chains in chains(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
            cut in any::<Option<prop::sample::Index>>(),
        ) {
            let mut bytes = write(&replica(&chains, &[1]), 1);
            for (at, byte) in changes {
                let at = wire::SEAL + at.index(bytes.len() - wire::SEAL);
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(wire::SEAL + cut.index(bytes.len() - wire::SEAL));
            }
            wire::seal(&mut bytes);
            let mut table = Table::new(10_000);
            match read(&bytes, 1, SHARDS_HERE, &mut table) {
                None => prop_assert!(table.is_empty()),
                Some(state) => {
                    let positions = [Some(state.position), Some(state.position), None, Some(state.position)];
                    let mut replica = Replica::assemble(state, table, &positions);
                    let deltas = vec![Delta::Lost { shard: 2 }, Delta::Joined { id: "new".into() }];
                    replica.apply(&Entry { seq: replica.position(), writer: 1, time: 1, deltas });
                    prop_assert!(replica.is_whole());
                }
            }
        }

        #[test]
        fn a_changed_byte_is_noticed(chains in chains(), at: prop::sample::Index, flip in 1u8..) {
            let mut bytes = write(&replica(&chains, &[]), 0);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let mut table = Table::new(10_000);
            prop_assert!(read(&bytes, 0, SHARDS_HERE, &mut table).is_none());
            prop_assert_eq!(position(&bytes), None);
            prop_assert!(table.is_empty());
        }
    }
}
