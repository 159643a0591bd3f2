//! Every part there is. A new one is a file with a [`Part`], and a line here.

use super::part::{Built, Part, Site, Stage};
use super::slots::SlotId;
use super::{filters, pickers, prepare, scorers};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

/// The parts, by stage.
pub static REGISTRY: &[Entry] = &[
    Entry::of::<prepare::prefix::Prefix>(),
    Entry::of::<prepare::session::Session>(),
    Entry::of::<prepare::hash_key::HashKey>(),
    Entry::of::<filters::health::Health>(),
    Entry::of::<filters::model::Model>(),
    Entry::of::<filters::label::Label>(),
    Entry::of::<filters::affinity::Affinity>(),
    Entry::of::<filters::concurrency_cap::ConcurrencyCap>(),
    Entry::of::<filters::concurrency_floor::ConcurrencyFloor>(),
    Entry::of::<filters::prefix_threshold::PrefixThreshold>(),
    Entry::of::<filters::stick_or_spill::StickOrSpill>(),
    Entry::of::<scorers::prefix::Prefix>(),
    Entry::of::<scorers::in_flight::InFlight>(),
    Entry::of::<scorers::predicted_ttft::PredictedTtft>(),
    Entry::of::<scorers::latency::Latency>(),
    Entry::of::<scorers::token_load::TokenLoad>(),
    Entry::of::<scorers::queue::Queue>(),
    Entry::of::<scorers::running::Running>(),
    Entry::of::<scorers::kv_usage::KvUsage>(),
    Entry::of::<scorers::lora::Lora>(),
    Entry::of::<scorers::session::Session>(),
    Entry::of::<scorers::affinity::Affinity>(),
    Entry::of::<scorers::consistent_hash::ConsistentHash>(),
    Entry::of::<pickers::best::Best>(),
    Entry::of::<pickers::weighted_random::WeightedRandom>(),
    Entry::of::<pickers::round_robin::RoundRobin>(),
    Entry::of::<pickers::random::Random>(),
    Entry::of::<pickers::power_of_two::PowerOfTwo>(),
];

/// A part as the registry knows it.
pub struct Entry {
    /// `type` in the configuration; unique in its stage.
    pub name: &'static str,
    /// Where it stands.
    pub stage: Stage,
    /// Slots that it may read.
    pub reads: &'static [SlotId],
    /// Slots that it writes.
    pub writes: &'static [SlotId],
    /// What it is and its fields, for the reference. Not in the module: there it would be code that nobody calls.
    pub(super) schema: Option<fn(&mut SchemaGenerator) -> Schema>,
    make: fn(Value, &mut Site<'_>) -> Option<Made>,
}

/// A part that was built from its configuration.
pub struct Made {
    /// The part.
    pub built: Built,
    /// Slots that it reads, configured as it is.
    pub reads: Vec<SlotId>,
}

impl Entry {
    const fn of<P: Part>() -> Self {
        Self {
            name: P::NAME,
            stage: P::STAGE,
            reads: P::READS,
            writes: P::WRITES,
            schema: if cfg!(target_arch = "wasm32") { None } else { Some(P::json_schema) },
            make: make::<P>,
        }
    }

    /// Builds the part from its fields. `None` where its mistakes were reported to `site`.
    pub fn make(&self, fields: Value, site: &mut Site<'_>) -> Option<Made> {
        (self.make)(fields, site)
    }
}

/// Finds a part of a stage.
pub fn find(stage: Stage, name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|entry| entry.stage == stage && entry.name == name)
}

fn make<P: Part>(fields: Value, site: &mut Site<'_>) -> Option<Made> {
    match serde_path_to_error::deserialize::<_, P>(fields) {
        Ok(part) => {
            let before = site.mistakes.count();
            let reads = part.reads(site.pods);
            let built = part.build(site);
            (site.mistakes.count() == before).then_some(Made { built, reads })
        }
        Err(error) => {
            site.mistakes.add_serde(site.path, &error);
            None
        }
    }
}
