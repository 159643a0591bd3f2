//! A request that another pod served than the one that it was sent to.

use super::Stream;
use crate::config::Via;
use crate::fleet::Fleet;
use crate::host::{Host, Level};
use crate::index::{OnUnseen, PodRef};
use crate::metrics::Metric;
use crate::pods::Verdict;
use crate::workflow::{DESTINATION, Record, Sent, recorded, session};

impl Stream {
    /// Envoy took the request from its first pod to another.
    pub(super) fn moved(&mut self, host: &impl Host, fleet: &mut Fleet, sent: Sent, served: usize) {
        fleet.metrics.add(host, Metric::Moved, 1);
        let is_astray = attempts(host) == Some(1);
        if is_astray {
            self.astray(host, fleet, sent, served);
        }
        // A pod that isn't there leaves its requests to the next. Whoever goes anywhere was never told of it.
        let next = sent.decision.fallbacks().first().map(|pod| usize::from(*pod));
        if !is_astray || next == Some(served) {
            self.judge(host, fleet, sent.decision.pod, Verdict::BrokeOff);
        }
        self.withdraw(host, fleet);
        let pod = self.router.as_ref().and_then(|router| self.plugin.slot_of(router, served, sent.rank));
        let mut job = self.slots.job(served);
        if sent.is_handed_over {
            job.prefill = 0;
        }
        let record = pod.filter(|_| sent.record.is_some()).and_then(|pod| self.record_at(host, fleet, pod));
        if let Some(progress) = &mut self.progress {
            progress.moved(host, fleet, &self.plugin.waiting, pod, job);
        }
        if let (Some(pod), Some(name)) = (pod, sent.session) {
            let before: Vec<_> = sent.pod.into_iter().collect();
            let deltas = session(fleet.index.replica(), pod, &before, name);
            let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        }
        let mut decision = sent.decision;
        decision.pod = served;
        self.sent = Some(Sent { decision, pod, job, record, ..sent });
    }

    /// Envoy never tried the pod that was named.
    fn astray(&self, host: &impl Host, fleet: &Fleet, sent: Sent, served: usize) {
        fleet.metrics.add(host, Metric::Astray, 1);
        let pods = self.router.as_ref().map(|router| router.pods()).unwrap_or_default();
        let (Some(meant), Some(served)) = (pods.get(sent.decision.pod), pods.get(served)) else { return };
        if !self.plugin.complaints.may(Metric::Astray, fleet.ticks()) {
            return;
        }
        let routing = &self.plugin.settings.routing;
        let header = routing.header();
        let or = match routing.via() {
            Via::Header => format!("has no override_host that reads the header {header}"),
            Via::FilterState => format!(
                "got its request before the choice was made: behind Warmpath must stand a buffer filter, and what sets {header} to \
                 %FILTER_STATE(wasm.{DESTINATION}:PLAIN)%"
            ),
        };
        let (meant, target, served) = (&meant.name, &meant.target, &served.name);
        let text = format!(
            "warmpath: a request for the pod {meant} went to {served} at once: its cluster lacks the endpoint {target}, or {or}"
        );
        host.log(Level::Warn, &text);
    }

    /// Records the chain at a pod that nobody had chosen.
    fn record_at(&self, host: &impl Host, fleet: &mut Fleet, pod: PodRef) -> Option<Record> {
        let is_exact = fleet.index.exact().contains(pod.slot);
        let job = Default::default();
        let (deltas, record) = recorded(fleet.index.replica(), pod, &self.slots.chain, job, is_exact);
        let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        Some(record)
    }
}

/// How often Envoy tried to have the request answered, where it says so.
fn attempts(host: &impl Host) -> Option<u64> {
    let count = host.property(&["upstream", "request_attempt_count"]).ok().flatten()?;
    Some(u64::from_le_bytes(count.try_into().ok()?))
}
