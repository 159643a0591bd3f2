//! One HTTP stream, from its headers to its log line.
//!
//! Only an inference call whose profile reads the prompt is held for its body; everything else is decided at its headers.
//! Whatever can't be read goes on unchanged, by load: the engine owns its error messages. Only where pods hand over KV, nothing
//! reaches them that wasn't looked through.

use crate::config::{Router, Via};
use crate::explain::Explanation;
use crate::host::{HeaderMap, Headers, Host};
use crate::metrics::Metric;
use crate::pipeline::Slots;
use crate::plugin::Plugin;
use crate::prompt::{Exact, Outcome};
use crate::request::{self, Endpoint, Request};
use crate::workflow::{Aggregated, RANK_HEADER, Sent};
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

pub use progress::{Progress, patience};

use decide::{Read, Unread};
use remote::Remote;
use response::Answer;
use restart::{Kept, Restart};

mod decide;
mod feedback;
mod moved;
mod placement;
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
    Holding(Content),
    /// Held until its prefill is done elsewhere.
    Remote,
    /// Decided, or left to Envoy.
    Decided,
}

/// What the body of a held request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// An inference call.
    Call(Endpoint),
    /// Something else, which is looked through for what a client may not say to pods that hand over KV.
    Other,
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
    pending: Option<u32>,
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
            pending: None,
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
        let rank = (router.has_ranks() || router.is_guarded()).then_some(RANK_HEADER);
        let handoff = router.is_guarded().then_some(HANDOFF);
        let own = std::iter::once(settings.routing.header()).chain(ROUTER_S_OWN);
        for name in own.chain(rank).chain(handoff) {
            let _ = host.remove_header(Headers::Request, name);
        }
        for &name in router.guarded_headers() {
            let _ = host.remove_header(Headers::Request, name);
        }
        let headers = host.headers(Headers::Request).unwrap_or_default();
        if settings.debug_header.as_ref().is_some_and(|name| headers.get(name).is_some()) {
            stream.explanation = Some(Explanation::default());
        }
        let readable = stream.readable(host, &router, &headers, end_of_stream);
        stream.headers = headers;
        let Some(content) = readable else { return stream.decide(host, None, None) };
        if settings.routing.via() == Via::FilterState {
            return stream.go_ahead(host, &router, content);
        }
        let now = plugin.fleet.try_borrow().map_or(0, |fleet| fleet.ticks());
        let may_hold = plugin
            .guard
            .try_borrow_mut()
            .is_ok_and(|mut guard| guard.may_hold(now, router.is_guarded(), || Rc::downgrade(this)));
        if !may_hold {
            stream.unread = Some(Unread::Unheld);
            plugin.count(host, Metric::Unheld);
            return stream.decide(host, None, None);
        }
        stream.hold(content);
        Flow::Pause
    }

    fn hold(&mut self, content: Content) {
        self.phase = Phase::Holding(content);
        if let Content::Call(endpoint) = content {
            self.endpoint = Some(endpoint);
        }
    }

    /// What the body is, where it is to be read and can be expected to be JSON of a size that may be read.
    fn readable(
        &mut self,
        host: &impl Host,
        router: &Router,
        headers: &HeaderMap,
        end_of_stream: bool,
    ) -> Option<Content> {
        if end_of_stream {
            return None;
        }
        let (path, method) = (headers.text(":path")?, headers.text(":method")?);
        let is_post = method == "POST";
        // What is open without being a body: upgrades to WebSocket, and tunnels.
        let has_body = !matches!(&*method, "GET" | "HEAD" | "OPTIONS" | "CONNECT" | "TRACE");
        let is_wanted = || router.needs_body(&path, &|name| headers.get(name).map(Cow::into_owned));
        let content = match Endpoint::of_path(&path).filter(|_| is_post && is_wanted()) {
            Some(endpoint) => Content::Call(endpoint),
            // Forms, such as sounds, have no fields of the engines' JSON.
            None if router.is_guarded() && has_body && !is_form(headers) => Content::Other,
            None => return None,
        };
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
        Some(content)
    }

    /// A part of the body arrived; `buffered` bytes are held by now.
    pub fn on_request_body(&mut self, host: &impl Host, buffered: usize, end_of_stream: bool) -> Flow {
        let content = match self.phase {
            Phase::Holding(content) => content,
            Phase::Remote => return Flow::Pause,
            Phase::New | Phase::Decided => return Flow::Continue,
        };
        if let Ok(mut guard) = self.plugin.guard.try_borrow_mut() {
            guard.body_arrived();
        }
        if buffered > self.plugin.settings.max_body_bytes {
            self.unread = Some(Unread::TooLarge);
            self.plugin.count(host, Metric::TooLarge);
            return self.decide(host, None, None);
        }
        if !end_of_stream {
            return Flow::Pause;
        }
        self.read(host, content)
    }

    /// The request's trailers arrived: its body is whole, though no callback said so.
    pub fn on_request_trailers(&mut self, host: &impl Host) -> Flow {
        match self.phase {
            Phase::Holding(content) => self.read(host, content),
            Phase::Remote => Flow::Pause,
            Phase::New | Phase::Decided => Flow::Continue,
        }
    }

    fn read(&mut self, host: &impl Host, content: Content) -> Flow {
        let flow = self.read_once(host, content);
        // A first call may fail before anybody waits for its answer.
        if std::mem::take(&mut self.again) { self.read_once(host, content) } else { flow }
    }

    fn read_once(&mut self, host: &impl Host, content: Content) -> Flow {
        let plugin = self.plugin.clone();
        let settings = &plugin.settings;
        let Ok(body) = host.request_body(settings.max_body_bytes) else {
            self.unread = Some(Unread::Unheld);
            self.plugin.count(host, Metric::HostErrors);
            return self.decide(host, None, None);
        };
        let Content::Call(endpoint) = content else { return self.decide(host, None, Some(&body)) };
        match request::parse(endpoint, &body, &settings.limits) {
            Ok(request) => self.decide_read(host, &body, &request),
            Err(error) => {
                self.plugin.count(host, Metric::Malformed);
                self.unread = Some(Unread::Malformed(error.to_string()));
                if let Some(explanation) = &mut self.explanation {
                    explanation.step_down = Some(error.to_string());
                }
                self.decide(host, None, Some(&body))
            }
        }
    }

    /// Decides a request that was read, by its tokens where its model's tokenizer is configured.
    fn decide_read(&mut self, host: &impl Host, bytes: &[u8], request: &Request<'_>) -> Flow {
        let plugin = self.plugin.clone();
        let Some((settings, delivery)) = plugin.tokenizer_of(request.model.as_deref()) else {
            let read = Read { endpoint: request.endpoint, body: request };
            return self.decide(host, Some(&read), Some(bytes));
        };
        let exact =
            Exact { request, bytes, delivery, settings, now: host.now(), outcome: RefCell::default() };
        let read = Read { endpoint: request.endpoint, body: &exact };
        let flow = self.decide(host, Some(&read), Some(bytes));
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
        match self.decide(host, None, None) {
            Flow::Continue => host.resume_request().is_ok(),
            Flow::Pause => true,
        }
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    headers.text("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with("multipart/"))
}
