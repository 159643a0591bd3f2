//! From the configuration as written to a [`Router`], with every mistake found.

use super::calls::Calls;
use super::mistake::Mistakes;
use super::pods::build_pods;
use super::profiles::Profiles;
use super::raw::RawConfig;
use super::reach::{Reach, reach};
use super::router::Router;
use super::settings::settings;
use super::workflows;
use crate::pods::Found;
use crate::workflow::protocol::FIELDS;
use std::collections::BTreeSet;

/// Longest configuration that is looked at.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Reads and checks a plugin configuration in JSON.
pub fn load(json: &[u8]) -> Result<Router, Mistakes> {
    load_with(json, &[])
}

/// As [`load`], with the endpoints that were found by `discovery`. Mistakes are in the configuration alone: what was found
/// and can't be a pod is left out.
pub fn load_with(json: &[u8], found: &[Found]) -> Result<Router, Mistakes> {
    let mut mistakes = Mistakes::default();
    if json.trim_ascii().is_empty() {
        mistakes.add("", "is empty; name at least the pods: {\"pods\": [{\"address\": \"10.0.0.1:8000\"}]}");
    } else if json.len() > MAX_CONFIG_BYTES {
        mistakes.add("", format!("has {} bytes; at most {MAX_CONFIG_BYTES} are read", json.len()));
    }
    if json.trim_ascii_start().starts_with(b"[") {
        // Serde would take a list for an object with the fields in their order.
        mistakes.add(
            "",
            "is invalid: a list; give one JSON object: {\"pods\": [{\"address\": \"10.0.0.1:8000\"}]}",
        );
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let raw: RawConfig = match serde_path_to_error::deserialize(&mut deserializer) {
        Ok(raw) => raw,
        Err(error) => {
            mistakes.add_serde("", &error);
            return Err(mistakes);
        }
    };
    if let Err(error) = deserializer.end() {
        mistakes.add("", format!("{error}; only one JSON object may stand here"));
        return Err(mistakes);
    }
    build(&raw, found, mistakes)
}

fn build(raw: &RawConfig, found: &[Found], mut mistakes: Mistakes) -> Result<Router, Mistakes> {
    if raw.pods.is_none() && raw.discovery.is_none() {
        mistakes.add("", "missing field `pods`; list the pods there, or say in `discovery` how to find them");
        return Err(mistakes);
    }
    let fewest = usize::from(raw.discovery.is_none());
    let configured =
        build_pods(raw.pods.as_deref().unwrap_or_default(), fewest, raw.routing.by, &mut mistakes);
    let settings = settings(raw, &mut mistakes);
    let Reach { pods, .. } = reach(&settings, &configured, found);
    let mut profiles = Profiles::own(raw, &pods, settings.block_size, &mut mistakes);
    let workflows =
        workflows::workflows(&raw.workflows, &settings.routing, Calls::of(raw), &mut profiles, &mut mistakes);
    let default = profiles.target("", raw.profile.as_deref(), raw.workflow.as_deref(), &mut mistakes);
    let rules = profiles.rules(&raw.select, &mut mistakes);
    match default {
        Some(default) if mistakes.is_empty() => {
            let profiles = profiles.built();
            let workflows: Vec<_> = workflows.into_iter().flatten().collect();
            let protocols = || workflows.iter().map(|workflow| &workflow.protocol);
            let fields = FIELDS.iter().chain(protocols().flat_map(|protocol| protocol.own_fields()));
            let headers = protocols().flat_map(|protocol| protocol.own_headers());
            Ok(Router {
                pods,
                configured: configured.len(),
                profiles,
                guarded_fields: each_once(fields),
                guarded_headers: each_once(headers),
                workflows,
                default,
                rules,
                settings,
            })
        }
        _ => Err(mistakes),
    }
}

fn each_once<'a>(names: impl Iterator<Item = &'a &'static str>) -> Vec<&'static str> {
    names.copied().collect::<BTreeSet<_>>().into_iter().collect()
}
