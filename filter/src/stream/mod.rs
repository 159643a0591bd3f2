//! One HTTP stream, from its headers to its log line.
//!
//! Only an inference call whose profile reads the prompt is held for its body; everything else is decided at its headers.
//! Whatever can't be read goes on unchanged, by load: the engine owns its error messages.

use crate::config::Router;
use crate::explain::Explanation;
use crate::host::{HeaderMap, Headers, Host};
use crate::metrics::Metric;
use crate::pipeline::Slots;
use crate::plugin::Plugin;
use crate::prompt::{Exact, Outcome};
use crate::request::{self, Endpoint, Request};
use crate::workflow::{Aggregated, RANK_HEADER, Sent};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub use progress::{Progress, patience};

use decide::{Read, Unread};
use remote::Remote;
use response::Answer;
use restart::{Kept, Restart};

mod decide;
mod feedback;
mod progress;
mod remote;
mod response;
mod restart;
#[cfg(test)]
mod steps_tests;
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
/// What a request that bears a handoff has, so that a route can retry it where a handoff may be retried.
pub const HANDOFF: &str = "x-warmpath-handoff";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was decided, and nothing is held.
    New,
    /// Held until its body is whole.
    Holding(Endpoint),
    /// Held until its prefill is done elsewhere.
    Remote,
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
    /// Why the body of an inference call was not read.
    unread: Option<Unread>,
    /// The prefill that is done elsewhere.
    remote: Option<Box<Remote>>,
    /// The call whose answer is awaited.
    pending: Cell<Option<u32>>,
    /// Why two steps came to nothing.
    failed: Option<Aggregated>,
    /// Whether the request is to be read and decided once more.
    again: bool,
    /// What it takes to start it again.
    kept: Option<Kept>,
    /// Whether the answer was given here.
    is_answered: bool,
    /// The second start.
    restart: Option<Restart>,
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
            unread: None,
            remote: None,
            pending: Cell::new(None),
            failed: None,
            again: false,
            kept: None,
            is_answered: false,
            restart: None,
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
        let handoff = (!router.workflows().is_empty()).then_some(HANDOFF);
        let own = std::iter::once(settings.routing.header()).chain(ROUTER_S_OWN);
        for name in own.chain(rank).chain(handoff) {
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
            stream.unread = Some(Unread::Unheld);
            plugin.count(host, Metric::Unheld);
            return stream.decide(host, None);
        }
        stream.phase = Phase::Holding(endpoint);
        stream.endpoint = Some(endpoint);
        Flow::Pause
    }

    /// The endpoint, where the body is to be read and can be expected to be JSON of a size that may be read.
    fn readable(
        &mut self,
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
            self.unread = Some(Unread::NotJson);
            self.plugin.count(host, Metric::NotJson);
            return None;
        }
        let length = headers.text("content-length").and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > self.plugin.settings.max_body_bytes as u64) {
            self.unread = Some(Unread::TooLarge);
            self.plugin.count(host, Metric::TooLarge);
            return None;
        }
        Some(endpoint)
    }

    /// A part of the body arrived; `buffered` bytes are held by now.
    pub fn on_request_body(&mut self, host: &impl Host, buffered: usize, end_of_stream: bool) -> Flow {
        let endpoint = match self.phase {
            Phase::Holding(endpoint) => endpoint,
            Phase::Remote => return Flow::Pause,
            Phase::New | Phase::Decided => return Flow::Continue,
        };
        if let Ok(mut guard) = self.plugin.guard.try_borrow_mut() {
            guard.body_arrived();
        }
        if buffered > self.plugin.settings.max_body_bytes {
            self.unread = Some(Unread::TooLarge);
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
            Phase::Remote => Flow::Pause,
            Phase::New | Phase::Decided => Flow::Continue,
        }
    }

    fn read(&mut self, host: &impl Host, endpoint: Endpoint) -> Flow {
        let flow = self.read_once(host, endpoint);
        // A first call may fail before anybody waits for its answer.
        if std::mem::take(&mut self.again) { self.read_once(host, endpoint) } else { flow }
    }

    fn read_once(&mut self, host: &impl Host, endpoint: Endpoint) -> Flow {
        let plugin = self.plugin.clone();
        let settings = &plugin.settings;
        let Ok(body) = host.request_body(settings.max_body_bytes) else {
            self.unread = Some(Unread::Unheld);
            self.plugin.count(host, Metric::HostErrors);
            return self.decide(host, None);
        };
        match request::parse(endpoint, &body, &settings.limits) {
            Ok(request) => self.decide_read(host, &body, &request),
            Err(error) => {
                self.plugin.count(host, Metric::Malformed);
                self.unread = Some(Unread::Malformed(error.to_string()));
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
            let read = Read { endpoint: request.endpoint, bytes, body: request };
            return self.decide(host, Some(&read));
        };
        let exact =
            Exact { request, bytes, delivery, settings, now: host.now(), outcome: RefCell::default() };
        let read = Read { endpoint: request.endpoint, bytes, body: &exact };
        let flow = self.decide(host, Some(&read));
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
        self.unread = Some(Unread::Unheld);
        self.plugin.count(host, Metric::Unheld);
        match self.decide(host, None) {
            Flow::Continue => host.resume_request().is_ok(),
            Flow::Pause => true,
        }
    }
}
