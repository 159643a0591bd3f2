//! The index as its documentation says it, without a thought for speed: what a replica must equal.

use std::collections::{BTreeMap, BTreeSet};

use crate::index::{BlockHash, Delta, Entry, Generation, PodRef, Replica, SHARDS, Slot, SlotState, Table};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiteralBlock {
    pub parent: Option<BlockHash>,
    pub depth: u32,
    pub touched: u32,
    pub pods: BTreeSet<u16>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiteralSeat {
    pub generation: Generation,
    pub state: SlotState,
    pub id: String,
}

#[derive(Debug, Default)]
pub struct Literal {
    pub position: u64,
    pub clock: u32,
    pub time: u32,
    pub seats: BTreeMap<u16, LiteralSeat>,
    pub blocks: BTreeMap<BlockHash, LiteralBlock>,
    pub shards: usize,
    pub per_shard: usize,
}

impl Literal {
    pub fn new(max_blocks: usize, shards: usize) -> Self {
        Self { shards, per_shard: max_blocks.div_ceil(SHARDS), ..Self::default() }
    }

    fn seat(&self, slot: u16) -> LiteralSeat {
        self.seats.get(&slot).cloned().unwrap_or_default()
    }

    fn active(&self, pod: &PodRef) -> bool {
        let seat = self.seat(pod.slot.number());
        seat.state == SlotState::Active && seat.generation == pod.generation
    }

    fn shard_of(&self, hash: BlockHash) -> usize {
        Table::shard_of(hash) * self.shards / SHARDS
    }

    fn drop_where(&mut self, slot: u16, which: impl Fn(BlockHash) -> bool) {
        for (hash, block) in &mut self.blocks {
            if which(*hash) {
                block.pods.remove(&slot);
            }
        }
        self.blocks.retain(|_, block| !block.pods.is_empty());
    }

    /// `None`: an entry that nobody can read.
    pub fn apply(&mut self, entry: Option<&Entry>) {
        let (position, shards) = (self.position, self.shards as u64);
        for (slot, seat) in self.seats.clone() {
            if let SlotState::Leaving { at, .. } = seat.state
                && position <= at + shards
            {
                let owner = (position % shards) as usize;
                let of: BTreeMap<u64, usize> =
                    self.blocks.keys().map(|hash| (*hash, self.shard_of(*hash))).collect();
                self.drop_where(slot, |hash| of[&hash] == owner);
            }
        }
        if let Some(entry) = entry {
            assert_eq!(entry.seq, position);
            self.clock += entry.time.saturating_sub(self.time).min(10);
            self.time = entry.time;
            for delta in &entry.deltas {
                self.delta(delta);
            }
        }
        self.position += 1;
    }

    fn delta(&mut self, delta: &Delta) {
        match delta {
            Delta::Stored { pod, parent, depth, hashes } if self.active(pod) => {
                let mut parent = *parent;
                for (hash, depth) in hashes.iter().zip(*depth..) {
                    self.store(pod.slot.number(), *hash, parent, depth);
                    parent = Some(*hash);
                }
            }
            Delta::Removed { pod, hashes } if self.active(pod) => {
                let twin = |hash: BlockHash| hashes.iter().any(|h| h & 3 > 1 && h & !3 | 1 == hash);
                self.drop_where(pod.slot.number(), |hash| hashes.contains(&hash) || twin(hash));
            }
            Delta::Touched { pod, leaf } if self.active(pod) => {
                let clock = self.clock;
                self.blocks.entry(*leaf).and_modify(|block| block.touched = clock);
            }
            Delta::Cleared { pod } if self.active(pod) => self.drop_where(pod.slot.number(), |_| true),
            Delta::Joined { id } => {
                let has = |seat: &LiteralSeat| seat.state == SlotState::Active && seat.id.as_str() == &**id;
                if !self.seats.values().any(has) {
                    let free = (0..512).find(|slot| self.seat(*slot).state == SlotState::Free);
                    let slot = free.expect("simulations have few pods");
                    let seat = self.seats.entry(slot).or_default();
                    seat.state = SlotState::Active;
                    seat.id = id.to_string();
                }
            }
            Delta::Left { pod } if self.active(pod) => {
                let state = SlotState::Leaving { at: self.position, since: self.clock };
                self.seats.get_mut(&pod.slot.number()).unwrap().state = state;
            }
            Delta::Freed { pod } => {
                let seat = self.seat(pod.slot.number());
                if matches!(seat.state, SlotState::Leaving { .. }) && seat.generation == pod.generation {
                    self.drop_where(pod.slot.number(), |_| true);
                    let generation = seat.generation.wrapping_add(1);
                    self.seats.insert(pod.slot.number(), LiteralSeat { generation, ..Default::default() });
                }
            }
            Delta::Lost { shard } => {
                let of: Vec<_> =
                    self.blocks.keys().copied().filter(|h| self.shard_of(*h) == *shard as usize).collect();
                of.iter().for_each(|hash| {
                    self.blocks.remove(hash);
                });
            }
            _ => {}
        }
    }

    fn store(&mut self, slot: u16, hash: BlockHash, parent: Option<BlockHash>, depth: u32) {
        let clock = self.clock;
        match self.blocks.get_mut(&hash) {
            Some(block) if block.parent == parent && block.depth == depth => {
                block.touched = clock;
                block.pods.insert(slot);
            }
            Some(_) => {}
            None => {
                let shard = Table::shard_of(hash);
                let there = self.blocks.keys().filter(|other| Table::shard_of(**other) == shard).count();
                if there < self.per_shard && parent.is_none() == (depth == 0) && parent != Some(hash) {
                    let pods = BTreeSet::from([slot]);
                    self.blocks.insert(hash, LiteralBlock { parent, depth, touched: clock, pods });
                }
            }
        }
    }

    /// How many leading blocks of the chain a pod holds.
    pub fn depth(&self, chain: &[BlockHash], slot: u16) -> u32 {
        let holds = |hash: &&BlockHash| self.blocks.get(hash).is_some_and(|b| b.pods.contains(&slot));
        chain.iter().take_while(holds).count() as u32
    }

    /// Whether the chain is a path: a hash names all that is before it, but hostile entries can say otherwise.
    pub fn is_path(&self, chain: &[BlockHash]) -> bool {
        let parents = std::iter::once(None).chain(chain.iter().copied().map(Some));
        let mut links = chain.iter().zip(parents).zip(0..);
        links.all(|((hash, parent), depth)| {
            self.blocks.get(hash).is_none_or(|block| block.parent == parent && block.depth == depth)
        })
    }

    /// Fails where a replica is not equal.
    pub fn compare(&self, replica: &Replica, whose: &str) {
        assert_eq!(replica.position(), self.position, "{whose}: position");
        assert_eq!(replica.clock(), self.clock, "{whose}: clock");
        assert_eq!(replica.last_time(), self.time, "{whose}: last time");
        let roster = replica.roster();
        for slot in Slot::all() {
            let theirs = LiteralSeat {
                generation: roster.at(slot).generation,
                state: roster.state(slot),
                id: roster.id(slot).to_owned(),
            };
            assert_eq!(theirs, self.seat(slot.number()), "{whose}: {slot:?}");
        }
        let theirs: BTreeMap<_, _> = (0..SHARDS)
            .flat_map(|shard| replica.table().shard(shard))
            .map(|block| {
                let pods = block.stored.iter().map(Slot::number).collect();
                let (parent, depth, touched) = (block.parent, block.depth, block.touched);
                (block.hash, LiteralBlock { parent, depth, touched, pods })
            })
            .collect();
        assert_eq!(theirs, self.blocks, "{whose}: blocks");
    }
}
