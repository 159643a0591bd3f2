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
