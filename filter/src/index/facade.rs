//! [`Index`]: the data layer as a VM uses it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::blocks::{self, Chain};
use crate::host::Host;
use crate::pods::{Job, Load, Running};

use super::append::{Appended, OnUnseen};
use super::checkpoint::Checkpointer;
use super::follower::{Budget, Follower, Standing};
use super::housekeeping::{Bounds, Housekeeping};
use super::lease::Lease;
use super::{
    BlockHash, Delta, Depths, IndexCounts, IndexSettings, MAX_POD_ID, MAX_SLOTS, PodRef, PodSet, Replica,
    Slot,
};

/// Age from which, on the path of a request, the ledgers of others are read again and the own one is written.
const FRESH: Duration = Duration::from_millis(10);
/// What a tick applies at most: 10 to 20 ms' worth.
const TICK: Budget = Budget { entries: 4096, hashes: 32_768 };

/// No life has this number.
const NOBODY: u64 = 0;

/// The replicated index of one VM: which pods hold which blocks, and how much each has to do.
///
/// No hostcall is made before the first [`Index::tick`] or [`Index::catch_up`]: the canary VM that Envoy makes to try a
/// configuration writes nothing. Every call is bounded, whatever the others do and whatever shared data holds.
#[derive(Debug)]
pub struct Index {
    settings: IndexSettings,
    follower: Follower,
    load: Load,
    /// Version of the roster that `load` was added up under.
    counted: u64,
    /// Identities of the pods that this VM's configurations name.
    pods: Vec<Box<str>>,
    joined: bool,
    /// Pods of which some living VM knows by events what they hold.
    exact: PodSet,
    refreshed: Option<Duration>,
    published: Option<Duration>,
    lease: Lease,
    checkpointer: Checkpointer,
    /// What engines say that their caches hold, in tokens, by the identity of the cache.
    tokens: BTreeMap<Box<str>, u64>,
    /// While this VM holds the lease.
    housekeeping: Option<Housekeeping>,
}

impl Index {
    /// An index that knows nothing yet.
    #[must_use]
    pub fn new(settings: IndexSettings) -> Self {
        let settings = settings.bounded();
        Self {
            follower: Follower::new(&settings),
            load: Load::new(settings.ledgers),
            counted: 0,
            pods: Vec::new(),
            joined: false,
            exact: PodSet::EMPTY,
            refreshed: None,
            published: None,
            lease: Lease::default(),
            checkpointer: Checkpointer::new(settings.shards),
            tokens: BTreeMap::new(),
            housekeeping: None,
            settings,
        }
    }

    /// Says which pods this VM's configurations name, old and new ones together. They join at the next tick, or with the
    /// first request; one that no VM names any more leaves after a while. Identities are 1 to 255 bytes, at most 512.
    pub fn set_pods<'a>(&mut self, ids: impl IntoIterator<Item = &'a str>) {
        let ids = ids.into_iter().filter(|id| (1..=MAX_POD_ID).contains(&id.len()));
        self.pods = ids.take(MAX_SLOTS).map(Into::into).collect();
        self.joined = false;
        let pods = &self.pods;
        self.tokens.retain(|id, _| pods.contains(id));
    }

    /// Says how many tokens a pod's cache holds, in place of [`IndexSettings::pod_blocks`]. Pods that aren't named are passed.
    pub fn set_pod_tokens(&mut self, id: &str, tokens: u64) {
        if self.tokens.get(id) == Some(&tokens) {
            return;
        }
        if self.pods.iter().any(|pod| **pod == *id) {
            self.tokens.insert(id.into(), tokens);
        }
    }

    /// How good the answers are.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.follower.standing()
    }

    /// A number that no other life of a VM has; `None` before the first tick or request.
    #[must_use]
    pub fn life(&self) -> Option<u64> {
        self.follower.life()
    }

    /// This VM's copy of the index.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.follower.replica
    }

    /// The slot and generation of a pod; `None` until it has joined. They change when a pod left and came back.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<PodRef> {
        self.replica().roster().find(id)
    }

    /// Requests in flight at the pod of a slot, over all VMs.
    #[must_use]
    pub fn in_flight(&self, slot: Slot) -> u32 {
        self.load.in_flight(slot)
    }

    /// What is in flight.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Whether this VM did the housekeeping at its last tick.
    #[must_use]
    pub fn holds_lease(&self) -> bool {
        self.housekeeping.is_some()
    }

    /// What went wrong or was left out.
    #[must_use]
    pub fn counts(&self) -> IndexCounts {
        let replica = self.replica().counts();
        IndexCounts {
            unreadable_ledgers: self.load.unreadable(),
            stale_deltas: replica.stale_deltas,
            refused_blocks: replica.refused_blocks,
            refused_pods: replica.refused_pods,
            ..self.follower.counts
        }
    }

    /// Says of which pods this VM knows by events what they hold. Others learn it with the next ledger.
    pub fn set_exact(&mut self, exact: PodSet) {
        self.load.set_exact(exact);
        self.exact = self.load.exact(self.life().unwrap_or(NOBODY));
    }

    /// Of which pods this VM or another living one knows by events what they hold.
    #[must_use]
    pub fn exact(&self) -> &PodSet {
        &self.exact
    }

    /// Pods of which others took from the index what was known by events, since this was asked last.
    pub fn take_disturbed(&mut self) -> PodSet {
        std::mem::replace(&mut self.follower.disturbed, PodSet::EMPTY)
    }

    /// Whether any engine said what it holds, so that [`Index::depths`] can answer for names of
    /// [`Kind::Cached`](crate::blocks::Kind::Cached).
    #[must_use]
    pub fn knows_cached(&self) -> bool {
        self.replica().table().cached() > 0
    }

    /// How many leading blocks of a prompt the pod of a slot holds: as it says itself, or as is guessed.
    #[must_use]
    pub fn depth_of(&self, slot: Slot, chain: &Chain) -> u32 {
        let depth = |names: &[BlockHash]| {
            u32::try_from(self.replica().table().depth_of(slot, names)).unwrap_or(u32::MAX)
        };
        blocks::worth(depth(&chain.hashes)).max(depth(&chain.cached))
    }

    /// How many leading blocks of the chain each pod holds. Nobody holds anything while [`Standing::Loading`].
    pub fn depths(&self, chain: &[BlockHash], out: &mut Depths) {
        match self.standing() {
            Standing::Loading => out.steps.clear(),
            _ => self.replica().table().depths(chain, self.replica().roster().active(), out),
        }
    }

    /// Applies what others appended, at most so much. Call it before a request is decided: where nothing is new
    /// it costs one hostcall, and every 10 ms one more for each VM.
    pub fn catch_up(&mut self, host: &impl Host, budget: Budget) -> Standing {
        self.follower.catch_up(host, &mut self.load, budget);
        if !self.joined {
            self.join(host);
        }
        if is_old(self.refreshed, host.now()) {
            self.refresh(host);
        }
        self.recount();
        self.standing()
    }

    /// Appends to the log what was decided, and applies it. Right after [`Index::catch_up`] it costs one hostcall for each
    /// 8 KiB. With [`OnUnseen::Return`] nothing is appended if others were first: decide once more, then call it with
    /// [`OnUnseen::Go`].
    pub fn append(&mut self, host: &impl Host, deltas: &[Delta], on_unseen: OnUnseen) -> Appended {
        let appended = self.follower.append(host, &mut self.load, deltas, on_unseen);
        self.recount();
        appended
    }

    /// A request was sent to the pod. Others learn of it by a [`Delta::Routed`], and by the ledger.
    pub fn started(&mut self, pod: PodRef, job: Job) -> Running {
        self.load.started(pod, job)
    }

    /// The first token of a request that was [`Index::started`] came.
    pub fn prefilled(&mut self, host: &impl Host, running: &mut Running) {
        self.load.prefilled(running);
        self.publish_if_old(host);
    }

    /// A request that was [`Index::started`] ended, however it ended.
    pub fn finished(&mut self, host: &impl Host, running: Running) {
        self.load.finished(running);
        self.publish_if_old(host);
    }

    /// The load, to be told of what others learn with the next ledger.
    pub fn load_mut(&mut self) -> &mut Load {
        &mut self.load
    }

    /// Whether another VM sends the pod nothing, because it failed.
    #[must_use]
    pub fn is_open_elsewhere(&self, pod: PodRef) -> bool {
        self.load.is_open_elsewhere(self.life().unwrap_or(NOBODY), pod)
    }

    /// Requests in flight for a model that is counted, over all VMs.
    #[must_use]
    pub fn of_model(&self, model: u64) -> u32 {
        self.load.of_model(self.life().unwrap_or(NOBODY), model)
    }

    /// What is to be done from time to time: loading, catching up, ledgers, pods, and the housekeeping where this VM holds
    /// the lease. Call it every 100 ms or so, and sooner while [`Standing::Loading`].
    pub fn tick(&mut self, host: &impl Host) -> Standing {
        self.follower.begin(host);
        self.follower.load(host);
        self.follower.catch_up(host, &mut self.load, TICK);
        self.declare_lost(host);
        self.join(host);
        self.load.tick();
        let refreshed = self.refresh(host);
        self.publish(host);
        self.hold_lease(host);
        if self.housekeeping.is_some() {
            self.keep_house(host, refreshed);
        }
        self.recount();
        self.standing()
    }

    /// Joins the pods that have no slot.
    fn join(&mut self, host: &impl Host) {
        let roster = self.replica().roster();
        let new = self.pods.iter().filter(|id| roster.find(id).is_none());
        let deltas: Vec<_> =
            new.take(roster.free_slots()).map(|id| Delta::Joined { id: id.clone() }).collect();
        self.joined = deltas.is_empty() || self.append(host, &deltas, OnUnseen::Go) == Appended::Done;
    }

    /// Reads the ledgers of all VMs. Says whether all could be read.
    fn refresh(&mut self, host: &impl Host) -> bool {
        let life = self.life().unwrap_or(NOBODY);
        self.refreshed = Some(host.now());
        let Follower { keys, replica, .. } = &self.follower;
        let refreshed = self.load.refresh(host, keys, life, replica.roster());
        if refreshed.is_ok() {
            self.counted = replica.roster().version();
        }
        self.exact = self.load.exact(life);
        self.follower.counted(refreshed).is_some()
    }

    fn own_slots(&self) -> PodSet {
        self.pods.iter().filter_map(|id| self.find(id)).map(|pod| pod.slot).collect()
    }

    fn publish(&mut self, host: &impl Host) {
        let Some(life) = self.life() else { return };
        self.published = Some(host.now());
        let in_use = self.own_slots();
        let Follower { keys, replica, .. } = &self.follower;
        let published = self.load.publish(host, keys, life, replica.position(), in_use);
        self.follower.counted(published);
    }

    fn publish_if_old(&mut self, host: &impl Host) {
        if self.load.is_published() && is_old(self.published, host.now()) {
            self.publish(host);
        }
    }

    fn recount(&mut self) {
        let version = self.replica().roster().version();
        if self.counted != version {
            self.counted = version;
            self.load.recount(self.life().unwrap_or(NOBODY), self.follower.replica.roster());
        }
    }

    /// What no VM can read any more is dropped by all, so that they are equal again.
    fn declare_lost(&mut self, host: &impl Host) {
        let lost = self.replica().missing().iter().filter_map(|shard| u8::try_from(*shard).ok());
        let deltas: Vec<_> = lost.map(|shard| Delta::Lost { shard }).collect();
        if !deltas.is_empty() && self.follower.is_caught_up() {
            let _ = self.append(host, &deltas, OnUnseen::Go);
        }
    }

    /// Only who knows everything may keep house; a holder that doesn't lets the lease go.
    ///
    /// Everything but what is lost is enough: where the ring is full, only a checkpoint makes room to say so.
    fn hold_lease(&mut self, host: &impl Host) {
        let (Some(life), true) = (self.life(), self.follower.knows_what_is_left()) else {
            self.stop_housekeeping();
            return;
        };
        let held = self.lease.tick(host, &self.follower.keys, life);
        match self.follower.counted(held) {
            Some(true) => {
                self.housekeeping.get_or_insert_default();
            }
            _ => self.stop_housekeeping(),
        }
    }

    fn stop_housekeeping(&mut self) {
        self.housekeeping = None;
        self.follower.replica.end_aging();
    }

    fn keep_house(&mut self, host: &impl Host, ledgers_are_known: bool) {
        if self.replica().is_whole() {
            self.decide(host, ledgers_are_known);
        }
        // An append may have met a log that went on by more than a lap.
        if self.follower.knows_what_is_left() {
            let most = (self.settings.shards / 8).max(1);
            let Follower { keys, log, replica, .. } = &mut self.follower;
            let written = self.checkpointer.run(host, keys, log, replica, most);
            let written = self.follower.counted(written).unwrap_or(0);
            self.follower.counts.shards_written += written as u64;
        }
    }

    /// Appends what is due: removals, pods that leave, the clock.
    fn decide(&mut self, host: &impl Host, ledgers_are_known: bool) {
        let wall = u32::try_from(host.now().as_secs()).unwrap_or(u32::MAX);
        self.follower.replica.begin_aging();
        let tokens: Vec<_> =
            self.tokens.iter().filter_map(|(id, tokens)| Some((self.find(id)?.slot, *tokens))).collect();
        let mut bounds = Bounds::new(&self.settings);
        tokens.into_iter().for_each(|(slot, tokens)| bounds.set_tokens(slot, tokens));
        let mut deltas =
            Housekeeping::blocks(&mut self.follower.replica, &self.settings, &bounds, &self.exact);
        let aged: usize = deltas.iter().map(|delta| delta.hashes().len()).sum();
        let in_use = self.life().map(|life| self.load.in_use(life).union(&self.own_slots()));
        if let (true, Some(in_use), Some(housekeeping)) = (ledgers_are_known, in_use, &mut self.housekeeping)
        {
            deltas.extend(housekeeping.pods(&self.follower.replica, &in_use));
        }
        self.follower.disturb(&deltas);
        if (!deltas.is_empty() || Housekeeping::clock_is_due(self.replica(), wall))
            && self.append(host, &deltas, OnUnseen::Go) == Appended::Done
        {
            self.follower.counts.aged += aged as u64;
        }
    }
}

/// Whether something that was done then is to be done again. A clock that was set back makes everything old.
fn is_old(then: Option<Duration>, now: Duration) -> bool {
    then.and_then(|then| now.checked_sub(then)).is_none_or(|age| age >= FRESH)
}
