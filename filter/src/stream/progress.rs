//! What a request that was sent is doing: how long its first token takes, and what it occupies until its end.

use crate::config::Settings;
use crate::fleet::Fleet;
use crate::host::Host;
use crate::index::PodRef;
use crate::metrics::Metric;
use crate::pipeline::Body;
use crate::pods::{Job, Overdue, Pace, Running};
use crate::workflow::Sent;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A clock that jumped is not a slow pod.
const LONGEST: Duration = Duration::from_secs(3600);
/// How much longer than predicted a prompt may take before it counts as prefilled, where no first token tells.
const PATIENCE: f32 = 2.0;
/// Ticks that it may take in any case.
const LEAST_TICKS: u64 = 10;

/// A request that was sent.
pub struct Progress {
    running: Rc<Cell<Running>>,
    watched: (u64, u64),
    /// When it was sent.
    at: Duration,
    /// Tokens that were ahead of its first one; `None` where what came says nothing of the pod's pace.
    tokens: Option<u32>,
    /// The model, where its requests are counted.
    model: Option<u64>,
}

impl Progress {
    /// The request is on its way. `None` where its pod has no slot.
    pub fn begin(
        host: &impl Host,
        fleet: &mut Fleet,
        settings: &Settings,
        sent: &Sent,
        body: Option<&dyn Body>,
    ) -> Option<Self> {
        let running = Rc::new(Cell::new(sent.running?));
        let now = fleet.ticks();
        let watched = match body.is_some_and(|body| body.streams()) {
            true => fleet.waiting.watch(
                now.saturating_add(settings.breaker.first_token_ticks),
                &running,
                Overdue::Hangs,
            ),
            false => {
                let ticks = (PATIENCE * sent.predicted * 10.0) as u64 + LEAST_TICKS;
                fleet.waiting.watch(now.saturating_add(ticks), &running, Overdue::Prefilled)
            }
        };
        let model = body.and_then(|body| settings.admission.counted(body.model()?));
        if let Some(model) = model {
            fleet.index.load_mut().model_started(model);
        }
        let tokens = Some(sent.ahead.saturating_add(sent.job.prefill));
        Some(Self { running, watched, at: host.now(), tokens, model })
    }

    /// What came first of the answer, a token where `is_stream`. Returns the time since the request was sent, where it is one of
    /// a first token.
    pub fn first_token(&mut self, host: &impl Host, fleet: &mut Fleet, is_stream: bool) -> Option<Duration> {
        let mut running = self.running.get();
        fleet.index.prefilled(host, &mut running);
        self.running.set(running);
        fleet.waiting.came(self.watched);
        let tokens = self.tokens.take().filter(|_| is_stream)?;
        let took = host.now().checked_sub(self.at).filter(|took| *took < LONGEST)?;
        fleet.index.load_mut().observed(running.pod, Pace::of(tokens, took.as_secs_f32()));
        fleet.metrics.record(host, Metric::FirstToken, took.as_millis() as u64);
        Some(took)
    }

    /// A retry took it to another pod: what it does there began at a time that nobody knows.
    pub fn moved(&mut self, host: &impl Host, fleet: &mut Fleet, pod: Option<PodRef>, job: Job) {
        fleet.index.finished(host, self.running.get());
        fleet.waiting.came(self.watched);
        self.tokens = None;
        if let Some(pod) = pod {
            let mut running = fleet.index.started(pod, job);
            // Its answer has begun.
            fleet.index.prefilled(host, &mut running);
            self.running.set(running);
        }
    }

    /// The request ended.
    pub fn end(self, host: &impl Host, fleet: &mut Fleet) {
        fleet.waiting.came(self.watched);
        fleet.index.finished(host, self.running.get());
        if let Some(model) = self.model {
            fleet.index.load_mut().model_finished(model);
        }
    }
}
