//! How pods are found: whom to ask, whose endpoints are pods, and what is known of them besides.

use super::bounds::within;
use super::mistake::Mistakes;
use super::pattern::Pattern;
use super::pods::{MAX_LABELS, MAX_NAME, check_models, check_settings, check_text, labels};
use super::raw::{RawDiscovery, RawMatch, RawPodRule};
use crate::pods::{Found, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

/// Most patterns of clusters: they all go into one query.
pub(super) const MAX_PODS_OF: usize = 32;
/// Most rules.
pub(super) const MAX_RULES: usize = 64;

/// How pods are found.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoverySettings {
    /// The Envoy cluster by which Envoy's admin is asked.
    pub cluster: String,
    /// Clusters whose endpoints are pods; or which are themselves pods where routing is by cluster.
    pub pods_of: Vec<Pattern>,
    /// From one question to the next.
    pub period: Duration,
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// What is known of pods that were found. Every rule that matches counts, later ones over earlier ones.
    pub rules: Vec<PodRule>,
}

/// Conditions on a pod that was found, and what holds where all of them do.
#[derive(Debug, Clone, PartialEq)]
pub struct PodRule {
    hostname: Option<Pattern>,
    zone: Option<Pattern>,
    cluster: Option<Pattern>,
    address: Option<Pattern>,
    models: Option<Vec<String>>,
    labels: BTreeMap<String, String>,
    weight: Option<f32>,
    max_in_flight: Option<u32>,
    ranks: Option<u32>,
}

impl DiscoverySettings {
    /// Are the endpoints of this cluster pods?
    pub fn has_pods(&self, cluster: &str) -> bool {
        self.pods_of.iter().any(|pattern| pattern.matches(cluster))
    }

    /// Does a rule give pods several data-parallel ranks?
    pub fn has_ranks(&self) -> bool {
        self.rules.iter().any(|rule| rule.ranks.is_some_and(|ranks| ranks > 1))
    }

    /// The value of `filter` in the question `/clusters?format=json&filter=VALUE`: a regular expression for whole names of
    /// clusters, percent-encoded. Anchored, since Envoy looks for it anywhere in a name.
    pub fn filter(&self) -> String {
        let names: Vec<_> = self.pods_of.iter().map(Pattern::regex).collect();
        let mut filter = String::new();
        for byte in format!("^(?:{})$", names.join("|")).bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                filter.push(char::from(byte));
            } else {
                let _ = write!(filter, "%{byte:02X}"); // A String takes all.
            }
        }
        filter
    }
}

impl PodRule {
    /// Do all conditions hold for this endpoint? An address may be given with its port or without.
    pub fn matches(&self, found: &Found) -> bool {
        let holds = |pattern: &Option<Pattern>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
        };
        holds(&self.hostname, &found.hostname)
            && holds(&self.zone, &found.zone)
            && holds(&self.cluster, &found.cluster)
            && self.address.as_ref().is_none_or(|pattern| {
                found.address.is_some_and(|address| {
                    pattern.matches(&address.to_string()) || pattern.matches(&address.ip().to_string())
                })
            })
    }

    /// Tells a pod what this rule says of it.
    pub fn apply(&self, pod: &mut Pod) {
        if let Some(models) = &self.models {
            pod.models.clone_from(models);
        }
        pod.labels.extend(self.labels.iter().map(|(name, value)| (name.clone(), value.clone())));
        pod.weight = self.weight.unwrap_or(pod.weight);
        pod.max_in_flight = self.max_in_flight.or(pod.max_in_flight);
        pod.ranks = self.ranks.unwrap_or(pod.ranks);
    }
}

/// Checks how pods are to be found.
pub fn discovery(raw: &RawDiscovery, mistakes: &mut Mistakes) -> DiscoverySettings {
    check_text("discovery.cluster", &raw.cluster, MAX_NAME, mistakes);
    if raw.pods_of.is_empty() || raw.pods_of.len() > MAX_PODS_OF {
        let problem = format!("has {} entries; give 1 to {MAX_PODS_OF}", raw.pods_of.len());
        mistakes.add("discovery.pods_of", problem);
    }
    let mut pods_of = Vec::new();
    for (i, text) in raw.pods_of.iter().take(MAX_PODS_OF).enumerate() {
        let at = format!("discovery.pods_of[{i}]");
        let Some(pattern) = pattern(&at, text, mistakes) else { continue };
        if pattern.matches(&raw.cluster) {
            let problem = format!(
                "\"{}\" means discovery.cluster too, which is Envoy's admin and no pod; name the pods' clusters",
                text.escape_debug()
            );
            mistakes.add(at, problem);
        } else if pods_of.contains(&pattern) {
            mistakes.add(at, format!("\"{}\" stands here already; remove one", text.escape_debug()));
        }
        pods_of.push(pattern);
    }
    within("discovery.period_seconds", raw.period_seconds, RawDiscovery::PERIOD_SECONDS, mistakes);
    within("discovery.timeout_seconds", raw.timeout_seconds, RawDiscovery::TIMEOUT_SECONDS, mistakes);
    if raw.rules.len() > MAX_RULES {
        let problem = format!("has {} rules; at most {MAX_RULES} are allowed", raw.rules.len());
        mistakes.add("discovery.rules", problem);
    }
    // A pod may match all rules.
    let labels: BTreeSet<_> =
        raw.rules.iter().flat_map(|rule| rule.labels.iter().map(|(name, _)| name)).collect();
    if labels.len() > MAX_LABELS {
        let problem = format!("have {} labels together; at most {MAX_LABELS} are allowed", labels.len());
        mistakes.add("discovery.rules", problem);
    }
    DiscoverySettings {
        cluster: raw.cluster.clone(),
        pods_of,
        period: Duration::from_secs(raw.period_seconds),
        timeout: Duration::from_secs(raw.timeout_seconds),
        rules: raw
            .rules
            .iter()
            .take(MAX_RULES)
            .enumerate()
            .map(|(i, rule)| self::rule(&format!("discovery.rules[{i}]"), rule, mistakes))
            .collect(),
    }
}

fn rule(at: &str, raw: &RawPodRule, mistakes: &mut Mistakes) -> PodRule {
    let RawPodRule { conditions, models, labels: raw_labels, weight, max_in_flight, ranks } = raw;
    if models.is_none()
        && raw_labels.is_empty()
        && weight.is_none()
        && max_in_flight.is_none()
        && ranks.is_none()
    {
        mistakes.add(at, "says nothing of a pod; add models, labels, weight, max_in_flight or ranks");
    }
    check_settings(at, *weight, *max_in_flight, *ranks, mistakes);
    check_models(at, models.as_deref().unwrap_or_default(), mistakes);
    let RawMatch { hostname, zone, cluster, address } = conditions;
    let mut condition = |name: &str, text: &Option<String>| {
        pattern(&format!("{at}.match.{name}"), text.as_deref()?, mistakes)
    };
    PodRule {
        hostname: condition("hostname", hostname),
        zone: condition("zone", zone),
        cluster: condition("cluster", cluster),
        address: condition("address", address),
        models: models.clone(),
        labels: labels(at, raw_labels, mistakes),
        weight: *weight,
        max_in_flight: *max_in_flight,
        ranks: *ranks,
    }
}

/// `None` where a mistake was reported.
fn pattern(at: &str, text: &str, mistakes: &mut Mistakes) -> Option<Pattern> {
    Pattern::parse(text).map_err(|problem| mistakes.add(at, problem)).ok()
}
