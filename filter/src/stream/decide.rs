//! From what was read of a request to what is done with it: by one step or by two.

use super::progress::Progress;
use super::remote::Remote;
use super::{Flow, Phase, Stream};
use crate::blocks::{BlockSize, Chain};
use crate::config::Router;
use crate::explain;
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host};
use crate::metrics::Metric;
use crate::pipeline::{Body, Input, Profile, Slots};
use crate::plugin::Plugin;
use crate::request::{Endpoint, Outline};
use crate::workflow::protocol;
use crate::workflow::{Aggregated, Executor, Outcome, Plan, PrefillDecode, Sent, TwoSteps};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;

/// A request whose body was read.
pub(super) struct Read<'a> {
    pub endpoint: Endpoint,
    pub bytes: &'a [u8],
    pub body: &'a dyn Body,
}

/// Why the body of an inference call was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unread {
    Malformed(String),
    TooLarge,
    NotJson,
    Unheld,
}

impl Unread {
    /// Status and words of who can't go on without the body.
    fn answer(&self) -> (u32, &str) {
        match self {
            Self::Malformed(why) => (400, why),
            Self::TooLarge => (413, "request body: longer than limits.max_body_bytes"),
            Self::NotJson => (415, "request body: not JSON, or compressed"),
            Self::Unheld => (503, "the request body could not be read"),
        }
    }
}

/// What all ways to decide share.
struct Desk<'a, H: Host> {
    host: &'a H,
    plugin: &'a Rc<Plugin>,
    router: &'a Rc<Router>,
    headers: &'a HeaderMap,
}

impl<H: Host> Desk<'_, H> {
    fn executor(&self) -> Executor<'_, H> {
        Executor { host: self.host, plugin: self.plugin, router: self.router }
    }

    /// Fills what a profile reads of the request.
    fn prepare(&self, fleet: &mut Fleet, profile: &Profile, body: Option<&dyn Body>, slots: &mut Slots) {
        let lookup = |name: &str| self.headers.get(name).map(Cow::into_owned);
        let turn = fleet.next_turn();
        profile.prepare(&Input { header: &lookup, body }, turn, slots);
    }
}

impl Stream {
    /// Decides; `read` is `None` where the body is none that is read, or could not be.
    pub(super) fn decide(&mut self, host: &impl Host, read: Option<&Read<'_>>) -> Flow {
        self.phase = Phase::Decided;
        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return Flow::Continue };
        let fleet = &mut *fleet;
        let headers = std::mem::take(&mut self.headers);
        let router = plugin.router();
        let desk = Desk { host, plugin: &plugin, router: &router, headers: &headers };
        let lookup = |name: &str| headers.get(name).map(Cow::into_owned);
        let path = headers.text(":path").unwrap_or_default();
        let plan = router.select(&path, &lookup, read.and_then(|read| read.body.model()));
        if self.failed.is_none() {
            fleet.metrics.add(host, Metric::Requests, 1);
        }
        match plan {
            Some(Plan::Single(profile)) => {
                self.in_one_step(&desk, fleet, profile, read.map(|read| read.body))
            }
            Some(Plan::PrefillDecode(workflow)) => self.by_workflow(&desk, fleet, workflow, read),
            None => {
                fleet.metrics.add(host, Metric::ByRoundRobin, 1);
                Flow::Continue
            }
        }
    }

    fn in_one_step<H: Host>(
        &mut self,
        desk: &Desk<'_, H>,
        fleet: &mut Fleet,
        profile: &Profile,
        body: Option<&dyn Body>,
    ) -> Flow {
        let Desk { host, plugin, router, headers } = *desk;
        let start = host.now();
        desk.prepare(fleet, profile, body, &mut self.slots);
        let sent = match desk.executor().run(fleet, profile, &mut self.slots) {
            Outcome::Sent(sent) => sent,
            Outcome::Unsent => {
                fleet.metrics.add(host, Metric::ByRoundRobin, 1);
                return Flow::Continue;
            }
            Outcome::Refused(refused) => {
                fleet.metrics.add(host, Metric::Refused, 1);
                return explain::refuse(host, &refused, plugin.settings.admission.retry_after_seconds);
            }
            Outcome::Shed(limit) => {
                fleet.metrics.add(host, Metric::Shed, 1);
                return explain::shed(host, limit, plugin.settings.admission.retry_after_seconds);
            }
        };
        count(host, fleet, &sent);
        if let Some(explanation) = &mut self.explanation {
            explanation.fill(router, profile, &fleet.scratch, &sent);
        }
        let state = explain::filter_state(router, profile, &sent);
        let _ = host.set_filter_state("warmpath", state.as_bytes());
        self.took(desk, fleet, start);
        let mut progress = Progress::begin(host, fleet, &plugin.settings, &sent, body.and_then(Body::model));
        progress.watch(&plugin.waiting, &plugin.settings, &sent, body.is_some_and(Body::streams));
        self.progress = Some(progress);
        self.answer.tells_nothing = body.is_some_and(Body::computes_all);
        self.ask_for_load(host, headers);
        self.sent = Some(sent);
        self.router = Some(router.clone());
        Flow::Continue
    }

    fn by_workflow<H: Host>(
        &mut self,
        desk: &Desk<'_, H>,
        fleet: &mut Fleet,
        workflow: &PrefillDecode,
        read: Option<&Read<'_>>,
    ) -> Flow {
        for name in workflow.protocol.own_headers() {
            let _ = desk.host.remove_header(Headers::Request, name);
        }
        let Some(read) = read else {
            return match self.unread.take() {
                // What a client may not say to a pod could stand there.
                Some(unread) => {
                    let (status, why) = unread.answer();
                    fleet.metrics.add(desk.host, Metric::Refused, 1);
                    explain::reject(desk.host, status, why)
                }
                None => {
                    let profile = workflow.aggregated.unwrap_or(workflow.decode);
                    match desk.router.profile(profile) {
                        Some(profile) => self.in_one_step(desk, fleet, profile, None),
                        None => Flow::Continue,
                    }
                }
            };
        };
        let outline = match Outline::read(read.bytes, &workflow.fields) {
            Ok(outline) => outline,
            Err(error) => {
                fleet.metrics.add(desk.host, Metric::Refused, 1);
                return explain::reject(desk.host, 400, &error.to_string());
            }
        };
        let body = protocol::Body { endpoint: read.endpoint, bytes: read.bytes, outline: &outline };
        if let Some(why) = self.failed {
            return self.aggregated(desk, fleet, workflow, read, &body, (why, why.reason()));
        }
        if let Some(why) = unfit(workflow, read, &body) {
            return self.aggregated(desk, fleet, workflow, read, &body, (Aggregated::Unfit, why));
        }
        let start = desk.host.now();
        let once = Once { body: read.body, chain: OnceCell::new() };
        let mut prefill_slots = Slots::default();
        for (profile, slots) in [(workflow.prefill, &mut prefill_slots), (workflow.decode, &mut self.slots)] {
            if let Some(profile) = desk.router.profile(profile) {
                desk.prepare(fleet, profile, Some(&once), slots);
            }
        }
        let two = desk.executor().run_two(fleet, workflow, &mut prefill_slots, &mut self.slots);
        let retry_after = desk.plugin.settings.admission.retry_after_seconds;
        let (prefill, decode) = match two {
            TwoSteps::Chosen { prefill, decode } => (*prefill, *decode),
            TwoSteps::Aggregated(why) => {
                return self.aggregated(desk, fleet, workflow, read, &body, (why, why.reason()));
            }
            TwoSteps::Refused(refused) => {
                fleet.metrics.add(desk.host, Metric::Refused, 1);
                return explain::refuse(desk.host, &refused, retry_after);
            }
            TwoSteps::Shed(limit) => {
                fleet.metrics.add(desk.host, Metric::Shed, 1);
                return explain::shed(desk.host, limit, retry_after);
            }
        };
        fleet.metrics.add(desk.host, Metric::RemotePrefills, 1);
        count(desk.host, fleet, &decode);
        if let (Some(explanation), Some(profile)) =
            (&mut self.explanation, desk.router.profile(workflow.decode))
        {
            explanation.fill(desk.router, profile, &fleet.scratch, &decode);
            explanation.workflow = Some(workflow.name.clone());
        }
        self.took(desk, fleet, start);
        self.router = Some(desk.router.clone());
        let settings = &desk.plugin.settings;
        self.progress = Some(Progress::begin(desk.host, fleet, settings, &decode, read.body.model()));
        self.answer.tells_nothing = true;
        self.sent = Some(decode);
        let streams = read.body.streams();
        let remote =
            Remote::new(desk.host, fleet, workflow, prefill, prefill_slots, outline, read.endpoint, streams);
        self.begin_remote(desk.host, fleet, remote, desk.headers.clone(), read.bytes)
    }

    /// Serves a request of a workflow in one step, by who serves such alone.
    fn aggregated<H: Host>(
        &mut self,
        desk: &Desk<'_, H>,
        fleet: &mut Fleet,
        workflow: &PrefillDecode,
        read: &Read<'_>,
        body: &protocol::Body<'_>,
        (why, words): (Aggregated, &str),
    ) -> Flow {
        fleet.metrics.add(desk.host, metric(why), 1);
        let profile = match why {
            Aggregated::NoPrefill | Aggregated::Failed => workflow.on_failure,
            _ => workflow.aggregated,
        };
        let Some(profile) = profile.and_then(|profile| desk.router.profile(profile)) else {
            fleet.metrics.add(desk.host, Metric::Refused, 1);
            let status = if why == Aggregated::Unfit { 400 } else { 503 };
            return explain::reject(desk.host, status, &format!("{words}, and no pod serves it in one step"));
        };
        let strip = workflow.protocol.strip(body);
        if !strip.is_empty() && desk.host.replace_request_body(&body.edited(strip, Vec::new())).is_err() {
            fleet.metrics.add(desk.host, Metric::HostErrors, 1);
            return explain::reject(desk.host, 503, "the request body could not be edited");
        }
        if let Some(explanation) = &mut self.explanation {
            explanation.workflow = Some(workflow.name.clone());
            explanation.aggregated = Some(words.to_owned());
        }
        self.in_one_step(desk, fleet, profile, Some(read.body))
    }

    fn took<H: Host>(&self, desk: &Desk<'_, H>, fleet: &Fleet, start: std::time::Duration) {
        let took = desk.host.now().saturating_sub(start).as_micros();
        fleet.metrics.record(desk.host, Metric::DecisionTime, u64::try_from(took).unwrap_or(u64::MAX));
    }
}

/// Why a request can't be split over two pods, if it can't.
fn unfit(workflow: &PrefillDecode, read: &Read<'_>, body: &protocol::Body<'_>) -> Option<&'static str> {
    if !workflow.protocol.endpoints().contains(&read.endpoint) {
        return Some("its endpoint can't be split");
    }
    if read.body.computes_all() {
        return Some("all of its prompt is to be computed");
    }
    body.unfit().or_else(|| workflow.protocol.unfit(body))
}

fn metric(why: Aggregated) -> Metric {
    match why {
        Aggregated::Short => Metric::AggregatedShort,
        Aggregated::Held => Metric::AggregatedHeld,
        Aggregated::Faster => Metric::AggregatedFaster,
        Aggregated::Same => Metric::AggregatedSame,
        Aggregated::Unfit => Metric::AggregatedUnfit,
        Aggregated::NoPrefill => Metric::AggregatedNoPrefill,
        Aggregated::Failed => Metric::AggregatedFailed,
        Aggregated::Nothing => Metric::AggregatedNothing,
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

/// A body whose chain is made once, however many steps ask for it.
struct Once<'a> {
    body: &'a dyn Body,
    chain: OnceCell<Chain>,
}

impl Body for Once<'_> {
    fn model(&self) -> Option<&str> {
        self.body.model()
    }

    fn user(&self) -> Option<&str> {
        self.body.user()
    }

    fn chain(&self, size: BlockSize) -> Chain {
        self.chain.get_or_init(|| self.body.chain(size)).clone()
    }

    fn streams(&self) -> bool {
        self.body.streams()
    }

    fn computes_all(&self) -> bool {
        self.body.computes_all()
    }

    fn block_tokens(&self, size: BlockSize) -> f32 {
        self.body.block_tokens(size)
    }
}
