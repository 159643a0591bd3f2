//! One HTTP stream, from its headers to its log line.
//!
//! Only an inference call whose profile reads the prompt is held for its body; everything else is decided at its headers.
//! Whatever can't be read goes on unchanged, by load: the engine owns its error messages.

use crate::config::Router;
use crate::explain::{self, Explanation};
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host};
use crate::metrics::Metric;
use crate::pipeline::{Body, Input, Slots};
use crate::plugin::Plugin;
use crate::prompt::{Exact, Outcome};
use crate::request::{self, Endpoint, Request};
use crate::workflow::{self, Executor, RANK_HEADER, Sent};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

use progress::Progress;
use response::Answer;

mod feedback;
mod progress;
mod response;
#[cfg(test)]
mod tests;
mod usage;

/// What Envoy does with the stream after a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on to the next filter.
    Continue,
    /// Hold what has arrived.
    Pause,
}

/// Headers of the endpoint picker protocol that are a router's to set, beside the routing header itself.
const ROUTER_S_OWN: [&str; 2] =
    ["x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was decided, and nothing is held.
    New,
    /// Held until its body is whole.
    Holding(Endpoint),
    /// Decided, or left to Envoy.
    Decided,
}

/// State of one request.
pub struct Stream {
    id: u32,
    plugin: Rc<Plugin>,
    phase: Phase,
    /// Of a request whose body is read.
    endpoint: Option<Endpoint>,
    /// The request's, until it is decided.
    headers: HeaderMap,
    slots: Slots,
    sent: Option<Sent>,
    /// By whose positions it was sent.
    router: Option<Rc<Router>>,
    progress: Option<Progress>,
    answer: Answer,
    explanation: Option<Explanation>,
}

impl Stream {
    /// A stream that has seen nothing yet. `id` is Envoy's number of its context.
    pub fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        Self {
            id,
            plugin,
            phase: Phase::New,
            endpoint: None,
            headers: HeaderMap::default(),
            slots: Slots::default(),
            sent: None,
            router: None,
            progress: None,
            answer: Answer::default(),
            explanation: None,
        }
    }

    /// The request's headers arrived. `this` is the stream itself, for whoever watches held requests.
    pub fn on_request_headers(this: &Rc<RefCell<Self>>, host: &impl Host, end_of_stream: bool) -> Flow {
        let Ok(mut stream) = this.try_borrow_mut() else { return Flow::Continue };
        let plugin = stream.plugin.clone();
        let settings = &plugin.settings;
        let router = plugin.router();
        // Before anything can fail: what a client says here must never steer.
        let rank = router.has_ranks().then_some(RANK_HEADER);
        for name in std::iter::once(settings.routing.header()).chain(ROUTER_S_OWN).chain(rank) {
            let _ = host.remove_header(Headers::Request, name);
        }
        let headers = host.headers(Headers::Request).unwrap_or_default();
        if settings.debug_header.as_ref().is_some_and(|name| headers.get(name).is_some()) {
            stream.explanation = Some(Explanation::default());
        }
        let readable = stream.readable(host, &router, &headers, end_of_stream);
        stream.headers = headers;
        let Some(endpoint) = readable else { return stream.decide(host, None) };
        let now = plugin.fleet.try_borrow().map_or(0, |fleet| fleet.ticks());
        let may_hold =
            plugin.guard.try_borrow_mut().is_ok_and(|mut guard| guard.may_hold(now, || Rc::downgrade(this)));
        if !may_hold {
            plugin.count(host, Metric::Unheld);
            return stream.decide(host, None);
        }
        stream.phase = Phase::Holding(endpoint);
        stream.endpoint = Some(endpoint);
        Flow::Pause
    }

    /// The endpoint, where the body is to be read and can be expected to be JSON of a size that may be read.
    fn readable(
        &self,
        host: &impl Host,
        router: &Router,
        headers: &HeaderMap,
        end_of_stream: bool,
    ) -> Option<Endpoint> {
        let path = headers.text(":path")?;
        let endpoint = Endpoint::of_path(&path)?;
        if end_of_stream
            || headers.text(":method")? != "POST"
            || !router.needs_body(&path, &|name| headers.get(name).map(Cow::into_owned))
        {
            return None;
        }
        let json = headers.text("content-type").is_none_or(|kind| kind.to_ascii_lowercase().contains("json"));
        let plain =
            headers.text("content-encoding").is_none_or(|coding| coding.eq_ignore_ascii_case("identity"));
        if !json || !plain {
            self.plugin.count(host, Metric::NotJson);
            return None;
        }
        let length = headers.text("content-length").and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > self.plugin.settings.max_body_bytes as u64) {
            self.plugin.count(host, Metric::TooLarge);
            return None;
        }
        Some(endpoint)
    }

    /// A part of the body arrived; `buffered` bytes are held by now.
    pub fn on_request_body(&mut self, host: &impl Host, buffered: usize, end_of_stream: bool) -> Flow {
        let Phase::Holding(endpoint) = self.phase else { return Flow::Continue };
        if let Ok(mut guard) = self.plugin.guard.try_borrow_mut() {
            guard.body_arrived();
        }
        if buffered > self.plugin.settings.max_body_bytes {
            self.plugin.count(host, Metric::TooLarge);
            return self.decide(host, None);
        }
        if !end_of_stream {
            return Flow::Pause;
        }
        self.read(host, endpoint)
    }

    /// The request's trailers arrived: its body is whole, though no callback said so.
    pub fn on_request_trailers(&mut self, host: &impl Host) -> Flow {
        match self.phase {
            Phase::Holding(endpoint) => self.read(host, endpoint),
            _ => Flow::Continue,
        }
    }

    fn read(&mut self, host: &impl Host, endpoint: Endpoint) -> Flow {
        let plugin = self.plugin.clone();
        let settings = &plugin.settings;
        let Ok(body) = host.request_body(settings.max_body_bytes) else {
            self.plugin.count(host, Metric::HostErrors);
            return self.decide(host, None);
        };
        match request::parse(endpoint, &body, &settings.limits) {
            Ok(request) => self.decide_read(host, &body, &request),
            Err(error) => {
                self.plugin.count(host, Metric::Malformed);
                if let Some(explanation) = &mut self.explanation {
                    explanation.step_down = Some(error.to_string());
                }
                self.decide(host, None)
            }
        }
    }

    /// Decides a request that was read, by its tokens where its model's tokenizer is configured.
    fn decide_read(&mut self, host: &impl Host, bytes: &[u8], request: &Request<'_>) -> Flow {
        let plugin = self.plugin.clone();
        let Some((settings, delivery)) = plugin.tokenizer_of(request.model.as_deref()) else {
            return self.decide(host, Some(request));
        };
        let exact =
            Exact { request, bytes, delivery, settings, now: host.now(), outcome: RefCell::default() };
        let flow = self.decide(host, Some(&exact));
        let (by_tokens, step_down) = match exact.outcome.into_inner() {
            Outcome::Unasked => return flow,
            Outcome::Exact => (true, None),
            Outcome::Cut => {
                let why = format!("more than {} bytes of it are new", settings.max_new_bytes);
                (true, Some((Metric::PromptCut, why)))
            }
            Outcome::NotReady => {
                (false, Some((Metric::TokenizerNotReady, "the tokenizer is not loaded".to_owned())))
            }
            Outcome::NotFollowed(why) => (false, Some((Metric::NotFollowed, why))),
        };
        if by_tokens {
            plugin.count(host, Metric::ByTokens);
        }
        let (metric, why) = step_down.unzip();
        if let Some(metric) = metric {
            plugin.count(host, metric);
        }
        if let Some(explanation) = &mut self.explanation {
            explanation.prompt = Some(if by_tokens { "tokens" } else { "text" });
            explanation.step_down = why;
        }
        flow
    }

    /// A held request got no body for too long: decides it unread, and lets it go on. Says whether it was still held.
    pub fn send_on_unread(&mut self, host: &impl Host) -> bool {
        if !matches!(self.phase, Phase::Holding(_)) || host.set_effective_context(self.id).is_err() {
            return false;
        }
        self.plugin.count(host, Metric::Unheld);
        match self.decide(host, None) {
            Flow::Continue => host.resume_request().is_ok(),
            Flow::Pause => true,
        }
    }

    fn decide(&mut self, host: &impl Host, body: Option<&dyn Body>) -> Flow {
        self.phase = Phase::Decided;
        let start = host.now();
        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return Flow::Continue };
        let fleet = &mut *fleet;
        fleet.metrics.add(host, Metric::Requests, 1);
        let headers = std::mem::take(&mut self.headers);
        let lookup = |name: &str| headers.get(name).map(Cow::into_owned);
        let path = headers.text(":path").unwrap_or_default();
        let model = body.and_then(Body::model);
        let router = plugin.router();
        let Some(profile) = router.select(&path, &lookup, model) else {
            fleet.metrics.add(host, Metric::ByRoundRobin, 1);
            return Flow::Continue;
        };
        let turn = fleet.next_turn();
        profile.prepare(&Input { header: &lookup, body }, turn, &mut self.slots);
        let outcome =
            Executor { host, plugin: &plugin, router: &router }.run(fleet, profile, &mut self.slots);
        let sent = match outcome {
            workflow::Outcome::Sent(sent) => sent,
            workflow::Outcome::Unsent => {
                fleet.metrics.add(host, Metric::ByRoundRobin, 1);
                return Flow::Continue;
            }
            workflow::Outcome::Refused(refused) => {
                fleet.metrics.add(host, Metric::Refused, 1);
                return explain::refuse(host, &refused, plugin.settings.admission.retry_after_seconds);
            }
            workflow::Outcome::Shed(limit) => {
                fleet.metrics.add(host, Metric::Shed, 1);
                return explain::shed(host, limit, plugin.settings.admission.retry_after_seconds);
            }
        };
        count(host, fleet, &sent);
        if let Some(explanation) = &mut self.explanation {
            explanation.fill(&router, profile, &fleet.scratch, &sent);
        }
        let state = explain::filter_state(&router, profile, &sent);
        let _ = host.set_filter_state("warmpath", state.as_bytes());
        let took = host.now().saturating_sub(start).as_micros();
        fleet.metrics.record(host, Metric::DecisionTime, u64::try_from(took).unwrap_or(u64::MAX));
        self.progress = Some(Progress::begin(host, fleet, &plugin.waiting, &plugin.settings, &sent, body));
        self.answer.tells_nothing = body.is_some_and(Body::computes_all);
        self.ask_for_load(host, &headers);
        self.sent = Some(sent);
        self.router = Some(router.clone());
        Flow::Continue
    }
}

fn count(host: &impl Host, fleet: &Fleet, sent: &Sent) {
    let metrics = &fleet.metrics;
    metrics.add(host, if sent.by_prefix { Metric::ByPrefix } else { Metric::ByLoad }, 1);
    if sent.by_prefix {
        metrics.add(host, Metric::ByEvents, u64::from(sent.is_exact));
        metrics.add(host, Metric::BlocksAsked, u64::from(sent.decision.blocks));
        metrics.add(host, Metric::BlocksMatched, u64::from(sent.decision.matched));
    }
    metrics.add(host, Metric::Relaxed, u64::from(sent.decision.relaxed.count_ones()));
}
