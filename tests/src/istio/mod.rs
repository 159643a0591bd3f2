//! What Istio makes of the manifests in `examples/istio` for the gateway's Envoy, since no cluster is here to make it.
//!
//! A literal translation, written from the sources of Istio (August 2026), of exactly the fields that these manifests use; any other
//! makes it panic, so that they can't say what was never run. istiod gives the gateway a listener, a route, a cluster and the
//! patches of EnvoyFilters; Istio's agent, beside Envoy, puts a local file in the place of a remote module. What stock Envoy
//! lacks is left out: Istio's own filters (peer metadata, ALPN, stats), and with them mutual TLS.

mod translate;

use crate::envoy::{Builder, DIR, MODULE};
use crate::fields::Fields;
use crate::{Envoy, root};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};

const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";

/// A gateway's part of the xDS.
pub struct IstioGateway {
    namespace: String,
    name: String,
    manager: Value,
    route_config: Value,
    cluster: Value,
    /// Extensions that come by discovery, as `TypedExtensionConfig`.
    extensions: Vec<Value>,
    is_fetched: bool,
}

impl IstioGateway {
    /// Reads files of `examples/istio`.
    #[track_caller]
    pub fn of(files: &[&str]) -> Self {
        let read = |name: &&str| std::fs::read_to_string(root().join("examples/istio").join(name));
        let texts: Vec<_> =
            files.iter().map(|name| read(name).unwrap_or_else(|e| panic!("{name}: {e}"))).collect();
        Self::of_texts(&texts)
    }

    fn of_texts(texts: &[String]) -> Self {
        let all: Vec<Value> = texts
            .iter()
            .flat_map(|text| serde_saphyr::from_multiple(text).unwrap_or_else(|e| panic!("no YAML: {e}")))
            .collect();
        let of_kind = |kind: &str| -> Vec<Fields> {
            all.iter()
                .filter(|object| object["kind"] == kind)
                .map(|object| Fields::of(kind, object))
                .collect()
        };
        let one = |kind: &str| {
            let mut found = of_kind(kind);
            assert_eq!(found.len(), 1, "{kind}: one is wanted");
            found.remove(0)
        };
        let mut this = Self::gateway(one("Gateway"));
        this.http_route(one("HTTPRoute"));
        this.destination_rule(one("DestinationRule"));
        let mut read = 3;
        for plugin in of_kind("WasmPlugin") {
            this.wasm_plugin(plugin);
            read += 1;
        }
        for filter in of_kind("EnvoyFilter") {
            this.envoy_filter(filter);
            read += 1;
        }
        assert_eq!(read, all.len(), "there are objects of other kinds");
        this
    }

    fn filters(&mut self) -> &mut Vec<Value> {
        self.manager["http_filters"].as_array_mut().expect("a list")
    }

    /// The host name of the service behind the route.
    fn service(&self) -> &str {
        self.cluster["name"].as_str().and_then(|name| name.rsplit('|').next()).expect("a cluster")
    }

    /// The name of its cluster.
    pub fn cluster(&self) -> &str {
        self.cluster["name"].as_str().expect("a cluster")
    }

    /// Changes Warmpath's own configuration.
    pub fn edit_plugin(&mut self, edit: impl Fn(&mut Value)) {
        for extension in &mut self.extensions {
            let value = &mut extension["typed_config"]["config"]["configuration"]["value"];
            let mut plugin =
                value.as_str().and_then(|text| serde_json::from_str(text).ok()).expect("it is JSON");
            edit(&mut plugin);
            *value = json!(plugin.to_string());
        }
    }

    /// What the agent does: extensions with the module as a local file.
    fn fetched(&self) -> Vec<Value> {
        let fetch = |extension: &Value| {
            let mut extension = extension.clone();
            assert_eq!(extension["typed_config"]["@type"], WASM);
            let code = &mut extension["typed_config"]["config"]["vm_config"]["code"];
            let mut remote = Fields::of("code", code).object("remote");
            let digest = remote.text("sha256");
            assert!(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{digest}");
            let mut uri = remote.object("http_uri");
            assert!(uri.text("uri").starts_with("oci://"));
            uri.is("timeout", json!("30s"));
            uri.is("cluster", json!("_"));
            *code = json!({"local": {"filename": MODULE}});
            if !self.is_fetched {
                extension["typed_config"] = json!({"@type": RBAC, "rules": {}});
            }
            extension
        };
        self.extensions.iter().map(fetch).collect()
    }

    /// What the agent puts in the place of a module that it can't fetch: a filter that denies everything.
    pub fn without_module(mut self) -> Self {
        self.is_fetched = false;
        self
    }

    /// The whole configuration with every extension in its place, as `warmpath check` reads it.
    pub fn inline(&self, pods: &[SocketAddr]) -> Value {
        let extensions = self.fetched();
        self.bootstrap(pods, |filter| {
            let found = extensions.iter().find(|extension| extension["name"] == filter["name"]);
            found.unwrap_or_else(|| panic!("nothing to discover as {}", filter["name"])).clone()
        })
    }

    /// A real Envoy that discovers its extensions from files.
    pub fn envoy(&self, pods: &[SocketAddr]) -> Builder {
        let mut files = Vec::new();
        for (n, mut extension) in self.fetched().into_iter().enumerate() {
            extension["@type"] = json!("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig");
            let name = extension["name"].clone();
            files.push((name, format!("{n}.json"), json!({"resources": [extension]}).to_string()));
        }
        let config = self.bootstrap(pods, |filter| {
            let found = files.iter().find(|(name, ..)| *name == filter["name"]);
            let (_, file, _) = found.unwrap_or_else(|| panic!("nothing to discover as {}", filter["name"]));
            let mut filter = filter.clone();
            let discovery = &mut filter["config_discovery"];
            assert_eq!(
                discovery["type_urls"],
                json!([WASM, RBAC]),
                "what the agent may send must be allowed"
            );
            let source = discovery["config_source"].as_object_mut().expect("an object");
            assert_eq!(source.remove("ads"), Some(json!({})));
            source.insert("path_config_source".to_owned(), json!({"path": format!("{DIR}/{file}")}));
            filter
        });
        files.into_iter().fold(Envoy::from_config(config), |envoy, (_, file, text)| envoy.file(&file, text))
    }

    fn bootstrap(&self, pods: &[SocketAddr], discovered: impl Fn(&Value) -> Value) -> Value {
        let mut manager = self.manager.clone();
        manager["route_config"] = self.route_config.clone();
        let filters = manager["http_filters"].as_array_mut().expect("a list");
        let mut used = 0;
        for filter in filters.iter_mut().filter(|filter| filter.get("config_discovery").is_some()) {
            *filter = discovered(filter);
            used += 1;
        }
        assert_eq!(used, self.extensions.len(), "an extension is asked for by no filter");
        let mut cluster = self.cluster.clone();
        cluster["type"] = json!("STATIC");
        cluster["load_assignment"] = assignment(self.cluster(), pods);
        // Stats that an Istio proxy has unless it is told otherwise.
        let shown = [
            "cluster_manager",
            "listener_manager",
            "server",
            "cluster.xds-grpc",
            "wasm",
            "component",
            "istio",
        ];
        // Istio's port 15000.
        let admin = free();
        let stats = json!({
            "name": "prometheus_stats", "type": "STATIC", "connect_timeout": "0.250s", "lb_policy": "ROUND_ROBIN",
            "load_assignment": assignment("prometheus_stats", &[admin]),
        });
        json!({
            "node": {"id": "gateway", "cluster": "gateway"},
            "admin": {"address": socket(admin)},
            "stats_config": {
                "use_all_default_tags": false,
                "stats_matcher": {"inclusion_list": {"patterns": shown.map(|prefix| json!({"prefix": prefix}))}},
            },
            "static_resources": {
                "listeners": [{
                    "name": "0.0.0.0_80",
                    "address": socket(SocketAddr::from(([127, 0, 0, 1], 0))),
                    "filter_chains": [{"filters": [{
                        "name": "envoy.filters.network.http_connection_manager", "typed_config": manager,
                    }]}],
                }],
                "clusters": [cluster, stats],
            },
        })
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free")
}

fn socket(at: SocketAddr) -> Value {
    json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}})
}

fn assignment(cluster: &str, addresses: &[SocketAddr]) -> Value {
    let endpoints: Vec<_> =
        addresses.iter().map(|at| json!({"endpoint": {"address": socket(*at)}})).collect();
    json!({"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> String {
        std::fs::read_to_string(root().join("examples/istio/gateway.yaml")).expect("it is there")
    }

    fn way() -> String {
        std::fs::read_to_string(root().join("examples/istio/envoyfilter.yaml")).expect("it is there")
    }

    #[test]
    #[should_panic(expected = "has fields that are not known here: [\"outlierDetection\"]")]
    fn a_field_that_is_not_translated_is_refused() {
        let text = shared().replace("    connectionPool:", "    outlierDetection: {}\n    connectionPool:");
        IstioGateway::of_texts(&[text, way()]);
    }

    #[test]
    #[should_panic(expected = "the patch meets no cluster")]
    fn a_patch_that_meets_nothing_is_refused() {
        IstioGateway::of_texts(&[shared().replace("portNumber: 8000", "portNumber: 8001"), way()]);
    }
}
