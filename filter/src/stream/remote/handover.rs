//! What turns the client's request into the decode pod's, and what is kept of it in case that refuses.

use super::{Remote, With, pair};
use crate::config::Via;
use crate::explain;
use crate::fleet::Fleet;
use crate::host::{Headers, Host, HostResult};
use crate::metrics::Metric;
use crate::pipeline::Positions;
use crate::pods::Pod;
use crate::stream::restart::{Kept, MOST_KEPT};
use crate::stream::{Flow, HANDOFF, Phase, Stream};
use crate::workflow::protocol::{Handoff, Leg, Order};
use crate::workflow::{Executor, PrefillDecode};
use std::borrow::Cow;

/// Envoy's header for how often its router retries at most.
const MAX_RETRIES: &str = "x-envoy-max-retries";
/// Its headers by which it would try more often than the route says.
const RETRY_HEADERS: [&str; 2] = ["x-envoy-retry-on", "x-envoy-hedge-on-per-try-timeout"];

/// Sets what the decode pod is to get, and how often Envoy may retry.
fn set_headers(host: &impl Host, own: &[(&str, String)], retries: usize) -> HostResult<()> {
    for (name, value) in own {
        host.set_header(Headers::Request, name, value)?;
    }
    // Nobody but these may be tried: a handoff is no other's.
    allow_retries(host, retries)?;
    host.set_header(Headers::Request, HANDOFF, "1")
}

/// Bounds how often Envoy's router retries, whatever the client says.
pub(in crate::stream) fn allow_retries(host: &impl Host, retries: usize) -> HostResult<()> {
    for name in RETRY_HEADERS {
        let _ = host.remove_header(Headers::Request, name);
    }
    host.set_header(Headers::Request, MAX_RETRIES, &retries.to_string())
}

impl Stream {
    /// The prefill pod was called, and the decode pod gets its request now.
    pub(super) fn go_on_at_once(
        &mut self,
        with: With<'_, impl Host>,
        fleet: &mut Fleet,
        remote: Remote,
        bytes: &[u8],
    ) -> Flow {
        let With { host, router, workflow } = with;
        let handoff = self
            .sent
            .as_ref()
            .and_then(|sent| pair(router, &remote, sent, bytes))
            .and_then(|pair| workflow.protocol.decode(&pair, b"").ok());
        let gone_on = match handoff {
            Some(Handoff::Decode(leg)) => self.hand_over(with, fleet, &remote, bytes, leg),
            _ => false,
        };
        if gone_on {
            self.keep(workflow, &remote, Cow::Borrowed(bytes));
        }
        self.remote = Some(Box::new(remote));
        if gone_on { Flow::Continue } else { self.fail(host, fleet, "the request could not be edited") }
    }

    /// Makes the request what the decode pod is to get, and names that pod.
    pub(super) fn hand_over(
        &mut self,
        with: With<'_, impl Host>,
        fleet: &mut Fleet,
        remote: &Remote,
        bytes: &[u8],
        leg: Leg,
    ) -> bool {
        let With { host, router, workflow } = with;
        let plugin = self.plugin.clone();
        let Some(mut sent) = self.sent else { return false };
        let Some(pair) = pair(router, remote, &sent, bytes) else { return false };
        let Leg { edits, headers } = leg;
        let body = pair.body.edited(router.strip(&pair.body), edits);
        let executor = Executor { host, plugin: &plugin, router, without: Positions::default() };
        let retries = sent.decision.fallbacks().len();
        let set = self
            .replace_body(host, &body)
            .and_then(|()| match plugin.settings.routing.via() {
                Via::Header => set_headers(host, &headers, retries),
                // They went without retries.
                Via::FilterState => Ok(()),
            })
            .and_then(|()| executor.name(fleet, &sent));
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
    pub(super) fn watch(&mut self, streams: bool) {
        if let (Some(progress), Some(sent)) = (&mut self.progress, &self.sent) {
            progress.watch(&self.plugin.waiting, &self.plugin.settings, sent, streams);
        }
    }

    /// Keeps what it takes to start the request again at a pod that does all of it, where there are such pods.
    pub(super) fn keep(&mut self, workflow: &PrefillDecode, remote: &Remote, bytes: Cow<'_, [u8]>) {
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
}
