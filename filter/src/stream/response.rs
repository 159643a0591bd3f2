//! The second half of a stream: who answered, whether what was recorded of it holds, and its end.

use super::feedback::Prediction;
use super::progress::Sign;
use super::remote::TIMED_OUT;
use super::usage::{TAIL, Tail, Usage};
use super::{Flow, Phase, Stream};
use crate::blocks::Chain;
use crate::config::Routing;
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host};
use crate::index::{BlockHash, OnUnseen};
use crate::metrics::Metric;
use crate::pipeline::Slots;
use crate::pods::{Verdict, metrics::orca};
use crate::workflow::{Record, Sent, withdrawn};

/// What Envoy says of a response that came from upstream, whatever its status.
const VIA_UPSTREAM: &[u8] = b"via_upstream";
/// How its words begin for an answer that took too long.
const LATE: [&[u8]; 2] = [b"response_timeout", b"upstream_per_try"];
/// How they begin for a connection that ended.
const BROKE_OFF: &[u8] = b"upstream_reset";
/// What they have for one that could not be made.
const UNREACHABLE: [&[u8]; 3] = [b"connection_failure", b"connection_timeout", b"no_healthy_upstream"];
/// What a reset is for that Envoy made itself: one of the cluster's circuit breakers is open.
const OVERFLOW: &[u8] = b"{overflow";
/// How the first event of a stream begins that will have no token.
const ERROR_EVENTS: [&[u8]; 3] = [b"data: {\"error\"", b"data:{\"error\"", b"event: error"];
/// By what the endpoint picker protocol tells which endpoint served.
const SERVED: &str = "x-gateway-destination-endpoint-served";
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
    /// Whether a part of its body was held back.
    held: bool,
    /// The position of the pod that gives it, where it is one's.
    pod: Option<usize>,
    /// Whether it comes token by token.
    is_stream: bool,
    /// Whether its status says that it is one.
    is_good: bool,
    /// Whether a part of its body came.
    has_body: bool,
    /// What its usage is held against.
    prediction: Option<Prediction>,
    tail: Tail,
    /// Whether the engine computes all of the prompt, so that what was in its cache says nothing.
    pub(super) tells_nothing: bool,
    /// Whether the pod was asked for its load here, and not by the client.
    asked_for_load: bool,
}

impl Answer {
    /// Whether its headers came.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether it may go on now that it is no longer held back. Envoy 1.38 and earlier lose the next part of a body that goes
    /// on between two of its parts (envoyproxy/envoy#46841), so that one waits for the next.
    pub(super) fn may_go_on(&self) -> bool {
        self.whole || !self.held
    }

    /// Whether it says that something is wrong.
    pub(super) fn is_refusal(&self) -> bool {
        self.begun && !self.is_good
    }

    /// The position of the pod that gives it, where it is one's.
    pub(super) fn served_by(&self) -> Option<usize> {
        self.pod
    }

    /// Whether a part of its body came.
    pub(super) fn has_body(&self) -> bool {
        self.has_body
    }
}

impl Stream {
    /// Asks the engine for its load, unless the client does: then the answer is the client's.
    pub(super) fn ask_for_load(&mut self, host: &impl Host, headers: &HeaderMap) {
        let wanted = self.plugin.settings.metrics.as_ref().is_some_and(|metrics| metrics.orca);
        if wanted && !self.answer.asked_for_load && headers.get(LOAD_FORMAT).is_none() {
            self.answer.asked_for_load = host.set_header(Headers::Request, LOAD_FORMAT, "TEXT").is_ok();
        }
    }

    /// The response's headers arrived, from a pod or from Envoy itself.
    pub fn on_response_headers(&mut self, host: &impl Host, end_of_stream: bool) -> Flow {
        self.on_answered(host, end_of_stream);
        if let Some(explanation) = &self.explanation {
            explanation.write(host);
        }
        self.holds_back()
    }

    fn on_answered(&mut self, host: &impl Host, end_of_stream: bool) {
        let Some(sent) = self.sent else { return };
        (self.answer.begun, self.answer.whole) = (true, end_of_stream);
        let headers = host.headers(Headers::Response).unwrap_or_default();
        let status = headers.text(":status").and_then(|status| status.parse::<u16>().ok()).unwrap_or(0);
        let served = self.served(host, sent);
        self.answer.pod = served;
        self.answer.is_good = (200..300).contains(&status);
        self.answer.is_stream =
            headers.text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));

        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
        if let Some(served) = served {
            if served != sent.decision.pod {
                self.moved(host, &mut fleet, sent, served);
            }
            // Engines send the headers of a stream before they have anything to say.
            let verdict = verdict(host, status, &headers);
            let later = self.answer.is_stream && verdict == Some(Verdict::Answer);
            if let Some(verdict) = verdict.filter(|_| !later) {
                self.judge(host, &mut fleet, served, verdict);
            }
            self.hear(host, served, &headers);
            self.tell_served(host, served);
        } else {
            // Somebody served it whom nobody had chosen, or Envoy did: nothing of it is known of any pod.
            if let Some(router) = &self.router {
                plugin.unsent(router, sent.decision.pod, sent.began);
            }
            if (200..300).contains(&status) {
                self.withdraw(host, &mut fleet);
                if let Some(progress) = &mut self.progress {
                    progress.moved(host, &mut fleet, &plugin.waiting, None, sent.job);
                }
            }
        }
        if status < 500 {
            self.kept = None;
        }
        if (200..300).contains(&status) {
            // It is in the pod's cache from now on: nothing is left to take back.
            self.answer.prediction = served.and_then(|served| self.prediction(served));
            self.slots.chain.cached = Vec::new();
            if self.answer.prediction.is_none() {
                self.slots.chain = Chain::default();
            }
            if let Some(sent) = &mut self.sent {
                sent.record = None;
            }
        } else {
            self.withdraw(host, &mut fleet);
            if sent.is_handed_over && status >= 500 {
                fleet.metrics.add(host, Metric::HandoffsLost, 1);
                plugin.forget_learnt();
                // What was answered here is meant; and what took too long elsewhere may take as long again.
                if !self.is_answered && status != TIMED_OUT {
                    self.start_again(host, &mut fleet);
                }
            }
            // What it says came without a prefill.
            if let Some(progress) = &mut self.progress {
                progress.unwatch(&plugin.waiting);
                progress.first_token(host, &mut fleet, Sign::Nothing);
            }
        }
    }

    /// A part of the answer passes, of `size` bytes.
    pub fn on_response_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) -> Flow {
        if self.restart.is_none() {
            self.on_body(host, size, end_of_stream);
        } else {
            (self.answer.held, self.answer.whole) = (true, end_of_stream);
        }
        self.holds_back()
    }

    fn on_body(&mut self, host: &impl Host, size: usize, end_of_stream: bool) {
        self.answer.whole |= end_of_stream;
        if size > 0 && !std::mem::replace(&mut self.answer.has_body, true) {
            self.first_token(host);
            self.look_for_error(host);
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
        let (router, pod, endpoint) = (self.router.as_ref()?, self.answer.pod?, self.endpoint?);
        match usage.cached {
            Some(cached) => {
                self.plugin.tells_cached(router, pod, endpoint);
                Some(cached)
            }
            None => self.plugin.does_tell_cached(router, pod, endpoint).then_some(0),
        }
    }

    fn first_token(&mut self, host: &impl Host) {
        let plugin = self.plugin.clone();
        let (Ok(mut fleet), Some(sent)) = (plugin.fleet.try_borrow_mut(), self.sent) else { return };
        if !self.answer.is_good {
            return;
        }
        let is_stream = self.answer.is_stream;
        if let Some(progress) = &mut self.progress {
            progress.unwatch(&plugin.waiting);
            progress.first_token(host, &mut fleet, if is_stream { Sign::Token } else { Sign::Nothing });
        }
        // Without its prefill the decode pod would have nothing to say.
        self.end_remote(host, &mut fleet, true);
        // One that comes too late was taken for hanging, and speaks of what was then.
        let late = fleet.ticks().saturating_sub(sent.began) > plugin.settings.breaker.first_token_ticks;
        if let (true, false, Some(pod)) = (is_stream, late, self.answer.pod) {
            self.judge(host, &mut fleet, pod, Verdict::Answer);
        }
    }

    /// Engines begin the answer to a stream before they have fetched what was handed over, so that what fails then is an event.
    fn look_for_error(&mut self, host: &impl Host) {
        let Some(sent) = self.sent.filter(|sent| sent.is_handed_over && self.answer.is_stream) else {
            return;
        };
        let start = host.response_body(0, 16).unwrap_or_default();
        if ERROR_EVENTS.iter().any(|event| start.starts_with(event)) {
            let plugin = self.plugin.clone();
            let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
            fleet.metrics.add(host, Metric::HandoffsLost, 1);
            plugin.forget_learnt();
            self.judge(host, &mut fleet, self.answer.pod.unwrap_or(sent.decision.pod), Verdict::Failure);
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
            if self.phase == Phase::Decided && self.sent.is_some_and(|sent| sent.is_handed_over) {
                fleet.metrics.add(host, Metric::HandoffsLost, 1);
            }
        } else if let (false, Some(pod)) = (self.answer.whole, self.answer.pod) {
            // The client left, or the pod broke off.
            let details = host.property(&["response", "code_details"]).ok().flatten().unwrap_or_default();
            if let Some(verdict) = failure(&details) {
                self.judge(host, &mut fleet, pod, verdict);
            }
        }
        self.end_remote(host, &mut fleet, self.answer.is_good && self.answer.has_body);
        self.leave_restart(host, &mut fleet);
        self.kept = None;
        self.sent = None;
        if let Some(progress) = self.progress.take() {
            progress.end(host, &mut fleet, &plugin.waiting);
        }
    }

    pub(super) fn judge(&self, host: &impl Host, fleet: &mut Fleet, pod: usize, verdict: Verdict) {
        if let (Some(router), Some(sent)) = (&self.router, &self.sent) {
            self.plugin.judge(host, fleet, router, pod, verdict, sent.began);
        }
    }

    /// What the pod was thought to hold of a prompt that took part in the decision.
    fn prediction(&self, pod: usize) -> Option<Prediction> {
        if self.answer.tells_nothing {
            return None;
        }
        predicted(self.sent.as_ref()?, &self.slots, pod)
    }

    /// Tells who served, as the endpoint picker protocol has it.
    fn tell_served(&self, host: &impl Host, pod: usize) {
        if self.plugin.settings.endpoint_picker
            && let Some(pod) = self.router.as_ref().and_then(|router| router.pods().get(pod))
        {
            let _ = host.set_header(Headers::Response, SERVED, &pod.target);
        }
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

    /// Takes back what the request was to leave in its pod's cache.
    pub(super) fn withdraw(&mut self, host: &impl Host, fleet: &mut Fleet) {
        let record = self.sent.as_mut().and_then(|sent| sent.record.take());
        self.withdraw_of(host, fleet, record);
    }

    /// The same of what was recorded of its prompt elsewhere.
    pub(super) fn withdraw_of(&self, host: &impl Host, fleet: &mut Fleet, record: Option<Record>) {
        if let Some(record) = record {
            withdraw(host, fleet, &record, &self.slots.chain.hashes);
        }
    }
}

/// Takes back what was recorded of a chain.
pub fn withdraw(host: &impl Host, fleet: &mut Fleet, record: &Record, chain: &[BlockHash]) {
    let deltas = withdrawn(record, chain);
    if !deltas.is_empty() {
        fleet.metrics.add(host, Metric::Withdrawn, 1);
        let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
    }
}

/// What a pod was thought to hold of a prompt that took part in the decision for it.
pub fn predicted(sent: &Sent, slots: &Slots, pod: usize) -> Option<Prediction> {
    if !sent.by_prefix || sent.decision.blocks == 0 {
        return None;
    }
    let Slots { chain, residency, .. } = slots;
    Some(Prediction {
        pod: sent.pod?,
        matched: residency.depth(pod) as f32,
        blocks: chain.blocks() as f32 + 0.5,
        block_tokens: (!chain.cached.is_empty()).then_some(slots.block_tokens),
        clock: sent.clock,
        is_exact: sent.is_exact,
    })
}

/// Whether these are Envoy's own words for a pod that could not be reached.
pub fn unreachable_words(body: &[u8]) -> bool {
    const WORDS: [&[u8]; 3] = [b"remote connection failure", b"connection timeout", b"no healthy upstream"];
    WORDS.iter().any(|words| body.windows(words.len()).any(|part| part == *words))
}

/// What an answer's headers say of the pod that gave it, or failed to; `None` where they say nothing.
fn verdict(host: &impl Host, status: u16, headers: &HeaderMap) -> Option<Verdict> {
    let retry_after = headers.text("retry-after").map(|text| text.trim().parse::<u32>().ok());
    if !(200..400).contains(&status) {
        let details = host.property(&["response", "code_details"]).ok().flatten().unwrap_or_default();
        if details != VIA_UPSTREAM {
            return failure(&details);
        }
    }
    Some(match (status, retry_after) {
        (429, seconds) => Verdict::Busy(seconds.flatten()),
        (503, Some(seconds)) => Verdict::Busy(seconds),
        (500.., _) => Verdict::Failure,
        _ => Verdict::Answer,
    })
}

/// What Envoy's own words for the end of a request say of its pod; `None` where they speak of the client, or of Envoy.
fn failure(details: &[u8]) -> Option<Verdict> {
    let has = |word: &&[u8]| details.windows(word.len()).any(|part| part == *word);
    match () {
        () if has(&OVERFLOW) => None,
        () if LATE.iter().any(|start| details.starts_with(start)) => Some(Verdict::Failure),
        () if UNREACHABLE.iter().any(has) => Some(Verdict::Unreachable),
        () if details.starts_with(BROKE_OFF) => Some(Verdict::BrokeOff),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoy_s_words_are_the_pod_s_fault_or_not() {
        for (details, verdict) in [
            ("via_upstream", None),
            ("upstream_reset_before_response_started{connection_failure}", Some(Verdict::Unreachable)),
            ("upstream_reset_before_response_started{connection_timeout}", Some(Verdict::Unreachable)),
            ("upstream_reset_after_response_started{connection_termination}", Some(Verdict::BrokeOff)),
            ("upstream_reset_before_response_started{remote_reset}", Some(Verdict::BrokeOff)),
            ("no_healthy_upstream", Some(Verdict::Unreachable)),
            ("upstream_reset_before_response_started{overflow}", None),
            ("upstream_per_try_idle_timeout", Some(Verdict::Failure)),
            ("response_timeout", Some(Verdict::Failure)),
            ("upstream_max_stream_duration_reached", None),
            ("downstream_remote_disconnect", None),
            ("request_payload_too_large", None),
            ("", None),
        ] {
            assert_eq!(failure(details.as_bytes()), verdict, "{details}");
        }
    }
}
