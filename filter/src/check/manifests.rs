//! Plugin configurations in Kubernetes manifests. What a control plane makes around them can't be seen.

use super::document::Node;
use super::envoy::check_plugin;
use super::placement;
use super::plugins::{find, is_named};
use super::report::Report;
use crate::config::{Router, Via, load};
use serde_json::Value;

/// The documents of a file of manifests, if it is one.
pub fn documents(file: &Value) -> Option<Vec<&Value>> {
    let documents = file.as_array().map_or_else(|| vec![file], |documents| documents.iter().collect());
    let is_manifest = |document: &&Value| {
        ["apiVersion", "kind"].iter().all(|name| document.get(name).is_some_and(Value::is_string))
    };
    let written: Vec<_> = documents.into_iter().filter(|document| !document.is_null()).collect();
    (!written.is_empty() && written.iter().all(is_manifest)).then_some(written)
}

/// Checks the configurations in them.
pub fn check(documents: &[&Value], report: &mut Report) {
    let is_of = |document: &Value, kind: &str| document["kind"] == *kind;
    let patches = documents.iter().filter(|document| is_of(document, "EnvoyPatchPolicy"));
    let is_patched = patches.into_iter().any(|patch| patch.to_string().contains(FLAG));
    let mut found = 0;
    for document in documents {
        let kind = document["kind"].as_str().unwrap_or_default();
        let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let Some(spec) = document.get("spec") else { continue };
        let spec = Node { value: spec, path: format!("{kind} {name}: spec") };
        let holds = match kind {
            // Its patches are pieces of an Envoy configuration.
            "EnvoyFilter" => {
                for plugin in find(&spec, report) {
                    check_plugin(&plugin, report);
                    placement::check(&plugin, report);
                    found += 1;
                }
                continue;
            }
            "EnvoyExtensionPolicy" => spec.list("wasm").into_iter().map(|wasm| (wasm, "config")).collect(),
            "WasmPlugin" => vec![(spec, "pluginConfig")],
            _ => continue,
        };
        for (wasm, field) in holds {
            let image = wasm.at(&["code", "image"]).and_then(|image| image.text_of("url"));
            let http = wasm.at(&["code", "http"]).and_then(|http| http.text_of("url"));
            let names = ["name", "pluginName", "url"].map(|name| wasm.text_of(name));
            if !is_named(names.into_iter().chain([image, http])) {
                continue;
            }
            found += 1;
            let path = wasm.path_of(field);
            match load(wasm.value.get(field).unwrap_or(&Value::Null).to_string().as_bytes()) {
                Ok(router) if !(is_patched && kind == "EnvoyExtensionPolicy") => held(&router, &path, report),
                Ok(_) => {}
                Err(mistakes) => report.mistakes_at(&path, &mistakes),
            }
        }
    }
    if found == 0 {
        let cure = "check the one with the EnvoyExtensionPolicy, WasmPlugin or EnvoyFilter";
        report.mistake("", format!("no plugin configuration of Warmpath is in these manifests; {cure}"));
    }
}

/// What the kinds have no field for.
const FLAG: &str = "allow_on_headers_stop_iteration";

fn held(router: &Router, path: &str, report: &mut Report) {
    if router.settings().routing.via() == Via::Header {
        report.warn(
            path,
            format!(
                "wants the headers held until the body is read, which nothing here sets ({FLAG}); set routing.via to \
                 \"filter-state\", with a buffer filter behind"
            ),
        );
    }
}
