//! The checks of a whole file.

use super::clusters::Clusters;
use super::document::Node;
use super::events;
use super::plugins::{Plugin, Role, find};
use super::report::Report;
use super::{manifests, placement, routes, workflows};
use crate::config::load;
use crate::events::ZMQ_ROOT;
use serde_json::Value;

/// Checks a file that was read: an Envoy configuration, Kubernetes manifests, or else a bare plugin configuration.
pub fn check(document: &Value) -> Report {
    let mut report = Report::default();
    let root = Node::root(document);
    if let Some(documents) = manifests::documents(document) {
        manifests::check(&documents, &mut report);
        return report;
    }
    // The last is a dump by Envoy's admin.
    let envoy =
        ["static_resources", "dynamic_resources", "admin", "resources", "@type", "filter_chains", "configs"];
    if !envoy.iter().any(|name| root.field(name).is_some()) {
        // As JSON it is what the filter will be given; a name that stands twice was refused when the file was read.
        if let Err(mistakes) = load(document.to_string().as_bytes()) {
            report.mistakes_at("", &mistakes);
        }
        return report;
    }
    let plugins = find(&root, &mut report);
    if plugins.iter().all(|plugin| plugin.network || plugin.role() != Role::Requests) {
        let cure =
            "add envoy.filters.http.wasm with Warmpath's code before the router, or check the right file";
        report.mistake("", format!("no HTTP filter of Warmpath is in this Envoy configuration; {cure}"));
    }
    let clusters = Clusters::of(&root);
    for plugin in &plugins {
        check_plugin(plugin, &mut report);
        placement::check(plugin, &mut report);
        events::check(plugin, &plugins, &mut report);
        if let Some(router) = &plugin.router
            && !plugin.network
            && plugin.role() == Role::Requests
        {
            routes::check(plugin, router, &clusters, &mut report);
            clusters.check(router, &mut report);
            workflows::check(plugin, router, &clusters, &mut report);
        }
    }
    check_vm_ids(&plugins, &mut report);
    report
}

/// What holds for every filter of ours.
pub fn check_plugin(plugin: &Plugin<'_>, report: &mut Report) {
    let config = &plugin.config;
    if plugin.network != (plugin.role() == Role::EventsByZmq) {
        let problem = format!(
            "is wrong: a network filter of Warmpath must have {ZMQ_ROOT:?}, and no other may; each connection would trap the \
             VM of its worker"
        );
        report.mistake(config.path_of("root_id"), problem);
    }
    let policy = config.field("failure_policy");
    let is = |name, number| {
        policy.as_ref().is_some_and(|policy| policy.text() == Some(name) || policy.number() == Some(number))
    };
    if !is("FAIL_RELOAD", 1) {
        let opens = is("FAIL_OPEN", 3) || config.field("fail_open").is_some_and(|open| open.is(true));
        let what = if opens {
            "goes on without Warmpath, and to the pods that clients name in its routing header,"
        } else {
            "answers 503"
        };
        report.warn(
            config.path_of("failure_policy"),
            format!(
                "is not FAIL_RELOAD: should the VM of a worker ever trap, that worker {what} until the configuration changes; set \
                 it to FAIL_RELOAD"
            ),
        );
    }
}

/// All of our filters share one index only under one `vm_id`.
fn check_vm_ids(plugins: &[Plugin<'_>], report: &mut Report) {
    let first = plugins.first().map_or("", vm_id);
    for plugin in plugins {
        let path = plugin.config.path_of("vm_config.vm_id");
        let id = vm_id(plugin);
        if id.is_empty() {
            report.warn(path, "is missing: filters without an own vm_id share data with strangers; set one, such as warmpath");
        } else if id != first {
            let problem = format!(
                "is {id:?} here and {first:?} elsewhere: they don't share one index; give all the same"
            );
            report.warn(path, problem);
        }
    }
}

fn vm_id<'a>(plugin: &Plugin<'a>) -> &'a str {
    plugin.config.at(&["vm_config", "vm_id"]).and_then(|id| id.text()).unwrap_or_default()
}
