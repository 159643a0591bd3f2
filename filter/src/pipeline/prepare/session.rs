//! The session that a request belongs to, and the pods that have served it.

use super::source::{self, Source};
use crate::blocks::{Chain, Kind};
use crate::pipeline::part::{Built, Input, Part, Prepare, Site, Stage};
use crate::pipeline::residency::{Matches, Residency};
use crate::pipeline::rng::mix;
use crate::pipeline::slots::{SlotId, Slots};
use crate::pods::Pod;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps session blocks apart from blocks of prompts.
const SALT: u64 = 0x5e55_1011_b10c_4a5d;

/// Finds the session that the client names and asks the index which pods have served it. A session is kept in the index like a
/// chain of one block, so all workers know it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Session {
    /// Where the session is looked for; the first that has a value counts.
    #[schemars(length(min = 1, max = source::MAX_SOURCES), transform = source::of_sessions)]
    from: Vec<Source>,
}

impl Default for Session {
    fn default() -> Self {
        let header = Source::Header("x-session-id".into());
        Self { from: vec![header, Source::Cookie("session".into()), Source::User] }
    }
}

impl Part for Session {
    const NAME: &'static str = "session";
    const STAGE: Stage = Stage::Prepare;
    const READS: &'static [SlotId] = &[SlotId::Headers, SlotId::Body];
    const WRITES: &'static [SlotId] = &[SlotId::Session, SlotId::SessionResidency];

    fn reads(&self, _pods: &[Pod]) -> Vec<SlotId> {
        source::reads(&self.from)
    }

    fn build(mut self, site: &mut Site<'_>) -> Built {
        source::check(&mut self.from, site);
        for (i, from) in self.from.iter().enumerate() {
            if !from.names_sessions() {
                site.refuse(&format!("from[{i}]"), "names no session; give a header, a cookie or \"user\"");
            }
        }
        Built::Prepare(Box::new(self))
    }
}

impl Prepare for Session {
    fn prepare(&self, input: &Input<'_>, slots: &mut Slots) {
        slots.session = source::key(&self.from, input, slots).map(|key| Kind::Text.name(mix(key ^ SALT)));
    }

    fn locate(&self, slots: &mut Slots, index: &dyn Residency) {
        if let Some(session) = slots.session {
            let mut matches = Matches::default();
            let alone = Chain { hashes: vec![session], cached: Vec::new() };
            index.depths(&alone, &mut matches);
            slots.session_pods = matches.steps().first().map(|(_, pods)| *pods).unwrap_or_default();
        }
    }
}
