//! A profile: parts in their order, and a decision by them.

use super::decision::{Decision, Order, Refused};
use super::part::{Filter, Input, Pick, PodState, Prepare, Score, View};
use super::positions::Positions;
use super::residency::Residency;
use super::rng::Rng;
use super::slots::{SlotId, Slots};
use crate::pods::{Engine, Pod, Speed};

/// A checked and built profile. Its parts read only slots that earlier ones write.
pub struct Profile {
    pub(super) name: String,
    pub(super) prepare: Vec<PrepareStep>,
    pub(super) filters: Vec<FilterStep>,
    pub(super) scorers: Vec<ScoreStep>,
    pub(super) picker: Box<dyn Pick>,
    /// What its parts read, as configured.
    pub(super) reads: Vec<SlotId>,
}

pub(super) struct PrepareStep {
    pub part: Box<dyn Prepare>,
    /// Does a later part read what this one learns from the index?
    pub locate: bool,
}

pub(super) struct FilterStep {
    pub name: &'static str,
    pub part: Box<dyn Filter>,
    pub strict: bool,
}

pub(super) struct ScoreStep {
    pub name: &'static str,
    pub part: Box<dyn Score>,
    pub weight: f32,
}

/// What a decision looks at besides the request.
pub struct World<'a> {
    /// The configured pods.
    pub pods: &'a [Pod],
    /// What is known now.
    pub seen: &'a Seen<'a>,
    /// How many fallbacks are wanted.
    pub fallbacks: usize,
}

/// What is known at one moment. Slices are by position.
pub struct Seen<'a> {
    /// What is known of each pod; of the same length as the pods.
    pub states: &'a [PodState],
    /// What engines said of themselves lately; may be shorter.
    pub engines: &'a [Option<Engine>],
    /// How long first tokens take.
    pub speed: Speed,
    /// Who holds what.
    pub index: &'a dyn Residency,
}

/// Buffers and chance, kept from decision to decision. One for each VM.
pub struct Scratch {
    rng: Rng,
    load: Vec<f32>,
    totals: Vec<f32>,
    /// One row of scores a scorer.
    rows: Vec<f32>,
}

impl Scratch {
    /// Seed each VM differently.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), load: Vec::new(), totals: Vec::new(), rows: Vec::new() }
    }
}

impl Profile {
    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Must the body be read before this profile decides? One that needn't never makes a request wait.
    pub fn needs_body(&self) -> bool {
        self.reads(SlotId::Body)
    }

    /// Does a part of it read this slot?
    pub fn reads(&self, slot: SlotId) -> bool {
        self.reads.contains(&slot)
    }

    /// Fills the slots that depend on the request alone. After it, body and headers are not needed again.
    pub fn prepare(&self, input: &Input<'_>, turn: u64, slots: &mut Slots) {
        slots.clear();
        slots.turn = turn;
        slots.model = input.body.and_then(|body| body.model()).map(str::to_owned);
        for step in &self.prepare {
            step.part.prepare(input, slots);
        }
    }

    /// Chooses a pod by what is known now. May be asked again about the same slots when more is known.
    pub fn decide(
        &self,
        world: &World<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
    ) -> Result<Decision, Refused> {
        let Seen { states, engines, speed, index } = *world.seen;
        slots.residency.clear();
        slots.session_pods = Positions::default();
        for step in self.prepare.iter().filter(|step| step.locate) {
            step.part.locate(slots, index);
        }
        let Scratch { rng, load, totals, rows } = scratch;
        let count = world.pods.len().min(states.len());
        load.clear();
        load.extend(
            world
                .pods
                .iter()
                .zip(states)
                .map(|(pod, state)| state.in_flight as f32 / (pod.weight * state.share)),
        );
        let view = View { pods: world.pods, states, engines, speed, load, slots };

        let mut among = admitted(states, count)?;
        let mut relaxed = 0_u32;
        for (i, step) in self.filters.iter().enumerate() {
            let mut kept = among;
            step.part.filter(&view, &mut kept);
            if !kept.is_empty() {
                among = kept;
            } else if step.strict {
                return Err(Refused {
                    filter: step.name,
                    busy: step.part.is_about_load() && !among.is_empty(),
                });
            } else {
                relaxed |= 1_u32.checked_shl(i as u32).unwrap_or(0);
            }
        }

        totals.clear();
        totals.resize(count, 0.0);
        rows.clear();
        rows.resize(count * self.scorers.len(), 0.0);
        for (step, row) in self.scorers.iter().zip(rows.chunks_exact_mut(count.max(1))) {
            step.part.score(&view, &among, row);
            for (total, score) in totals.iter_mut().zip(row) {
                *score = if *score > 0.0 { score.min(1.0) } else { 0.0 };
                *total += step.weight * *score;
            }
        }

        let mut order = Order::new(world.fallbacks);
        self.picker.pick(&view, &among, totals, rng, &mut order);
        let pod = order.as_slice().first().map(|pod| usize::from(*pod));
        let pod = pod.ok_or(Refused { filter: "picker", busy: false })?;
        Ok(Decision {
            pod,
            order,
            matched: view.slots.residency.depth(pod),
            blocks: view.slots.chain.blocks(),
            score: totals.get(pod).copied().unwrap_or(0.0),
            relaxed,
        })
    }

    /// The scores that a pod got in the last decision with this scratch: name of the scorer, its weight, and the score.
    pub fn scores<'a>(
        &'a self,
        scratch: &'a Scratch,
        pod: usize,
    ) -> impl Iterator<Item = (&'static str, f32, f32)> + 'a {
        let rows = scratch.rows.chunks_exact(scratch.totals.len().max(1));
        self.scorers
            .iter()
            .zip(rows)
            .map(move |(step, row)| (step.name, step.weight, row.get(pod).copied().unwrap_or(0.0)))
    }

    /// Names of the filters that [`Decision::relaxed`] tells of.
    pub fn relaxed(&self, decision: &Decision) -> impl Iterator<Item = &'static str> {
        let bits = decision.relaxed;
        self.filters
            .iter()
            .enumerate()
            .filter(move |(i, _)| bits >> (*i).min(31) & 1 == 1)
            .map(|(_, step)| step.name)
    }
}

/// The pods that have room. A pod that doesn't answer is no room while others, which are full, do.
fn admitted(states: &[PodState], count: usize) -> Result<Positions, Refused> {
    let mut among = Positions::first(count);
    let (mut room, mut full, mut any_full) = (false, false, false);
    for (i, state) in states.iter().enumerate().take(count) {
        if state.outside {
            among.remove(i);
            continue;
        }
        match state.full {
            true => among.remove(i),
            false => room |= state.healthy,
        }
        full |= state.full && state.healthy;
        any_full |= state.full;
    }
    if full && !room || any_full && among.is_empty() {
        Err(Refused { filter: "max_in_flight", busy: true })
    } else {
        Ok(among)
    }
}
