//! Finds Warmpath's filters in an Envoy configuration, wherever they stand.

use super::document::Node;
use super::report::Report;
use crate::config::{Router, load};
use crate::events::{HTTP_ROOT, ZMQ_ROOT};

/// One filter of ours.
pub struct Plugin<'a> {
    /// Its `PluginConfig`.
    pub config: Node<'a>,
    /// Is it a network filter? Those share the VM and have no routes.
    pub network: bool,
    /// The connection manager around it.
    pub manager: Option<Node<'a>>,
    /// The listener around it.
    pub listener: Option<Node<'a>>,
    /// What its configuration becomes. `None` where that holds mistakes.
    pub router: Option<Router>,
}

/// What the streams of a filter are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Inference requests.
    Requests,
    /// Connections of engines' publishers.
    EventsByZmq,
    /// Requests that bring events.
    EventsByHttp,
}

impl Plugin<'_> {
    /// What its streams are, by its root id.
    pub fn role(&self) -> Role {
        match self.config.text_of("root_id") {
            Some(HTTP_ROOT) => Role::EventsByHttp,
            Some(ZMQ_ROOT) => Role::EventsByZmq,
            _ => Role::Requests,
        }
    }
}

/// What is around the node that is looked at.
#[derive(Clone, Default)]
struct Around<'a> {
    manager: Option<Node<'a>>,
    listener: Option<Node<'a>>,
}

/// All filters of ours under `root`. Mistakes in their configurations are reported.
pub fn find<'a>(root: &Node<'a>, report: &mut Report) -> Vec<Plugin<'a>> {
    let mut plugins = Vec::new();
    walk(root, &Around::default(), &mut plugins, report);
    plugins
}

/// As deep as the file: its parser has bounded that.
fn walk<'a>(node: &Node<'a>, around: &Around<'a>, plugins: &mut Vec<Plugin<'a>>, report: &mut Report) {
    let network = node.is_type("filters.network.wasm.v3.Wasm");
    if (network || node.is_type("filters.http.wasm.v3.Wasm"))
        && let Some(config) = node.field("config")
    {
        if is_ours(&config) {
            let router = configuration(&config, report);
            let Around { manager, listener } = around.clone();
            plugins.push(Plugin { config, network, manager, listener, router });
        }
        return;
    }
    let mut inside = around.clone();
    if node.field("filter_chains").is_some() {
        inside.listener = Some(node.clone());
    }
    if node.is_type("HttpConnectionManager") {
        inside.manager = Some(node.clone());
    }
    for child in node.children() {
        walk(&child, &inside, plugins, report);
    }
}

/// By name, by code, or by a configuration that speaks of pods.
fn is_ours(config: &Node<'_>) -> bool {
    let code = config.at(&["vm_config", "code"]);
    let local = code.as_ref().and_then(|code| code.at(&["local"])?.text_of("filename"));
    let remote = code.as_ref().and_then(|code| code.at(&["remote", "http_uri"])?.text_of("uri"));
    let names = [config.text_of("name"), config.text_of("root_id"), local, remote];
    let value = config.at(&["configuration", "value"]);
    is_named(names.into_iter())
        || value.is_some_and(|value| {
            value.field("pods").is_some()
                || value.at(&["discovery", "pods_of"]).is_some()
                || value.text().is_some_and(|text| text.contains("\"pods\"") || text.contains("\"pods_of\""))
        })
}

/// Does a name, or a place of the code, speak of Warmpath?
pub fn is_named<'a>(names: impl Iterator<Item = Option<&'a str>>) -> bool {
    names.flatten().any(|name| name.contains("warmpath"))
}

/// Loads the configuration as Envoy would hand it over.
fn configuration(config: &Node<'_>, report: &mut Report) -> Option<Router> {
    let Some(any) = config.field("configuration") else {
        report.mistake(
            config.path_of("configuration"),
            "is missing; add {\"@type\": type.googleapis.com/google.protobuf.StringValue, value: JSON}",
        );
        return None;
    };
    let value = any.field("value");
    let json = match &value {
        Some(value) if any.is_type("google.protobuf.StringValue") && value.text().is_some() => {
            value.text().unwrap_or_default().as_bytes().to_vec()
        }
        Some(value) if any.is_type("google.protobuf.Struct") && value.value.is_object() => {
            value.value.to_string().into_bytes()
        }
        _ => {
            report.mistake(
                &any.path,
                "can't be read; give \"@type\" google.protobuf.StringValue with JSON as value, or google.protobuf.Struct \
                 with the fields under value",
            );
            return None;
        }
    };
    match load(&json) {
        Ok(router) => Some(router),
        Err(mistakes) => {
            report.mistakes_at(&any.path_of("value"), &mistakes);
            None
        }
    }
}
