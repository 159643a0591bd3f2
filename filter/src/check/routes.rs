//! Settings of routes and listeners that LLM traffic needs.

use super::clusters::Clusters;
use super::document::Node;
use super::plugins::Plugin;
use super::report::Report;
use super::workflows::is_for_handoffs;
use crate::config::{Router, Routing, Via};

/// What Envoy buffers of a body where nothing is said.
const DEFAULT_BUFFER: u64 = 1 << 20;

/// Warns of the routes behind a filter. Routes that come from elsewhere (RDS) can't be seen and are not spoken of.
pub fn check(plugin: &Plugin<'_>, router: &Router, clusters: &Clusters<'_>, report: &mut Report) {
    let Some(manager) = &plugin.manager else { return };
    let Some(hosts) = manager.at(&["route_config", "virtual_hosts"]) else { return };
    let mut ours = 0;
    for host in hosts.items() {
        for route in host.list("routes") {
            let Some(action) = route.field("route") else { continue };
            if leads_to_pods(&action, router, clusters) {
                ours += 1;
                check_times(manager, &route, &action, report);
                if !is_for_handoffs(&route) {
                    check_retries(&host, &action, router, report);
                }
                // Elsewhere the buffer filter's own limit counts.
                if router.settings().routing.via() == Via::Header {
                    check_body_limit(plugin, &host, &route, router, report);
                }
            }
        }
    }
    if ours == 0 {
        let header = router.settings().routing.header();
        let cure = match router.settings().routing {
            Routing::Address { .. } => {
                format!("route to a cluster with override_host that reads the header {header}")
            }
            Routing::Cluster { .. } => format!("route with cluster_header: {header}"),
        };
        report.warn(&hosts.path, format!("has no route by which a chosen pod is reached; {cure}"));
    }
}

/// Does the filter's choice decide where this route goes?
fn leads_to_pods(action: &Node<'_>, router: &Router, clusters: &Clusters<'_>) -> bool {
    match &router.settings().routing {
        Routing::Address { header, .. } => {
            action.text_of("cluster").is_some_and(|name| clusters.overrides_host(name, header))
        }
        Routing::Cluster { header } => {
            action.text_of("cluster_header").is_some_and(|name| name.eq_ignore_ascii_case(header))
        }
    }
}

fn check_times(manager: &Node<'_>, route: &Node<'_>, action: &Node<'_>, report: &mut Report) {
    if action.field("timeout").and_then(|timeout| timeout.seconds()) != Some(0.0) {
        report.warn(
            action.path_of("timeout"),
            "is not 0s: a generation that takes longer (15 s where nothing is set) is cut; set it to 0s",
        );
    }
    let idle = action.field("idle_timeout").or_else(|| manager.field("stream_idle_timeout"));
    if !idle.and_then(|idle| idle.seconds()).is_some_and(|seconds| seconds > 0.0) {
        report.warn(
            manager.path_of("stream_idle_timeout"),
            format!(
                "is not set, nor is idle_timeout of {}: with a timeout of 0s it alone ends requests that hang; set it to \
                 the longest wait for a token, such as 300s",
                route.path
            ),
        );
    }
}

fn check_retries(host: &Node<'_>, action: &Node<'_>, router: &Router, report: &mut Report) {
    let routing = &router.settings().routing;
    // Envoy is told not to retry: which requests are split isn't known yet when that has to be said.
    let never_retries = routing.via() == Via::FilterState && !router.workflows().is_empty();
    if never_retries || !matches!(routing, Routing::Address { .. }) {
        return;
    }
    let policy = action.field("retry_policy").or_else(|| host.field("retry_policy"));
    let on = policy.as_ref().and_then(|policy| policy.text_of("retry_on")).unwrap_or_default();
    if !on.split(',').any(|condition| matches!(condition.trim(), "reset" | "5xx")) {
        report.warn(
            policy.as_ref().unwrap_or(action).path_of(if policy.is_some() { "retry_on" } else { "retry_policy" }),
            "doesn't retry on reset: a pod that closes an idle connection as the request arrives makes a 503, and the \
             next-best pod is never tried; set retry_on to \"connect-failure,refused-stream,reset\"",
        );
    }
}

fn check_body_limit(
    plugin: &Plugin<'_>,
    host: &Node<'_>,
    route: &Node<'_>,
    router: &Router,
    report: &mut Report,
) {
    let on_route =
        route.field("request_body_buffer_limit").or_else(|| host.field("request_body_buffer_limit"));
    let on_listener =
        plugin.listener.as_ref().and_then(|listener| listener.field("per_connection_buffer_limit_bytes"));
    let limit = on_route.or(on_listener).and_then(|limit| limit.number());
    let wanted = router.settings().max_body_bytes as u64;
    if limit.unwrap_or(DEFAULT_BUFFER) < wanted {
        let is = limit
            .map_or_else(|| "is not set, which makes it 1048576".to_owned(), |limit| format!("is {limit}"));
        report.warn(
            route.path_of("request_body_buffer_limit"),
            format!("{is}: a longer body is answered with 413, though limits.max_body_bytes is {wanted}; raise it to that"),
        );
    }
}
