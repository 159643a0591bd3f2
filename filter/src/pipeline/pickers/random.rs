//! Any pod.

use crate::pipeline::decision::Order;
use crate::pipeline::part::{Built, Part, Pick, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::Rng;
use schemars::JsonSchema;
use serde::Deserialize;

/// Any pod, each as likely as the other. So are fallbacks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Random {}

impl Part for Random {
    const NAME: &'static str = "random";
    const STAGE: Stage = Stage::Pick;

    fn build(self, _site: &mut Site<'_>) -> Built {
        Built::Pick(Box::new(self))
    }
}

impl Pick for Random {
    fn pick(&self, _view: &View<'_>, among: &Positions, _scores: &[f32], rng: &mut Rng, order: &mut Order) {
        let mut left = *among;
        while !order.is_full()
            && let Some(pod) = any(&left, rng)
        {
            left.remove(pod);
            order.push(pod);
        }
    }
}

/// One pod by chance.
pub fn any(among: &Positions, rng: &mut Rng) -> Option<usize> {
    among.nth(rng.below(among.len()))
}
