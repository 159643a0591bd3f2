//! The pod that has served a session scores.

use super::consistent_hash::rendezvous;
use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// Between 0.5 and 1 for pods that have served the request's session, 0 for the others. Where load made a session change pods,
/// the order of those that know it is fixed, so that it doesn't swing between them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Session {}

impl Part for Session {
    const NAME: &'static str = "session";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Session, SlotId::SessionResidency];

    fn build(self, site: &mut Site<'_>) -> Built {
        Built::Score(Box::new(Sticky { pods: super::consistent_hash::identities(site.pods) }))
    }
}

struct Sticky {
    pods: Vec<u64>,
}

impl Score for Sticky {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let Some(session) = view.slots.session else { return };
        for pod in view.slots.session_pods.intersect(among).iter() {
            if let (Some(score), Some(identity)) = (scores.get_mut(pod), self.pods.get(pod)) {
                *score = 0.5 + rendezvous(session, *identity) / 2.0;
            }
        }
    }
}
