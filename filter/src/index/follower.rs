//! Following the log: the replica of one VM, kept up with the log and appended through.

use crate::host::{Expect, Host, HostResult};
use crate::pods::Load;

use super::entry::Entry;
use super::keys::Keys;
use super::life;
use super::loader::Loader;
use super::log::{Found, Log};
use super::{Delta, IndexCounts, IndexSettings, PodSet, Replica};

/// Bytes of a checkpoint that are loaded at a time. Doubles each time that loading was too slow for the log.
const SLICE: usize = 4 << 20;
const LARGEST_SLICE: usize = 256 << 20;
/// Hashes that a look at every block counts for.
const CLEARING: usize = 4096;
/// Ticks between two tries to load a checkpoint that could not be read whole: its holder may be mending it.
const RETRY_TICKS: u32 = 20;
/// Tries after which what could not be read is declared lost.
const RETRIES: u32 = 3;

/// How good the index's answers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No answers: the checkpoint is being loaded, or replayed. Route by load, and tick soon.
    Loading,
    /// Answers, but the log goes on beyond what was applied.
    Behind,
    /// Answers for everything that is in the log.
    Exact,
}

#[derive(Debug)]
enum Phase {
    New,
    Loading(Box<Loader>),
    /// Ticks to wait before loading is tried again.
    Waiting(u32),
    Following,
}

/// How much is applied at once. The last entry may exceed it: one has a thousand hashes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Entries.
    pub entries: usize,
    /// Hashes in them.
    pub hashes: usize,
}

/// One step along the log.
pub(super) enum Step {
    Applied,
    Skipped,
    End(Expect),
    Stuck,
}

/// A replica that follows the log.
#[derive(Debug)]
pub(crate) struct Follower {
    settings: IndexSettings,
    pub keys: Keys,
    pub log: Log,
    pub replica: Replica,
    pub counts: IndexCounts,
    life: Option<u64>,
    phase: Phase,
    /// Where the log ended when it was last looked at, and what an append there must expect.
    pub(super) end: Option<(u64, Expect)>,
    /// Whether the last catching up came to the end.
    caught_up: bool,
    /// Hashes in all entries that were applied.
    hashes: usize,
    /// Pods of which entries of other writers, or housekeeping, took what was known by events.
    pub disturbed: PodSet,
    slice: usize,
    retries: u32,
}

impl Follower {
    pub(crate) fn new(settings: &IndexSettings) -> Self {
        Self {
            keys: Keys::new(settings.identity()),
            log: Log::new(settings.ring),
            replica: Replica::new(0, settings.shards),
            counts: IndexCounts::default(),
            settings: settings.clone(),
            life: None,
            phase: Phase::New,
            end: None,
            caught_up: false,
            hashes: 0,
            disturbed: PodSet::EMPTY,
            slice: SLICE,
            retries: 0,
        }
    }

    /// This VM's number; `None` before its first tick or request.
    pub(crate) fn life(&self) -> Option<u64> {
        self.life
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.phase {
            Phase::Following if !self.replica.is_whole() => Standing::Loading,
            Phase::Following if self.caught_up => Standing::Exact,
            Phase::Following => Standing::Behind,
            _ => Standing::Loading,
        }
    }

    /// This VM's number, where it may append.
    pub(super) fn writer(&self) -> Option<u64> {
        match self.phase {
            Phase::Following => self.life,
            _ => None,
        }
    }

    /// Whether the last catching up came to the end of the log.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Whether the replica knows everything that any VM still can: all but the shards that are missing, if any.
    pub(crate) fn knows_what_is_left(&self) -> bool {
        matches!(self.phase, Phase::Following) && self.caught_up && self.replica.is_whole_but_for_missing()
    }

    /// Counts a failed hostcall.
    pub(crate) fn counted<T>(&mut self, result: HostResult<T>) -> Option<T> {
        self.counts.host_errors += u64::from(result.is_err());
        result.ok()
    }

    fn follow(&mut self, mut replica: Replica) {
        replica.succeed(&self.replica);
        self.replica = replica;
        self.phase = Phase::Following;
        self.end = None;
    }

    /// What the first tick or request does: draws a life, and finds out whether there is a checkpoint. Where there is
    /// none, following begins at once; else with [`Follower::load`].
    pub(crate) fn begin(&mut self, host: &impl Host) {
        if self.life.is_none() {
            let drawn = life::draw(host, &self.keys);
            self.life = self.counted(drawn).flatten();
        }
        if let Phase::New = self.phase {
            let loader = Loader::begin(host, &self.keys, &self.settings);
            let Some(loader) = self.counted(loader) else { return };
            match loader.is_done() {
                true => self.loaded(loader),
                false => self.phase = Phase::Loading(Box::new(loader)),
            }
        }
    }

    /// Loads a slice of the checkpoint, where one is being loaded. Call it once a tick.
    pub(crate) fn load(&mut self, host: &impl Host) {
        if let Phase::Waiting(ticks) = &mut self.phase {
            match ticks.checked_sub(1) {
                Some(less) => *ticks = less,
                None => self.phase = Phase::New,
            }
            return;
        }
        let Phase::Loading(loader) = &mut self.phase else { return };
        let step = loader.step(host, &self.keys, self.slice);
        if let Some(true) = self.counted(step)
            && let Phase::Loading(loader) = std::mem::replace(&mut self.phase, Phase::New)
        {
            self.loaded(*loader);
        }
    }

    fn loaded(&mut self, loader: Loader) {
        let unreadable = loader.unreadable();
        self.counts.unreadable_shards += unreadable as u64;
        if unreadable > 0 && self.retries < RETRIES {
            self.retries += 1;
            self.phase = Phase::Waiting(RETRY_TICKS);
            return;
        }
        match loader.finish() {
            Some(replica) => self.follow(replica),
            None => self.phase = Phase::Waiting(RETRY_TICKS),
        }
    }

    /// The log has gone on by more than a lap: what is known of blocks is worth nothing any more. The pods are kept until
    /// the checkpoint says better.
    fn lapped(&mut self) {
        self.counts.lapped += 1;
        self.disturbed = PodSet::FULL;
        self.slice = self.slice.saturating_mul(2).min(LARGEST_SLICE);
        self.end = None;
        self.caught_up = false;
        self.replica = Replica::waiting(&self.replica);
        self.phase = Phase::New;
    }

    /// Applies what is new, at most so much. One hostcall where nothing is.
    pub(crate) fn catch_up(&mut self, host: &impl Host, load: &mut Load, budget: Budget) -> Standing {
        self.begin(host);
        if let Phase::Following = self.phase {
            self.caught_up = false;
            let before = self.hashes;
            for _ in 0..budget.entries {
                if self.hashes.wrapping_sub(before) >= budget.hashes {
                    break;
                }
                match self.step(host, load) {
                    Step::Applied | Step::Skipped => {}
                    Step::Stuck => break,
                    Step::End(_) => {
                        self.caught_up = true;
                        break;
                    }
                }
            }
        }
        if self.standing() == Standing::Exact {
            self.retries = 0;
            self.slice = SLICE;
        }
        self.standing()
    }

    pub(super) fn step(&mut self, host: &impl Host, load: &mut Load) -> Step {
        self.end = None;
        let position = self.replica.position();
        let found = self.log.look(host, &self.keys, position);
        match self.counted(found) {
            Some(Found::Entry(entry)) => {
                self.disturb(&entry.deltas);
                self.apply(&entry, load);
                Step::Applied
            }
            Some(Found::Unreadable) => {
                self.counts.unreadable_entries += 1;
                self.replica.skip();
                Step::Skipped
            }
            Some(Found::End(expect)) => {
                self.end = Some((position, expect));
                Step::End(expect)
            }
            Some(Found::Gone) => {
                self.lapped();
                Step::Stuck
            }
            None => Step::Stuck,
        }
    }

    /// Notes of which pods these take what was known by events. What is lost may have been any pod's.
    pub(super) fn disturb(&mut self, deltas: &[Delta]) {
        for delta in deltas.iter().filter(|delta| delta.disturbs()) {
            let pods = delta.pod().map_or(PodSet::FULL, |pod| [pod.slot].into_iter().collect());
            self.disturbed = self.disturbed.union(&pods);
        }
    }

    /// Where this VM cleared a pod itself, whatever others took from it before makes no difference any more.
    pub(super) fn settle(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            if let Delta::Cleared { pod } = delta {
                self.disturbed = self.disturbed.minus(&[pod.slot].into_iter().collect());
            }
        }
    }

    pub(super) fn apply(&mut self, entry: &Entry, load: &mut Load) {
        self.replica.apply(entry);
        self.counts.entries += 1;
        let work = |delta: &Delta| match delta {
            Delta::Cleared { .. } | Delta::Freed { .. } | Delta::Lost { .. } => CLEARING,
            delta => delta.hashes().len(),
        };
        let hashes: usize = entry.deltas.iter().map(work).sum();
        self.hashes = self.hashes.wrapping_add(hashes);
        if Some(entry.writer) != self.life {
            for delta in &entry.deltas {
                if let Delta::Routed { pod, job } = delta {
                    load.routed(entry.writer, entry.seq, *pod, *job);
                }
            }
        }
    }
}
