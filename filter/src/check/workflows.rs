//! What workflows need of the Envoy configuration around them.

use super::clusters::{Clusters, called};
use super::document::Node;
use super::plugins::Plugin;
use super::report::Report;
use crate::config::{Router, Routing};
use crate::stream::HANDOFF;
use crate::workflow::PrefillDecode;

/// What a pod that a retry leaves has never seen.
const NEVER_SEEN: [&str; 2] = ["connect-failure", "refused-stream"];

/// Clusters in which there are no pods, but what protocols ask.
pub fn question_clusters(router: &Router) -> impl Iterator<Item = String> + '_ {
    router.workflows().iter().flat_map(|workflow| workflow.protocol.clusters()).map(str::to_owned)
}

/// Whether a route is for requests that bear a handoff, and no others.
pub fn is_for_handoffs(route: &Node<'_>) -> bool {
    let headers = route.at(&["match", "headers"]).map(|headers| headers.items()).unwrap_or_default();
    let is_present = |header: &Node<'_>| {
        let inverted = header.field("invert_match").is_some_and(|inverted| inverted.is(true));
        header.text_of("name") == Some(HANDOFF)
            && header.field("present_match").is_none_or(|present| present.is(true))
            && !inverted
    };
    headers.iter().any(is_present)
}

/// Warns of clusters that can't be seen, of what isn't looked through, and of retries that would use a handoff twice.
pub fn check(plugin: &Plugin<'_>, router: &Router, clusters: &Clusters<'_>, report: &mut Report) {
    check_clusters(router, clusters, report);
    check_upgrades(plugin, router, report);
    if router.workflows().iter().all(|workflow| !workflow.retries_decode) {
        return;
    }
    let Some(manager) = &plugin.manager else { return };
    let Some(hosts) = manager.at(&["route_config", "virtual_hosts"]) else { return };
    for host in hosts.items() {
        let routes = host.list("routes");
        // Behind one that takes all it is never met.
        let Some(route) = routes.first().filter(|route| is_for_handoffs(route)) else {
            let cure = format!(
                "add, as the first, one that matches {{name: {HANDOFF}, present_match: true}} and has retry_on: \"{}\"",
                NEVER_SEEN.join(",")
            );
            let problem = "has no route for requests with a handoff, so retries may use one twice (decode.retry_on_connect_failure)";
            report.warn(host.path_of("routes"), format!("{problem}; {cure}"));
            continue;
        };
        let Some(action) = route.field("route") else { continue };
        let policy = action.field("retry_policy").or_else(|| host.field("retry_policy"));
        let on = policy.as_ref().and_then(|policy| policy.text_of("retry_on")).unwrap_or_default();
        for condition in on.split(',').map(str::trim).filter(|on| !NEVER_SEEN.contains(on) && !on.is_empty())
        {
            report.warn(
                policy.as_ref().unwrap_or(&action).path_of("retry_on"),
                format!(
                    "has {condition:?}: a pod that has seen a handoff may have used it up, and the next would compute on what is \
                     not its own; keep {}",
                    NEVER_SEEN.join(",")
                ),
            );
        }
    }
}

fn check_upgrades(plugin: &Plugin<'_>, router: &Router, report: &mut Report) {
    let Some(manager) = plugin.manager.as_ref().filter(|_| router.is_guarded()) else { return };
    warn_of_upgrades(manager, report);
    // A route may allow what the manager doesn't.
    let hosts = manager.at(&["route_config", "virtual_hosts"]).map(|hosts| hosts.items()).unwrap_or_default();
    for route in hosts.iter().flat_map(|host| host.list("routes")) {
        if let Some(action) = route.field("route") {
            warn_of_upgrades(&action, report);
        }
    }
}

fn warn_of_upgrades(node: &Node<'_>, report: &mut Report) {
    let mut upgrades = node.list("upgrade_configs").into_iter();
    if upgrades.any(|upgrade| upgrade.field("enabled").is_none_or(|enabled| !enabled.is(false))) {
        report.warn(
            node.path_of("upgrade_configs"),
            "lets clients upgrade connections, on which nothing is looked through for what only a router may tell pods that hand \
             over KV; leave it out",
        );
    }
}

fn check_clusters(router: &Router, clusters: &Clusters<'_>, report: &mut Report) {
    let Routing::Address { header, .. } = &router.settings().routing else { return };
    let of = |workflow: &PrefillDecode| {
        let clusters = [&workflow.prefill_cluster, &workflow.aggregated_cluster];
        let called = clusters.into_iter().flat_map(|named| called(router, named.as_deref()));
        called.map(str::to_owned).collect::<Vec<_>>()
    };
    let of_pods = router.workflows().iter().flat_map(of);
    let mut names: Vec<_> = of_pods.chain(question_clusters(router)).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        if clusters.is_absent(&name) {
            let problem = format!("has no cluster {name:?}, by which a workflow calls pods; add it");
            report.warn("static_resources.clusters", problem);
        } else if !clusters.overrides_host(&name, header) {
            let problem = format!(
                "cluster {name:?} has no override_host with the header {header}, so it is chance which pod a workflow calls; add it, \
                 or name another"
            );
            report.warn("static_resources.clusters", problem);
        }
    }
}
