//! What a request that was sent is doing: how long its first token takes, and what it occupies until its end.

use crate::config::Settings;
use crate::fleet::Fleet;
use crate::host::Host;
use crate::index::PodRef;
use crate::metrics::Metric;
use crate::pods::{Job, Overdue, Pace, Shared, Waiting};
use crate::workflow::Sent;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// How much longer than predicted a prompt may take before it counts as prefilled, where no first token tells.
const PATIENCE: f32 = 2.0;
/// Ticks that it may take in any case.
const LEAST_TICKS: u64 = 10;
/// By how much the clock may run ahead of ticks: beyond it, it jumped.
const JUMP: Duration = Duration::from_secs(5);

/// What came first of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A token.
    Token,
    /// All of it, when the prompt was prefilled and nothing more was to be done.
    Prefilled,
    /// All of it, or nothing of worth.
    Nothing,
}

/// A request that was sent.
pub struct Progress {
    running: Shared,
    watched: Option<(u64, u64)>,
    /// When it was sent, by the clock and in ticks.
    at: Duration,
    began: u64,
    /// Tokens that were ahead of its first one; `None` where what came says nothing of the pod's pace.
    tokens: Option<u32>,
    /// Whether the time to its first token is worth telling.
    is_told: bool,
    /// The model, where its requests are counted.
    model: Option<u64>,
}

impl Progress {
    /// The request is on its way.
    pub fn begin(
        host: &impl Host,
        fleet: &mut Fleet,
        settings: &Settings,
        sent: &Sent,
        model: Option<&str>,
    ) -> Self {
        let running = Rc::new(Cell::new(sent.running));
        let model = model.and_then(|model| settings.admission.counted(model));
        if let Some(model) = model {
            fleet.index.load_mut().model_started(model);
        }
        // Of a prompt that wasn't read nothing is known.
        let is_told = sent.job.context > 0;
        let tokens = (is_told && !sent.is_handed_over).then(|| sent.ahead.saturating_add(sent.job.prefill));
        Self { running, watched: None, at: host.now(), began: sent.began, tokens, is_told, model }
    }

    /// Its pod has it: from now on it is noticed when that takes too long.
    pub fn watch(&mut self, waiting: &RefCell<Waiting>, settings: &Settings, sent: &Sent, streams: bool) {
        let (ticks, overdue) = match streams {
            true => (settings.breaker.first_token_ticks, Overdue::Hangs),
            false => (patience(sent), Overdue::Prefilled),
        };
        let due = sent.began.saturating_add(ticks);
        self.watched =
            waiting.try_borrow_mut().ok().map(|mut waiting| waiting.watch(due, &self.running, overdue));
    }

    /// What comes says nothing of the pod's pace.
    pub fn tells_no_pace(&mut self) {
        self.tokens = None;
    }

    /// What came first of the answer.
    pub fn first_token(&mut self, host: &impl Host, fleet: &mut Fleet, sign: Sign) {
        let Some(mut running) = self.running.get() else { return };
        match sign {
            Sign::Token => fleet.index.prefilled(host, &mut running),
            // Its end is near, and is told to others then: twice within a moment they would not be.
            Sign::Prefilled | Sign::Nothing => fleet.index.load_mut().prefilled(&mut running),
        }
        self.running.set(Some(running));
        let Some(took) = host.now().checked_sub(self.at) else { return };
        let ticks = fleet.ticks().saturating_sub(self.began);
        let (tokens, is_told) = (self.tokens.take(), std::mem::take(&mut self.is_told));
        if sign == Sign::Nothing || took > Duration::from_millis(100 * ticks) + JUMP {
            return;
        }
        if let Some(tokens) = tokens {
            fleet.index.load_mut().observed(running.pod, Pace::of(tokens, took.as_secs_f32()));
        }
        if is_told && sign == Sign::Token {
            fleet.metrics.record(host, Metric::FirstToken, took.as_millis() as u64);
        }
    }

    /// A retry took it to another pod, whose answer has begun; what it does there began at a time that nobody knows.
    pub fn moved(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        waiting: &RefCell<Waiting>,
        pod: Option<PodRef>,
        job: Job,
    ) {
        self.unwatch(waiting);
        (self.tokens, self.is_told) = (None, false);
        if let Some(running) = self.running.take() {
            fleet.index.finished(host, running);
        }
        if let Some(pod) = pod {
            let mut running = fleet.index.started(pod, job);
            fleet.index.prefilled(host, &mut running);
            self.running.set(Some(running));
        }
    }

    /// The request ended.
    pub fn end(mut self, host: &impl Host, fleet: &mut Fleet, waiting: &RefCell<Waiting>) {
        self.unwatch(waiting);
        self.end_unwatched(host, fleet);
    }

    /// The same, where there is nobody to tell.
    pub fn forget(self, fleet: &mut Fleet) {
        let load = fleet.index.load_mut();
        if let Some(running) = self.running.take() {
            load.finished(running);
        }
        if let Some(model) = self.model {
            load.model_finished(model);
        }
    }

    /// The same, where nobody watched it.
    pub fn end_unwatched(self, host: &impl Host, fleet: &mut Fleet) {
        if let Some(running) = self.running.take() {
            fleet.index.finished(host, running);
        }
        if let Some(model) = self.model {
            fleet.index.load_mut().model_finished(model);
        }
    }

    /// What was waited for came.
    pub fn unwatch(&mut self, waiting: &RefCell<Waiting>) {
        if let (Some(watched), Ok(mut waiting)) = (self.watched.take(), waiting.try_borrow_mut()) {
            waiting.came(watched);
        }
    }
}

/// Ticks after which a prompt must have been prefilled, where nothing tells.
pub fn patience(sent: &Sent) -> u64 {
    (PATIENCE * sent.predicted * 10.0) as u64 + LEAST_TICKS
}
