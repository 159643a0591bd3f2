//! The best score.

use crate::pipeline::decision::{MAX_FALLBACKS, Order};
use crate::pipeline::part::{Built, Field, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use crate::pipeline::slots::SlotId;
use serde::Deserialize;

/// Configuration, and the picker itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {}

impl Part for Best {
    const NAME: &'static str = "best";
    const STAGE: Stage = Stage::Pick;
    const DOC: &'static str = "The pod with the best score; among equals the one with the fewest requests in flight (by \
        `weight`), among those by chance. Without scorers: least requests. Fallbacks follow in the same order.";
    const FIELDS: &'static [Field] = &[];
    const READS: &'static [SlotId] = &[SlotId::Load, SlotId::Scores];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Pick(Box::new(self))
    }
}

/// Sorts before whatever it is better than.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Rank {
    worse_score: f32,
    load: f32,
    chance: u64,
}

impl Pick for Best {
    fn pick(&self, view: &View<'_>, among: &Positions, scores: &[f32], rng: &mut Rng, order: &mut Order) {
        // An insertion sort that keeps the few best: one pass over the pods, most of which are beaten by the last.
        let mut ranks = [None::<Rank>; MAX_FALLBACKS + 1];
        let Some(ranks) = ranks.get_mut(..order.room()) else { return };
        for pod in among.iter() {
            let score = scores.get(pod).copied().unwrap_or(0.0);
            let rank = Rank { worse_score: -score, load: view.load(pod), chance: rng.bits() };
            let worse = |held: &Option<Rank>| held.is_none_or(|held| rank < held);
            if !ranks.last().is_some_and(worse) {
                continue;
            }
            let Some(at) = ranks.iter().position(worse) else { continue };
            if let Some(tail) = ranks.get_mut(at..) {
                tail.rotate_right(1);
                if let Some(first) = tail.first_mut() {
                    *first = Some(rank);
                }
            }
            order.insert(at, pod);
        }
    }
}
