//! Each in its turn.

use super::smallest::smallest;
use crate::pipeline::decision::Order;
use crate::pipeline::part::{Built, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use schemars::JsonSchema;
use serde::Deserialize;
use std::cell::Cell;

/// The pod whose last turn is the longest ago in this worker; at first by chance, so that workers don't march in step. Weights
/// and scores don't count. Fallbacks are those whose turn is next.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoundRobin {}

impl Part for RoundRobin {
    const NAME: &'static str = "round-robin";
    const STAGE: Stage = Stage::Pick;

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
        let last_turn = |pod: usize| self.last.get(pod).map_or(0, Cell::get);
        smallest(among, order, |pod| {
            // A request that is decided again gets the pod that it got before.
            let last = last_turn(pod);
            (if last == turn { 0 } else { last.saturating_add(1) }, rng.bits())
        });
        let chosen = order.as_slice().first().and_then(|pod| self.last.get(usize::from(*pod)));
        if let Some(last) = chosen {
            last.set(turn);
        }
    }
}
