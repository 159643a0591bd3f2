//! Pods with less work in tokens score more.

use crate::config::Bounds;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// A pod's cost is `prefill` times the tokens that it would have to prefill with this request (those that wait there, and what
/// it doesn't hold of this prompt), plus `context` times the tokens of all prompts that it would have under way. 1 for the least
/// cost, falling in proportion to 0 for the greatest, or for `bound`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenLoad {
    /// Weight of tokens to prefill.
    #[schemars(transform = Self::PREFILL.schema())]
    prefill: f32,
    /// Weight of tokens under way.
    #[schemars(transform = Self::CONTEXT.schema())]
    context: f32,
    /// Cost that makes 0, with 0 making 1. Without it the candidates' least and greatest do.
    #[schemars(transform = Self::BOUND.schema())]
    bound: Option<f32>,
}

impl TokenLoad {
    const PREFILL: Bounds<f32> = Bounds::new(0.0, 1000.0);
    const CONTEXT: Bounds<f32> = Bounds::new(0.0, 1000.0);
    const BOUND: Bounds<f32> = Bounds::new(1.0, 1e9);
}

impl Default for TokenLoad {
    fn default() -> Self {
        Self { prefill: 1.0, context: 0.0, bound: None }
    }
}

impl Part for TokenLoad {
    const NAME: &'static str = "token-load";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Work, SlotId::Engine, SlotId::Chain, SlotId::Residency];

    fn build(self, site: &mut Site<'_>) -> Built {
        site.within("prefill", self.prefill, Self::PREFILL);
        site.within("context", self.context, Self::CONTEXT);
        site.within("bound", self.bound, Self::BOUND);
        Built::Score(Box::new(self))
    }
}

impl TokenLoad {
    fn cost(&self, view: &View<'_>, pod: usize) -> f32 {
        let context = view.states.get(pod).map_or(f32::INFINITY, |state| state.context as f32);
        let prefill = view.tokens_ahead(pod) + view.slots.uncached_tokens(pod);
        self.prefill * prefill + self.context * (context + view.slots.prompt_tokens())
    }
}

impl Score for TokenLoad {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let costs = || among.iter().map(|pod| self.cost(view, pod));
        let (least, span) = match self.bound {
            Some(bound) => (0.0, bound),
            None => {
                let least = costs().fold(f32::INFINITY, f32::min);
                (least, costs().fold(0.0, f32::max) - least)
            }
        };
        for pod in among.iter() {
            if let Some(score) = scores.get_mut(pod) {
                *score = if span > 0.0 { 1.0 - (self.cost(view, pod) - least) / span } else { 1.0 };
            }
        }
    }
}
