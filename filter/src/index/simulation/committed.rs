//! What was committed, by watching the keys; and what must never happen to them.

use std::collections::BTreeSet;

use crate::index::entry::{self, Entry};
use crate::index::shard;

#[derive(Debug)]
pub struct Committed {
    ring: u64,
    prefix: String,
    /// By position; `None` where nobody can read it.
    pub entries: Vec<Option<Entry>>,
    /// Places that hold what isn't an entry.
    pub dead: BTreeSet<u64>,
    /// Position that each shard contains, where it was ever written whole.
    shards: Vec<Option<u64>>,
    pub spoiled_shards: BTreeSet<usize>,
}

impl Committed {
    pub fn new(ring: u64, shards: usize, prefix: String) -> Self {
        let (entries, dead, spoiled_shards) = Default::default();
        Self { ring, prefix, entries, dead, shards: vec![None; shards], spoiled_shards }
    }

    /// The position of the next entry.
    pub fn next(&self) -> u64 {
        self.entries.len() as u64
    }

    fn pass_dead(&mut self) {
        while self.dead.contains(&(self.next() % self.ring)) {
            self.entries.push(None);
        }
    }

    pub fn written(&mut self, key: &str, value: &[u8]) {
        let key = key.strip_prefix(&self.prefix).expect("one index, one prefix");
        if let Some(place) = key.strip_prefix("log/") {
            self.log_written(place.parse().unwrap(), value);
        } else if let Some(shard) = key.strip_prefix("shard/") {
            let shard: usize = shard.parse().unwrap();
            let Some(position) = shard::position(value) else {
                self.spoiled_shards.insert(shard);
                return;
            };
            assert!(self.shards[shard].is_none_or(|before| before <= position), "a shard went back");
            self.shards[shard] = Some(position);
            self.spoiled_shards.remove(&shard);
        }
    }

    fn log_written(&mut self, place: u64, value: &[u8]) {
        let seq = match entry::read(value) {
            entry::Read::Garbage => {
                if place == self.next() % self.ring {
                    self.check_overwriting();
                }
                self.dead.insert(place);
                self.pass_dead();
                return;
            }
            entry::Read::Malformed(seq) => (seq, None),
            entry::Read::Entry(entry) => (entry.seq, Some(entry)),
        };
        assert_eq!(seq.0, self.next(), "an entry was committed twice, or not in its turn");
        assert_eq!(place, seq.0 % self.ring, "an entry was committed at another's place");
        self.check_overwriting();
        self.entries.push(seq.1);
        self.pass_dead();
    }

    /// What is overwritten must be in every shard of the checkpoint.
    fn check_overwriting(&self) {
        if let Some(old) = self.next().checked_sub(self.ring) {
            for (shard, position) in self.shards.iter().enumerate() {
                let contained = position.is_some_and(|position| position > old);
                assert!(contained || self.spoiled_shards.contains(&shard), "the ring ate what a shard lacks");
            }
        }
    }

    /// Whether nobody who begins with the checkpoint would miss what is overwritten next.
    pub fn next_is_free(&self, floor: u64) -> bool {
        let Some(old) = self.next().checked_sub(self.ring) else { return true };
        old < floor && self.shards.iter().all(|position| position.is_some_and(|p| p > old))
    }
}
