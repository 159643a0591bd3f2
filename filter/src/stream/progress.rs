//! What a request that was sent is doing: how long its first token takes, and what it occupies until its end.

use crate::config::Settings;
use crate::fleet::Fleet;
use crate::host::Host;
use crate::index::PodRef;
use crate::metrics::Metric;
use crate::pipeline::Body;
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

/// A request that was sent.
pub struct Progress {
    running: Shared,
    watched: (u64, u64),
    /// When it was sent, by the clock and in ticks.
    at: Duration,
    began: u64,
    /// Tokens that were ahead of its first one; `None` where what came says nothing of the pod's pace.
    tokens: Option<u32>,
    /// The model, where its requests are counted.
    model: Option<u64>,
}

impl Progress {
    /// The request is on its way.
    pub fn begin(
        host: &impl Host,
        fleet: &mut Fleet,
        waiting: &RefCell<Waiting>,
        settings: &Settings,
        sent: &Sent,
        body: Option<&dyn Body>,
    ) -> Self {
        let running = Rc::new(Cell::new(sent.running));
        let began = sent.began;
        let (ticks, overdue) = match body.is_some_and(|body| body.streams()) {
            true => (settings.breaker.first_token_ticks, Overdue::Hangs),
            false => ((PATIENCE * sent.predicted * 10.0) as u64 + LEAST_TICKS, Overdue::Prefilled),
        };
        let watched = waiting
            .try_borrow_mut()
            .map(|mut waiting| waiting.watch(began.saturating_add(ticks), &running, overdue));
        let model = body.and_then(|body| settings.admission.counted(body.model()?));
        if let Some(model) = model {
            fleet.index.load_mut().model_started(model);
        }
        // Of a prompt that wasn't read nothing is known.
        let tokens = (sent.job.context > 0).then(|| sent.ahead.saturating_add(sent.job.prefill));
        Self { running, watched: watched.unwrap_or_default(), at: host.now(), began, tokens, model }
    }

    /// What came first of the answer: a token where `is_stream`.
    pub fn first_token(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        waiting: &RefCell<Waiting>,
        is_stream: bool,
    ) {
        self.unwatch(waiting);
        let Some(mut running) = self.running.get() else { return };
        match is_stream {
            true => fleet.index.prefilled(host, &mut running),
            // Its end is near, and is told to others then: twice within a moment they would not be.
            false => fleet.index.load_mut().prefilled(&mut running),
        }
        self.running.set(Some(running));
        let (Some(tokens), Some(took)) = (self.tokens.take(), host.now().checked_sub(self.at)) else {
            return;
        };
        let ticks = fleet.ticks().saturating_sub(self.began);
        if is_stream && took <= Duration::from_millis(100 * ticks) + JUMP {
            fleet.index.load_mut().observed(running.pod, Pace::of(tokens, took.as_secs_f32()));
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
        self.tokens = None;
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
    pub fn end(self, host: &impl Host, fleet: &mut Fleet, waiting: &RefCell<Waiting>) {
        self.unwatch(waiting);
        if let Some(running) = self.running.take() {
            fleet.index.finished(host, running);
        }
        if let Some(model) = self.model {
            fleet.index.load_mut().model_finished(model);
        }
    }

    fn unwatch(&self, waiting: &RefCell<Waiting>) {
        if let Ok(mut waiting) = waiting.try_borrow_mut() {
            waiting.came(self.watched);
        }
    }
}
