//! The pods that there are: those of the configuration, and those that were found.

use super::pods::{MAX_NAME, MAX_WEIGHT, is_text};
use super::router::{Routing, Settings};
use crate::index::MAX_SLOTS;
use crate::pods::{Found, MAX_PODS, Pod};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The pods that there are. Equal for endpoints that are equal, in whatever order they come.
#[derive(Debug, Clone, PartialEq)]
pub struct Reach {
    /// The configured pods in their order, then those that were found, by target.
    pub pods: Vec<Pod>,
    /// By position: whether Envoy would send there. Of a pod that was not found nothing is known, so it counts as healthy.
    pub healthy: Vec<bool>,
    /// Endpoints (clusters, where routing is by cluster) that should be pods and can't be: beyond the bounds of pods or
    /// ranks, without an IP address, or under a name that no pod may have.
    pub left_out: usize,
}

/// Adds what was found to the configured pods. A configured pod that was found is what the configuration says.
pub fn reach(settings: &Settings, configured: &[Pod], found: &[Found]) -> Reach {
    let mut reach = Reach { pods: configured.to_vec(), healthy: vec![true; configured.len()], left_out: 0 };
    let by_address = matches!(settings.routing, Routing::Address { .. });
    let Some(discovery) = &settings.discovery else { return reach };

    let mut targets: BTreeMap<String, Vec<&Found>> = BTreeMap::new();
    for host in found.iter().filter(|host| discovery.has_pods(&host.cluster)) {
        let target = match by_address {
            true => host.address.map(|address| address.to_string()),
            false => Some(host.cluster.clone()),
        };
        match target {
            Some(target) => targets.entry(target).or_default().push(host),
            None => reach.left_out += 1,
        }
    }
    for (pod, healthy) in reach.pods.iter().zip(&mut reach.healthy) {
        if let Some(hosts) = targets.remove(&pod.target) {
            *healthy = serves(&hosts);
        }
    }
    let names = match by_address {
        true => names(&targets, configured),
        // Its hosts come and go, and with them would its name, by which its cache is known.
        false => HashMap::new(),
    };
    let taken: HashSet<&str> = configured.iter().map(|pod| pod.name.as_str()).collect();
    let mut caches: u64 = configured.iter().map(|pod| u64::from(pod.ranks)).sum();
    for (target, mut hosts) in targets.iter().map(|(target, hosts)| (target, hosts.clone())) {
        // Of an endpoint that is in several clusters the first by name counts: Envoy tells of them in any order.
        hosts.sort_unstable();
        let weight = hosts.first().filter(|_| by_address).map_or(1, |host| host.weight.max(1));
        let mut pod = Pod {
            name: names.get(target.as_str()).copied().unwrap_or(target).to_owned(),
            target: target.clone(),
            models: Vec::new(),
            labels: BTreeMap::new(),
            weight: (weight as f32).min(MAX_WEIGHT),
            max_in_flight: None,
            ranks: 1,
            found: true,
            cluster: hosts.first().filter(|_| by_address).map(|host| host.cluster.clone()),
        };
        for rule in discovery.rules.iter().filter(|rule| hosts.iter().any(|host| rule.matches(host))) {
            rule.apply(&mut pod);
        }
        let all = caches.saturating_add(u64::from(pod.ranks));
        let fits = reach.pods.len() < MAX_PODS && all <= MAX_SLOTS as u64;
        if !fits || taken.contains(pod.name.as_str()) || !is_text(&pod.name, MAX_NAME) {
            reach.left_out += 1;
            continue;
        }
        caches = all;
        reach.healthy.push(serves(&hosts));
        reach.pods.push(pod);
    }
    reach
}

/// One host that serves is enough.
fn serves(hosts: &[&Found]) -> bool {
    hosts.iter().any(|host| host.healthy)
}

/// Names of targets by their hosts' names, where those are fit to be one and nobody else's. All endpoints that DNS gave for
/// one name have that name.
fn names<'a>(targets: &'a BTreeMap<String, Vec<&'a Found>>, configured: &[Pod]) -> HashMap<&'a str, &'a str> {
    let mut bearers: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (target, hosts) in targets {
        for host in hosts {
            bearers.entry(&host.hostname).or_default().insert(target);
        }
    }
    for pod in configured {
        bearers.remove(pod.name.as_str());
        bearers.remove(pod.target.as_str());
    }
    let mut names = HashMap::new();
    let fit = |name: &str| is_text(name, MAX_NAME) && !targets.contains_key(name);
    for (name, of) in bearers.into_iter().filter(|(name, of)| of.len() == 1 && fit(name)) {
        for target in of {
            // Where clusters call one endpoint by different names, the first in order.
            let known = names.entry(target).or_insert(name);
            *known = name.min(known);
        }
    }
    names
}
