//! The prefix cache of one pod: a fixed number of blocks, reused by hash, evicted least recently used first.
//!
//! The rules are vLLM's. A running request holds every block it needs and those are never evicted. When it ends its
//! blocks stay, to be found by their hash, until their room is wanted; a chain's tail goes before its head. A block
//! without a hash (not full, or a second copy of one already known) is reused first.

use std::collections::HashMap;

/// Blocks that a running request holds, in the order of its tokens. It must go back with [`PrefixCache::release`].
#[derive(Debug)]
pub struct Held {
    blocks: Vec<u32>,
    hits: usize,
}

impl Held {
    /// How many leading blocks were found in the cache.
    pub fn hits(&self) -> usize {
        self.hits
    }
}

/// See the module's docs.
#[derive(Debug)]
pub struct PrefixCache {
    blocks: Vec<Block>,
    by_hash: HashMap<u64, u32>,
    /// The free blocks form a list from the next to be reused to the last.
    first: u32,
    last: u32,
    free: usize,
    evicted: u64,
}

#[derive(Clone, Debug)]
struct Block {
    hash: Option<u64>,
    users: u32,
    before: u32,
    after: u32,
}

/// End of the list of free blocks.
const NONE: u32 = u32::MAX;

impl PrefixCache {
    /// An empty cache of `capacity` blocks.
    pub fn new(capacity: u32) -> Self {
        let block = Block { hash: None, users: 0, before: NONE, after: NONE };
        let mut cache = Self {
            blocks: vec![block; capacity as usize],
            by_hash: HashMap::new(),
            first: NONE,
            last: NONE,
            free: 0,
            evicted: 0,
        };
        for index in 0..capacity {
            cache.free_last(index);
        }
        cache
    }

    /// Number of blocks in all.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that running requests hold.
    pub fn in_use(&self) -> usize {
        self.blocks.len() - self.free
    }

    /// Number of blocks that can be found by their hash.
    pub fn cached(&self) -> usize {
        self.by_hash.len()
    }

    /// How many cached blocks were lost to others since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Takes `total` blocks for a request: the longest cached prefix of `chain`, and fresh ones for the rest.
    /// `None`, and nothing changes, when too few blocks are free.
    pub fn take(&mut self, chain: &[u64], total: usize) -> Option<Held> {
        let mut blocks: Vec<u32> =
            chain.iter().take(total).map_while(|hash| self.by_hash.get(hash).copied()).collect();
        let hits = blocks.len();
        let idle = blocks.iter().filter(|index| self.blocks[**index as usize].users == 0).count();
        if total - hits > self.free - idle {
            return None;
        }
        for index in &blocks {
            if self.blocks[*index as usize].users == 0 {
                self.unlink(*index);
            }
            self.blocks[*index as usize].users += 1;
        }
        for _ in hits..total {
            let index = self.first;
            self.unlink(index);
            let block = &mut self.blocks[index as usize];
            block.users = 1;
            if let Some(hash) = block.hash.take() {
                self.by_hash.remove(&hash);
                self.evicted += 1;
            }
            blocks.push(index);
        }
        Some(Held { blocks, hits })
    }

    /// Makes block `index` of a request, now full, known by `hash`. A hash that is known already stays with its block.
    pub fn publish(&mut self, held: &Held, index: usize, hash: u64) {
        let block = held.blocks[index];
        if self.blocks[block as usize].hash.is_none() && !self.by_hash.contains_key(&hash) {
            self.blocks[block as usize].hash = Some(hash);
            self.by_hash.insert(hash, block);
        }
    }

    /// Gives a request's blocks back. What was published stays cached.
    pub fn release(&mut self, held: Held) {
        for index in held.blocks.into_iter().rev() {
            let block = &mut self.blocks[index as usize];
            block.users -= 1;
            if block.users > 0 {
                continue;
            }
            if block.hash.is_some() {
                self.free_last(index);
            } else {
                self.free_first(index);
            }
        }
    }

    /// Forgets every hash. Running requests keep their blocks.
    pub fn clear(&mut self) {
        self.by_hash.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
    }

    fn free_last(&mut self, index: u32) {
        self.link(index, self.last, NONE);
    }

    fn free_first(&mut self, index: u32) {
        self.link(index, NONE, self.first);
    }

    fn link(&mut self, index: u32, before: u32, after: u32) {
        self.blocks[index as usize].before = before;
        self.blocks[index as usize].after = after;
        self.join(before, index);
        self.join(index, after);
        self.free += 1;
    }

    fn unlink(&mut self, index: u32) {
        let Block { before, after, .. } = self.blocks[index as usize];
        self.join(before, after);
        self.free -= 1;
    }

    /// Makes two ends of the free list neighbours; NONE stands for the list's own ends.
    fn join(&mut self, left: u32, right: u32) {
        match self.blocks.get_mut(left as usize) {
            Some(block) => block.after = right,
            None => self.first = right,
        }
        match self.blocks.get_mut(right as usize) {
            Some(block) => block.before = left,
            None => self.last = left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// What the cache must do, said as plainly as possible: known hashes with their users and the time of their last
    /// release; eviction searches for the oldest.
    struct Literal {
        capacity: usize,
        clock: u64,
        known: BTreeMap<u64, (usize, u64)>,
        anonymous: usize,
    }

    impl Literal {
        fn in_use(&self) -> usize {
            self.anonymous + self.known.values().filter(|(users, _)| *users > 0).count()
        }

        /// The hashes hit and the number of fresh blocks.
        fn take(&mut self, chain: &[u64], total: usize) -> Option<Vec<Option<u64>>> {
            let hits: Vec<u64> =
                chain.iter().copied().take(total).take_while(|hash| self.known.contains_key(hash)).collect();
            let newly_used = hits.iter().filter(|hash| self.known[hash].0 == 0).count();
            if self.in_use() + newly_used + total - hits.len() > self.capacity {
                return None;
            }
            for hash in &hits {
                self.known.get_mut(hash).unwrap().0 += 1;
            }
            for _ in hits.len()..total {
                if self.anonymous + self.known.len() == self.capacity {
                    let idle = self.known.iter().filter(|(_, (users, _))| *users == 0);
                    let oldest = *idle.min_by_key(|(_, (_, released))| *released).unwrap().0;
                    self.known.remove(&oldest);
                }
                self.anonymous += 1;
            }
            let mut blocks: Vec<Option<u64>> = hits.into_iter().map(Some).collect();
            blocks.resize(total, None);
            Some(blocks)
        }

        fn publish(&mut self, blocks: &mut [Option<u64>], index: usize, hash: u64) {
            if blocks[index].is_none() && !self.known.contains_key(&hash) {
                self.known.insert(hash, (1, 0));
                self.anonymous -= 1;
                blocks[index] = Some(hash);
            }
        }

        fn release(&mut self, blocks: Vec<Option<u64>>) {
            for block in blocks.into_iter().rev() {
                self.clock += 1;
                match block {
                    None => self.anonymous -= 1,
                    Some(hash) => {
                        let (users, released) = self.known.get_mut(&hash).unwrap();
                        *users -= 1;
                        *released = self.clock;
                    }
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A request over a chain that shares its head with others: (branch point, branch, length, extra blocks).
        Take(usize, u64, usize, usize),
        Publish(usize, usize),
        Release(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0usize..6, 1u64..4, 0usize..9, 0usize..3).prop_map(|(a, b, c, d)| Step::Take(a, b, c, d)),
            4 => (0usize..8, 0usize..10).prop_map(|(a, b)| Step::Publish(a, b)),
            2 => (0usize..8).prop_map(Step::Release),
        ]
    }

    fn chain(branch_at: usize, branch: u64, length: usize) -> Vec<u64> {
        (0..length).map(|i| if i < branch_at { i as u64 } else { 100 * branch + i as u64 }).collect()
    }

    proptest! {
        #[test]
        fn equals_the_literal_cache(capacity in 0u32..20, steps in proptest::collection::vec(step(), 0..120)) {
            let mut cache = PrefixCache::new(capacity);
            let mut literal =
                Literal { capacity: capacity as usize, clock: 0, known: BTreeMap::new(), anonymous: 0 };
            let mut running: Vec<(Held, Vec<Option<u64>>, Vec<u64>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(branch_at, branch, length, extra) => {
                        let chain = chain(branch_at, branch, length);
                        let held = cache.take(&chain, length + extra);
                        let blocks = literal.take(&chain, length + extra);
                        prop_assert_eq!(held.is_some(), blocks.is_some());
                        if let (Some(held), Some(blocks)) = (held, blocks) {
                            prop_assert_eq!(held.hits(), blocks.iter().flatten().count());
                            running.push((held, blocks, chain));
                        }
                    }
                    Step::Publish(request, index) if !running.is_empty() => {
                        let request = request % running.len();
                        let (held, blocks, chain) = &mut running[request];
                        if let Some(hash) = chain.get(index) {
                            cache.publish(held, index, *hash);
                            literal.publish(blocks, index, *hash);
                        }
                    }
                    Step::Release(request) if !running.is_empty() => {
                        let (held, blocks, _) = running.swap_remove(request % running.len());
                        cache.release(held);
                        literal.release(blocks);
                    }
                    _ => {}
                }
                prop_assert_eq!(cache.in_use(), literal.in_use());
                let mut known: Vec<u64> = cache.by_hash.keys().copied().collect();
                known.sort_unstable();
                prop_assert_eq!(known, literal.known.keys().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_tail_of_a_chain_goes_before_its_head() {
        let mut cache = PrefixCache::new(4);
        let held = cache.take(&[], 4).unwrap();
        for index in 0..4 {
            cache.publish(&held, index, index as u64);
        }
        cache.release(held);
        let other = cache.take(&[], 1).unwrap();
        cache.release(other);
        assert_eq!(cache.take(&[0, 1, 2, 3], 4).unwrap().hits(), 3);
        assert_eq!(cache.evicted(), 1);
    }

    #[test]
    fn a_cleared_cache_finds_nothing_and_keeps_running_requests_whole() {
        let mut cache = PrefixCache::new(3);
        let held = cache.take(&[], 2).unwrap();
        cache.publish(&held, 0, 10);
        cache.clear();
        assert_eq!((cache.cached(), cache.in_use()), (0, 2));
        let other = cache.take(&[10], 1).unwrap();
        assert_eq!((other.hits(), cache.in_use()), (0, 3));
        cache.release(held);
        cache.release(other);
        assert_eq!(cache.in_use(), 0);
    }
}
