//! The less loaded of two.

use super::random::any;
use crate::pipeline::decision::Order;
use crate::pipeline::part::{Built, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// Two pods by chance, and of them the one with fewer requests in flight (by `weight`). Close to least requests, and doesn't
/// rush at one pod where many routers see the same numbers. Scores don't count.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerOfTwo {}

impl Part for PowerOfTwo {
    const NAME: &'static str = "power-of-two";
    const STAGE: Stage = Stage::Pick;
    const READS: &'static [SlotId] = &[SlotId::Load];

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Pick(Box::new(self))
    }
}

impl Pick for PowerOfTwo {
    fn pick(&self, view: &View<'_>, among: &Positions, _scores: &[f32], rng: &mut Rng, order: &mut Order) {
        let mut left = *among;
        while !order.is_full()
            && let Some(one) = any(&left, rng)
        {
            left.remove(one);
            let chosen = match any(&left, rng) {
                Some(two) if view.load(two) < view.load(one) => {
                    left.insert(one);
                    left.remove(two);
                    two
                }
                _ => one,
            };
            order.push(chosen);
        }
    }
}
