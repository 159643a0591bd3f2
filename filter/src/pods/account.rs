//! What is under way at a pod, how fast it was and how it answered: numbers that add up over VMs.

use crate::index::PodRef;
use crate::index::wire::{Put, Reader};

/// Ticks in which what was learnt of a pod's pace loses half of its weight: a minute.
const PACE_HALVES: f32 = 600.0;
/// The same for how it answered: ten seconds.
const RESULTS_HALVE: f32 = 100.0;
/// Tokens ahead of a first token that are taken for true.
const MOST_AHEAD: u32 = 50_000_000;
/// Greatest sum that is told.
const MOST_SUM: f32 = 1e12;
/// What weighs less is forgotten.
const NOTHING: f32 = 0.01;

/// What one request makes its pod do, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Job {
    /// Of the prompt, what the pod's cache is not thought to hold.
    pub prefill: u32,
    /// The whole prompt: what the request occupies of the cache.
    pub context: u32,
}

/// A request under way at a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// The pod, or the cache of one of its ranks.
    pub pod: PodRef,
    /// What it makes the pod do.
    pub job: Job,
    /// Whether its first token came.
    pub prefilled: bool,
}

/// What is under way at a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Requests sent there that have not ended.
    pub requests: u32,
    /// Of these, requests that wait for their first token.
    pub waiting: u32,
    /// Tokens that these still have to have prefilled.
    pub prefill: u32,
    /// Tokens of all prompts under way.
    pub context: u32,
}

impl Work {
    /// The work of one request that was just sent.
    pub fn of(job: Job) -> Self {
        Self { requests: 1, waiting: 1, prefill: job.prefill, context: job.context }
    }

    fn add(&mut self, more: &Self) {
        self.requests = self.requests.saturating_add(more.requests);
        self.waiting = self.waiting.saturating_add(more.waiting);
        self.prefill = self.prefill.saturating_add(more.prefill);
        self.context = self.context.saturating_add(more.context);
    }

    /// The first token of a request came.
    fn prefilled(&mut self, job: Job) {
        self.waiting = self.waiting.saturating_sub(1);
        self.prefill = self.prefill.saturating_sub(job.prefill);
    }

    /// A request ended.
    fn ended(&mut self, running: &Running) {
        if !running.prefilled {
            self.prefilled(running.job);
        }
        self.requests = self.requests.saturating_sub(1);
        self.context = self.context.saturating_sub(running.job.context);
    }
}

/// How long first tokens took, against the work ahead of them: the sums of a line fitted through both.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pace {
    /// First tokens, those of long ago for less.
    pub count: f32,
    /// Thousands of tokens that were ahead of them, their own prompts' included.
    pub work: f32,
    /// Seconds that they took.
    pub seconds: f32,
    /// Squares of `work`.
    pub work_squared: f32,
    /// Products of `work` and `seconds`.
    pub work_seconds: f32,
}

impl Pace {
    /// One first token, with so many tokens ahead of it.
    pub fn of(tokens: u32, seconds: f32) -> Self {
        // More than fits any fleet is somebody's invention.
        let work = tokens.min(MOST_AHEAD) as f32 / 1000.0;
        Self { count: 1.0, work, seconds, work_squared: work * work, work_seconds: work * seconds }
    }

    /// Adds what another knows.
    pub fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.work += more.work;
        self.seconds += more.seconds;
        self.work_squared += more.work_squared;
        self.work_seconds += more.work_seconds;
    }

    fn scale(&mut self, by: f32) {
        let Self { count, work, seconds, work_squared, work_seconds } = self;
        for sum in [count, work, seconds, work_squared, work_seconds] {
            *sum *= by;
        }
    }
}

/// How a pod answered lately.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Results {
    /// Requests that it answered as it should, whatever it thought of them.
    pub answers: f32,
    /// Requests that it failed, or made wait for too long.
    pub failures: f32,
}

impl Results {
    /// One answer.
    pub const ANSWER: Self = Self { answers: 1.0, failures: 0.0 };
    /// One failure.
    pub const FAILURE: Self = Self { answers: 0.0, failures: 1.0 };

    pub(super) fn add(&mut self, more: &Self) {
        self.answers += more.answers;
        self.failures += more.failures;
    }
}

/// All of it for one pod.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Account {
    /// What is under way.
    pub work: Work,
    /// How fast it was.
    pub pace: Pace,
    /// How it answered.
    pub results: Results,
    /// Whether somebody sends it nothing, because it failed.
    pub open: bool,
}

impl Account {
    /// Bytes that [`Account::put`] writes.
    pub(super) const BYTES: usize = 16 + 20 + 8 + 1;

    /// Adds the account of another VM.
    pub fn add(&mut self, more: &Self) {
        self.work.add(&more.work);
        self.pace.add(&more.pace);
        self.results.add(&more.results);
        self.open |= more.open;
    }

    /// A request was sent.
    pub(super) fn started(&mut self, job: Job) {
        self.work.add(&Work::of(job));
    }

    /// The first token of a request came.
    pub(super) fn prefilled(&mut self, job: Job) {
        self.work.prefilled(job);
    }

    /// A request ended.
    pub(super) fn ended(&mut self, running: &Running) {
        self.work.ended(running);
    }

    /// A tick passed.
    pub(super) fn age(&mut self) {
        self.pace.scale((-1.0 / PACE_HALVES).exp2());
        let halve = (-1.0 / RESULTS_HALVE).exp2();
        self.results.answers *= halve;
        self.results.failures *= halve;
        if self.pace.count < NOTHING {
            self.pace = Pace::default();
        }
        if self.results.answers + self.results.failures < NOTHING {
            self.results = Results::default();
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let Self { work, pace, results, open } = self;
        for count in [work.requests, work.waiting, work.prefill, work.context] {
            out.put_u32(count);
        }
        let Pace { count, work, seconds, work_squared, work_seconds } = *pace;
        for sum in [count, work, seconds, work_squared, work_seconds, results.answers, results.failures] {
            out.put_u32(sum.min(MOST_SUM).to_bits());
        }
        out.put_u8(u8::from(*open));
    }

    /// Reads what [`Account::put`] wrote. Sums that no sum can be make it unreadable: one such would spoil those of all.
    pub(super) fn read(from: &mut Reader<'_>) -> Option<Self> {
        let work =
            Work { requests: from.u32()?, waiting: from.u32()?, prefill: from.u32()?, context: from.u32()? };
        let mut sum = || {
            let sum = f32::from_bits(from.u32()?);
            (0.0..=MOST_SUM).contains(&sum).then_some(sum)
        };
        let pace =
            Pace { count: sum()?, work: sum()?, seconds: sum()?, work_squared: sum()?, work_seconds: sum()? };
        let results = Results { answers: sum()?, failures: sum()? };
        let open = match from.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self { work, pace, results, open })
    }
}
