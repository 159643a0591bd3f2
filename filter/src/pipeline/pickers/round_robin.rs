//! Each in its turn.

use crate::pipeline::decision::Order;
use crate::pipeline::part::{Built, Field, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use serde::Deserialize;
use std::cell::Cell;

/// Configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRobin {}

impl Part for RoundRobin {
    const NAME: &'static str = "round-robin";
    const STAGE: Stage = Stage::Pick;
    const DOC: &'static str = "The pod whose last turn is the longest ago in this worker; at first by chance, so that \
        workers don't march in step. Weights and scores don't count. Fallbacks are those whose turn is next.";
    const FIELDS: &'static [Field] = &[];

    fn build(self, site: &mut Site<'_>) -> Built {
        Built::Pick(Box::new(Turns { last: site.pods.iter().map(|_| Cell::new(0)).collect() }))
    }
}

/// The turn that each pod had last, counted from 1; 0 for none.
struct Turns {
    last: Vec<Cell<u64>>,
}

impl Pick for Turns {
    fn pick(&self, view: &View<'_>, among: &Positions, _scores: &[f32], rng: &mut Rng, order: &mut Order) {
        let turn = view.slots.turn.saturating_add(1);
        let mut left = *among;
        while !order.is_full() {
            let next =
                left.iter().filter_map(|pod| Some((pod, self.last.get(pod)?))).min_by_key(|(_, last)| {
                    // A request that is decided again gets the pod that it got before.
                    let age = if last.get() == turn { 0 } else { last.get().saturating_add(1) };
                    (age, rng.bits())
                });
            let Some((pod, last)) = next else { return };
            if order.as_slice().is_empty() {
                last.set(turn);
            }
            left.remove(pod);
            order.push(pod);
        }
    }
}
