//! The second half of a stream: who answered, whether what was recorded of it holds, and its end.

use super::Stream;
use crate::blocks::Chain;
use crate::config::Routing;
use crate::fleet::Fleet;
use crate::host::{Headers, Host};
use crate::index::{OnUnseen, PodRef};
use crate::metrics::Metric;
use crate::workflow::{Record, Sent, recorded, session, withdrawn};

/// What Envoy says of a response that came from upstream, whatever its status.
const VIA_UPSTREAM: &[u8] = b"via_upstream";

impl Stream {
    /// The response's headers arrived, from a pod or from Envoy itself.
    pub fn on_response_headers(&mut self, host: &impl Host) {
        if let Some(explanation) = &self.explanation {
            explanation.write(host);
        }
        let Some(sent) = self.sent else { return };
        self.answered = true;
        let status = host.header(Headers::Response, ":status").ok().flatten();
        let succeeded = status.is_some_and(|status| status.starts_with(b"2"));
        let from_pod = succeeded
            || host.property(&["response", "code_details"]).ok().flatten().as_deref() == Some(VIA_UPSTREAM);
        let served = self.served(host, sent);

        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
        if let Some(served) = served {
            if served != sent.decision.pod {
                self.moved(host, &mut fleet, sent, served);
            }
            if let Ok(mut health) = plugin.health.try_borrow_mut() {
                match from_pod {
                    true => health.answered(served),
                    false => health.failed(served, fleet.ticks()),
                }
            }
        }
        match succeeded {
            // It is in the pod's cache from now on: nothing is left to take back.
            true => self.slots.chain = Chain::default(),
            false => self.withdraw(host, &mut fleet),
        }
    }

    /// The pod that Envoy sent the request to last; `None` where it came to none of ours.
    fn served(&self, host: &impl Host, sent: Sent) -> Option<usize> {
        match self.plugin.router.settings().routing {
            // Retries go to the address of the list that is next.
            Routing::Address { .. } => {
                self.plugin.position_of(&host.property(&["upstream", "address"]).ok().flatten()?)
            }
            // They stay in the pod's own cluster.
            Routing::Cluster { .. } => Some(sent.decision.pod),
        }
    }

    /// The stream ended, however it ended.
    pub fn on_log(&mut self, host: &impl Host) {
        let plugin = self.plugin.clone();
        let Ok(mut fleet) = plugin.fleet.try_borrow_mut() else { return };
        if !self.answered {
            self.withdraw(host, &mut fleet);
        }
        if let Some(pod) = self.sent.take().and_then(|sent| sent.pod) {
            fleet.index.finished(host, pod);
        }
    }

    /// Envoy's retry took the request from its first pod to another.
    fn moved(&mut self, host: &impl Host, fleet: &mut Fleet, sent: Sent, served: usize) {
        fleet.metrics.add(host, Metric::Moved, 1);
        if let Ok(mut health) = self.plugin.health.try_borrow_mut() {
            health.failed(sent.decision.pod, fleet.ticks());
        }
        self.withdraw(host, fleet);
        if let Some(first) = sent.pod {
            fleet.index.finished(host, first);
        }
        let pod = self.plugin.slot_of(served, sent.rank).or_else(|| self.plugin.slot_of(served, 0));
        if let Some(pod) = pod {
            fleet.index.started(pod);
        }
        let record = pod.filter(|_| sent.record.is_some()).and_then(|pod| self.record_at(host, fleet, pod));
        if let (Some(pod), Some(name)) = (pod, sent.session) {
            let before: Vec<_> = sent.pod.into_iter().collect();
            let deltas = session(fleet.index.replica(), pod, &before, name);
            let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        }
        let mut decision = sent.decision;
        decision.pod = served;
        self.sent = Some(Sent { decision, pod, record, ..sent });
    }

    /// Records the chain at a pod that nobody had chosen.
    fn record_at(&self, host: &impl Host, fleet: &mut Fleet, pod: PodRef) -> Option<Record> {
        let is_exact = fleet.index.exact().contains(pod.slot);
        let (deltas, record) = recorded(fleet.index.replica(), pod, &self.slots.chain, is_exact);
        let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        Some(record)
    }

    /// Takes back what the request was to leave in its pod's cache.
    fn withdraw(&mut self, host: &impl Host, fleet: &mut Fleet) {
        let Some(record) = self.sent.as_mut().and_then(|sent| sent.record.take()) else { return };
        let deltas = withdrawn(&record, &self.slots.chain.hashes);
        if !deltas.is_empty() {
            fleet.metrics.add(host, Metric::Withdrawn, 1);
            let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
        }
    }
}
