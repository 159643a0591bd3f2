//! Calls of prefill pods: who is called, with what, and how it answered.

use super::{Remote, TICK, With, end_prefill, pair, secret};
use crate::config::{Router, Routing};
use crate::fleet::Fleet;
use crate::host::{HeaderMap, Headers, Host};
use crate::index::OnUnseen;
use crate::metrics::Metric;
use crate::pods::{Pod, Verdict};
use crate::stream::progress::Progress;
use crate::stream::response::unreachable_words;
use crate::stream::{HANDOFF, Stream};
use crate::workflow::protocol::Leg;
use crate::workflow::{PrefillDecode, RANK_HEADER, Sent, recorded};
use std::rc::Rc;

/// What Envoy answers for a call that took too long.
pub(in crate::stream) const TIMED_OUT: u16 = 504;
/// Longest time for a protocol's question: five seconds.
const QUESTION_TICKS: u64 = 50;
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

/// How a prefill pod answered.
pub(super) enum Answered {
    /// It did what it was to do.
    Well,
    /// What the client sent is wrong.
    ClientError,
    /// It didn't.
    Not(Verdict),
}

impl Stream {
    /// Calls a prefill pod: the present one, or those after it until one can be called. Says whether one was.
    pub(super) fn call(
        &mut self,
        with: With<'_, impl Host>,
        fleet: &mut Fleet,
        remote: &mut Remote,
        bytes: &[u8],
    ) -> bool {
        let With { host, router, workflow } = with;
        loop {
            if remote.deadline <= fleet.ticks() {
                return false;
            }
            if let Some(call) = self.try_call(with, fleet, remote, bytes) {
                self.pending = Some(call);
                self.plugin.sent(router, remote.sent.decision.pod, fleet.ticks());
                return true;
            }
            fleet.metrics.add(host, Metric::PrefillsUncalled, 1);
            let pod = router.pods().get(remote.sent.decision.pod);
            let question = pod.filter(|_| remote.is_asking).and_then(|pod| workflow.protocol.question(pod));
            let own = pod.map(|pod| pod.called_by(workflow.prefill_cluster.as_deref())).unwrap_or_default();
            let cluster = question.as_ref().map_or(own, |question| question.cluster.as_str());
            self.complain(host, fleet, &format!("the cluster {cluster} takes no call of a prefill pod: is it there, with endpoints, and are its circuit breakers wide enough?"));
            // A pod that is a cluster is told of by it; one that has others, too, tells of none.
            if pod.is_some_and(|pod| pod.target == cluster) {
                self.judge_prefill(host, fleet, router, remote, Verdict::Unreachable);
            }
            if !self.next(host, fleet, router, remote) {
                return false;
            }
        }
    }

    fn try_call(
        &self,
        with: With<'_, impl Host>,
        fleet: &Fleet,
        remote: &mut Remote,
        bytes: &[u8],
    ) -> Option<u32> {
        let With { host, router, workflow } = with;
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
        let mut headers = addressed(routing, prefill, &rank, &path);
        headers.extend(own.iter().map(|(name, value)| (*name, value.as_str())));
        forwarded(&remote.headers, workflow, &mut headers);
        remote.called = host.now();
        let cluster = prefill.called_by(workflow.prefill_cluster.as_deref());
        host.call(cluster, &headers, &body, time(ticks)).ok()
    }

    /// Goes over to the next prefill pod, if there is one: the present one's part is over.
    pub(super) fn next(
        &self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        remote: &mut Remote,
    ) -> bool {
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
}

/// The headers that bring a call to a pod, and to one of its ranks.
pub(in crate::stream) fn addressed<'a>(
    routing: &'a Routing,
    pod: &'a Pod,
    rank: &'a str,
    path: &'a str,
) -> Vec<(&'a str, &'a str)> {
    let mut headers = vec![(":method", "POST"), (":path", path), (":authority", pod.target.as_str())];
    if let Routing::Address { .. } = routing {
        headers.push((routing.header(), &pod.target));
    }
    if pod.ranks > 1 {
        headers.push((RANK_HEADER, rank));
    }
    headers
}

/// Adds to the headers of a call what the client sent, but for what isn't the pod's and what is set already.
pub(in crate::stream) fn forwarded<'a>(
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

pub(in crate::stream) fn status(host: &impl Host) -> u16 {
    let headers = host.headers(Headers::Answer).unwrap_or_default();
    headers.text(":status").and_then(|status| status.parse().ok()).unwrap_or(0)
}

pub(super) fn answered(host: &impl Host) -> Answered {
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
