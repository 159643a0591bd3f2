//! The only part of the workflow that talks to Envoy.

use super::plan::{Aggregated, PrefillDecode, Prospect, Selector};
use super::record::{self, Record};
use super::subset::Subset;
use crate::config::{Router, Via};
use crate::fleet::Fleet;
use crate::host::{Headers, Host, HostResult};
use crate::index::{Appended, BlockHash, Delta, OnUnseen, PodRef, Standing};
use crate::metrics::Metric;
use crate::pipeline::{Decision, Positions, Profile, Refused, Seen, SlotId, Slots};
use crate::places::Located;
use crate::plugin::Plugin;
use crate::pods::{Job, Running};
use std::rc::Rc;

/// By what vLLM is told the data-parallel rank that is to serve a request.
pub const RANK_HEADER: &str = "x-data-parallel-rank";
/// Filter state, after `wasm.`, in which the routing header's value is left for who sets it, and that of [`RANK_HEADER`].
pub const DESTINATION: &str = "warmpath.destination";
/// See [`DESTINATION`].
pub const RANK: &str = "warmpath.rank";
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
    /// Whether another pod prefills for it.
    pub is_handed_over: bool,
    /// Whether its prompt stays in the pod's cache.
    pub is_kept: bool,
}

/// One step of a plan under way.
pub struct Step<'a> {
    /// Chooses.
    pub selector: Selector<'a>,
    /// What was prepared for it.
    pub slots: &'a mut Slots,
}

/// How a plan of two steps ended.
#[derive(Debug)]
pub enum TwoSteps {
    /// These pods are to do it. Both count it as theirs already; no header names them yet.
    Chosen {
        /// Who prefills.
        prefill: Box<Sent>,
        /// Who decodes.
        decode: Box<Sent>,
    },
    /// It is to be served in one step.
    Aggregated(Aggregated),
    /// A strict filter left nobody to decode.
    Refused(Refused),
    /// As many requests as may be are in flight already.
    Shed(Limit),
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
    pub router: &'a Rc<Router>,
    /// Pods that are not to be taken.
    pub without: Positions,
}

impl<H: Host> Executor<'_, H> {
    /// Decides a prepared request, records the decision for the other workers, and names the pod in the routing header.
    pub fn run(&self, fleet: &mut Fleet, profile: &Profile, slots: &mut Slots) -> Outcome {
        if self.router.pods().is_empty() {
            // Nobody was found yet, while Envoy may know its endpoints well; but not who of them is in a subset.
            return match self.subset() {
                None => Outcome::Unsent,
                Some(_) => Outcome::Refused(Refused { filter: "picker", busy: false }),
            };
        }
        match self.decide(fleet, profile, slots) {
            Ok(sent) => self.send(fleet, sent),
            Err(Against::Shed(limit)) => Outcome::Shed(limit),
            Err(Against::Nobody { refused, .. }) => Outcome::Refused(refused),
            Err(Against::Aggregated(_)) => Outcome::Unsent,
        }
    }

    /// Decides and records, for who names the pod otherwise. `None` where nobody may serve it.
    pub fn place(&self, fleet: &mut Fleet, profile: &Profile, slots: &mut Slots) -> Option<Sent> {
        let mut sent = self.decide(fleet, profile, slots).ok()?;
        sent.running = sent.pod.map(|pod| fleet.index.started(pod, sent.job));
        Some(sent)
    }

    fn decide(&self, fleet: &mut Fleet, profile: &Profile, slots: &mut Slots) -> Result<Sent, Against> {
        let fallbacks = self.plugin.settings.routing.fallbacks();
        let mut step = [Step { selector: Selector { router: self.router, profile, fallbacks }, slots }];
        let standing = self.admit(fleet, &step)?;
        let mut sent = self.choose(fleet, standing, &mut step, |_, _| Ok(()))?;
        let nobody = Refused { filter: "picker", busy: false };
        sent.pop().ok_or(Against::Nobody { step: 0, refused: nobody })
    }

    /// Chooses who prefills and, in the light of that, who decodes, and records both for the other workers; or says why that
    /// isn't worth it.
    pub fn run_two(
        &self,
        fleet: &mut Fleet,
        workflow: &PrefillDecode,
        prefill: &mut Slots,
        decode: &mut Slots,
    ) -> TwoSteps {
        let profiles = (self.router.profile(workflow.prefill), self.router.profile(workflow.decode));
        let (Some(first), Some(second)) = profiles else {
            return TwoSteps::Aggregated(Aggregated::NoPrefill);
        };
        let selector = |profile, fallbacks| Selector { router: self.router, profile, fallbacks };
        let fallbacks = workflow.fallbacks(self.plugin.settings.routing.fallbacks());
        let mut steps = [
            Step { selector: selector(first, workflow.attempts.saturating_sub(1)), slots: prefill },
            Step { selector: selector(second, fallbacks), slots: decode },
        ];
        let is_worth_it = |sent: &mut [Sent], steps: &[Step<'_>]| {
            let ([prefill, decode], [first, step]) = (sent, steps) else { return Err(Aggregated::NoPrefill) };
            if prefill.decision.pod == decode.decision.pod {
                return Err(Aggregated::Same);
            }
            // Who decodes may not be who would do all of it: of that pod nothing is known yet.
            let is_same = workflow.aggregated == Some(workflow.decode);
            let prompt = first.slots.prompt_tokens().max(step.slots.prompt_tokens());
            let prospect = Prospect {
                prompt,
                uncached: if is_same { step.slots.uncached_tokens(decode.decision.pod) } else { prompt },
                alone: if is_same { decode.predicted } else { 0.0 },
                remote: prefill.predicted,
            };
            // Who can't do it alone has no choice.
            if let Some(why) = workflow.worth.against(&prospect).filter(|_| workflow.aggregated.is_some()) {
                return Err(why);
            }
            decode.job.prefill = 0;
            decode.is_kept = workflow.protocol.stays_at_decode();
            (decode.is_handed_over, decode.predicted) = (true, prefill.predicted);
            Ok(())
        };
        let mut chosen = self
            .admit(fleet, &steps)
            .and_then(|standing| self.choose(fleet, standing, &mut steps, is_worth_it));
        match chosen.as_deref_mut() {
            Ok([prefill, decode]) => {
                for sent in [&mut *prefill, &mut *decode] {
                    sent.running = sent.pod.map(|pod| fleet.index.started(pod, sent.job));
                }
                TwoSteps::Chosen { prefill: Box::new(*prefill), decode: Box::new(*decode) }
            }
            Ok(_) | Err(Against::Nobody { step: 0, .. }) => TwoSteps::Aggregated(Aggregated::NoPrefill),
            // Others than those that decode may do all of it.
            Err(Against::Nobody { .. })
                if workflow.aggregated.is_some_and(|other| other != workflow.decode) =>
            {
                TwoSteps::Aggregated(Aggregated::NoDecode)
            }
            Err(Against::Nobody { refused, .. }) => TwoSteps::Refused(*refused),
            Err(Against::Aggregated(why)) => TwoSteps::Aggregated(*why),
            Err(Against::Shed(limit)) => TwoSteps::Shed(*limit),
        }
    }

    fn subset(&self) -> Option<Subset> {
        self.plugin.settings.endpoint_picker.then(|| Subset::read(self.host)).flatten()
    }

    /// Learns what other workers wrote, as far as these steps look at it, and counts what is in flight.
    fn admit(&self, fleet: &mut Fleet, steps: &[Step<'_>]) -> Result<Standing, Against> {
        let admission = &self.plugin.settings.admission;
        let reads = |step: &Step<'_>| SHARED.iter().any(|slot| step.selector.profile.reads(*slot));
        let standing = match admission.counts(self.router.pods()) || steps.iter().any(reads) {
            true => fleet.catch_up(self.host),
            false => fleet.index.standing(),
        };
        let model = steps.first().and_then(|step| step.slots.model.as_deref());
        match admission.exceeded(&fleet.index, || self.plugin.in_flight(fleet), model) {
            Some(limit) => Err(Against::Shed(limit)),
            None => Ok(standing),
        }
    }

    /// Runs steps in their order, each of which sees the pod of the one before, and records what came out, unless `accept` is
    /// against it.
    fn choose(
        &self,
        fleet: &mut Fleet,
        standing: Standing,
        steps: &mut [Step<'_>],
        accept: impl Fn(&mut [Sent], &[Step<'_>]) -> Result<(), Aggregated>,
    ) -> Result<Vec<Sent>, Against> {
        let subset = self.subset();
        let ready = standing != Standing::Loading;
        let by_prefix =
            |step: &Step<'_>| !step.slots.chain.is_empty() && step.selector.profile.reads(SlotId::Residency);
        if standing != Standing::Exact && steps.iter().any(by_prefix) {
            fleet.metrics.add(self.host, Metric::IndexNotReady, 1);
        }
        let mut on_unseen = OnUnseen::Return;
        let mut all = Vec::with_capacity(steps.len());
        loop {
            all.clear();
            for (number, step) in steps.iter_mut().enumerate() {
                step.slots.peer = all.last().map(|sent: &Sent| sent.decision.pod);
                let by_prefix = by_prefix(step) && ready;
                // A later step takes the earlier one's pod only where there is no other.
                let mut without = self.without;
                step.slots.peer.into_iter().for_each(|peer| without.insert(peer));
                let sent = match self.select(fleet, step, subset.as_ref(), &without) {
                    Err(_) if step.slots.peer.is_some() => {
                        self.select(fleet, step, subset.as_ref(), &self.without)
                    }
                    sent => sent,
                };
                let mut sent = sent.map_err(|refused| Against::Nobody { step: number, refused })?;
                sent.by_prefix = by_prefix;
                sent.is_exact = by_prefix
                    && !step.slots.chain.cached.is_empty()
                    && sent.pod.is_some_and(|pod| fleet.index.exact().contains(pod.slot));
                all.push(sent);
            }
            accept(&mut all, steps).map_err(Against::Aggregated)?;
            if !ready {
                return Ok(all);
            }
            let mut deltas = Vec::new();
            for (step, sent) in steps.iter().zip(&mut all) {
                deltas.extend(self.deltas(fleet, step, sent));
            }
            if deltas.is_empty() {
                return Ok(all);
            }
            match fleet.index.append(self.host, &deltas, on_unseen) {
                // Another worker was first, perhaps with the same prompt: look at what it did, once.
                Appended::Unseen => {
                    on_unseen = OnUnseen::Go;
                    fleet.metrics.add(self.host, Metric::DecidedAgain, 1);
                }
                // A long chain that failed may be there in part: it is taken back like one that is there whole.
                Appended::Done | Appended::Full | Appended::Failed => return Ok(all),
            }
        }
    }

    /// Runs a step, and looks up what its pod will have to do.
    fn select(
        &self,
        fleet: &mut Fleet,
        step: &mut Step<'_>,
        subset: Option<&Subset>,
        without: &Positions,
    ) -> Result<Sent, Refused> {
        let Step { selector, slots } = step;
        let mut states = std::mem::take(&mut fleet.states);
        let speed = self.plugin.states(fleet, &mut states);
        if let Some(subset) = subset {
            for (state, pod) in states.iter_mut().zip(self.router.pods()) {
                state.outside = !subset.has(&pod.target);
            }
        }
        for position in without.iter() {
            if let Some(state) = states.get_mut(position) {
                state.outside = true;
            }
        }
        let decided = self.plugin.with_current(|current| {
            let Fleet { index, scratch, .. } = &mut *fleet;
            let engines = current.engines.as_slice();
            let located = Located { places: &current.places, index };
            let seen = Seen { states: &states, engines, speed, index: &located };
            let decision = selector.select(&seen, slots, scratch)?;
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
            is_handed_over: false,
            is_kept: true,
        })
    }

    /// What the log is to be told, noting in `sent` what may have to be taken back.
    fn deltas(&self, fleet: &Fleet, step: &Step<'_>, sent: &mut Sent) -> Vec<Delta> {
        let Some(pod) = sent.pod.filter(|_| sent.is_kept) else { return Vec::new() };
        let (profile, slots) = (step.selector.profile, &*step.slots);
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
        if self.name(fleet, &sent).is_err() {
            return Outcome::Unsent;
        }
        sent.running = sent.pod.map(|pod| fleet.index.started(pod, sent.job));
        Outcome::Sent(sent)
    }

    /// Names the pod, and its fallbacks, in the routing header, or for whoever sets it.
    pub fn name(&self, fleet: &mut Fleet, sent: &Sent) -> HostResult<()> {
        let mut destination = std::mem::take(&mut fleet.destination);
        self.router.destination(&sent.decision, &mut destination);
        let routing = &self.plugin.settings.routing;
        let set = match routing.via() {
            Via::Header => self.host.set_header(Headers::Request, routing.header(), &destination),
            Via::FilterState => self.host.set_filter_state(DESTINATION, destination.as_bytes()),
        };
        fleet.destination = destination;
        if set.is_err() {
            fleet.metrics.add(self.host, Metric::HostErrors, 1);
            return set;
        }
        let ranks = self.router.pods().get(sent.decision.pod).map_or(1, |pod| pod.ranks);
        if ranks > 1 {
            let rank = sent.rank.to_string();
            let _ = match routing.via() {
                Via::Header => self.host.set_header(Headers::Request, RANK_HEADER, &rank),
                Via::FilterState => self.host.set_filter_state(RANK, rank.as_bytes()),
            };
        }
        self.plugin.sent(self.router, sent.decision.pod, fleet.ticks());
        Ok(())
    }
}

/// Why nothing was chosen.
enum Against {
    /// A filter of a step left nobody.
    Nobody { step: usize, refused: Refused },
    /// One step will do.
    Aggregated(Aggregated),
    /// As many requests as may be are in flight already.
    Shed(Limit),
}
