//! The pods of a configuration.

use super::bounds::within;
use super::entries::Entries;
use super::mistake::Mistakes;
use super::raw::{RawBy, RawPod};
use crate::index::MAX_SLOTS;
use crate::pods::{MAX_PODS, Pod};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

/// Longest name of a pod, a cluster, a label or its value.
pub(super) const MAX_NAME: usize = 128;
/// Greatest weight of a pod.
pub(super) const MAX_WEIGHT: f32 = 100.0;
/// Longest name of a model.
const MAX_MODEL: usize = 256;
/// Most models of a pod.
pub(super) const MAX_MODELS: usize = 64;
/// Most labels of a pod.
pub(super) const MAX_LABELS: usize = 32;

/// Checks every pod, of which there must be `fewest`. Those that are wrong are still in the list, so that what refers to
/// positions can be checked too.
pub fn build_pods(raw: &[RawPod], fewest: usize, by: RawBy, mistakes: &mut Mistakes) -> Vec<Pod> {
    if raw.len() < fewest || raw.len() > MAX_PODS {
        mistakes.add("pods", format!("has {} entries; give {fewest} to {MAX_PODS}", raw.len()));
    }
    let mut names = HashSet::new();
    let mut targets = HashSet::new();
    let mut pods = Vec::new();
    for (i, raw) in raw.iter().take(MAX_PODS).enumerate() {
        let at = format!("pods[{i}]");
        let target = target(&at, raw, by, mistakes);
        let name = raw.name.clone().unwrap_or_else(|| target.clone());
        let named = format!("{at}.name");
        if raw.name.is_some() {
            check_text(&named, &name, MAX_NAME, mistakes);
        }
        if !name.is_empty() && !names.insert(name.clone()) {
            let problem =
                format!("\"{}\" is the name of an earlier pod; give each its own", name.escape_debug());
            mistakes.add(named, problem);
        } else if !target.is_empty() && !targets.insert(target.clone()) {
            mistakes.add(&at, format!("{target} is an earlier pod; list each once"));
        }
        check_settings(&at, raw.weight, raw.max_in_flight, Some(raw.ranks), mistakes);
        check_models(&at, &raw.models, mistakes);
        let labels = labels(&at, &raw.labels, mistakes);
        pods.push(Pod {
            name,
            target,
            models: raw.models.clone(),
            labels,
            weight: raw.weight.unwrap_or(RawPod::NO_WEIGHT),
            max_in_flight: raw.max_in_flight,
            ranks: raw.ranks,
            found: false,
            cluster: None,
        });
    }
    let caches: u64 = pods.iter().map(|pod| u64::from(pod.ranks)).sum();
    if caches > MAX_SLOTS as u64 {
        mistakes.add("pods", format!("have {caches} ranks together; at most {MAX_SLOTS} are allowed"));
    }
    pods
}

/// What the routing header says to reach the pod. Empty where a mistake was reported.
fn target(at: &str, raw: &RawPod, by: RawBy, mistakes: &mut Mistakes) -> String {
    match (by, &raw.address, &raw.cluster) {
        (RawBy::Address, Some(address), None) => {
            // As Envoy prints it, which is what override_host compares with.
            let parsed = address.parse::<SocketAddr>().map(|parsed| parsed.to_string());
            parsed.unwrap_or_else(|_| {
                let cure = "give ip:port, such as 10.0.0.1:8000 or [fd00::1]:8000; names are not resolved";
                mistakes.add(
                    format!("{at}.address"),
                    format!("\"{}\" is no address; {cure}", address.escape_debug()),
                );
                String::new()
            })
        }
        (RawBy::Cluster, None, Some(cluster)) => {
            check_text(&format!("{at}.cluster"), cluster, MAX_NAME, mistakes);
            cluster.clone()
        }
        (RawBy::Address, None, _) => {
            mistakes
                .add(at, "has no address; add \"address\": \"ip:port\", or set routing.by to \"cluster\"");
            String::new()
        }
        (RawBy::Cluster, _, None) => {
            mistakes.add(at, "has no cluster; add \"cluster\": NAME, or set routing.by to \"address\"");
            String::new()
        }
        (RawBy::Address, Some(_), Some(_)) => {
            mistakes.add(format!("{at}.cluster"), "is not used when routing.by is \"address\"; remove it");
            String::new()
        }
        (RawBy::Cluster, Some(_), Some(_)) => {
            mistakes.add(format!("{at}.address"), "is not used when routing.by is \"cluster\"; remove it");
            String::new()
        }
    }
}

/// Checks the numbers that are given of a pod.
pub(super) fn check_settings(
    at: &str,
    weight: Option<f32>,
    max_in_flight: Option<u32>,
    ranks: Option<u32>,
    mistakes: &mut Mistakes,
) {
    within(&format!("{at}.weight"), weight, RawPod::WEIGHT, mistakes);
    within(&format!("{at}.max_in_flight"), max_in_flight, RawPod::MAX_IN_FLIGHT, mistakes);
    within(&format!("{at}.ranks"), ranks, RawPod::RANKS, mistakes);
}

pub(super) fn check_models(at: &str, models: &[String], mistakes: &mut Mistakes) {
    if models.len() > MAX_MODELS {
        let problem = format!("has {} models; at most {MAX_MODELS} are allowed", models.len());
        mistakes.add(format!("{at}.models"), problem);
    }
    for (i, model) in models.iter().take(MAX_MODELS).enumerate() {
        check_text(&format!("{at}.models[{i}]"), model, MAX_MODEL, mistakes);
    }
}

pub(super) fn labels(at: &str, raw: &Entries<String>, mistakes: &mut Mistakes) -> BTreeMap<String, String> {
    if raw.len() > MAX_LABELS {
        mistakes.add(
            format!("{at}.labels"),
            format!("has {} labels; at most {MAX_LABELS} are allowed", raw.len()),
        );
    }
    for (name, value) in raw.iter().take(MAX_LABELS) {
        check_text(&format!("{at}.labels"), name, MAX_NAME, mistakes);
        check_text(&format!("{at}.labels.{}", name.escape_debug()), value, MAX_NAME, mistakes);
    }
    raw.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

/// A name must be printable, so that headers, logs and messages can carry it.
pub(super) fn is_text(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && !text.chars().any(|c| c.is_control() || c == ',')
}

/// Reports a name that is none.
pub(super) fn check_text(path: &str, text: &str, max: usize, mistakes: &mut Mistakes) {
    if !is_text(text, max) {
        let problem = format!(
            "\"{}\" is no name; give 1 to {max} printable characters without commas",
            text.escape_debug()
        );
        mistakes.add(path, problem);
    }
}
