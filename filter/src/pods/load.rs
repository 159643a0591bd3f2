//! What is under way at each pod, over all VMs, and what they learnt of it.
//!
//! Own requests are counted exactly. Those of others are the sum of their last [`Ledger`]s, and of the `Routed` entries
//! that they appended to the log since: so a burst over several workers is seen by each as it happens.
//!
//! Each life writes its ledger under one of a fixed number of keys, claimed by compare-and-swap, lowest first, so that
//! a reader can stop at the first key that was never written. Every write changes the key's version; one that was not
//! seen to change for [`SILENT`] own ticks is left out, comes back when it moves again, and may be taken over meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::host::{Cas, Expect, HostResult, SharedData, Versioned, Write};
use crate::index::{Keys, MAX_SLOTS, PodRef, PodSet, Roster, Slot};

use super::{Account, Job, Ledger, MOST_MODELS, Pace, Results, Running, Work};

/// Own ticks after which a ledger that did not change is left out.
pub const SILENT: u32 = 30;

/// Most `Routed` entries kept of one life. Beyond it the oldest are forgotten, and that much of the load is seen later.
const MOST_ROUTED: usize = 1024;
/// Most lives of which `Routed` entries are kept.
const MOST_WRITERS: usize = 512;
/// Tries to claim a key, each against another life that did the same.
const CLAIMS: usize = 8;

#[derive(Debug, Default)]
struct Peer {
    version: Option<Cas>,
    silent: u32,
    /// `None` where it could not be read.
    ledger: Option<Ledger>,
}

#[derive(Debug, Default)]
struct Routed {
    /// Position, pod and job, ascending by position.
    entries: VecDeque<(u64, PodRef, Job)>,
    /// Own ticks since the last.
    silent: u32,
}

/// What is under way at each pod.
#[derive(Debug)]
pub struct Load {
    /// Keys that may be used.
    ledgers: usize,
    /// This life's own, by pod; none that says nothing.
    own: BTreeMap<PodRef, Account>,
    /// Own requests of models that are counted, by the model's digest; no zeros.
    models: BTreeMap<u64, u32>,
    /// By number of the key.
    peers: Vec<Peer>,
    /// By life.
    routed: BTreeMap<u64, Routed>,
    /// The present generation of each slot, and what all lives say of it.
    now: Vec<(PodRef, Account)>,
    /// Slots of pods of which this life knows by events what they hold.
    exact: PodSet,
    /// The key that this life claimed.
    claimed: Option<usize>,
    unreadable: u64,
}

impl Load {
    /// Nobody has anything in flight. At most `ledgers` VMs can tell each other what they have.
    #[must_use]
    pub fn new(ledgers: usize) -> Self {
        Self {
            ledgers,
            own: BTreeMap::new(),
            models: BTreeMap::new(),
            peers: Vec::new(),
            routed: BTreeMap::new(),
            now: Slot::all().map(|slot| (PodRef { slot, generation: 0 }, Account::default())).collect(),
            exact: PodSet::EMPTY,
            claimed: None,
            unreadable: 0,
        }
    }

    /// Requests in flight at the pod that has the slot now.
    #[must_use]
    pub fn in_flight(&self, slot: Slot) -> u32 {
        self.account(slot).work.requests
    }

    /// What is under way at the pod that has the slot now, how fast it was and how it answered.
    #[must_use]
    pub fn account(&self, slot: Slot) -> Account {
        self.now.get(slot.index()).map(|(_, account)| *account).unwrap_or_default()
    }

    /// Requests in flight for a model that is counted.
    #[must_use]
    pub fn of_model(&self, life: u64, model: u64) -> u32 {
        let others = self.live().filter(|ledger| ledger.life != life).flat_map(|ledger| &ledger.models);
        let others = others.filter(|(of, _)| *of == model).map(|(_, count)| *count);
        others.fold(self.models.get(&model).copied().unwrap_or(0), u32::saturating_add)
    }

    /// Own requests in flight, over all pods.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.own.values().map(|account| u64::from(account.work.requests)).sum()
    }

    /// Whether others can read this life's ledger.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.claimed.is_some()
    }

    /// Ledgers that could not be read, each counted once for each time that it changed.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// A request was sent to the pod.
    pub fn started(&mut self, pod: PodRef, job: Job) -> Running {
        self.change(pod, |account| account.started(job));
        Running { pod, job, prefilled: false }
    }

    /// The first token of a request came.
    pub fn prefilled(&mut self, running: &mut Running) {
        if !std::mem::replace(&mut running.prefilled, true) {
            self.change(running.pod, |account| account.prefilled(running.job));
        }
    }

    /// A request that [`Load::started`] ended.
    pub fn finished(&mut self, running: Running) {
        self.change(running.pod, |account| account.ended(&running));
    }

    /// A first token took so long.
    pub fn observed(&mut self, pod: PodRef, pace: Pace) {
        self.change(pod, |account| account.pace.add(&pace));
    }

    /// A request was answered, or failed.
    pub fn answered(&mut self, pod: PodRef, results: Results) {
        self.change(pod, |account| account.results.add(&results));
    }

    /// Says which pods this life sends nothing, because they failed. Others learn it with the next ledger.
    pub fn set_open(&mut self, pods: &BTreeSet<PodRef>) {
        let closed = self.own.iter().filter(|(pod, account)| account.open && !pods.contains(pod));
        let closed: Vec<_> = closed.map(|(pod, _)| *pod).collect();
        closed.into_iter().for_each(|pod| self.change(pod, |account| account.open = false));
        for pod in pods {
            if !self.own.get(pod).is_some_and(|account| account.open) {
                self.change(*pod, |account| account.open = true);
            }
        }
    }

    /// Whether another living VM sends the pod nothing, because it failed.
    #[must_use]
    pub fn is_open_elsewhere(&self, life: u64, pod: PodRef) -> bool {
        let others = self.live().filter(|ledger| ledger.life != life).flat_map(|ledger| &ledger.accounts);
        others.into_iter().any(|(of, account)| *of == pod && account.open)
    }

    /// A request for a model that is counted began.
    pub fn model_started(&mut self, model: u64) {
        if self.models.len() < MOST_MODELS || self.models.contains_key(&model) {
            let count = self.models.entry(model).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// It ended.
    pub fn model_finished(&mut self, model: u64) {
        if let Some(count) = self.models.get_mut(&model) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.models.remove(&model);
            }
        }
    }

    /// Changes this life's own account of a pod, and the sum by as much.
    fn change(&mut self, pod: PodRef, change: impl Fn(&mut Account)) {
        let own = self.own.entry(pod).or_default();
        change(own);
        if *own == Account::default() {
            self.own.remove(&pod);
        }
        if let Some((of, account)) = self.now.get_mut(pod.slot.index())
            && *of == pod
        {
            change(account);
        }
    }

    /// Another life appended at `seq` that it sent a request to the pod.
    pub fn routed(&mut self, writer: u64, seq: u64, pod: PodRef, job: Job) {
        if self.routed.len() >= MOST_WRITERS && !self.routed.contains_key(&writer) {
            return;
        }
        if self.ledger_of(writer).is_some_and(|ledger| seq < ledger.position) {
            return;
        }
        let routed = self.routed.entry(writer).or_default();
        routed.silent = 0;
        routed.entries.push_back((seq, pod, job));
        if routed.entries.len() > MOST_ROUTED {
            routed.entries.pop_front();
        }
        if let Some((of, account)) = self.now.get_mut(pod.slot.index())
            && *of == pod
        {
            account.started(job);
        }
    }

    fn live(&self) -> impl Iterator<Item = &Ledger> {
        self.peers.iter().filter(|peer| peer.silent < SILENT).filter_map(|peer| peer.ledger.as_ref())
    }

    fn ledger_of(&self, life: u64) -> Option<&Ledger> {
        self.live().find(|ledger| ledger.life == life)
    }

    /// Slots that the configurations of living VMs name, as far as their ledgers say. `life` itself is left out.
    #[must_use]
    pub fn in_use(&self, life: u64) -> PodSet {
        self.live()
            .filter(|ledger| ledger.life != life)
            .fold(PodSet::EMPTY, |all, ledger| all.union(&ledger.in_use))
    }

    /// Says of which pods this life knows by events what they hold.
    pub fn set_exact(&mut self, exact: PodSet) {
        self.exact = exact;
    }

    /// Slots of the pods of which this or another living VM knows by events what they hold.
    #[must_use]
    pub fn exact(&self, life: u64) -> PodSet {
        let others = self.live().filter(|ledger| ledger.life != life);
        others.fold(self.exact, |all, ledger| all.union(&ledger.exact))
    }

    /// A tick of this VM: what did not change by now has been silent for one more. Call it before the tick's
    /// [`Load::refresh`].
    pub fn tick(&mut self) {
        self.own.retain(|_, account| {
            account.age();
            *account != Account::default()
        });
        for silent in self.peers.iter_mut().map(|peer| &mut peer.silent) {
            *silent = silent.saturating_add(1);
        }
        for routed in self.routed.values_mut() {
            routed.silent = routed.silent.saturating_add(1);
        }
    }

    /// Reads the ledgers of all lives: one hostcall for each, and one.
    pub(crate) fn refresh(
        &mut self,
        host: &impl SharedData,
        keys: &Keys,
        life: u64,
        roster: &Roster,
    ) -> HostResult<()> {
        for number in 0..self.ledgers {
            let Some(there) = host.shared_get(&keys.ledger(number))? else { break };
            self.take(number, there);
        }
        self.forget_routed();
        self.recount(life, roster);
        Ok(())
    }

    fn take(&mut self, number: usize, there: Versioned) {
        if self.peers.len() <= number {
            self.peers.resize_with(number + 1, Peer::default);
        }
        let Some(peer) = self.peers.get_mut(number) else { return };
        if peer.version != Some(there.cas) {
            let ledger = Ledger::read(&there.value);
            self.unreadable += u64::from(ledger.is_none());
            *peer = Peer { version: Some(there.cas), silent: 0, ledger };
        }
    }

    /// Forgets what a ledger contains, and those who have none and stopped.
    fn forget_routed(&mut self) {
        let positions: BTreeMap<u64, u64> =
            self.live().map(|ledger| (ledger.life, ledger.position)).collect();
        self.routed.retain(|life, routed| {
            match positions.get(life) {
                Some(position) => routed.entries.retain(|(seq, ..)| seq >= position),
                None if routed.silent >= SILENT => routed.entries.clear(),
                None => {}
            }
            !routed.entries.is_empty()
        });
    }

    /// Adds up anew, under the present generations. Call it when the roster changed.
    pub(crate) fn recount(&mut self, life: u64, roster: &Roster) {
        let mut now: Vec<_> = Slot::all().map(|slot| (roster.at(slot), Account::default())).collect();
        let others = self.live().filter(|ledger| ledger.life != life);
        let ledgers = others.flat_map(|ledger| ledger.accounts.iter().copied());
        let own = self.own.iter().map(|(pod, account)| (*pod, *account));
        let routed = self.routed.values().flat_map(|routed| &routed.entries);
        let routed =
            routed.map(|(_, pod, job)| (*pod, Account { work: Work::of(*job), ..Account::default() }));
        for (pod, account) in own.chain(ledgers).chain(routed) {
            if let Some((of, sum)) = now.get_mut(pod.slot.index())
                && *of == pod
            {
                sum.add(&account);
            }
        }
        self.now = now;
    }

    /// Writes this life's ledger: two hostcalls, more at the first time. Says whether others can read it now.
    pub(crate) fn publish(
        &mut self,
        host: &impl SharedData,
        keys: &Keys,
        life: u64,
        position: u64,
        in_use: PodSet,
    ) -> HostResult<bool> {
        let accounts = self.own.iter().map(|(pod, account)| (*pod, *account)).collect();
        let models = self.models.iter().map(|(model, count)| (*model, *count)).collect();
        let bytes = Ledger { life, position, in_use, exact: self.exact, accounts, models }.write();
        if let Some(number) = self.claimed {
            let key = keys.ledger(number);
            // Another life may have taken the key over while this one was stalled.
            if let Some(there) = host.shared_get(&key)?
                && Ledger::read(&there.value).is_some_and(|ledger| ledger.life == life)
                && host.shared_set(&key, &bytes, Expect::Version(there.cas))? == Write::Done
            {
                return Ok(true);
            }
            self.claimed = None;
        }
        // A write whose answer got lost may have claimed one.
        let mine = |peer: &Peer| peer.ledger.as_ref().is_some_and(|ledger| ledger.life == life);
        if let Some((number, Peer { version: Some(version), .. })) =
            self.peers.iter().enumerate().find(|(_, peer)| mine(peer))
            && host.shared_set(&keys.ledger(number), &bytes, Expect::Version(*version))? == Write::Done
        {
            self.claimed = Some(number);
            return Ok(true);
        }
        self.claim(host, keys, &bytes)?;
        Ok(self.is_published())
    }

    /// Takes over a silent key, or creates the next.
    fn claim(&mut self, host: &impl SharedData, keys: &Keys, bytes: &[u8]) -> HostResult<()> {
        let silent = self.peers.iter().enumerate().filter(|(_, peer)| peer.silent >= SILENT);
        let silent = silent.filter_map(|(number, peer)| Some((number, Expect::Version(peer.version?))));
        let new = (self.peers.len()..self.ledgers).map(|number| (number, Expect::Absent));
        let candidates: Vec<_> = silent.chain(new).take(CLAIMS).collect();
        for (number, expect) in candidates {
            if host.shared_set(&keys.ledger(number), bytes, expect)? == Write::Done {
                self.claimed = Some(number);
                break;
            }
        }
        Ok(())
    }
}

const _: () = assert!(MAX_SLOTS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeShared;

    const JOB: Job = Job { prefill: 300, context: 1000 };

    struct Lives {
        shared: FakeShared,
        keys: Keys,
        roster: Roster,
    }

    impl Lives {
        fn new() -> Self {
            let mut roster = Roster::default();
            roster.join("pod-a").unwrap();
            roster.join("pod-b").unwrap();
            Self { shared: FakeShared::default(), keys: Keys::new(1), roster }
        }

        fn pod(&self, id: &str) -> PodRef {
            self.roster.find(id).unwrap()
        }

        fn tick(&self, life: u64, load: &mut Load, position: u64) -> bool {
            load.tick();
            load.refresh(&self.shared, &self.keys, life, &self.roster).unwrap();
            load.publish(&self.shared, &self.keys, life, position, PodSet::EMPTY).unwrap()
        }
    }

    #[test]
    fn others_are_added_up() {
        let lives = Lives::new();
        let (a, b) = (lives.pod("pod-a"), lives.pod("pod-b"));
        let (mut one, mut two) = (Load::new(4), Load::new(4));
        one.recount(1, &lives.roster);
        let running: Vec<_> = [a, a, b].into_iter().map(|pod| one.started(pod, JOB)).collect();
        two.started(a, JOB);
        assert!(lives.tick(1, &mut one, 0) && lives.tick(2, &mut two, 0));
        assert_eq!((two.in_flight(a.slot), two.in_flight(b.slot)), (3, 1));
        lives.tick(1, &mut one, 0);
        assert_eq!((one.in_flight(a.slot), one.in_flight(b.slot)), (3, 1));
        one.finished(running[0]);
        one.finished(running[2]);
        one.finished(running[2]);
        assert_eq!((one.in_flight(a.slot), one.in_flight(b.slot)), (2, 0), "never negative");
        assert_eq!(one.own(), 1);
    }

    #[test]
    fn a_routed_entry_counts_until_the_ledger_that_contains_it() {
        let lives = Lives::new();
        let a = lives.pod("pod-a");
        let (mut one, mut two) = (Load::new(4), Load::new(4));
        lives.tick(1, &mut one, 5);
        lives.tick(2, &mut two, 5);
        let running = one.started(a, JOB);
        two.routed(1, 5, a, JOB);
        two.routed(1, 4, a, JOB);
        assert_eq!(two.in_flight(a.slot), 1, "position 4 was in the ledger");
        lives.tick(1, &mut one, 6);
        lives.tick(2, &mut two, 6);
        assert_eq!(two.account(a.slot).work, Work::of(JOB), "now by the ledger");
        one.finished(running);
        lives.tick(1, &mut one, 6);
        lives.tick(2, &mut two, 6);
        assert_eq!(two.in_flight(a.slot), 0);
    }

    #[test]
    fn a_silent_ledger_is_left_out_and_returns() {
        let lives = Lives::new();
        let a = lives.pod("pod-a");
        let (mut one, mut two) = (Load::new(4), Load::new(4));
        one.started(a, JOB);
        lives.tick(1, &mut one, 0);
        for tick in 0..=SILENT {
            assert_eq!(two.in_flight(a.slot), u32::from(tick > 0), "tick {tick}");
            lives.tick(2, &mut two, 0);
        }
        assert_eq!(two.in_flight(a.slot), 0);
        lives.tick(1, &mut one, 0);
        lives.tick(2, &mut two, 0);
        assert_eq!(two.in_flight(a.slot), 1);
    }

    #[test]
    fn a_key_is_taken_over_and_its_owner_takes_another() {
        let lives = Lives::new();
        let a = lives.pod("pod-a");
        let (mut one, mut two, mut three) = (Load::new(2), Load::new(2), Load::new(2));
        one.started(a, JOB);
        assert!(lives.tick(1, &mut one, 0) && lives.tick(2, &mut two, 0));
        for _ in 0..SILENT {
            assert!(!lives.tick(3, &mut three, 0), "both keys have an owner");
            lives.tick(2, &mut two, 0);
        }
        assert!(lives.tick(3, &mut three, 0), "the first is silent");
        assert!(!lives.tick(1, &mut one, 0), "the first finds no key now");
        assert_eq!(one.claimed, None);
        for _ in 0..=SILENT {
            lives.tick(1, &mut one, 0);
            lives.tick(2, &mut two, 0);
        }
        assert_eq!(one.claimed, Some(0), "the third went silent in turn");
        lives.tick(2, &mut two, 0);
        assert_eq!(two.in_flight(a.slot), 1);
    }

    #[test]
    fn what_bears_an_old_generation_is_not_counted() {
        let mut lives = Lives::new();
        let old = lives.pod("pod-a");
        let (mut one, mut two) = (Load::new(2), Load::new(2));
        let running = one.started(old, JOB);
        lives.tick(1, &mut one, 0);
        lives.tick(2, &mut two, 0);
        assert_eq!(two.in_flight(old.slot), 1);
        lives.roster.leave(old, 0, 0);
        lives.roster.free(old);
        lives.roster.join("pod-c").unwrap();
        assert_eq!(lives.pod("pod-c").slot, old.slot);
        one.recount(1, &lives.roster);
        two.recount(2, &lives.roster);
        assert_eq!((one.in_flight(old.slot), two.in_flight(old.slot)), (0, 0));
        one.started(lives.pod("pod-c"), JOB);
        one.finished(running);
        assert_eq!(one.in_flight(old.slot), 1, "the end of an old stream takes nothing from the new pod");
    }
}
