//! The only part of the workflow that talks to Envoy.

use super::plan::{Known, Workflow};
use super::record::{self, Record};
use crate::fleet::Fleet;
use crate::host::{Headers, Host};
use crate::index::{Appended, BlockHash, Delta, OnUnseen, PodRef, Standing};
use crate::metrics::Metric;
use crate::pipeline::{Decision, Profile, Refused, SlotId, Slots};
use crate::plugin::{Located, Plugin};

/// By what vLLM is told the data-parallel rank that is to serve a request.
pub const RANK_HEADER: &str = "x-data-parallel-rank";

/// A request that was given a pod.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// What was decided.
    pub decision: Decision,
    /// The pod, or the cache of its rank, in the index and the ledger; `None` while it has no slot.
    pub pod: Option<PodRef>,
    /// The data-parallel rank that is asked for, where the pod has several.
    pub rank: u32,
    /// What was recorded of the request's blocks, if anything was.
    pub record: Option<Record>,
    /// The session, where the index was told that the pod serves it.
    pub session: Option<BlockHash>,
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
    /// Envoy refused the routing header: its own policy takes over.
    Unsent,
}

/// Runs plans for the streams of one plugin configuration.
pub struct Executor<'a, H: Host> {
    /// Envoy.
    pub host: &'a H,
    /// The configuration.
    pub plugin: &'a Plugin,
}

impl<H: Host> Executor<'_, H> {
    /// Decides a prepared request, records the decision for the other workers, and names the pod in the routing header.
    pub fn run(&self, fleet: &mut Fleet, profile: &Profile, slots: &mut Slots) -> Outcome {
        let plan = Workflow::single(profile);
        let looks = [SlotId::Load, SlotId::Residency, SlotId::SessionResidency];
        let standing = match looks.iter().any(|slot| profile.reads(*slot)) {
            true => fleet.catch_up(self.host),
            false => fleet.index.standing(),
        };
        let by_prefix = !slots.chain.is_empty() && profile.reads(SlotId::Residency);
        let ready = standing != Standing::Loading;
        if by_prefix && standing != Standing::Exact {
            fleet.metrics.add(self.host, Metric::IndexNotReady, 1);
        }
        let mut on_unseen = OnUnseen::Return;
        let sent = loop {
            let decision = match self.select(fleet, &plan, slots) {
                Ok(decision) => decision,
                Err(refused) => return Outcome::Refused(refused),
            };
            let rank = self.plugin.rank_of(&fleet.index, decision.pod, &slots.chain);
            let pod = self.plugin.slot_of(decision.pod, rank);
            let by_prefix = by_prefix && ready;
            let is_exact = by_prefix
                && !slots.chain.cached.is_empty()
                && pod.is_some_and(|pod| fleet.index.exact().contains(pod.slot));
            let mut sent = Sent { decision, pod, rank, record: None, session: None, by_prefix, is_exact };
            let (Some(pod), true) = (pod, ready) else { break sent };
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

    fn select(&self, fleet: &mut Fleet, plan: &Workflow<'_>, slots: &mut Slots) -> Result<Decision, Refused> {
        let mut states = std::mem::take(&mut fleet.states);
        self.plugin.states(fleet, &mut states);
        let Fleet { index, scratch, .. } = fleet;
        let known = Known {
            router: &self.plugin.router,
            states: &states,
            index: &Located { plugin: self.plugin, index },
        };
        let decision = plan.select(&known, slots, scratch);
        fleet.states = states;
        decision
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
            let (recorded, record) = record::recorded(replica, pod, &slots.chain, sent.is_exact);
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

    fn send(&self, fleet: &mut Fleet, sent: Sent) -> Outcome {
        let mut destination = std::mem::take(&mut fleet.destination);
        self.plugin.router.destination(&sent.decision, &mut destination);
        let header = self.plugin.router.settings().routing.header();
        let set = self.host.set_header(Headers::Request, header, &destination);
        fleet.destination = destination;
        if set.is_err() {
            fleet.metrics.add(self.host, Metric::HostErrors, 1);
            return Outcome::Unsent;
        }
        let ranks = self.plugin.router.pods().get(sent.decision.pod).map_or(1, |pod| pod.ranks);
        if ranks > 1 {
            let _ = self.host.set_header(Headers::Request, RANK_HEADER, &sent.rank.to_string());
        }
        if let Some(pod) = sent.pod {
            fleet.index.started(pod);
        }
        Outcome::Sent(sent)
    }
}
