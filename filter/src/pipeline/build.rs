//! From a profile as written to one that can decide, with every mistake found.

use super::part::{Built, Site, Stage};
use super::profile::{FilterStep, PrepareStep, Profile, ScoreStep};
use super::registry::{Entry, REGISTRY, find};
use super::schema::{OfFilter, OfScorer};
use super::slots::SlotId;
use crate::blocks::BlockSize;
use crate::config::{Mistakes, RawPart, RawProfile};
use crate::pods::Pod;
use serde_json::Value;

/// Most parts of one stage.
pub(super) const MAX_PARTS: usize = 16;

/// Builds a profile. `None` where mistakes were reported. `dynamic`: other pods may come ([`Site::dynamic`]).
pub fn build(
    name: &str,
    raw: &RawProfile,
    pods: &[Pod],
    dynamic: bool,
    block_size: BlockSize,
    mistakes: &mut Mistakes,
) -> Option<Profile> {
    let path = format!("profiles.{name}");
    let before = mistakes.count();
    let mut builder =
        Builder { pods, dynamic, block_size, mistakes, reads: Vec::new(), written: SlotId::GIVEN.to_vec() };

    let mut prepare = Vec::new();
    for (site, part) in builder.list(&path, Stage::Prepare, &raw.prepare) {
        if let Some((entry, Built::Prepare(part))) = builder.part(&site, Stage::Prepare, part.clone()) {
            prepare.push((entry, part));
        }
    }
    let mut filters = Vec::new();
    for (site, part) in builder.list(&path, Stage::Filter, &raw.filters) {
        let mut part = part.clone();
        let strict = builder.strict(&site, &mut part);
        if let Some((entry, Built::Filter(part))) = builder.part(&site, Stage::Filter, part) {
            filters.push(FilterStep { name: entry.name, part, strict });
        }
    }
    let mut scorers = Vec::new();
    for (site, part) in builder.list(&path, Stage::Score, &raw.scorers) {
        let mut part = part.clone();
        let weight = builder.weight(&site, &mut part);
        if let Some((entry, Built::Score(part))) = builder.part(&site, Stage::Score, part) {
            scorers.push(ScoreStep { name: entry.name, part, weight });
        }
    }
    let picker = builder.picker(&path, raw);

    let reads = builder.reads;
    if mistakes.count() > before {
        return None;
    }
    let read_later = |slot: &SlotId| slot.is_located() && reads.contains(slot);
    Some(Profile {
        name: name.to_owned(),
        prepare: prepare
            .into_iter()
            .map(|(entry, part)| PrepareStep { part, locate: entry.writes.iter().any(read_later) })
            .collect(),
        filters,
        scorers,
        picker: picker?,
        reads,
    })
}

struct Builder<'a> {
    pods: &'a [Pod],
    dynamic: bool,
    block_size: BlockSize,
    mistakes: &'a mut Mistakes,
    reads: Vec<SlotId>,
    written: Vec<SlotId>,
}

impl Builder<'_> {
    /// The parts of a stage with their paths, within the bound.
    fn list<'p>(&mut self, path: &str, stage: Stage, parts: &'p [RawPart]) -> Vec<(String, &'p RawPart)> {
        let path = format!("{path}.{}", stage.field());
        if parts.len() > MAX_PARTS {
            self.mistakes.add(&path, format!("has {} parts; at most {MAX_PARTS} are allowed", parts.len()));
        }
        parts.iter().take(MAX_PARTS).enumerate().map(|(i, part)| (format!("{path}[{i}]"), part)).collect()
    }

    /// Finds a part in the registry, checks its slots and builds it.
    fn part(&mut self, path: &str, stage: Stage, mut raw: RawPart) -> Option<(&'static Entry, Built)> {
        let name = match raw.remove("type") {
            Some(Value::String(name)) => name,
            Some(other) => {
                self.mistakes.add(format!("{path}.type"), format!("{other} is no name; {}", choose(stage)));
                return None;
            }
            None => {
                self.mistakes.add(path, format!("names no part; add \"type\": {}", choose(stage)));
                return None;
            }
        };
        let Some(entry) = find(stage, &name) else {
            self.mistakes.add(format!("{path}.type"), unknown(stage, &name));
            return None;
        };
        let mut site = Site {
            pods: self.pods,
            dynamic: self.dynamic,
            block_size: self.block_size,
            path,
            mistakes: &mut *self.mistakes,
        };
        let made = entry.make(raw.into_value(), &mut site);
        let known = made.as_ref().map_or(&[][..], |made| &made.reads);
        let missing: Vec<_> = known.iter().filter(|slot| !self.written.contains(slot)).copied().collect();
        if let Some(first) = missing.first() {
            let slots: Vec<_> = missing.iter().map(|slot| slot.name()).collect();
            let problem = format!(
                "{name} reads {}, which nothing before it writes; {}",
                slots.join(" and "),
                writer(*first)
            );
            self.mistakes.add(path, problem);
        }
        self.reads.extend(known);
        let twice: Vec<_> =
            entry.writes.iter().filter(|slot| self.written.contains(slot)).map(|slot| slot.name()).collect();
        if !twice.is_empty() {
            let problem = format!(
                "{name} writes {}, which an earlier part writes; keep one of the two",
                twice.join(" and ")
            );
            self.mistakes.add(path, problem);
        }
        self.written.extend(entry.writes);
        made.map(|made| (entry, made.built))
    }

    /// The picker, which there must be, and which must care for scores where there are some.
    fn picker(&mut self, path: &str, raw: &RawProfile) -> Option<Box<dyn super::part::Pick>> {
        let path = format!("{path}.{}", Stage::Pick.field());
        let Some(picker) = &raw.picker else {
            let problem = format!(
                "is missing, so nothing chooses a pod; add {{\"type\": NAME}} with {}",
                choose(Stage::Pick)
            );
            self.mistakes.add(path, problem);
            return None;
        };
        let (entry, built) = self.part(&path, Stage::Pick, picker.clone())?;
        if !raw.scorers.is_empty() && !entry.reads.contains(&SlotId::Scores) {
            let problem =
                format!("{} doesn't look at scores; remove the scorers, or take the picker best", entry.name);
            self.mistakes.add(path, problem);
        }
        match built {
            Built::Pick(part) => Some(part),
            Built::Prepare(_) | Built::Filter(_) | Built::Score(_) => None,
        }
    }

    fn strict(&mut self, path: &str, part: &mut RawPart) -> bool {
        match part.remove("strict") {
            None => OfFilter::default().strict,
            Some(Value::Bool(strict)) => strict,
            Some(other) => {
                self.mistakes.add(format!("{path}.strict"), format!("{other} is neither true nor false"));
                false
            }
        }
    }

    fn weight(&mut self, path: &str, part: &mut RawPart) -> f32 {
        let Some(value) = part.remove("weight") else { return OfScorer::default().weight };
        let Some(weight) = value.as_f64() else {
            self.mistakes
                .add(format!("{path}.weight"), format!("{value} is no number; {}", OfScorer::WEIGHT.cure()));
            return 0.0;
        };
        if let Some(problem) = OfScorer::WEIGHT.problem(&(weight as f32)) {
            self.mistakes.add(format!("{path}.weight"), problem);
        }
        weight as f32
    }
}

fn names(stage: Stage) -> String {
    let names: Vec<_> = REGISTRY
        .iter()
        .filter(|entry| entry.stage == stage)
        .map(|entry| format!("\"{}\"", entry.name))
        .collect();
    names.join(", ")
}

fn choose(stage: Stage) -> String {
    format!("one of {}", names(stage))
}

/// The cure for a name that the stage doesn't know.
fn unknown(stage: Stage, name: &str) -> String {
    match REGISTRY.iter().find(|entry| entry.name == name) {
        Some(elsewhere) => format!(
            "\"{name}\" is a {}; move it to {}, or name a {stage}: {}",
            elsewhere.stage,
            elsewhere.stage.field(),
            names(stage)
        ),
        None => format!("there is no {stage} \"{}\"; {}", name.escape_debug(), choose(stage)),
    }
}

/// The cure for a slot that nobody wrote.
fn writer(slot: SlotId) -> String {
    let writers = REGISTRY.iter().find(|entry| entry.writes.contains(&slot));
    writers.map_or_else(String::new, |entry| {
        format!("put {{\"type\": \"{}\"}} before it, in {}", entry.name, entry.stage.field())
    })
}
