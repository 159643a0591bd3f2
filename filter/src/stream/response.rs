//! The second half of a stream: who answered, whether what was recorded of it holds, and its end.

use super::Stream;
use super::feedback::Prediction;
use super::usage::{TAIL, Tail, Usage};
use crate::blocks::Chain;
use crate::config::Routing;
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host};
use crate::index::{OnUnseen, PodRef};
use crate::metrics::Metric;
use crate::pods::{Verdict, metrics::orca};
use crate::workflow::{Record, Sent, recorded, session, withdrawn};

/// What Envoy says of a response that came from upstream, whatever its status.
const VIA_UPSTREAM: &[u8] = b"via_upstream";
/// How its words for what went wrong with a pod begin. Others speak of the client, or of Envoy.
const POD_FAILED: [&[u8]; 3] = [b"upstream_", b"response_timeout", b"no_healthy_upstream"];
/// By what an engine is asked for its load, and by what it tells.
const LOAD_FORMAT: &str = "endpoint-load-metrics-format";
const LOAD: &str = "endpoint-load-metrics";

/// What has arrived of the answer.
#[derive(Default)]
pub struct Answer {
    /// Its headers.
    begun: bool,
    /// All of it.
    whole: bool,
    /// The position of the pod that gives it, where it is one's.
    pod: Option<usize>,
    /// Whether it comes token by token.
    is_stream: bool,
    /// Whether a part of its body came.
    has_body: bool,
    /// What its usage is held against.
    prediction: Option<Prediction>,
    tail: Tail,
    /// Whether the pod was asked for its load here, and not by the client.
    asked_for_load: bool,
}

impl Stream {
    /// Asks the engine for its load, unless the client does: then the answer is the client's.
    pub(super) fn ask_for_load(&mut self, host: &impl Host, headers: &HeaderMap) {
        let wanted = self.plugin.settings.metrics.as_ref().is_some_and(|metrics| metrics.orca);
        if wanted && headers.get(LOAD_FORMAT).is_none() {
            self.answer.asked_for_load = host.set_header(Headers::Request, LOAD_FORMAT, "TEXT").is_ok();
        }
    }

    /// The response's headers arrived, from a pod or from Envoy itself.
    pub fn on_response_headers(&mut self, host: &impl Host, end_of_stream: bool) {
        if let Some(explanation) = &self.explanation {
            explanation.write(host);
        }
        let Some(sent) = self.sent else { return };
        (self.answer.begun, self.answer.whole) = (true, end_of_stream);
        let headers = host.headers(Headers::Response).unwrap_or_default();
        let status = headers.text(":status").and_then(|status| status.parse::<u16>().ok()).unwrap_or(0);
        let served = self.served(host, sent);
        self.answer.pod = served;
        self.answer.is_stream =
            headers.text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));

        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
        if let Some(served) = served {
            if served != sent.decision.pod {
                self.moved(host, &mut fleet, sent, served);
            }
            if let Some(verdict) = verdict(host, status, &headers) {
                self.judge(host, &mut fleet, served, verdict);
            }
            self.hear(host, served, &headers);
        }
        if (200..300).contains(&status) {
            // It is in the pod's cache from now on: nothing is left to take back.
            self.answer.prediction = self.prediction(served.unwrap_or(sent.decision.pod));
            self.slots.chain.cached = Vec::new();
            if self.answer.prediction.is_none() {
                self.slots.chain = Chain::default();
            }
            if let Some(sent) = &mut self.sent {
                sent.record = None;
            }
        } else {
            self.withdraw(host, &mut fleet);
            // What it says came without a prefill.
            if let Some(progress) = &mut self.progress {
                progress.first_token(host, &mut fleet, false);
            }
        }
    }

    /// A part of the answer passes, of `size` bytes.
    pub fn on_response_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) {
        self.answer.whole |= end_of_stream;
        if size > 0 && !std::mem::replace(&mut self.answer.has_body, true) {
            self.first_token(host);
        }
        let Some(prediction) = self.answer.prediction else { return };
        if size > 0
            && let Ok(end) = host.response_body(size.saturating_sub(TAIL), TAIL)
        {
            self.answer.tail.push(&end);
        }
        if end_of_stream {
            self.answer.prediction = None;
            let usage = self.answer.tail.usage();
            let cached = usage.and_then(|usage| self.cached(usage));
            if let (Some(usage), Some(cached), Ok(mut fleet)) =
                (usage, cached, self.plugin.fleet.try_borrow_mut())
            {
                prediction.compare(host, &mut fleet, usage.prompt, cached, &self.slots.chain.hashes);
            }
            self.slots.chain = Chain::default();
        }
    }

    /// Tokens that were in the cache. Who tells of some leaves out that there were none.
    fn cached(&self, usage: Usage) -> Option<u32> {
        let (router, pod) = (self.router.as_ref()?, self.answer.pod?);
        match usage.cached {
            Some(cached) => {
                self.plugin.tells_cached(router, pod);
                Some(cached)
            }
            None => self.plugin.does_tell_cached(router, pod).then_some(0),
        }
    }

    fn first_token(&mut self, host: &impl Host) {
        let plugin = self.plugin.clone();
        let (Ok(mut fleet), Some(progress)) = (plugin.fleet.try_borrow_mut(), &mut self.progress) else {
            return;
        };
        let took = progress.first_token(host, &mut fleet, self.answer.is_stream);
        let most = plugin.settings.breaker.first_token_ticks;
        if let (Some(took), Some(pod)) = (took, self.answer.pod)
            && took.as_millis() as u64 > most.saturating_mul(100)
        {
            self.judge(host, &mut fleet, pod, Verdict::Failure);
        }
    }

    /// The pod that Envoy sent the request to last; `None` where it came to none of ours.
    fn served(&self, host: &impl Host, sent: Sent) -> Option<usize> {
        match self.plugin.settings.routing {
            // Retries go to the address of the list that is next.
            Routing::Address { .. } => {
                let address = host.property(&["upstream", "address"]).ok().flatten()?;
                let router = self.router.as_ref()?;
                router.pods().iter().position(|pod| pod.target.as_bytes() == address)
            }
            // They stay in the pod's own cluster.
            Routing::Cluster { .. } => Some(sent.decision.pod),
        }
    }

    /// The stream ended, however it ended.
    pub fn on_log(&mut self, host: &impl Host) {
        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
        if !self.answer.begun {
            self.withdraw(host, &mut fleet);
        } else if let (false, Some(pod)) = (self.answer.whole, self.answer.pod) {
            // The client left, or the pod broke off.
            let details = host.property(&["response", "code_details"]).ok().flatten().unwrap_or_default();
            if details.starts_with(b"upstream_") {
                self.judge(host, &mut fleet, pod, Verdict::Unreachable);
            }
        }
        self.sent = None;
        if let Some(progress) = self.progress.take() {
            progress.end(host, &mut fleet);
        }
    }

    fn judge(&self, host: &impl Host, fleet: &mut Fleet, pod: usize, verdict: Verdict) {
        if let Some(router) = &self.router {
            self.plugin.judge(host, fleet, router, pod, verdict);
        }
    }

    /// What the pod was thought to hold of a prompt that took part in the decision.
    fn prediction(&self, pod: usize) -> Option<Prediction> {
        let sent = self.sent.filter(|sent| sent.by_prefix && sent.decision.blocks > 0)?;
        let chain = &self.slots.chain;
        Some(Prediction {
            pod: sent.pod?,
            matched: self.slots.residency.depth(pod) as f32,
            blocks: chain.blocks() as f32 + 0.5,
            block_tokens: (!chain.cached.is_empty()).then_some(self.slots.block_tokens),
            clock: sent.clock,
            is_exact: sent.is_exact,
        })
    }

    /// Takes what the engine says of its load out of the answer.
    fn hear(&self, host: &impl Host, pod: usize, headers: &HeaderMap) {
        if !self.answer.asked_for_load {
            return;
        }
        let Some(told) = headers.get(LOAD) else { return };
        let _ = host.remove_header(Headers::Response, LOAD);
        if let (Some(reading), Some(router)) = (orca::read(&told), &self.router) {
            self.plugin.hear(router, pod, reading);
        }
    }

    /// Envoy's retry took the request from its first pod to another.
    fn moved(&mut self, host: &impl Host, fleet: &mut Fleet, sent: Sent, served: usize) {
        fleet.metrics.add(host, Metric::Moved, 1);
        // What it answered, if it did, is not told.
        self.judge(host, fleet, sent.decision.pod, Verdict::Unreachable);
        self.withdraw(host, fleet);
        let pod = self.router.as_ref().and_then(|router| self.plugin.slot_of(router, served, sent.rank));
        let job = self.slots.job(served);
        if let Some(progress) = &mut self.progress {
            progress.moved(host, fleet, pod, job);
        }
        let record = pod.filter(|_| sent.record.is_some()).and_then(|pod| self.record_at(host, fleet, pod));
        if let (Some(pod), Some(name)) = (pod, sent.session) {
            let before: Vec<_> = sent.pod.into_iter().collect();
            let deltas = session(fleet.index.replica(), pod, &before, name);
            let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        }
        let mut decision = sent.decision;
        decision.pod = served;
        self.sent = Some(Sent { decision, pod, job, record, ..sent });
    }

    /// Records the chain at a pod that nobody had chosen.
    fn record_at(&self, host: &impl Host, fleet: &mut Fleet, pod: PodRef) -> Option<Record> {
        let is_exact = fleet.index.exact().contains(pod.slot);
        let job = Default::default();
        let (deltas, record) = recorded(fleet.index.replica(), pod, &self.slots.chain, job, is_exact);
        let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        Some(record)
    }

    /// Takes back what the request was to leave in its pod's cache.
    fn withdraw(&mut self, host: &impl Host, fleet: &mut Fleet) {
        let Some(record) = self.sent.as_mut().and_then(|sent| sent.record.take()) else { return };
        let deltas = withdrawn(&record, &self.slots.chain.hashes);
        if !deltas.is_empty() {
            fleet.metrics.add(host, Metric::Withdrawn, 1);
            let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        }
    }
}

/// What an answer's headers say of the pod that gave it, or failed to; `None` where they say nothing.
fn verdict(host: &impl Host, status: u16, headers: &HeaderMap) -> Option<Verdict> {
    let retry_after = headers.text("retry-after").map(|text| text.trim().parse::<u32>().ok());
    if !(200..400).contains(&status) {
        let details = host.property(&["response", "code_details"]).ok().flatten().unwrap_or_default();
        if details != VIA_UPSTREAM {
            let failed = POD_FAILED.iter().any(|start| details.starts_with(start));
            let late = details.windows(7).any(|part| part == b"timeout");
            return failed.then_some(if late { Verdict::Failure } else { Verdict::Unreachable });
        }
    }
    Some(match (status, retry_after) {
        (429, seconds) => Verdict::Busy(seconds.flatten()),
        (503, Some(seconds)) => Verdict::Busy(seconds),
        (500.., _) => Verdict::Failure,
        _ => Verdict::Answer,
    })
}
