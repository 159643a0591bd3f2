//! A simulated VM: an index, and the requests that it routes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::baton::Rng;
use crate::blocks::Kind;
use crate::host::fake::FakeHost;
use crate::index::{
    Appended, BlockHash, Budget, Delta, Depths, Index, OnUnseen, PodRef, Slot, SlotState, Standing,
};
use crate::pods::{Job, Running};

pub const PODS: [&str; 6] = ["pod-a", "pod-b", "pod-c", "pod-d", "pod-e", "pod-f"];

/// Chains that share prefixes, as conversations do.
pub fn chain(rng: &mut Rng) -> Vec<BlockHash> {
    let (root, branch, length) = (rng.below(4), rng.below(3), 1 + rng.below(9));
    let name = |depth: u64| if depth < 4 { (root, 9, depth) } else { (root, branch, depth) };
    let hash = |(root, branch, depth): (u64, u64, u64)| {
        xxhash_rust::xxh3::xxh3_64(&[root as u8, branch as u8, depth as u8])
    };
    // Chains of each kind have their twins in the others.
    let kind = Kind::ALL[rng.below(3) as usize];
    (0..length).map(|depth| kind.name(hash(name(depth)))).collect()
}

pub struct Vm {
    pub number: usize,
    pub host: FakeHost,
    pub index: Index,
    pub streams: Vec<Running>,
    pub rng: Rng,
    pub hostile: bool,
}

impl Vm {
    pub fn sync_clock(&self, clock: &AtomicU64) {
        self.host.state.borrow_mut().now = Duration::from_millis(clock.load(Ordering::Relaxed));
    }

    /// One thing that a VM does, after which it sees its own requests at least.
    pub fn act(&mut self) {
        self.act_somehow();
        for (pod, own) in self.true_in_flight() {
            let roster = self.index.replica().roster();
            assert!(roster.at(pod.slot) != pod || self.index.in_flight(pod.slot) >= own);
        }
    }

    fn act_somehow(&mut self) {
        match self.rng.below(100) {
            0..20 => {
                self.index.tick(&self.host);
            }
            20..22 => {
                for _ in 0..self.rng.below(50) {
                    self.index.tick(&self.host);
                }
            }
            22..70 => self.request(),
            70..90 => self.finish(),
            90..93 => self.choose_pods(),
            _ => self.say_something_odd(),
        }
    }

    pub fn choose_pods(&mut self) {
        let mask = self.rng.next() | self.rng.next();
        let pods = PODS.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, pod)| *pod);
        self.index.set_pods(pods.collect::<Vec<_>>());
        let exact = self.rng.next();
        self.index.set_exact(Slot::all().take(7).filter(|slot| exact >> slot.number() & 1 == 1).collect());
    }

    fn finish(&mut self) {
        if self.streams.is_empty() {
            return;
        }
        let nth = self.rng.below(self.streams.len() as u64) as usize;
        let pod = self.streams.swap_remove(nth);
        self.index.finished(&self.host, pod);
    }

    fn request(&mut self) {
        let budget = 1 + self.rng.below(40) as usize;
        let standing = self.index.catch_up(&self.host, Budget { entries: budget, hashes: 64 * budget });
        let chain = chain(&mut self.rng);
        let mut depths = Depths::default();
        let mut on_unseen = OnUnseen::Return;
        loop {
            self.index.depths(&chain, &mut depths);
            assert!(
                standing != Standing::Loading
                    || depths.steps.is_empty()
                    || self.index.standing() != Standing::Loading
            );
            let warm = depths.steps.first().and_then(|(depth, pods)| Some((pods.iter().next()?, *depth)));
            let any = PODS.get(self.rng.below(6) as usize).and_then(|id| self.index.find(id));
            let (pod, depth) = match warm.filter(|_| self.rng.below(3) > 0) {
                Some((slot, depth)) => (self.index.replica().roster().at(slot), depth as usize),
                None => match any {
                    Some(pod) => (pod, 0),
                    None => return,
                },
            };
            let chain_delta = match chain.get(depth..) {
                None | Some([]) => Delta::Touched { pod, leaf: chain[chain.len() - 1] },
                Some(new) => Delta::Stored {
                    pod,
                    parent: depth.checked_sub(1).map(|before| chain[before]),
                    depth: depth as u32,
                    hashes: new.to_vec(),
                },
            };
            match self.index.append(
                &self.host,
                &[chain_delta, Delta::Routed { pod, job: Job::default() }],
                on_unseen,
            ) {
                Appended::Unseen => {
                    assert_eq!(on_unseen, OnUnseen::Return, "asked to go, and did not");
                    on_unseen = OnUnseen::Go;
                }
                _ => {
                    let job = Job { prefill: self.rng.below(500) as u32, context: 500 };
                    self.streams.push(self.index.started(pod, job));
                    return;
                }
            }
        }
    }

    /// Everything else that an entry can say, sense or nonsense.
    fn say_something_odd(&mut self) {
        let slot = Slot::new(self.rng.below(7) as u16).unwrap();
        let mut pod = self.index.replica().roster().at(slot);
        if self.rng.percent(20) {
            pod.generation = pod.generation.wrapping_sub(1);
        }
        let hashes = chain(&mut self.rng);
        let is_leaving = matches!(self.index.replica().roster().state(slot), SlotState::Leaving { .. });
        let delta = match self.rng.below(if self.hostile { 12 } else { 9 }) {
            0..3 => {
                Delta::Removed { pod, hashes: hashes.into_iter().skip(self.rng.below(4) as usize).collect() }
            }
            3 => Delta::Cleared { pod },
            4 => Delta::Left { pod },
            5 | 6 if is_leaving => Delta::Freed { pod },
            5 => Delta::Joined { id: PODS[self.rng.below(6) as usize].into() },
            6..=8 => Delta::Touched { pod, leaf: hashes[0] },
            9 => Delta::Stored { pod, parent: Some(hashes[0]), depth: 1 + self.rng.below(4) as u32, hashes },
            10 => Delta::Stored { pod, parent: None, depth: 0, hashes: hashes.into_iter().rev().collect() },
            _ => Delta::Lost { shard: self.rng.below(20) as u8 },
        };
        let _ = self.index.append(&self.host, &[delta], OnUnseen::Go);
    }

    pub fn true_in_flight(&self) -> BTreeMap<PodRef, u32> {
        let mut counts = BTreeMap::new();
        for running in &self.streams {
            *counts.entry(running.pod).or_default() += 1;
        }
        counts
    }
}
