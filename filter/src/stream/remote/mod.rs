//! The two steps of one request: a prefill pod is called, and the request goes on to its decode pod, with what that answered or
//! at once.
//!
//! However it goes, the client gets one answer: from the decode pod; from the prefill pod, where that refused what the client
//! sent; from a pod that did all, where prefill failed; or an error that says so.

mod answer;
mod call;
mod handover;

pub(super) use call::{TIMED_OUT, addressed, forwarded, status};
pub(super) use handover::allow_retries;

use super::progress::Progress;
use super::response::withdraw;
use super::{Flow, Phase, Stream};
use crate::config::Router;
use crate::explain;
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Host};
use crate::metrics::Metric;
use crate::pipeline::Slots;
use crate::pods::Verdict;
use crate::request::{Endpoint, Outline};
use crate::workflow::protocol::{Body, Fields, Order, Pair};
use crate::workflow::{Aggregated, PrefillDecode, Sent};
use std::rc::Rc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// A tick.
const TICK: Duration = Duration::from_millis(100);

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

/// What all of it is done with: Envoy, who is named by position, and the plan.
struct With<'a, H: Host> {
    host: &'a H,
    router: &'a Rc<Router>,
    workflow: &'a PrefillDecode,
}

impl<H: Host> Clone for With<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for With<'_, H> {}

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
        let router = self.router.clone();
        let found =
            router.as_ref().and_then(|router| Some((router, router.workflows().get(remote.workflow)?)));
        let Some((router, workflow)) = found else {
            // Never as it came: the client's own fields are in it yet.
            return self.fail(host, fleet, "its workflow is gone");
        };
        let with = With { host, router, workflow };
        remote.headers = headers;
        remote.progress = Some(Progress::begin(host, fleet, &self.plugin.settings, &remote.sent, None));
        if !self.call(with, fleet, &mut remote, bytes) {
            return self.step_down(host, fleet, remote, Aggregated::Failed);
        }
        if workflow.protocol.order() == Order::AtOnce && !remote.is_asking {
            return self.go_on_at_once(with, fleet, remote, bytes);
        }
        self.phase = Phase::Remote;
        self.remote = Some(Box::new(remote));
        Flow::Pause
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

    /// No prefill pod gave a handoff: the request is to be decided anew, in one step.
    fn step_down(
        &mut self,
        host: &impl Host,
        fleet: &mut Fleet,
        mut remote: Remote,
        why: Aggregated,
    ) -> Flow {
        end_prefill(host, fleet, &mut remote, why == Aggregated::Nothing);
        self.withdraw(host, fleet);
        if let Some(progress) = self.progress.take() {
            progress.end(host, fleet, &self.plugin.waiting);
        }
        self.sent = None;
        self.failed = Some(why);
        self.headers = remote.headers;
        self.again = true;
        Flow::Pause
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
