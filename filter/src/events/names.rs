//! The blocks of one cache by the engine's names: what removals are understood by.
//!
//! An engine's hash of a block is opaque. Each name is kept with the block's [link](crate::blocks), which follows from the tokens
//! and from the link of the block before. Where that one is not known (its event came before we listened), the block waits,
//! by its digest alone, and gets its link when the other is stored.
//!
//! Engines keep several copies of one block at times and tell of each; a block is gone with the last.

use crate::blocks::link;
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;

use super::batch::Name;

/// Blocks of one cache, by name.
#[derive(Debug)]
pub struct Names {
    blocks: HashMap<Name, Known>,
    /// Names of the blocks that wait for a block of this name; some wait no more.
    waiting: HashMap<Name, Vec<Name>>,
    /// Names in the order in which they began to wait; some wait no more.
    queue: VecDeque<Name>,
    waiting_blocks: usize,
    /// Entries of `waiting`.
    records: usize,
    most: usize,
    most_waiting: usize,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// 0: it may be gone, for something was missed. Then it is stored anew by what is told of next.
    copies: u32,
    at: At,
}

#[derive(Debug, Clone, Copy)]
enum At {
    Linked(Place),
    Waiting { parent: Name, digest: u64 },
}

/// Where a block stands in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its link.
    pub link: u64,
    /// How many blocks are before it.
    pub depth: u32,
}

/// What new blocks follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing: they begin a chain with this seed.
    Seed(u64),
    /// The block of this name.
    Block(Name),
}

/// Blocks that are newly linked, each the parent of the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The link of the block before the first; `None` at depth 0.
    pub parent: Option<u64>,
    /// How many blocks are before the first.
    pub depth: u32,
    /// Their links.
    pub links: Vec<u64>,
}

/// What a change left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Blocks for which there was no room.
    pub refused: u64,
    /// Blocks that waited too long for the one before them.
    pub forgotten: u64,
}

impl Names {
    /// No blocks. At most `most` are taken, of which a quarter may wait.
    pub fn new(most: usize) -> Self {
        Self {
            blocks: HashMap::new(),
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            waiting_blocks: 0,
            records: 0,
            most,
            most_waiting: (most / 4).max(1),
        }
    }

    /// Blocks with a link.
    pub fn linked(&self) -> usize {
        self.blocks.len() - self.waiting_blocks
    }

    /// Blocks without one.
    pub fn waiting(&self) -> usize {
        self.waiting_blocks
    }

    /// Forgets all, and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::new(self.most);
    }

    /// Something was missed: any block may be gone, and of any there may be other copies.
    pub fn doubt(&mut self) {
        self.blocks.values_mut().for_each(|known| known.copies = 0);
    }

    /// Blocks were stored, each the parent of the next, by name and digest. Appends the blocks that have a link only now.
    pub fn store(
        &mut self,
        before: Before,
        blocks: impl IntoIterator<Item = (Name, u64)>,
        runs: &mut Vec<Run>,
    ) -> Left {
        let mut left = Left::default();
        let mut before = before;
        for (name, digest) in blocks {
            let known = self.blocks.get_mut(&name).map(|known| {
                known.copies = known.copies.saturating_add(1);
                known.at
            });
            match known {
                Some(At::Linked(_)) => {}
                Some(At::Waiting { .. }) => {
                    if let Some(place) = self.place_after(before, digest) {
                        self.link(name, place, before, runs);
                    }
                }
                None if self.blocks.len() >= self.most => left.refused += 1,
                None => match (self.place_after(before, digest), before) {
                    (Some(place), _) => {
                        self.blocks.insert(name, Known { copies: 1, at: At::Linked(place) });
                        extend(runs, self.link_of(before), place);
                        self.link_waiting(name, runs);
                    }
                    (None, Before::Block(parent)) => {
                        self.wait(name, parent, digest);
                        left.forgotten += self.bound();
                    }
                    (None, Before::Seed(_)) => left.refused += 1,
                },
            }
            before = Before::Block(name);
        }
        left
    }

    /// A copy of a block was removed. Its link, where it was the last and had one.
    pub fn remove(&mut self, name: Name) -> Option<u64> {
        let known = self.blocks.get_mut(&name)?;
        known.copies = known.copies.saturating_sub(1);
        if known.copies > 0 {
            return None;
        }
        let known = self.blocks.remove(&name)?;
        match known.at {
            At::Linked(place) => Some(place.link),
            At::Waiting { .. } => {
                self.waiting_blocks = self.waiting_blocks.saturating_sub(1);
                None
            }
        }
    }

    /// Where a block with this digest stands after another. `None` where that one is unknown or waits, or is too deep.
    fn place_after(&self, before: Before, digest: u64) -> Option<Place> {
        match before {
            Before::Seed(seed) => Some(Place { link: link(seed, digest), depth: 0 }),
            Before::Block(name) => match self.blocks.get(&name)?.at {
                At::Linked(Place { link: end, depth }) => {
                    Some(Place { link: link(end, digest), depth: depth.checked_add(1)? })
                }
                At::Waiting { .. } => None,
            },
        }
    }

    fn link_of(&self, before: Before) -> Option<u64> {
        let Before::Block(name) = before else { return None };
        match self.blocks.get(&name)?.at {
            At::Linked(place) => Some(place.link),
            At::Waiting { .. } => None,
        }
    }

    /// Gives a waiting block its place, and those that wait for it theirs.
    fn link(&mut self, name: Name, place: Place, before: Before, runs: &mut Vec<Run>) {
        let Some(known) = self.blocks.get_mut(&name) else { return };
        known.at = At::Linked(place);
        self.waiting_blocks = self.waiting_blocks.saturating_sub(1);
        extend(runs, self.link_of(before), place);
        self.link_waiting(name, runs);
    }

    /// Those that wait for a block that has a place, and those that wait for these.
    fn link_waiting(&mut self, name: Name, runs: &mut Vec<Run>) {
        let mut open = vec![name];
        while let Some(parent) = open.pop() {
            for child in self.waiting.remove(&parent).unwrap_or_default() {
                let Some(At::Waiting { parent: of, digest }) = self.blocks.get(&child).map(|known| known.at)
                else {
                    continue;
                };
                let place = self.place_after(Before::Block(parent), digest).filter(|_| of == parent);
                let Some(place) = place else { continue };
                if let Some(known) = self.blocks.get_mut(&child) {
                    known.at = At::Linked(place);
                }
                self.waiting_blocks = self.waiting_blocks.saturating_sub(1);
                extend(runs, self.link_of(Before::Block(parent)), place);
                open.push(child);
            }
        }
    }

    fn wait(&mut self, name: Name, parent: Name, digest: u64) {
        self.blocks.insert(name, Known { copies: 1, at: At::Waiting { parent, digest } });
        self.waiting.entry(parent).or_default().push(name);
        self.queue.push_back(name);
        self.waiting_blocks += 1;
        self.records += 1;
    }

    /// Forgets what has waited longest, where too many wait. Says how many blocks that were.
    fn bound(&mut self) -> u64 {
        let mut forgotten = 0;
        while self.waiting_blocks > self.most_waiting {
            let Some(name) = self.queue.pop_front() else { break };
            if let Some(Known { at: At::Waiting { .. }, .. }) = self.blocks.get(&name) {
                self.blocks.remove(&name);
                self.waiting_blocks -= 1;
                forgotten += 1;
            }
        }
        // Half of the records at the least are stale: each sweep is paid for by as many changes.
        if self.records > 2 * self.most_waiting {
            self.sweep();
        }
        forgotten
    }

    /// Drops records of blocks that wait no more.
    fn sweep(&mut self) {
        self.waiting.clear();
        let (blocks, waiting) = (&self.blocks, &mut self.waiting);
        let mut seen = HashSet::new();
        self.queue.retain(|name| {
            let Some(Known { at: At::Waiting { parent, .. }, .. }) = blocks.get(name) else { return false };
            let is_new = seen.insert(*name);
            if is_new {
                waiting.entry(*parent).or_default().push(*name);
            }
            is_new
        });
        self.records = self.queue.len();
    }
}

/// Adds a block to the last run, where it follows it, or begins a new one.
fn extend(runs: &mut Vec<Run>, parent: Option<u64>, place: Place) {
    if let Some(run) = runs.last_mut()
        && run.links.last().copied() == parent
        && parent.is_some()
        && run.depth as usize + run.links.len() == place.depth as usize
    {
        run.links.push(place.link);
        return;
    }
    runs.push(Run { parent, depth: place.depth, links: vec![place.link] });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn store(names: &mut Names, before: Before, blocks: &[(Name, u64)]) -> Vec<Run> {
        let mut runs = Vec::new();
        assert_eq!(names.store(before, blocks.iter().copied(), &mut runs), Left::default());
        runs
    }

    fn chain(seed: u64, digests: &[u64]) -> Vec<u64> {
        digests
            .iter()
            .scan(seed, |end, digest| {
                *end = link(*end, *digest);
                Some(*end)
            })
            .collect()
    }

    #[test]
    fn a_chain_grows_and_shrinks() {
        let mut names = Names::new(100);
        let links = chain(7, &[1, 2, 3, 4]);
        let whole = store(&mut names, Before::Seed(7), &[(11, 1), (12, 2)]);
        assert_eq!(whole, [Run { parent: None, depth: 0, links: links[..2].to_vec() }]);
        let more = store(&mut names, Before::Block(12), &[(13, 3), (14, 4)]);
        assert_eq!(more, [Run { parent: Some(links[1]), depth: 2, links: links[2..].to_vec() }]);
        assert_eq!(names.remove(14), Some(links[3]));
        assert_eq!(names.remove(14), None);
        assert_eq!(names.linked(), 3);
    }

    #[test]
    fn a_block_is_gone_with_its_last_copy() {
        let mut names = Names::new(100);
        store(&mut names, Before::Seed(7), &[(11, 1), (12, 2)]);
        assert_eq!(store(&mut names, Before::Seed(7), &[(11, 1), (12, 2)]), []);
        assert_eq!(names.remove(12), None);
        assert_eq!(names.remove(12), Some(chain(7, &[1, 2])[1]));
    }

    #[test]
    fn after_a_gap_what_is_told_next_counts() {
        let mut names = Names::new(100);
        store(&mut names, Before::Seed(7), &[(11, 1), (12, 2), (13, 3)]);
        store(&mut names, Before::Seed(7), &[(11, 1), (12, 2)]);
        names.doubt();
        assert_eq!(names.remove(13), Some(chain(7, &[1, 2, 3])[2]), "it was there, and is gone");
        assert_eq!(names.remove(12), Some(chain(7, &[1, 2])[1]), "its copies are not known");
        // It was removed and stored again in the gap, or since.
        assert_eq!(store(&mut names, Before::Seed(7), &[(11, 1)]), []);
        assert_eq!(names.remove(11), Some(chain(7, &[1])[0]));
    }

    #[test]
    fn what_came_before_its_parent_waits_for_it() {
        let mut names = Names::new(100);
        let links = chain(7, &[1, 2, 3, 4, 5]);
        assert_eq!(store(&mut names, Before::Block(13), &[(14, 4), (15, 5)]), []);
        assert_eq!(store(&mut names, Before::Block(12), &[(13, 3)]), []);
        assert_eq!((names.linked(), names.waiting()), (0, 3));
        let all = store(&mut names, Before::Seed(7), &[(11, 1), (12, 2)]);
        assert_eq!(all, [Run { parent: None, depth: 0, links }]);
        assert_eq!((names.linked(), names.waiting()), (5, 0));
    }

    #[test]
    fn what_is_removed_while_it_waits_is_never_linked() {
        let mut names = Names::new(100);
        store(&mut names, Before::Block(11), &[(12, 2), (13, 3)]);
        assert_eq!(names.remove(12), None);
        let all = store(&mut names, Before::Seed(7), &[(11, 1)]);
        assert_eq!(all, [Run { parent: None, depth: 0, links: chain(7, &[1]) }]);
        assert_eq!((names.linked(), names.waiting()), (1, 1));
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut names = Names::new(8);
        let mut runs = Vec::new();
        let left = names.store(Before::Block(99), (0..5).map(|n| (n, n)), &mut runs);
        assert_eq!((left, names.waiting()), (Left { refused: 0, forgotten: 3 }, 2));
        let left = names.store(Before::Seed(0), (10..20).map(|n| (n, n)), &mut runs);
        assert_eq!((left.refused, names.linked()), (4, 6));
        for turn in 0..10_000 {
            names.store(Before::Block(99), [(1000 + turn, 0)], &mut runs);
            if turn % 2 == 0 {
                names.remove(1000 + turn);
            }
        }
        assert!(names.queue.len() <= 5 && names.waiting.values().map(Vec::len).sum::<usize>() <= 5);
        names.clear();
        assert_eq!((names.linked(), names.waiting(), names.queue.len()), (0, 0, 0));
    }

    /// A tree of blocks: the number of its parent, which is smaller, or none.
    fn parent(tree: &[usize], n: usize) -> Option<usize> {
        (tree[n] < n).then_some(tree[n])
    }

    proptest! {
        /// Whatever the order in which blocks are stored and removed, those have a link whose ancestors were all there at once
        /// at some time since.
        #[test]
        fn equal_what_the_definition_says(
            tree in prop::collection::vec(0..30usize, 30),
            ops in prop::collection::vec((any::<bool>(), 0..30usize, 1..4usize), 0..120),
        ) {
            let mut names = Names::new(1000);
            let path = |n: usize| {
                let mut path: Vec<_> = std::iter::successors(Some(n), |n| parent(&tree, *n)).collect();
                path.reverse();
                path
            };
            let link_of = |n: usize| *chain(7, &path(n).iter().map(|n| *n as u64).collect::<Vec<_>>()).last().unwrap();
            // Copies by block, and which blocks have a link.
            let (mut copies, mut linked) = (BTreeMap::<usize, u32>::new(), BTreeSet::new());
            for (is_store, n, count) in ops {
                let mut runs = Vec::new();
                if is_store {
                    let path = path(n);
                    let stored = &path[path.len() - count.min(path.len())..];
                    let before = parent(&tree, stored[0]).map_or(Before::Seed(7), |n| Before::Block(n as u64));
                    let left = names.store(before, stored.iter().map(|n| (*n as u64, *n as u64)), &mut runs);
                    prop_assert_eq!(left, Left::default());
                    let was = linked.clone();
                    stored.iter().for_each(|n| *copies.entry(*n).or_default() += 1);
                    // Whoever is there and whose parent has a link.
                    for n in 0..30 {
                        let follows = parent(&tree, n).is_none_or(|parent| linked.contains(&parent));
                        if copies.contains_key(&n) && follows {
                            linked.insert(n);
                        }
                    }
                    let new: BTreeSet<u64> = linked.difference(&was).map(|n| link_of(*n)).collect();
                    let told: Vec<u64> = runs.iter().flat_map(|run| run.links.clone()).collect();
                    prop_assert_eq!(told.len(), new.len());
                    prop_assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), new);
                    for run in &runs {
                        let first = (0..30).find(|n| link_of(*n) == run.links[0]).unwrap();
                        prop_assert_eq!(run.parent, parent(&tree, first).map(link_of));
                        prop_assert_eq!(run.depth as usize + 1, self::tests::depth(&tree, first));
                    }
                } else {
                    let gone = match copies.get_mut(&n) {
                        Some(1) => { copies.remove(&n); linked.remove(&n) }
                        Some(many) => { *many -= 1; false }
                        None => false,
                    };
                    prop_assert_eq!(names.remove(n as u64), gone.then(|| link_of(n)));
                }
                prop_assert_eq!((names.linked(), names.waiting()), (linked.len(), copies.len() - linked.len()));
            }
        }
    }

    fn depth(tree: &[usize], n: usize) -> usize {
        1 + parent(tree, n).map_or(0, |parent| depth(tree, parent))
    }
}
