//! Who holds the headers until the body was read, and who sets the routing header.

use super::document::Node;
use super::plugins::{Plugin, Role};
use super::report::Report;
use crate::config::{Router, Via};
use crate::workflow::{DESTINATION, RANK, RANK_HEADER};

/// Warns where nobody does.
pub fn check(plugin: &Plugin<'_>, report: &mut Report) {
    if plugin.network {
        return;
    }
    let routing = plugin.router.as_ref().filter(|_| plugin.role() == Role::Requests);
    match routing.map(|router| (router, router.settings().routing.via())) {
        Some((router, Via::FilterState)) => check_behind(plugin, router, report),
        _ => check_flag(&plugin.config, report),
    }
}

fn check_flag(config: &Node<'_>, report: &mut Report) {
    let stops = config.field("allow_on_headers_stop_iteration").is_some_and(|flag| flag.is(true));
    if !stops {
        report.warn(
            config.path_of("allow_on_headers_stop_iteration"),
            "is not true: a request whose body must be read hangs for a second and then goes by load alone; set it to \
             true, or routing.via to \"filter-state\" where nothing can",
        );
    }
}

/// What stands between the filter and the router. Routes that come from elsewhere (RDS) can't be seen, and may set the header.
fn check_behind(plugin: &Plugin<'_>, router: &Router, report: &mut Report) {
    let Some(manager) = &plugin.manager else { return };
    let filters = manager.list("http_filters");
    let inside = |filter: &Node<'_>| plugin.config.path.starts_with(&format!("{}.", filter.path));
    let behind = filters.iter().skip_while(|filter| !inside(filter)).skip(1);
    let mut behind = behind.skip_while(|filter| !is_of(filter, "buffer.v3.Buffer"));
    if behind.next().is_none() {
        report.warn(
            manager.path_of("http_filters"),
            "has no envoy.filters.http.buffer behind Warmpath's filter: with routing.via \"filter-state\" the router chooses a \
             pod before Warmpath has read the body; add it there",
        );
    }
    check_limits(manager, router.settings().max_body_bytes as u64, report);
    let behind: Vec<_> = behind.collect();
    let mut expect = |header, state, unread| check_header(manager, &behind, header, state, unread, report);
    expect(router.settings().routing.header(), DESTINATION, "nobody reads what Warmpath chose");
    if router.has_ranks() {
        expect(RANK_HEADER, RANK, "engines don't learn which of their ranks holds the prompt");
    }
}

/// Is the header set to what Warmpath leaves in this filter state?
fn check_header(
    manager: &Node<'_>,
    behind: &[&Node<'_>],
    header: &str,
    state: &str,
    unread: &str,
    report: &mut Report,
) {
    let routes = manager.field("route_config");
    let sets = |node: &Node<'_>| sets_header(node, header, state);
    if !behind.iter().copied().any(sets) && routes.as_ref().is_some_and(|routes| !sets(routes)) {
        report.warn(
            routes.as_ref().unwrap_or(manager).path_of("request_headers_to_add"),
            format!(
                "doesn't set {header}, nor does a filter behind the buffer: {unread}; set it to %FILTER_STATE(wasm.{state}:PLAIN)%, \
                 with OVERWRITE_IF_EXISTS_OR_ADD"
            ),
        );
    }
}

/// What buffer filters hold, here and as routes have it.
fn check_limits(node: &Node<'_>, wanted: u64, report: &mut Report) {
    const FIELD: &str = "max_request_bytes";
    if let Some(limit) = node.field(FIELD).and_then(|limit| limit.number()).filter(|limit| *limit < wanted) {
        let problem = format!(
            "is {limit}: a longer body is answered with 413, though limits.max_body_bytes is {wanted}; raise it to that"
        );
        report.warn(node.path_of(FIELD), problem);
    }
    node.children().iter().for_each(|child| check_limits(child, wanted, report));
}

fn is_of(filter: &Node<'_>, kind: &str) -> bool {
    filter.field("typed_config").is_some_and(|config| config.is_type(kind))
}

/// Is the header set to this filter state anywhere in here?
fn sets_header(node: &Node<'_>, header: &str, state: &str) -> bool {
    // A script says both in one text.
    let named = format!("wasm.{state}");
    if node.text().is_some_and(|text| text.contains(&named) && text.contains(header)) {
        return true;
    }
    let is_key = node.text_of("key").is_some_and(|key| key.eq_ignore_ascii_case(header));
    let is_value = || node.text_of("value").is_some_and(|value| value.contains(&format!("{named}:")));
    (is_key && is_value()) || node.children().iter().any(|child| sets_header(child, header, state))
}
