//! A request whose decode pod refused it, or whose prefill failed beside it, is started again at a pod that does all of it.
//!
//! Envoy's router is done with the request by then, so it is a call, and its answer reaches the client in one piece. That is for
//! the few that come so far; the others stream.

use super::progress::{Progress, Sign};
use super::remote::{addressed, forwarded, status};
use super::{Flow, Stream};
use crate::blocks::{BlockSize, Chain};
use crate::config::{Router, Routing};
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host};
use crate::metrics::Metric;
use crate::pipeline::{Body, Input, Slots};
use crate::pods::{Pod, Verdict};
use crate::request::Outline;
use crate::workflow::protocol;
use crate::workflow::{Executor, PrefillDecode, Sent};
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

/// How long the whole answer may take.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Longest answer: Envoy's own bound for calls.
const LONGEST: usize = 32 << 20;
/// Bytes of bodies that one plugin configuration of a VM keeps at once; who comes when it is full can't be started again.
pub(super) const MOST_KEPT: usize = 64 << 20;

/// What is needed to start a request again, until its answer begins.
pub(super) struct Kept {
    /// Position of its workflow.
    pub workflow: usize,
    /// As the client sent them.
    pub headers: HeaderMap,
    /// As the client sent it.
    pub body: Vec<u8>,
    pub outline: Outline,
    pub streams: bool,
    /// Where the bytes of all kept bodies are counted.
    pub total: Rc<std::cell::Cell<usize>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.total.set(self.total.get().saturating_sub(self.body.len()));
    }
}

/// A request that is being started again.
pub struct Restart {
    sent: Sent,
    /// By whose positions.
    router: Rc<Router>,
    progress: Option<Progress>,
}

impl Stream {
    /// Starts the request again, where its handoff was refused and that can be done. Says whether it was.
    pub(super) fn start_again(&mut self, host: &impl Host, fleet: &mut Fleet) -> bool {
        let Some(kept) = self.kept.take() else { return false };
        // Pods may have come and gone since.
        let (before, router) = (self.router.clone(), self.plugin.router());
        let Some(workflow) = router.workflows().get(kept.workflow) else { return false };
        // Who refused it may refuse it again, and counts it no longer.
        let refused = before.zip(self.sent).and_then(|(before, sent)| {
            self.plugin.now_at(&before, self.answer.served_by().unwrap_or(sent.decision.pod))
        });
        if let Some(progress) = self.progress.take() {
            progress.end(host, fleet, &self.plugin.waiting);
        }
        let by_address = matches!(self.plugin.settings.routing, Routing::Address { .. });
        let uncalled =
            |pod: &Pod| by_address && workflow.aggregated_cluster.is_none() && pod.cluster.is_none();
        let pods = router.pods().iter().enumerate();
        let uncalled = pods.filter(|(_, pod)| uncalled(pod)).map(|(position, _)| position);
        let without = refused.into_iter().chain(uncalled).collect();
        let executor = Executor { host, plugin: &self.plugin, router: &router, without };
        let Some(profile) = workflow.on_failure.and_then(|profile| router.profile(profile)) else {
            return false;
        };
        let read = AsRead { slots: &self.slots, streams: kept.streams };
        let lookup = |name: &str| kept.headers.get(name).map(Cow::into_owned);
        let mut slots = Slots::default();
        profile.prepare(&Input { header: &lookup, body: Some(&read) }, fleet.next_turn(), &mut slots);
        let Some(sent) = executor.place(fleet, profile, &mut slots) else { return false };
        let progress = Progress::begin(host, fleet, &self.plugin.settings, &sent, slots.model.as_deref());
        let call = self.call_whole(host, &router, workflow, &kept, &sent);
        if call.is_some() {
            self.plugin.sent(&router, sent.decision.pod, fleet.ticks());
            fleet.metrics.add(host, Metric::StartedAgain, 1);
        }
        self.pending = call;
        self.restart = Some(Restart { sent, router, progress: Some(progress) });
        if call.is_none() {
            self.end_restart(host, fleet, false);
        }
        call.is_some()
    }

    fn call_whole(
        &self,
        host: &impl Host,
        router: &Router,
        workflow: &PrefillDecode,
        kept: &Kept,
        sent: &Sent,
    ) -> Option<u32> {
        let pod = router.pods().get(sent.decision.pod)?;
        let routing = &self.plugin.settings.routing;
        let (path, rank) = (kept.headers.text(":path")?, sent.rank.to_string());
        let cluster = match routing {
            Routing::Address { .. } => workflow.aggregated_cluster.as_deref().or(pod.cluster.as_deref())?,
            Routing::Cluster { .. } => pod.target.as_str(),
        };
        let mut headers = addressed(routing, pod, &rank, &path);
        forwarded(&kept.headers, workflow, &mut headers);
        let fields = protocol::Fields { bytes: &kept.body, outline: &kept.outline };
        let stripped = fields.edited(router.strip(&fields), Vec::new());
        host.call(cluster, &headers, &stripped, TIMEOUT).ok()
    }

    /// The pod that did all of it answered, or didn't.
    pub(super) fn on_whole(&mut self, host: &impl Host) {
        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
        let status = status(host);
        let is_good = (200..500).contains(&status);
        if let Some(Restart { sent, router, .. }) = &self.restart {
            let verdict = if is_good { Verdict::Answer } else { Verdict::Failure };
            plugin.judge(host, &mut fleet, router, sent.decision.pod, verdict, sent.began);
        }
        self.end_restart(host, &mut fleet, is_good);
        let kind = host.headers(Headers::Answer).unwrap_or_default();
        let kind = kind.text("content-type").unwrap_or(Cow::Borrowed("application/json"));
        let told = is_good
            && host.answer_body(LONGEST).is_ok_and(|body| {
                let headers = [("content-type", &*kind)];
                host.respond(status.into(), &headers, &body, "warmpath_started_again").is_ok()
            });
        match told {
            true => self.is_answered = true,
            // The client gets the answer that was held back.
            false if self.answer.has_begun() => {
                if self.answer.may_go_on() && host.resume_response().is_err() {
                    let _ = host.reset_request();
                }
            }
            // The decode pod waits for a prefill that has failed.
            false => drop(self.fail(host, &mut fleet, "prefill failed")),
        }
    }

    /// Nobody waits for what was started again. The call goes on.
    pub(super) fn leave_restart(&mut self, host: &impl Host, fleet: &mut Fleet) {
        if let Some(mut restart) = self.restart.take()
            && let Some(progress) = restart.progress.take()
        {
            self.plugin.orphan(host, fleet, progress, &restart.sent);
        }
    }

    /// What was started again is over.
    pub(super) fn end_restart(&mut self, host: &impl Host, fleet: &mut Fleet, is_done: bool) {
        let Some(mut restart) = self.restart.take() else { return };
        if let Some(mut progress) = restart.progress.take() {
            if is_done {
                progress.first_token(host, fleet, Sign::Nothing);
            }
            progress.end_unwatched(host, fleet);
        }
        if !is_done {
            self.withdraw_of(host, fleet, restart.sent.record);
        }
    }

    /// Whether an answer is held back for one that is awaited.
    pub(super) fn holds_back(&self) -> Flow {
        if self.restart.is_some() { Flow::Pause } else { Flow::Continue }
    }
}

/// A request of which only what was prepared is left.
struct AsRead<'a> {
    slots: &'a Slots,
    streams: bool,
}

impl Body for AsRead<'_> {
    fn model(&self) -> Option<&str> {
        self.slots.model.as_deref()
    }

    fn user(&self) -> Option<&str> {
        None
    }

    fn chain(&self, _size: BlockSize) -> Chain {
        self.slots.chain.clone()
    }

    fn streams(&self) -> bool {
        self.streams
    }

    fn block_tokens(&self, _size: BlockSize) -> f32 {
        self.slots.block_tokens
    }
}
