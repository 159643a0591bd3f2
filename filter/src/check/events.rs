//! The listeners that engines bring their KV events to.

use super::document::Node;
use super::plugins::{Plugin, Role};
use super::report::Report;
use crate::config::Router;
use crate::plugin::index_settings;

/// Bytes that a worker takes at once without its other connections noticing.
const COMFORTABLE: u64 = 256 << 10;
/// What Envoy buffers where nothing is said.
const DEFAULT_BUFFER: u64 = 1 << 20;

/// Warns of what keeps events from arriving, or from being of use. `others`: all filters of ours.
pub fn check(plugin: &Plugin<'_>, others: &[Plugin<'_>], report: &mut Report) {
    let Some(listener) = &plugin.listener else { return };
    let limit = listener.field("per_connection_buffer_limit_bytes");
    let bytes = limit.as_ref().and_then(Node::number).unwrap_or(DEFAULT_BUFFER);
    let at = listener.path_of("per_connection_buffer_limit_bytes");
    match plugin.role() {
        Role::Requests => return,
        Role::EventsByZmq => {
            if bytes > COMFORTABLE {
                let problem = format!(
                    "is {bytes}: a worker takes so many bytes of events at once, and its requests wait; set it to 65536"
                );
                report.warn(at, problem);
            }
            if !is_echoed(listener) {
                report.warn(
                    &listener.path,
                    "has no envoy.filters.network.echo after Warmpath: what the filter answers is never sent, and no \
                     engine begins to speak; add it as the last filter",
                );
            }
        }
        Role::EventsByHttp => {
            let wanted =
                plugin.router.as_ref().map_or(0, |router| router.settings().kv_events.max_message_bytes);
            if bytes < wanted as u64 {
                let problem = format!(
                    "is {bytes}: a longer batch is answered with 413, though kv_events.max_message_bytes is {wanted}; \
                     raise it to that"
                );
                report.warn(at, problem);
            }
            let token = plugin.router.as_ref().and_then(|router| router.settings().kv_events.token.as_ref());
            if token.is_none() && !is_local(listener) {
                report.warn(
                    plugin.config.path_of("configuration"),
                    "has no kv_events.token: whoever reaches this listener can say of any pod what it holds, and so draw its \
                     requests elsewhere; set one",
                );
            }
        }
    }
    if let Some(router) = &plugin.router {
        check_settings(plugin, router, others, report);
    }
}

/// What comes in here is found by requests only if both filters speak of the same blocks of the same pods.
fn check_settings(plugin: &Plugin<'_>, router: &Router, others: &[Plugin<'_>], report: &mut Report) {
    let mut requests = others
        .iter()
        .filter(|other| other.role() == Role::Requests)
        .filter_map(|other| other.router.as_ref())
        .peekable();
    let is_same = |other: &Router| {
        let [mine, its] = [router, other].map(Router::settings);
        index_settings(mine).identity() == index_settings(its).identity()
            && mine.tokenizers == its.tokenizers
            && mine.discovery == its.discovery
            && router.pods().iter().all(|pod| other.pods().iter().any(|its| its.id() == pod.id()))
    };
    if requests.peek().is_some() && !requests.any(is_same) {
        report.warn(
            plugin.config.path_of("configuration"),
            "has other pods, tokenizers, blocks or index than the filter that takes requests: what engines say here is \
             found by none; give both the same configuration, by a YAML anchor",
        );
    }
    if router.settings().tokenizers.is_empty() {
        report.warn(
            plugin.config.path_of("configuration"),
            "has no tokenizers: prompts are not hashed as tokens, so no block that an engine speaks of is ever looked for",
        );
    }
}

/// Whether only this machine reaches it.
fn is_local(listener: &Node<'_>) -> bool {
    let address = listener.at(&["address", "socket_address"]);
    address
        .as_ref()
        .and_then(|address| address.text_of("address"))
        .is_some_and(|address| address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback()))
}

/// Whether what is left of a connection's bytes is sent back.
fn is_echoed(listener: &Node<'_>) -> bool {
    listener.list("filter_chains").iter().all(|chain| {
        let last = chain.list("filters").pop().and_then(|filter| filter.field("typed_config"));
        last.is_some_and(|last| last.is_type("filters.network.echo.v3.Echo"))
    })
}
