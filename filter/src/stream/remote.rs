//! The two steps of one request: a prefill pod is called, and the request goes on to its decode pod, with what that answered or
//! at once.
//!
//! However it goes, the client gets one answer: from the decode pod; from the prefill pod, where that refused what the client
//! sent; from a pod that did all, where prefill failed; or an error that says so.

use super::feedback::Prediction;
use super::progress::{Progress, Sign};
use super::response::{predicted, unreachable_words, withdraw};
use super::restart::{Kept, MOST_KEPT};
use super::usage::{TAIL, Tail};
use super::{Content, Flow, HANDOFF, Phase, Stream};
use crate::config::{Router, Routing};
use crate::explain;
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host, Level};
use crate::index::OnUnseen;
use crate::metrics::Metric;
use crate::pipeline::{Positions, Slots};
use crate::pods::{Pod, Verdict};
use crate::request::{Endpoint, Outline};
use crate::workflow::protocol::{Body, Fields, Handoff, Leg, Order, Pair};
use crate::workflow::{Aggregated, Executor, PrefillDecode, RANK_HEADER, Sent, recorded};
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Envoy's header for how often its router retries at most.
const MAX_RETRIES: &str = "x-envoy-max-retries";
/// What Envoy answers for a call that took too long.
const TIMED_OUT: u16 = 504;
/// Its headers by which it would try more often than the route says.
const RETRY_HEADERS: [&str; 2] = ["x-envoy-retry-on", "x-envoy-hedge-on-per-try-timeout"];
/// Longest time for a protocol's question: five seconds.
const QUESTION_TICKS: u64 = 50;
/// A tick.
const TICK: Duration = Duration::from_millis(100);
/// Headers that are not the prefill pod's: of one connection, of one body, or Envoy's own.
const NOT_FORWARDED: [&str; 13] = [
    "accept-encoding",
    "connection",
    "content-length",
    "endpoint-load-metrics-format",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    HANDOFF,
];

/// A request whose prefill is under way, or about to be.
pub struct Remote {
    /// Position of its workflow.
    workflow: usize,
    endpoint: Endpoint,
    outline: Outline,
    headers: HeaderMap,
    slots: Slots,
    /// Who prefills.
    sent: Sent,
    progress: Option<Progress>,
    /// Who is tried next.
    rest: Vec<usize>,
    secret: u128,
    learnt: String,
    /// Whether what is awaited is the answer to the protocol's question.
    is_asking: bool,
    /// The tick after which it is too late.
    deadline: u64,
    /// How many pods may be tried yet, the present one among them.
    attempts: u32,
    /// When the prefill pod was called.
    called: Duration,
    /// Whether the client's answer is to be streamed.
    streams: bool,
}

/// How a prefill pod answered.
enum Answered {
    /// It did what it was to do.
    Well,
    /// What the client sent is wrong.
    ClientError,
    /// It didn't.
    Not(Verdict),
}

impl Remote {
    /// Nothing was sent yet.
    #[expect(clippy::too_many_arguments, reason = "each is one thing, used once")]
    pub(super) fn new(
        host: &impl Host,
        fleet: &mut Fleet,
        workflow: &PrefillDecode,
        sent: Sent,
        slots: Slots,
        outline: Outline,
        endpoint: Endpoint,
        streams: bool,
    ) -> Self {
        Self {
            workflow: workflow.position,
            endpoint,
            outline,
            headers: HeaderMap::default(),
            slots,
            sent,
            progress: None,
            rest: sent.decision.fallbacks().iter().map(|pod| usize::from(*pod)).collect(),
            secret: secret(host, fleet),
            learnt: String::new(),
            is_asking: false,
            deadline: fleet.ticks().saturating_add((workflow.timeout.as_millis() / TICK.as_millis()) as u64),
            attempts: u32::try_from(workflow.attempts).unwrap_or(1),
            called: Duration::ZERO,
            streams,
        }
    }
}

/// A number that is no other request's: of this VM's life, which is no other's, its count, the clock, and the request's name, which
/// Envoy draws by chance. It names a transfer, and is no secret to the engines.
fn secret(host: &impl Host, fleet: &mut Fleet) -> u128 {
    let id = host.property(&["request", "id"]).ok().flatten().unwrap_or_default();
    let mut text = id;
    text.extend(host.now().as_nanos().to_le_bytes());
    text.extend(fleet.next_turn().to_le_bytes());
    xxh3_128_with_seed(&text, fleet.index.life().unwrap_or_default())
}

impl Stream {
    /// Calls the first prefill pod that can be called. Where the protocol wants both at once, the request goes on, too.
    pub(super) fn begin_remote(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        mut remote: Remote,
        headers: HeaderMap,
        bytes: &[u8],
    ) -> Flow {
        let Some(router) = self.router.clone() else { return Flow::Continue };
        let Some(workflow) = router.workflows().get(remote.workflow) else { return Flow::Continue };
        remote.headers = headers;
        remote.progress = Some(Progress::begin(host, fleet, &self.plugin.settings, &remote.sent, None));
        if !self.call(host, fleet, &router, workflow, &mut remote, bytes) {
            return self.step_down(host, fleet, remote, Aggregated::Failed);
        }
        if workflow.protocol.order() == Order::AtOnce && !remote.is_asking {
            return self.go_on_at_once(host, fleet, &router, workflow, remote, bytes);
        }
        self.phase = Phase::Remote;
        self.remote = Some(Box::new(remote));
        Flow::Pause
    }

    /// Calls a prefill pod: the present one, or those after it until one can be called. Says whether one was.
    fn call(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        workflow: &PrefillDecode,
        remote: &mut Remote,
        bytes: &[u8],
    ) -> bool {
        loop {
            if remote.deadline <= fleet.ticks() {
                return false;
            }
            if let Some(call) = self.try_call(host, fleet, router, workflow, remote, bytes) {
                self.pending = Some(call);
                self.plugin.sent(router, remote.sent.decision.pod, fleet.ticks());
                return true;
            }
            fleet.metrics.add(host, Metric::PrefillsUncalled, 1);
            let cluster = workflow.prefill_cluster.as_deref().unwrap_or("of the pod");
            self.complain(host, fleet, &format!("the cluster {cluster} takes no call of a prefill pod: is it there, with endpoints, and are its circuit breakers wide enough?"));
            // Each pod's own cluster tells of that pod; one for all tells of none.
            if workflow.prefill_cluster.is_none() {
                self.judge_prefill(host, fleet, router, remote, Verdict::Unreachable);
            }
            if !self.next(host, fleet, router, remote) {
                return false;
            }
        }
    }

    fn try_call(
        &self,
        host: &impl Host,
        fleet: &Fleet,
        router: &Router,
        workflow: &PrefillDecode,
        remote: &mut Remote,
        bytes: &[u8],
    ) -> Option<u32> {
        let prefill = router.pods().get(remote.sent.decision.pod)?;
        let left = remote.deadline.saturating_sub(fleet.ticks());
        // So that a pod that hangs leaves time for the next.
        let tries = u64::from(remote.attempts).min(remote.rest.len() as u64 + 1).max(1);
        let ticks = left.div_ceil(tries).max(1);
        let time = |ticks: u64| TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        let routing = &self.plugin.settings.routing;
        if let Some(question) = workflow.protocol.question(prefill) {
            let known = self.plugin.learnt(&question.address, fleet.ticks());
            remote.is_asking = known.is_none();
            match known {
                Some(known) => remote.learnt = known,
                None => {
                    let headers = [
                        (":method", "GET"),
                        (":path", question.path),
                        (":authority", question.address.as_str()),
                        (routing.header(), question.address.as_str()),
                    ];
                    let ticks = ticks.min(QUESTION_TICKS);
                    return host.call(&question.cluster, &headers, b"", time(ticks)).ok();
                }
            }
        }
        let pair = pair(router, remote, self.sent.as_ref()?, bytes)?;
        let Leg { edits, headers: own } = workflow.protocol.prefill(&pair);
        let body = pair.body.edited(router.strip(&pair.body), edits);
        let (rank, path) = (remote.sent.rank.to_string(), remote.headers.text(":path")?);
        let mut headers =
            vec![(":method", "POST"), (":path", &*path), (":authority", prefill.target.as_str())];
        if let Routing::Address { .. } = routing {
            headers.push((routing.header(), &prefill.target));
        }
        if prefill.ranks > 1 {
            headers.push((RANK_HEADER, &rank));
        }
        headers.extend(own.iter().map(|(name, value)| (*name, value.as_str())));
        forwarded(&remote.headers, workflow, &mut headers);
        remote.called = host.now();
        let cluster = workflow.prefill_cluster.as_deref().unwrap_or(&prefill.target);
        host.call(cluster, &headers, &body, time(ticks)).ok()
    }

    /// Goes over to the next prefill pod, if there is one: the present one's part is over.
    fn next(&self, host: &impl Host, fleet: &mut Fleet, router: &Rc<Router>, remote: &mut Remote) -> bool {
        end_prefill(host, fleet, remote, false);
        remote.attempts = remote.attempts.saturating_sub(1);
        if remote.rest.is_empty() || remote.attempts == 0 || remote.deadline <= fleet.ticks() {
            return false;
        }
        fleet.metrics.add(host, Metric::PrefillsRetried, 1);
        // What one pod may still hold under a name is not to be met under it by another.
        remote.secret = secret(host, fleet);
        let pod = remote.rest.remove(0);
        let slot = self.plugin.slot_of(router, pod, 0);
        let job = remote.slots.job(pod);
        let is_exact = slot.is_some_and(|slot| fleet.index.exact().contains(slot.slot));
        let record = slot.map(|slot| {
            let (deltas, record) = recorded(fleet.index.replica(), slot, &remote.slots.chain, job, is_exact);
            let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
            record
        });
        let running = slot.map(|slot| fleet.index.started(slot, job));
        let mut decision = remote.sent.decision;
        decision.pod = pod;
        let is_exact = remote.sent.by_prefix && is_exact && !remote.slots.chain.cached.is_empty();
        let began = fleet.ticks();
        remote.sent =
            Sent { decision, pod: slot, rank: 0, job, running, record, is_exact, began, ..remote.sent };
        let mut progress = Progress::begin(host, fleet, &self.plugin.settings, &remote.sent, None);
        // What is ahead of it there isn't known.
        progress.tells_no_pace();
        remote.progress = Some(progress);
        true
    }

    fn judge_prefill(
        &self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        remote: &Remote,
        verdict: Verdict,
    ) {
        let (pod, began) = (remote.sent.decision.pod, remote.sent.began);
        self.plugin.judge(host, fleet, router, pod, verdict, began);
    }

    /// The prefill pod was called, and the decode pod gets its request now.
    fn go_on_at_once(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        workflow: &PrefillDecode,
        remote: Remote,
        bytes: &[u8],
    ) -> Flow {
        let handoff = self
            .sent
            .as_ref()
            .and_then(|sent| pair(router, &remote, sent, bytes))
            .and_then(|pair| workflow.protocol.decode(&pair, b"").ok());
        let gone_on = match handoff {
            Some(Handoff::Decode(leg)) => self.hand_over(host, fleet, router, workflow, &remote, bytes, leg),
            _ => false,
        };
        if gone_on {
            self.keep(workflow, &remote, Cow::Borrowed(bytes));
        }
        self.remote = Some(Box::new(remote));
        if gone_on { Flow::Continue } else { self.fail(host, fleet, "the request could not be edited") }
    }

    /// Makes the request what the decode pod is to get, and names that pod.
    #[expect(clippy::too_many_arguments, reason = "each is one thing, used once")]
    fn hand_over(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        workflow: &PrefillDecode,
        remote: &Remote,
        bytes: &[u8],
        leg: Leg,
    ) -> bool {
        let plugin = self.plugin.clone();
        let Some(mut sent) = self.sent else { return false };
        let Some(pair) = pair(router, remote, &sent, bytes) else { return false };
        let body = pair.body.edited(router.strip(&pair.body), leg.edits);
        let mut set = host.replace_request_body(&body);
        for (name, value) in &leg.headers {
            set = set.and_then(|()| host.set_header(Headers::Request, name, value));
        }
        // Nobody but these may be tried: a handoff is no other's.
        let retries = sent.decision.fallbacks().len().to_string();
        for name in RETRY_HEADERS {
            let _ = host.remove_header(Headers::Request, name);
        }
        let set = set
            .and_then(|()| host.set_header(Headers::Request, MAX_RETRIES, &retries))
            .and_then(|()| host.set_header(Headers::Request, HANDOFF, "1"))
            .and_then(|()| {
                Executor { host, plugin: &plugin, router, without: Positions::default() }.name(fleet, &sent)
            });
        if set.is_err() {
            fleet.metrics.add(host, Metric::HostErrors, 1);
            return false;
        }
        sent.began = fleet.ticks();
        self.sent = Some(sent);
        // Where the prefill isn't done yet, the decode pod can't be blamed for saying nothing.
        if workflow.protocol.order() == Order::InTurn {
            self.watch(remote.streams);
        }
        let name = |pod: &Pod| pod.name.clone();
        let prefill = router.pods().get(remote.sent.decision.pod).map(name).unwrap_or_default();
        if let Some(profile) = router.profile(workflow.decode) {
            let state = explain::filter_state(router, profile, &sent);
            let _ = host.set_filter_state("warmpath", format!("{state} prefill={prefill}").as_bytes());
        }
        if let Some(explanation) = &mut self.explanation {
            explanation.prefill = Some(prefill);
        }
        self.ask_for_load(host, &remote.headers);
        self.phase = Phase::Decided;
        true
    }

    /// The decode pod has all that it needs: from now on it is noticed when it takes too long.
    fn watch(&mut self, streams: bool) {
        if let (Some(progress), Some(sent)) = (&mut self.progress, &self.sent) {
            progress.watch(&self.plugin.waiting, &self.plugin.settings, sent, streams);
        }
    }

    /// Keeps what it takes to start the request again at a pod that does all of it, where there are such pods.
    fn keep(&mut self, workflow: &PrefillDecode, remote: &Remote, bytes: Cow<'_, [u8]>) {
        let total = self.plugin.kept.clone();
        let after = total.get().saturating_add(bytes.len());
        if workflow.on_failure.is_none() || after > MOST_KEPT {
            return;
        }
        total.set(after);
        self.kept = Some(Kept {
            workflow: workflow.position,
            headers: remote.headers.clone(),
            body: bytes.into_owned(),
            outline: remote.outline.clone(),
            streams: remote.streams,
            total,
        });
    }

    /// No prefill pod gave a handoff: the request is to be decided anew, in one step.
    fn step_down(&mut self, host: &impl Host, fleet: &mut Fleet, remote: Remote, why: Aggregated) -> Flow {
        self.end_both(host, fleet, remote, why);
        self.again = true;
        Flow::Pause
    }

    fn end_both(&mut self, host: &impl Host, fleet: &mut Fleet, mut remote: Remote, why: Aggregated) {
        end_prefill(host, fleet, &mut remote, why == Aggregated::Nothing);
        self.withdraw(host, fleet);
        if let Some(progress) = self.progress.take() {
            progress.end(host, fleet, &self.plugin.waiting);
        }
        self.sent = None;
        self.failed = Some(why);
        self.headers = remote.headers;
    }

    /// An answer came to the call of this number.
    pub fn on_answer(&mut self, host: &impl Host, call: u32) {
        if self.pending != Some(call) {
            return;
        }
        self.pending = None;
        if self.is_answered {
            return; // Nothing can come of it any more.
        }
        if self.restart.is_some() {
            return self.on_whole(host);
        }
        let (Some(mut remote), Some(router)) = (self.remote.take(), self.router.clone()) else { return };
        let Some(workflow) = router.workflows().get(remote.workflow) else { return };
        let (plugin, endpoint) = (self.plugin.clone(), remote.endpoint);
        let flow = match plugin.fleet.try_borrow_mut() {
            Ok(mut fleet) if remote.is_asking => self.on_learnt(host, &mut fleet, &router, workflow, *remote),
            Ok(mut fleet) => {
                end_call(host, &mut fleet, workflow, &mut remote);
                self.on_prefill(host, &mut fleet, &router, workflow, *remote)
            }
            // Nobody holds it between two callbacks.
            Err(_) => explain::reject(host, 503, "the prefill's answer could not be taken"),
        };
        let again = std::mem::take(&mut self.again);
        let flow = if again { self.read(host, Content::Call(endpoint)) } else { flow };
        if flow == Flow::Continue {
            let _ = host.resume_request();
        }
    }

    /// The pod was asked what the protocol has to know of it.
    fn on_learnt(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        workflow: &PrefillDecode,
        mut remote: Remote,
    ) -> Flow {
        let settings = &self.plugin.settings;
        let question = router
            .pods()
            .get(remote.sent.decision.pod)
            .and_then(|prefill| workflow.protocol.question(prefill));
        let learnt = match status(host) {
            200 => host
                .answer_body(settings.max_body_bytes)
                .map_err(|error| error.to_string())
                .and_then(|body| workflow.protocol.learn(&body)),
            status => Err(format!("it answered with status {status}")),
        };
        let tried = match (learnt, question) {
            (Ok(learnt), Some(question)) => {
                self.plugin.learn(question.address, fleet.ticks(), learnt);
                true
            }
            (learnt, question) => {
                let address = question.map(|question| question.address).unwrap_or_default();
                let why = learnt.err().unwrap_or_default();
                self.complain(host, fleet, &format!("{address} doesn't say its engine's name: {why}"));
                fleet.metrics.add(host, Metric::PrefillsUnusable, 1);
                self.next(host, fleet, router, &mut remote)
            }
        };
        let Ok(bytes) = host.request_body(settings.max_body_bytes) else {
            return self.step_down(host, fleet, remote, Aggregated::Failed);
        };
        if !tried || !self.call(host, fleet, router, workflow, &mut remote, &bytes) {
            return self.step_down(host, fleet, remote, Aggregated::Failed);
        }
        if workflow.protocol.order() == Order::AtOnce && !remote.is_asking {
            return self.go_on_at_once(host, fleet, router, workflow, remote, &bytes);
        }
        self.remote = Some(Box::new(remote));
        Flow::Pause
    }

    /// The prefill pod answered, or didn't.
    fn on_prefill(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        workflow: &PrefillDecode,
        mut remote: Remote,
    ) -> Flow {
        let at_once = workflow.protocol.order() == Order::AtOnce;
        let most = self.plugin.settings.max_body_bytes;
        match answered(host) {
            Answered::Well => {
                self.judge_prefill(host, fleet, router, &remote, Verdict::Answer);
                let took = host.now().saturating_sub(remote.called).as_millis();
                fleet.metrics.record(host, Metric::PrefillTime, u64::try_from(took).unwrap_or(u64::MAX));
                let answer = host.answer_body(most);
                if let Ok(answer) = &answer {
                    compare(host, fleet, &remote, answer);
                }
                if at_once {
                    end_prefill(host, fleet, &mut remote, true);
                    self.watch(remote.streams);
                    return Flow::Pause;
                }
                match answer.map_err(|error| error.to_string()) {
                    Ok(answer) => self.on_handoff(host, fleet, router, workflow, remote, &answer),
                    Err(why) => self.on_unusable(host, fleet, router, remote, &why),
                }
            }
            Answered::ClientError => {
                self.judge_prefill(host, fleet, router, &remote, Verdict::Answer);
                fleet.metrics.add(host, Metric::PrefillsRefused, 1);
                end_prefill(host, fleet, &mut remote, false);
                self.pass_on(host, fleet)
            }
            Answered::Not(verdict) => {
                fleet.metrics.add(host, Metric::PrefillsFailed, 1);
                // Where both are at it, one that took too long may have waited for the other.
                if !(at_once && status(host) == TIMED_OUT) {
                    self.judge_prefill(host, fleet, router, &remote, verdict);
                }
                if at_once {
                    end_prefill(host, fleet, &mut remote, false);
                    if !self.answer.has_begun() && self.start_again(host, fleet) {
                        return Flow::Pause;
                    }
                    return self.fail(host, fleet, "prefill failed");
                }
                let Ok(bytes) = host.request_body(most) else {
                    return self.step_down(host, fleet, remote, Aggregated::Failed);
                };
                if self.next(host, fleet, router, &mut remote)
                    && self.call(host, fleet, router, workflow, &mut remote, &bytes)
                {
                    self.remote = Some(Box::new(remote));
                    return Flow::Pause;
                }
                self.step_down(host, fleet, remote, Aggregated::Failed)
            }
        }
    }

    /// The prefill pod did its part: the decode pod goes on.
    fn on_handoff(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        workflow: &PrefillDecode,
        mut remote: Remote,
        answer: &[u8],
    ) -> Flow {
        let Ok(bytes) = host.request_body(self.plugin.settings.max_body_bytes) else {
            return self.on_unusable(host, fleet, router, remote, "the request's body is gone");
        };
        let handoff = match self.sent.as_ref().and_then(|sent| pair(router, &remote, sent, &bytes)) {
            Some(pair) => workflow.protocol.decode(&pair, answer),
            None => Err("a pod is gone".to_owned()),
        };
        match handoff {
            Ok(Handoff::Decode(leg)) => {
                let gone_on = self.hand_over(host, fleet, router, workflow, &remote, &bytes, leg);
                end_prefill(host, fleet, &mut remote, true);
                if gone_on {
                    self.keep(workflow, &remote, Cow::Owned(bytes));
                    return Flow::Continue;
                }
                fleet.metrics.add(host, Metric::HandoffsLost, 1);
                self.fail(host, fleet, "the request could not be edited")
            }
            Ok(Handoff::Nothing) => self.step_down(host, fleet, remote, Aggregated::Nothing),
            Err(why) => self.on_unusable(host, fleet, router, remote, &why),
        }
    }

    /// What the prefill pod answered is none of the protocol's answers. Another would answer so, too.
    fn on_unusable(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        remote: Remote,
        why: &str,
    ) -> Flow {
        fleet.metrics.add(host, Metric::PrefillsUnusable, 1);
        let pod = router.pods().get(remote.sent.decision.pod).map_or("", |pod| pod.name.as_str());
        self.complain(host, fleet, &format!("the prefill of {pod} can't be handed over: {why}"));
        self.step_down(host, fleet, remote, Aggregated::Failed)
    }

    fn complain(&self, host: &impl Host, fleet: &Fleet, what: &str) {
        if self.plugin.complaints.may(Metric::PrefillsUnusable, fleet.ticks()) {
            host.log(Level::Warn, &format!("warmpath: {what}"));
        }
    }

    /// The client gets the prefill pod's answer, which says what is wrong with the request.
    fn pass_on(&mut self, host: &impl Host, fleet: &mut Fleet) -> Flow {
        let most = self.plugin.settings.max_body_bytes;
        let headers = host.headers(Headers::Answer).unwrap_or_default();
        let kind = headers.text("content-type").unwrap_or_default();
        let (status, body) = (status(host), host.answer_body(most).unwrap_or_default());
        let all = [("content-type", &*kind)];
        self.end(host, fleet, |host| {
            let headers = if kind.is_empty() { &all[..0] } else { &all[..] };
            host.respond(status.into(), headers, &body, "warmpath_prefill_refused").is_ok()
        })
    }

    /// The request can't be served any more.
    pub(super) fn fail(&mut self, host: &impl Host, fleet: &mut Fleet, why: &str) -> Flow {
        self.end(host, fleet, |host| explain::reject(host, 503, why) == Flow::Pause)
    }

    /// Answers the client, or breaks the answer off that has begun without a token.
    fn end<H: Host>(&mut self, host: &H, fleet: &mut Fleet, respond: impl FnOnce(&H) -> bool) -> Flow {
        if self.answer.has_body() || self.answer.is_refusal() {
            return Flow::Pause; // It has what it needs, or says itself what is wrong.
        }
        fleet.metrics.add(host, Metric::Unserved, 1);
        self.is_answered = true;
        self.withdraw(host, fleet);
        if self.phase == Phase::Remote {
            // Its decode pod has never heard of it.
            self.sent = None;
        }
        let told = !self.answer.has_begun() && respond(host);
        if !told && host.reset_request().is_err() {
            fleet.metrics.add(host, Metric::HostErrors, 1);
        }
        Flow::Pause
    }

    /// The decode pod's first token is there, or the request ended: what is known of the prefill is over.
    pub(super) fn end_remote(&mut self, host: &impl Host, fleet: &mut Fleet, is_done: bool) {
        let Some(mut remote) = self.remote.take() else { return };
        self.pending = None;
        if is_done {
            if let Some(router) = self.router.clone() {
                self.judge_prefill(host, fleet, &router, &remote, Verdict::Answer);
            }
            end_prefill(host, fleet, &mut remote, true);
            return;
        }
        if remote.is_asking {
            // Nothing was sent but a question.
            end_prefill(host, fleet, &mut remote, false);
            return;
        }
        fleet.metrics.add(host, Metric::PrefillsAbandoned, 1);
        fleet.metrics.add(host, Metric::TokensAbandoned, remote.sent.job.prefill.into());
        // The call goes on, and nobody hears of its end.
        if let Some(progress) = remote.progress.take() {
            self.plugin.orphan(host, fleet, progress, &remote.sent);
        }
    }
}

/// Adds to the headers of a call what the client sent, but for what isn't the pod's and what is set already.
pub(super) fn forwarded<'a>(
    client: &'a HeaderMap,
    workflow: &PrefillDecode,
    headers: &mut Vec<(&'a str, &'a str)>,
) {
    let ours: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
    let is_out = [&NOT_FORWARDED, workflow.protocol.own_headers(), &ours[..]];
    for (name, value) in client.iter() {
        // What isn't text can't be passed on by a call.
        let (Ok(name), Ok(value)) = (str::from_utf8(name), str::from_utf8(value)) else { continue };
        let is_envoy_s = name.starts_with(':') || name.starts_with("x-envoy-");
        if !is_envoy_s && !is_out.iter().any(|names| names.contains(&name)) {
            headers.push((name, value));
        }
    }
}

/// The two pods of a request.
fn pair<'a>(router: &'a Router, remote: &'a Remote, decode: &Sent, bytes: &'a [u8]) -> Option<Pair<'a>> {
    let pods = router.pods();
    Some(Pair {
        body: Body { endpoint: remote.endpoint, fields: Fields { bytes, outline: &remote.outline } },
        prefill: pods.get(remote.sent.decision.pod)?,
        decode: pods.get(decode.decision.pod)?,
        secret: remote.secret,
        learnt: &remote.learnt,
    })
}

/// The prefill pod is no longer at it. What it was to hold is there if it `is_done`.
fn end_prefill(host: &impl Host, fleet: &mut Fleet, remote: &mut Remote, is_done: bool) {
    if let Some(progress) = remote.progress.take() {
        progress.end_unwatched(host, fleet);
    }
    let record = remote.sent.record.take();
    if let Some(record) = record.filter(|_| !is_done) {
        withdraw(host, fleet, &record, &remote.slots.chain.hashes);
    }
}

/// The call of a prefill ended: how long it took tells of the pod's pace.
fn end_call(host: &impl Host, fleet: &mut Fleet, workflow: &PrefillDecode, remote: &mut Remote) {
    // Where both are at it, the time has the other pod's in it.
    let sign = match (status(host), workflow.protocol.order()) {
        (200, Order::InTurn) => Sign::Prefilled,
        _ => Sign::Nothing,
    };
    if let Some(progress) = &mut remote.progress {
        progress.first_token(host, fleet, sign);
    }
}

/// Holds what the prefill pod says it had in its cache against what was predicted.
fn compare(host: &impl Host, fleet: &mut Fleet, remote: &Remote, answer: &[u8]) {
    let mut tail = Tail::default();
    tail.push(answer.get(answer.len().saturating_sub(TAIL)..).unwrap_or_default());
    let (Some(usage), Some(prediction)) =
        (tail.usage(), predicted(&remote.sent, &remote.slots, remote.sent.decision.pod))
    else {
        return;
    };
    if let Some(cached) = usage.cached {
        Prediction::compare(&prediction, host, fleet, usage.prompt, cached, &remote.slots.chain.hashes);
    }
}

pub(super) fn status(host: &impl Host) -> u16 {
    let headers = host.headers(Headers::Answer).unwrap_or_default();
    headers.text(":status").and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn answered(host: &impl Host) -> Answered {
    let headers = host.headers(Headers::Answer).unwrap_or_default();
    let retry_after = headers.text("retry-after").map(|text| text.trim().parse::<u32>().ok());
    match (status(host), retry_after) {
        (200..=299, _) => Answered::Well,
        (429, seconds) => Answered::Not(Verdict::Busy(seconds.flatten())),
        (503, Some(seconds)) => Answered::Not(Verdict::Busy(seconds)),
        (408, _) => Answered::Not(Verdict::Failure),
        (400..=499, _) => Answered::ClientError,
        // A reset has no headers.
        (0, _) => Answered::Not(Verdict::BrokeOff),
        // Envoy's own bound, which says nothing of the pod.
        (503, _) if headers.get("x-envoy-overloaded").is_some() => Answered::Not(Verdict::Busy(Some(0))),
        (503, _) if unreachable_words(&host.answer_body(256).unwrap_or_default()) => {
            Answered::Not(Verdict::Unreachable)
        }
        _ => Answered::Not(Verdict::Failure),
    }
}
