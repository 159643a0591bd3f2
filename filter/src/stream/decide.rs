//! From what was read of a request to what is done with it: by one step or by two.

use super::progress::Progress;
use super::remote::Remote;
use super::{Flow, Phase, Stream};
use crate::blocks::{BlockSize, Chain};
use crate::config::Router;
use crate::explain;
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Host};
use crate::metrics::Metric;
use crate::pipeline::{Body, Input, Positions, Profile, Refused, Slots};
use crate::plugin::Plugin;
use crate::request::{Endpoint, Outline};
use crate::workflow::protocol;
use crate::workflow::{Aggregated, Executor, Limit, Outcome, Plan, PrefillDecode, Sent, TwoSteps};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

/// A request whose body was read.
pub(super) struct Read<'a> {
    pub endpoint: Endpoint,
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
    /// What who can't go on without the body answers.
    fn status(&self) -> u32 {
        match self {
            Self::Malformed(_) => 400,
            Self::TooLarge => 413,
            Self::NotJson => 415,
            Self::Unheld => 503,
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed(why) => why,
            Self::TooLarge => "request body: longer than limits.max_body_bytes",
            Self::NotJson => "request body: not JSON, or compressed",
            Self::Unheld => "the request body could not be read",
        })
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
        Executor { host: self.host, plugin: self.plugin, router: self.router, without: Positions::default() }
    }

    /// Fills what a profile reads of the request.
    fn prepare(&self, fleet: &mut Fleet, profile: &Profile, body: Option<&dyn Body>, slots: &mut Slots) {
        let lookup = |name: &str| self.headers.get(name).map(Cow::into_owned);
        let turn = fleet.next_turn();
        profile.prepare(&Input { header: &lookup, body }, turn, slots);
    }

    fn refuse(&self, fleet: &Fleet, refused: &Refused) -> Flow {
        fleet.metrics.add(self.host, Metric::Refused, 1);
        explain::refuse(self.host, refused, self.plugin.settings.admission.retry_after_seconds)
    }

    fn shed(&self, fleet: &Fleet, limit: Limit) -> Flow {
        fleet.metrics.add(self.host, Metric::Shed, 1);
        explain::shed(self.host, limit, self.plugin.settings.admission.retry_after_seconds)
    }
}

impl Stream {
    /// Decides. `read` is `None` where the body is none that is understood, and `bytes` where it wasn't read at all.
    pub(super) fn decide(&mut self, host: &impl Host, read: Option<&Read<'_>>, bytes: Option<&[u8]>) -> Flow {
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
        // Whoever decides, and whatever is asked for: a pod that hands over KV may be the one that gets it.
        let outline = match self.look_through(&router, bytes) {
            Ok(outline) => outline,
            Err((status, why)) => {
                fleet.metrics.add(host, Metric::Refused, 1);
                return explain::reject(host, status, &why);
            }
        };
        let fields = outline.as_ref().zip(bytes).map(|(outline, bytes)| protocol::Fields { bytes, outline });
        match (plan, read, fields) {
            (Some(Plan::PrefillDecode(workflow)), Some(read), Some(fields)) => {
                let body = protocol::Body { endpoint: read.endpoint, fields };
                self.by_workflow(&desk, fleet, workflow, read, &body)
            }
            (Some(Plan::PrefillDecode(workflow)), _, fields) => {
                self.unsplit(&desk, fleet, workflow, fields.as_ref())
            }
            (Some(Plan::Single(profile)), read, fields) => match self.stripped(&desk, fleet, fields.as_ref())
            {
                Ok(()) => self.in_one_step(&desk, fleet, profile, read.map(|read| read.body)),
                Err(flow) => flow,
            },
            (None, ..) => {
                fleet.metrics.add(host, Metric::ByRoundRobin, 1);
                Flow::Continue
            }
        }
    }

    /// Where the fields of a body stand that a client may not set, if there are pods that hand over KV. The error is what the
    /// client is told of a body that can't be looked through.
    fn look_through(
        &mut self,
        router: &Router,
        bytes: Option<&[u8]>,
    ) -> Result<Option<Outline>, (u32, String)> {
        if !router.is_guarded() {
            return Ok(None);
        }
        let unread = self.unread.take();
        match bytes {
            Some(bytes) => Outline::read(bytes, router.guarded_fields())
                .map(Some)
                .map_err(|error| (400, error.to_string())),
            None => match unread {
                Some(unread) => Err((unread.status(), unread.to_string())),
                None => Ok(None),
            },
        }
    }

    /// Takes out of the body what only a router may say.
    fn stripped<H: Host>(
        &self,
        desk: &Desk<'_, H>,
        fleet: &Fleet,
        fields: Option<&protocol::Fields<'_>>,
    ) -> Result<(), Flow> {
        let Some(fields) = fields else { return Ok(()) };
        let strip = desk.router.strip(fields);
        if !strip.is_empty() && self.replace_body(desk.host, &fields.edited(strip, Vec::new())).is_err() {
            fleet.metrics.add(desk.host, Metric::HostErrors, 1);
            return Err(explain::reject(desk.host, 503, "the request body could not be edited"));
        }
        Ok(())
    }

    /// A request of a workflow that is no inference call, or whose prompt isn't understood: by load, to who serves alone.
    fn unsplit<H: Host>(
        &mut self,
        desk: &Desk<'_, H>,
        fleet: &mut Fleet,
        workflow: &PrefillDecode,
        fields: Option<&protocol::Fields<'_>>,
    ) -> Flow {
        // What has no body makes no engine compute.
        let profile = workflow.aggregated.or((fields.is_none()).then_some(workflow.decode));
        let Some(profile) = profile.and_then(|profile| desk.router.profile(profile)) else {
            fleet.metrics.add(desk.host, Metric::Refused, 1);
            return explain::reject(desk.host, 400, "it can't be split, and no pod serves it in one step");
        };
        match self.stripped(desk, fleet, fields) {
            Ok(()) => self.in_one_step(desk, fleet, profile, None),
            Err(flow) => flow,
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
            // Any pod would do for Envoy, and some of them may serve nothing alone.
            Outcome::Unsent
                if router.workflows().iter().any(|workflow| !workflow.protocol.decodes_alone()) =>
            {
                fleet.metrics.add(host, Metric::Refused, 1);
                return explain::reject(host, 503, "no pod is known yet");
            }
            Outcome::Unsent => {
                fleet.metrics.add(host, Metric::ByRoundRobin, 1);
                return Flow::Continue;
            }
            Outcome::Refused(refused) => return desk.refuse(fleet, &refused),
            Outcome::Shed(limit) => return desk.shed(fleet, limit),
        };
        if self.failed.is_none() {
            count(host, fleet, &sent);
        }
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
        read: &Read<'_>,
        body: &protocol::Body<'_>,
    ) -> Flow {
        if let Some(why) = self.failed {
            return self.aggregated(desk, fleet, workflow, read, body, (why, why.reason()));
        }
        if let Some(why) = unfit(workflow, read, body) {
            return self.aggregated(desk, fleet, workflow, read, body, (Aggregated::Unfit, why));
        }
        let start = desk.host.now();
        let once = Once { body: read.body, chain: OnceCell::new() };
        let mut prefill_slots = Slots::default();
        for (profile, slots) in [(workflow.prefill, &mut prefill_slots), (workflow.decode, &mut self.slots)] {
            if let Some(profile) = desk.router.profile(profile) {
                desk.prepare(fleet, profile, Some(&once), slots);
            }
        }
        let executor = Executor { without: workflow.unfit, ..desk.executor() };
        let two = executor.run_two(fleet, workflow, &mut prefill_slots, &mut self.slots);
        let (prefill, decode) = match two {
            TwoSteps::Chosen { prefill, decode } => (*prefill, *decode),
            TwoSteps::Aggregated(why) => {
                return self.aggregated(desk, fleet, workflow, read, body, (why, why.reason()));
            }
            TwoSteps::Refused(refused) => return desk.refuse(fleet, &refused),
            TwoSteps::Shed(limit) => return desk.shed(fleet, limit),
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
        let outline = body.outline.clone();
        let remote =
            Remote::new(desk.host, fleet, workflow, prefill, prefill_slots, outline, read.endpoint, streams);
        self.begin_remote(desk.host, fleet, remote, desk.headers.clone(), body.bytes)
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
            Aggregated::NoPrefill | Aggregated::NoDecode | Aggregated::Failed => workflow.on_failure,
            _ => workflow.aggregated,
        };
        let Some(profile) = profile.and_then(|profile| desk.router.profile(profile)) else {
            fleet.metrics.add(desk.host, Metric::Refused, 1);
            let status = if why == Aggregated::Unfit { 400 } else { 503 };
            return explain::reject(desk.host, status, &format!("{words}, and no pod serves it in one step"));
        };
        if let Err(flow) = self.stripped(desk, fleet, Some(&body.fields)) {
            return flow;
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
        Aggregated::NoDecode => Metric::AggregatedNoDecode,
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
