//! What all plugin configurations of one VM share: the replica of the index, the loads, the clock of ticks.
//!
//! Configurations share a [`Fleet`] where their hashes are comparable: an old and a new configuration while Envoy drains,
//! or two listeners with the same settings of blocks.

use crate::VERSION;
use crate::events::Feeds;
use crate::host::Host;
use crate::index::{Budget, Delta, Index, IndexSettings, OnUnseen, PodRef, Standing};
use crate::metrics::{Metric, Metrics, version_number};
use crate::pipeline::{PodState, Rng, Scratch};
use crate::pods::{Pace, Speed};
use std::collections::{BTreeMap, BTreeSet};

/// What is applied of the log before a request is decided, 2 to 4 ms' worth at most. More waits for the tick.
const CATCH_UP: Budget = Budget { entries: 256, hashes: 8192 };
/// Configurations of one VM whose pods are kept apart. Envoy drains one at a time; more is somebody's mistake.
const MOST_PLUGINS: usize = 64;

/// State of one VM under one fingerprint.
pub struct Fleet {
    /// Who holds which blocks, and what is in flight.
    pub index: Index,
    /// Buffers and chance of decisions.
    pub scratch: Scratch,
    /// What engines say that they hold.
    pub feeds: Feeds,
    /// What is counted.
    pub metrics: Metrics,
    /// Buffer for what is known of the pods, kept from decision to decision.
    pub states: Vec<PodState>,
    /// Buffer for the routing header, likewise.
    pub destination: String,
    /// Pods that are sent nothing because they failed, by the plugin configuration that found that.
    open: BTreeMap<u32, BTreeSet<PodRef>>,
    /// Identities of pods, by the plugin configuration that names them.
    named: BTreeMap<u32, Vec<String>>,
    /// As of the last tick.
    speed: Speed,
    ticks: u64,
    turn: u64,
    seeded: bool,
    reported: Reported,
}

/// Counters of the index as they were last added to Envoy's stats.
#[derive(Debug, Default, Clone, Copy)]
struct Reported {
    full: u64,
    failed: u64,
    unreadable: u64,
    refused: u64,
}

impl Fleet {
    /// Knows nothing yet, and asks nothing of the host but metrics.
    pub fn new(settings: IndexSettings, metrics: Metrics) -> Self {
        Self {
            index: Index::new(settings),
            scratch: Scratch::new(0),
            feeds: Feeds::default(),
            speed: Speed::default(),
            metrics,
            states: Vec::new(),
            destination: String::new(),
            open: BTreeMap::new(),
            named: BTreeMap::new(),
            ticks: 0,
            turn: 0,
            seeded: false,
            reported: Reported::default(),
        }
    }

    /// Ticks of this VM so far, at about ten a second: a clock that cannot jump.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// A number of its own for the next request of this VM.
    pub fn next_turn(&mut self) -> u64 {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    /// Says which pods a plugin configuration names.
    pub fn name_pods(&mut self, plugin: u32, ids: Vec<String>) {
        if self.named.len() < MOST_PLUGINS || self.named.contains_key(&plugin) {
            self.named.insert(plugin, ids);
        }
        self.set_pods();
    }

    /// A plugin configuration ended.
    pub fn forget(&mut self, plugin: u32) {
        self.named.remove(&plugin);
        self.set_open(plugin, BTreeSet::new());
        self.set_pods();
    }

    /// Takes out of all answers those of these pods that no configuration names any more, where this VM keeps house.
    pub fn say_who_left(&mut self, host: &impl Host, ids: impl Iterator<Item = String>) {
        if !self.index.holds_lease() {
            return;
        }
        let gone = ids.filter(|id| !self.named.values().flatten().any(|named| named == id));
        let gone: Vec<_> =
            gone.filter_map(|id| self.index.find(&id)).map(|pod| Delta::Left { pod }).collect();
        if !gone.is_empty() {
            let _ = self.index.append(host, &gone, OnUnseen::Go);
        }
    }

    fn set_pods(&mut self) {
        let mut ids: Vec<&str> = self.named.values().flatten().map(String::as_str).collect();
        ids.sort_unstable();
        ids.dedup();
        self.index.set_pods(ids);
    }

    /// Learns what other workers wrote, before a decision.
    pub fn catch_up(&mut self, host: &impl Host) -> Standing {
        let standing = self.index.catch_up(host, CATCH_UP);
        self.seed(host);
        standing
    }

    /// A tick of one of the VM's configurations. Only one of them drives: with two, time would run twice as fast.
    pub fn tick(&mut self, host: &impl Host, plugin: u32) {
        if self.named.keys().next() != Some(&plugin) {
            return;
        }
        self.ticks = self.ticks.wrapping_add(1);
        self.index.tick(host);
        self.feeds.tick(host, &mut self.index, &self.metrics, self.ticks);
        self.seed(host);
        self.speed = self.fit();
        self.report(host);
    }

    /// Says which pods a plugin configuration sends nothing, because they failed.
    pub fn set_open(&mut self, plugin: u32, pods: BTreeSet<PodRef>) {
        match pods.is_empty() {
            true => drop(self.open.remove(&plugin)),
            false => drop(self.open.insert(plugin, pods)),
        }
        let all = self.open.values().flatten().copied().collect();
        self.index.load_mut().set_open(&all);
    }

    /// Whether another VM, or another configuration of this one, sends a pod nothing because it failed.
    pub fn is_open_elsewhere(&self, plugin: u32, pod: PodRef) -> bool {
        let mut others = self.open.iter().filter(|(other, _)| **other != plugin);
        others.any(|(_, pods)| pods.contains(&pod)) || self.index.is_open_elsewhere(pod)
    }

    /// How long first tokens take, in the whole fleet.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    fn fit(&self) -> Speed {
        let mut seen = Pace::default();
        let pods = self.index.replica().roster().active().iter();
        pods.for_each(|slot| seen.add(&self.index.load().account(slot).pace));
        Speed::fit(&seen)
    }

    /// There is no random hostcall. The life's number is no other VM's, and the clock no other Envoy's.
    fn seed(&mut self, host: &impl Host) {
        if let (false, Some(life)) = (self.seeded, self.index.life()) {
            self.seeded = true;
            let clock = host.now().as_nanos() as u64;
            // Scrambled: from seeds at equal distances come sequences that are pieces of one.
            self.scratch = Scratch::new(clock ^ Rng::new(life).bits());
            self.metrics.add(host, Metric::VmStarted, 1);
            self.metrics.record(host, Metric::Version, version_number(VERSION));
        }
    }

    fn report(&mut self, host: &impl Host) {
        let counts = self.index.counts();
        let now = Reported {
            full: counts.full,
            failed: counts.failed,
            refused: counts.refused_blocks,
            unreadable: counts
                .unreadable_entries
                .saturating_add(counts.unreadable_shards)
                .saturating_add(counts.unreadable_ledgers),
        };
        let before = std::mem::replace(&mut self.reported, now);
        self.metrics.add(host, Metric::LogFull, now.full.saturating_sub(before.full));
        self.metrics.add(host, Metric::LogFailed, now.failed.saturating_sub(before.failed));
        self.metrics.add(host, Metric::IndexRefused, now.refused.saturating_sub(before.refused));
        self.metrics.add(host, Metric::Unreadable, now.unreadable.saturating_sub(before.unreadable));
        if self.index.holds_lease() {
            let table = self.index.replica().table();
            self.metrics.record(host, Metric::IndexBlocks, table.len() as u64);
            self.metrics.record(host, Metric::IndexMemory, table.memory_bytes() as u64);
            let pods = self.index.replica().roster().active().iter();
            let in_flight = pods.map(|slot| u64::from(self.index.in_flight(slot))).sum();
            self.metrics.record(host, Metric::InFlight, in_flight);
            self.metrics.record(host, Metric::ExactPods, self.index.exact().len() as u64);
        }
    }
}
