//! Rendezvous hashing: each key has its own fixed order of pods, and a pod that comes or goes moves only its own keys.

use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::positions::Positions;
use crate::pipeline::rng::{mix, unit};
use crate::pipeline::slots::SlotId;
use crate::pods::Pod;
use schemars::JsonSchema;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// A number that depends on the request's hash key and the pod alone (rendezvous hashing, in proportion to `weight`): the best
/// pod of a key stays the best whichever others come and go. 0 without a key. With the filter `concurrency-cap`, requests spill
/// to the next pod of their key's order, and return.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsistentHash {}

impl Part for ConsistentHash {
    const NAME: &'static str = "consistent-hash";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::HashKey];

    fn build(self, site: &mut Site<'_>) -> Built {
        Built::Score(Box::new(Rendezvous { pods: identities(site.pods) }))
    }
}

/// A number for each pod that follows it across configurations.
pub fn identities(pods: &[Pod]) -> Vec<u64> {
    pods.iter().map(|pod| xxh3_64(pod.id().as_bytes())).collect()
}

/// What a key thinks of a pod, evenly spread over [0, 1).
pub fn rendezvous(key: u64, pod: u64) -> f32 {
    unit(mix(key ^ pod))
}

struct Rendezvous {
    pods: Vec<u64>,
}

impl Score for Rendezvous {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let Some(key) = view.slots.hash_key else { return };
        for (i, ((identity, pod), score)) in self.pods.iter().zip(view.pods).zip(scores).enumerate() {
            if among.contains(i) {
                let chance = rendezvous(key, *identity);
                // u^(1/w) orders like w / -ln(u), the weighted rendezvous hash, and stays in [0, 1).
                *score = if pod.weight == 1.0 { chance } else { chance.powf(1.0 / pod.weight) };
            }
        }
    }
}
