//! Where the pods of a configuration stand in the index: positions on one side, slots on the other.

use crate::blocks::{self, Chain};
use crate::config::Router;
use crate::index::{Depths, Index, MAX_SLOTS, PodRef, PodSet};
use crate::pipeline::{Matches, Positions, Residency};
use crate::pods::{Account, Pod};
use std::cmp::Reverse;

/// Requests that a rank may have more than the one with the fewest, and still be chosen for what it holds.
const RANK_SLACK: u32 = 4;

/// The places of one router's pods.
#[derive(Debug, Default)]
pub struct Places {
    /// Version of the roster that this was read from.
    version: Option<u64>,
    /// By position, then by rank.
    pods: Vec<Vec<Option<PodRef>>>,
    /// By slot.
    positions: Vec<Option<usize>>,
}

impl Places {
    /// Brings them up to date with the roster.
    pub fn update(&mut self, router: &Router, index: &Index) {
        let version = index.replica().roster().version();
        if self.version == Some(version) {
            return;
        }
        self.version = Some(version);
        let caches = |pod: &Pod| pod.cache_ids().map(|id| index.find(&id)).collect();
        self.pods = router.pods().iter().map(caches).collect();
        let mut positions = vec![None; MAX_SLOTS];
        for (position, ranks) in self.pods.iter().enumerate() {
            for pod in ranks.iter().flatten() {
                if let Some(place) = positions.get_mut(pod.slot.index()) {
                    *place = Some(position);
                }
            }
        }
        self.positions = positions;
    }

    /// The slot of one of a pod's caches; `None` while it has none.
    pub fn slot_of(&self, position: usize, rank: u32) -> Option<PodRef> {
        self.pods.get(position)?.get(rank as usize).copied().flatten()
    }

    /// The slots of all of a pod's caches that have one.
    pub fn slots_of(&self, position: usize) -> impl Iterator<Item = PodRef> + '_ {
        self.pods.get(position).into_iter().flatten().copied().flatten()
    }

    /// The pod that has a slot.
    pub fn position_of(&self, pod: PodRef) -> Option<usize> {
        let position = self.positions.get(pod.slot.index()).copied().flatten()?;
        self.slots_of(position).any(|one| one == pod).then_some(position)
    }

    /// What all VMs know of a pod, over its ranks.
    pub fn account(&self, index: &Index, position: usize) -> Account {
        let mut sum = Account::default();
        self.slots_of(position).for_each(|pod| sum.add(&index.load().account(pod.slot)));
        sum
    }

    /// The rank whose cache holds most of a prompt, of those that don't have [`RANK_SLACK`] requests more than the one with the
    /// fewest; and among equals the one with the fewest. What many prompts share would else draw all of them to one rank.
    pub fn rank_of(&self, index: &Index, position: usize, chain: &Chain) -> u32 {
        let Some(ranks) = self.pods.get(position).filter(|ranks| ranks.len() > 1) else { return 0 };
        let known = || {
            let there = (0..).zip(ranks).filter_map(|(rank, pod)| Some((rank, (*pod)?)));
            there.map(|(rank, pod): (u32, PodRef)| (rank, pod, index.in_flight(pod.slot)))
        };
        let fewest = known().map(|(_, _, in_flight)| in_flight).min().unwrap_or(0);
        let best = known()
            .filter(|(_, _, in_flight)| *in_flight <= fewest.saturating_add(RANK_SLACK))
            .max_by_key(|(rank, pod, in_flight)| {
                (index.depth_of(pod.slot, chain), Reverse(*in_flight), Reverse(*rank))
            });
        best.map_or(0, |(rank, _, _)| rank)
    }
}

/// The index as the pipeline asks it: by position.
pub struct Located<'a> {
    /// Where the pods stand.
    pub places: &'a Places,
    /// Who answers.
    pub index: &'a Index,
}

impl Residency for Located<'_> {
    fn depths(&self, chain: &Chain, out: &mut Matches) {
        let positions = |slots: &PodSet| {
            let found =
                slots.iter().filter_map(|slot| self.places.positions.get(slot.index()).copied().flatten());
            found.collect::<Positions>()
        };
        let mut depths = Depths::default();
        self.index.depths(&chain.hashes, &mut depths);
        let guessed = depths.steps.iter().map(|(depth, slots)| (blocks::worth(*depth), positions(slots)));
        if !self.index.knows_cached() {
            guessed.for_each(|(depth, pods)| out.push(depth, pods));
            return;
        }
        let mut groups: Vec<_> = guessed.collect();
        self.index.depths(&chain.cached, &mut depths);
        groups.extend(depths.steps.iter().map(|(depth, slots)| (*depth, positions(slots))));
        *out = Matches::deepest(&mut groups);
    }
}
