//! The only part of the workflow that talks to Envoy.

use super::plan::Workflow;
use super::record::{self, Record};
use crate::config::Router;
use crate::fleet::Fleet;
use crate::host::{Headers, Host};
use crate::index::{Appended, BlockHash, Delta, OnUnseen, PodRef, Standing};
use crate::metrics::Metric;
use crate::pipeline::{Decision, Profile, Refused, Seen, SlotId, Slots};
use crate::places::Located;
use crate::plugin::Plugin;
use crate::pods::{Job, Running};

/// By what vLLM is told the data-parallel rank that is to serve a request.
pub const RANK_HEADER: &str = "x-data-parallel-rank";
/// Where the endpoint picker protocol has a subset of endpoints: namespace and key of dynamic metadata.
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Slots that are of no use without what other workers wrote.
const SHARED: [SlotId; 5] =
    [SlotId::Load, SlotId::Work, SlotId::Pace, SlotId::Residency, SlotId::SessionResidency];

/// A request that was given a pod.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// What was decided.
    pub decision: Decision,
    /// The pod, or the cache of its rank, in the index and the ledger; `None` while it has no slot.
    pub pod: Option<PodRef>,
    /// The data-parallel rank that is asked for, where the pod has several.
    pub rank: u32,
    /// What the pod has to do for it.
    pub job: Job,
    /// Tokens that it has to prefill before.
    pub ahead: u32,
    /// Seconds that it is thought to take to the first token.
    pub predicted: f32,
    /// The request in the ledger; `None` while the pod has no slot.
    pub running: Option<Running>,
    /// What was recorded of the request's blocks, if anything was.
    pub record: Option<Record>,
    /// The session, where the index was told that the pod serves it.
    pub session: Option<BlockHash>,
    /// The tick at which it was sent.
    pub began: u64,
    /// The log's clock at that time.
    pub clock: u32,
    /// Whether the prompt took part in the decision.
    pub by_prefix: bool,
    /// Whether the pod says itself what it holds, and was asked for the prompt's own blocks.
    pub is_exact: bool,
}

/// How it ended.
#[derive(Debug)]
pub enum Outcome {
    /// The routing header names the pod.
    Sent(Sent),
    /// A strict filter left nobody.
    Refused(Refused),
    /// As many requests as may be are in flight already.
    Shed(Limit),
    /// Envoy refused the routing header: its own policy takes over.
    Unsent,
}

/// What is not to be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `admission.max_in_flight`.
    Total(u32),
    /// One of `admission.models`.
    Model(u32),
}

/// Runs plans for the streams of one plugin configuration.
pub struct Executor<'a, H: Host> {
    /// Envoy.
    pub host: &'a H,
    /// The configuration.
    pub plugin: &'a Plugin,
    /// What decides.
    pub router: &'a Router,
}

impl<H: Host> Executor<'_, H> {
    /// Decides a prepared request, records the decision for the other workers, and names the pod in the routing header.
    pub fn run(&self, fleet: &mut Fleet, profile: &Profile, slots: &mut Slots) -> Outcome {
        if self.router.pods().is_empty() {
            // Nobody was found yet, while Envoy may know its endpoints well.
            return Outcome::Unsent;
        }
        let plan = Workflow::single(self.router, profile);
        let admission = &self.plugin.settings.admission;
        let standing =
            match admission.counts(self.router.pods()) || SHARED.iter().any(|slot| profile.reads(*slot)) {
                true => fleet.catch_up(self.host),
                false => fleet.index.standing(),
            };
        if let Some(limit) =
            admission.exceeded(&fleet.index, || self.plugin.in_flight(fleet), slots.model.as_deref())
        {
            return Outcome::Shed(limit);
        }
        let subset = self.subset();
        let by_prefix = !slots.chain.is_empty() && profile.reads(SlotId::Residency);
        let ready = standing != Standing::Loading;
        if by_prefix && standing != Standing::Exact {
            fleet.metrics.add(self.host, Metric::IndexNotReady, 1);
        }
        let mut on_unseen = OnUnseen::Return;
        let sent = loop {
            let mut sent = match self.select(fleet, &plan, subset.as_deref(), slots) {
                Ok(sent) => sent,
                Err(refused) => return Outcome::Refused(refused),
            };
            sent.by_prefix = by_prefix && ready;
            sent.is_exact = sent.by_prefix
                && !slots.chain.cached.is_empty()
                && sent.pod.is_some_and(|pod| fleet.index.exact().contains(pod.slot));
            let (Some(pod), true) = (sent.pod, ready) else { break sent };
            let deltas = self.deltas(fleet, profile, slots, pod, &mut sent);
            if deltas.is_empty() {
                break sent;
            }
            match fleet.index.append(self.host, &deltas, on_unseen) {
                // Another worker was first, perhaps with the same prompt: look at what it did, once.
                Appended::Unseen => {
                    on_unseen = OnUnseen::Go;
                    fleet.metrics.add(self.host, Metric::DecidedAgain, 1);
                }
                // A long chain that failed may be there in part: it is taken back like one that is there whole.
                Appended::Done | Appended::Full | Appended::Failed => break sent,
            }
        };
        self.send(fleet, sent)
    }

    /// The addresses that the gateway leaves to choose from, where it says so: in metadata, which no client can set.
    fn subset(&self) -> Option<String> {
        if !self.plugin.settings.endpoint_picker {
            return None;
        }
        let subset =
            self.host.property(&["metadata", "filter_metadata", SUBSET_NAMESPACE, SUBSET]).ok()??;
        String::from_utf8(subset).ok().filter(|subset| !subset.trim().is_empty())
    }

    /// Runs the plan, and looks up what its pod will have to do.
    fn select(
        &self,
        fleet: &mut Fleet,
        plan: &Workflow<'_>,
        subset: Option<&str>,
        slots: &mut Slots,
    ) -> Result<Sent, Refused> {
        let mut states = std::mem::take(&mut fleet.states);
        let speed = self.plugin.states(fleet, &mut states);
        if let Some(subset) = subset {
            let is_in = |target: &str| subset.split(',').any(|one| one.trim() == target);
            for (state, pod) in states.iter_mut().zip(self.router.pods()) {
                state.outside = !is_in(&pod.target);
            }
        }
        let decided = self.plugin.with_current(|current| {
            let Fleet { index, scratch, .. } = &mut *fleet;
            let engines = current.engines.as_slice();
            let located = Located { places: &current.places, index };
            let seen = Seen { states: &states, engines, speed, index: &located };
            let decision = plan.select(&seen, slots, scratch)?;
            let rank = current.places.rank_of(index, decision.pod, &slots.chain);
            Ok((decision, rank, current.places.slot_of(decision.pod, rank)))
        });
        let nobody = Refused { filter: "picker", busy: false };
        let (decision, rank, pod) = decided.unwrap_or(Err(nobody))?;
        let state = states.get(decision.pod).copied().unwrap_or_default();
        fleet.states = states;
        let (job, ahead) = (slots.job(decision.pod), state.prefill);
        let tokens = ahead.saturating_add(job.prefill);
        let wall = u32::try_from(self.host.now().as_secs()).unwrap_or(u32::MAX);
        let predicted = state.slowness * speed.seconds(tokens as f32);
        Ok(Sent {
            decision,
            pod,
            rank,
            job,
            ahead,
            predicted,
            running: None,
            record: None,
            session: None,
            began: fleet.ticks(),
            clock: fleet.index.replica().clock_at(wall),
            by_prefix: false,
            is_exact: false,
        })
    }

    /// What the log is to be told, noting in `sent` what may have to be taken back.
    fn deltas(
        &self,
        fleet: &Fleet,
        profile: &Profile,
        slots: &Slots,
        pod: PodRef,
        sent: &mut Sent,
    ) -> Vec<Delta> {
        let replica = fleet.index.replica();
        let decision = &sent.decision;
        let mut deltas = Vec::new();
        if profile.reads(SlotId::Residency) && !slots.chain.is_empty() {
            let (recorded, record) = record::recorded(replica, pod, &slots.chain, sent.job, sent.is_exact);
            deltas = recorded;
            sent.record = Some(record);
        }
        if let (true, Some(session)) = (profile.reads(SlotId::SessionResidency), slots.session) {
            let others = slots.session_pods.iter().filter(|position| *position != decision.pod);
            let others: Vec<_> = others.flat_map(|position| self.plugin.slots_of(position)).collect();
            deltas.extend(record::session(replica, pod, &others, session));
            sent.session = Some(session);
        }
        deltas
    }

    fn send(&self, fleet: &mut Fleet, mut sent: Sent) -> Outcome {
        let mut destination = std::mem::take(&mut fleet.destination);
        self.router.destination(&sent.decision, &mut destination);
        let settings = &self.plugin.settings;
        let set = self.host.set_header(Headers::Request, settings.routing.header(), &destination);
        fleet.destination = destination;
        if set.is_err() {
            fleet.metrics.add(self.host, Metric::HostErrors, 1);
            return Outcome::Unsent;
        }
        let ranks = self.router.pods().get(sent.decision.pod).map_or(1, |pod| pod.ranks);
        if ranks > 1 {
            let _ = self.host.set_header(Headers::Request, RANK_HEADER, &sent.rank.to_string());
        }
        sent.running = sent.pod.map(|pod| fleet.index.started(pod, sent.job));
        self.plugin.sent(sent.decision.pod, fleet.ticks());
        Outcome::Sent(sent)
    }
}
