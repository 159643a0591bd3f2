//! Following the log: the replica of one VM, kept up with the log and appended through.

use crate::host::{Expect, Host, HostResult, Write};
use crate::pods::Load;

use super::entry::{self, Draft, Entry};
use super::keys::Keys;
use super::life;
use super::loader::Loader;
use super::log::{Found, Log};
use super::{Delta, IndexCounts, IndexSettings, Replica};

/// Most places that one append looks at before it gives up.
const ATTEMPTS: usize = 64;
/// Bytes of a checkpoint that are loaded at a time. Doubles each time that loading was too slow for the log.
const SLICE: usize = 4 << 20;
const LARGEST_SLICE: usize = 256 << 20;
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

/// What an append does when the log turns out to be longer than was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnseen {
    /// Applies what is new and appends nothing, so that the caller can decide again.
    Return,
    /// Applies what is new and appends behind it.
    Go,
}

/// Outcome of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The deltas are in the log and applied.
    Done,
    /// Nothing was appended: there were entries that had not been seen, and now are.
    Unseen,
    /// The ring is full until the checkpoint gets on. Dropped, and counted.
    Full,
    /// Not all was appended: a hostcall failed, others were faster too often, or this VM is still loading. Counted.
    Failed,
}

#[derive(Debug)]
enum Phase {
    New,
    Loading(Box<Loader>),
    /// Ticks to wait before loading is tried again.
    Waiting(u32),
    Following,
}

/// One step along the log.
enum Step {
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
    end: Option<(u64, Expect)>,
    /// Whether the last catching up came to the end.
    caught_up: bool,
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

    /// Whether the last catching up came to the end of the log.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.caught_up
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
            let loader = Loader::begin(host, &self.keys, self.settings.max_blocks, self.settings.shards);
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
        self.slice = self.slice.saturating_mul(2).min(LARGEST_SLICE);
        self.end = None;
        self.caught_up = false;
        let mut waiting = Replica::waiting(self.replica.roster().clone(), self.settings.shards);
        waiting.succeed(&self.replica);
        self.replica = waiting;
        self.phase = Phase::New;
    }

    /// Applies what is new, at most `budget` entries. One hostcall where nothing is.
    pub(crate) fn catch_up(&mut self, host: &impl Host, load: &mut Load, budget: usize) -> Standing {
        self.begin(host);
        if let Phase::Following = self.phase {
            self.caught_up = false;
            for _ in 0..budget {
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

    fn step(&mut self, host: &impl Host, load: &mut Load) -> Step {
        self.end = None;
        let position = self.replica.position();
        let found = self.log.look(host, &self.keys, position);
        match self.counted(found) {
            Some(Found::Entry(entry)) => {
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

    fn apply(&mut self, entry: &Entry, load: &mut Load) {
        self.replica.apply(entry);
        self.counts.entries += 1;
        if Some(entry.writer) != self.life {
            for delta in &entry.deltas {
                if let Delta::Routed { pod } = delta {
                    load.routed(entry.writer, entry.seq, *pod);
                }
            }
        }
    }

    /// Appends deltas, and applies them. After a [`Follower::catch_up`] that found nothing new since: one hostcall for
    /// each 8 KiB.
    pub(crate) fn append(
        &mut self,
        host: &impl Host,
        load: &mut Load,
        deltas: &[Delta],
        mut on_unseen: OnUnseen,
    ) -> Appended {
        self.begin(host);
        let mut attempts = ATTEMPTS;
        for mut draft in entry::drafts(deltas) {
            let outcome = self.append_one(host, load, &mut draft, on_unseen, &mut attempts);
            match outcome {
                Appended::Done => {}
                Appended::Unseen => return outcome,
                Appended::Full => {
                    self.counts.full += 1;
                    return outcome;
                }
                Appended::Failed => {
                    self.counts.failed += 1;
                    return outcome;
                }
            }
            // What follows the first belongs to it.
            on_unseen = OnUnseen::Go;
            attempts = ATTEMPTS;
        }
        Appended::Done
    }

    fn append_one(
        &mut self,
        host: &impl Host,
        load: &mut Load,
        draft: &mut Draft,
        on_unseen: OnUnseen,
        attempts: &mut usize,
    ) -> Appended {
        let (Some(life), Phase::Following) = (self.life, &self.phase) else { return Appended::Failed };
        let time = u32::try_from(host.now().as_secs()).unwrap_or(u32::MAX);
        let mut unseen = false;
        while *attempts > 0 {
            *attempts -= 1;
            let position = self.replica.position();
            let expect = match self.end {
                Some((end, expect)) if end == position => expect,
                _ => match self.step(host, load) {
                    Step::End(expect) => expect,
                    Step::Stuck => return Appended::Failed,
                    Step::Skipped => continue,
                    Step::Applied => {
                        unseen = true;
                        continue;
                    }
                },
            };
            if unseen && on_unseen == OnUnseen::Return {
                return Appended::Unseen;
            }
            let room = self.log.has_room(host, &self.keys, position);
            match self.counted(room) {
                Some(true) => {}
                Some(false) => return Appended::Full,
                None => return Appended::Failed,
            }
            let bytes = draft.stamp(position, life, time);
            let written = self.log.commit(host, &self.keys, position, expect, bytes);
            self.end = None;
            match written {
                Ok(Write::Done) => {
                    // Through the same bytes as everybody else.
                    match entry::read(bytes) {
                        entry::Read::Entry(entry) => self.apply(&entry, load),
                        _ => self.replica.skip(),
                    }
                    return Appended::Done;
                }
                Ok(Write::Conflict) => {}
                Err(_) => {
                    self.counts.host_errors += 1;
                    return Appended::Failed;
                }
            }
        }
        if unseen && on_unseen == OnUnseen::Return { Appended::Unseen } else { Appended::Failed }
    }
}
