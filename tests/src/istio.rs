//! What Istio makes of the manifests in `examples/istio` for the gateway's Envoy, since no cluster is here to make it.
//!
//! A literal translation, written from the sources of Istio 1.30, of exactly the fields that these manifests use; any other
//! makes it panic, so that they can't say what was never run. istiod gives the gateway a listener, a route, a cluster and the
//! patches of EnvoyFilters; Istio's agent, beside Envoy, puts a local file in the place of a remote module. What stock Envoy
//! lacks is left out: Istio's own filters (peer metadata, ALPN, stats), and with them mutual TLS.

use crate::envoy::{Builder, DIR, MODULE};
use crate::fields::Fields;
use crate::{Envoy, root};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};

const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
const ROUTER: &str = "envoy.filters.http.router";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// What Istio sets in place of Envoy's 1024.
const NO_LIMIT: u32 = u32::MAX;

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

    /// A listener as Istio makes it for any Gateway, without a route yet.
    fn gateway(mut gateway: Fields) -> Self {
        gateway.is("apiVersion", json!("gateway.networking.k8s.io/v1"));
        let (namespace, name) = metadata(&mut gateway);
        let mut spec = gateway.object("spec");
        spec.is("gatewayClassName", json!("istio"));
        spec.is("listeners", json!([{"name": "http", "port": 80, "protocol": "HTTP"}]));
        let filter = |name: &str, kind: &str| json!({"name": name, "typed_config": {"@type": format!("type.googleapis.com/{kind}")}});
        let mut grpc_stats = filter(
            "envoy.filters.http.grpc_stats",
            "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
        );
        grpc_stats["typed_config"]["emit_filter_state"] = json!(true);
        grpc_stats["typed_config"]["stats_for_all_methods"] = json!(false);
        let manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "outbound_0.0.0.0_80",
            "server_name": "istio-envoy",
            "use_remote_address": true,
            "forward_client_cert_details": "SANITIZE_SET",
            "set_current_client_cert_details": {"subject": true, "cert": true, "dns": true, "uri": true},
            "normalize_path": true,
            "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
            "http_protocol_options": {},
            "stream_idle_timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "websocket"}],
            "http_filters": [
                grpc_stats,
                filter("envoy.filters.http.fault", "envoy.extensions.filters.http.fault.v3.HTTPFault"),
                filter("envoy.filters.http.cors", "envoy.extensions.filters.http.cors.v3.Cors"),
                filter(ROUTER, "envoy.extensions.filters.http.router.v3.Router"),
            ],
        });
        Self {
            namespace,
            name,
            manager,
            route_config: json!({}),
            cluster: json!({}),
            extensions: Vec::new(),
            is_fetched: true,
        }
    }

    /// The route, and the cluster of the service that it leads to.
    fn http_route(&mut self, mut route: Fields) {
        route.is("apiVersion", json!("gateway.networking.k8s.io/v1"));
        let (namespace, name) = metadata(&mut route);
        let mut spec = route.object("spec");
        spec.is("parentRefs", json!([{"name": self.name}]));
        let mut rule = spec.only("rules");
        let mut backend = rule.only("backendRefs");
        let (service, port) = (backend.text("name"), backend.take("port"));
        let cluster = format!("outbound|{port}||{service}.{namespace}.svc.cluster.local");
        let mut made = json!({
            "name": format!("{namespace}.{name}.0"),
            "match": {"prefix": "/"},
            "route": {
                "cluster": cluster,
                "timeout": "0s",
                "max_grpc_timeout": "0s",
                "cluster_not_found_response_code": "INTERNAL_SERVER_ERROR",
                "retry_policy": {
                    "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
                    "num_retries": 2,
                    "host_selection_retry_max_attempts": 5,
                    "retry_host_predicate": [{
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                    }],
                },
            },
        });
        if rule.has("filters") {
            let mut filter = rule.only("filters");
            filter.is("type", json!("RequestHeaderModifier"));
            let mut headers = filter.object("requestHeaderModifier");
            made["request_headers_to_remove"] = headers.take("remove");
            let mut set = headers.only("set");
            made["request_headers_to_add"] = json!([{
                "header": {"key": set.text("name"), "value": set.text("value")},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }]);
        }
        self.route_config = json!({
            "name": "http.80",
            "validate_clusters": false,
            "ignore_port_in_host_matching": true,
            "virtual_hosts": [{"name": "*:80", "domains": ["*"], "include_request_attempt_count": true, "routes": [made]}],
        });
        self.cluster = json!({
            "name": cluster,
            "connect_timeout": "10s",
            "lb_policy": "LEAST_REQUEST",
            "circuit_breakers": {"thresholds": [{
                "max_connections": NO_LIMIT,
                "max_pending_requests": NO_LIMIT,
                "max_requests": NO_LIMIT,
                "max_retries": NO_LIMIT,
                "track_remaining": true,
            }]},
        });
    }

    fn destination_rule(&mut self, mut rule: Fields) {
        rule.is("apiVersion", json!("networking.istio.io/v1"));
        metadata(&mut rule);
        let mut spec = rule.object("spec");
        spec.is("host", json!(self.service()));
        let mut policy = spec.object("trafficPolicy");
        policy
            .is("loadBalancer", json!({"simple": "LEAST_REQUEST", "localityLbSetting": {"enabled": false}}));
        let idle = policy.object("connectionPool").object("http").text("idleTimeout");
        self.cluster["typed_extension_protocol_options"] = json!({HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": {"http_protocol_options": {}},
            "common_http_protocol_options": {"idle_timeout": idle},
        }});
    }

    /// A filter of the phase STATS: before all that this translation knows.
    fn wasm_plugin(&mut self, mut plugin: Fields) {
        plugin.is("apiVersion", json!("extensions.istio.io/v1alpha1"));
        let (namespace, name) = metadata(&mut plugin);
        assert_eq!(namespace, self.namespace, "WasmPlugin: its target is in its namespace");
        let mut spec = plugin.object("spec");
        spec.is("targetRefs", json!([{"group": GATEWAY_API, "kind": "Gateway", "name": self.name}]));
        spec.is("phase", json!("STATS"));
        spec.is("failStrategy", json!("FAIL_RELOAD"));
        let own = format!("{namespace}.{name}~istio-translated-wasmplugin");
        let resource = format!("extensions.istio.io/trafficextension/{own}");
        let uri = spec.text("url");
        let config = json!({
            "name": own,
            "root_id": spec.text("pluginName"),
            "failure_policy": "FAIL_RELOAD",
            "vm_config": {
                "runtime": "envoy.wasm.runtime.v8",
                "code": {"remote": {"http_uri": {"uri": uri, "timeout": "30s", "cluster": "_"}, "sha256": spec.text("sha256")}},
            },
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": spec.take("pluginConfig").to_string(),
            },
        });
        self.extensions.push(json!({"name": resource, "typed_config": {"@type": WASM, "config": config}}));
        let filter = json!({
            "name": resource,
            "config_discovery": {
                "config_source": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
                "type_urls": [WASM, RBAC],
            },
        });
        self.filters().insert(0, filter);
    }

    fn envoy_filter(&mut self, mut filter: Fields) {
        filter.is("apiVersion", json!("networking.istio.io/v1alpha3"));
        let (namespace, _) = metadata(&mut filter);
        assert_eq!(namespace, self.namespace, "EnvoyFilter: it selects workloads of its namespace");
        let mut spec = filter.object("spec");
        spec.is("workloadSelector", json!({"labels": {"gateway.networking.k8s.io/gateway-name": self.name}}));
        for mut patch in spec.list("configPatches") {
            let mut matching = patch.object("match");
            matching.is("context", json!("GATEWAY"));
            let target = patch.text("applyTo");
            let mut change = patch.object("patch");
            let (operation, value) = (change.text("operation"), change.take("value"));
            match (target.as_str(), operation.as_str()) {
                ("EXTENSION_CONFIG", "ADD") => self.extensions.push(value),
                ("HTTP_FILTER", "INSERT_BEFORE") => {
                    let mut filter = matching.object("listener").object("filterChain").object("filter");
                    filter.is("name", json!("envoy.filters.network.http_connection_manager"));
                    let before = filter.object("subFilter").text("name");
                    let filters = self.filters();
                    let at = filters.iter().position(|filter| filter["name"] == *before);
                    filters
                        .insert(at.unwrap_or_else(|| panic!("no filter {before} to insert before")), value);
                }
                ("HTTP_ROUTE", "MERGE") => {
                    let mut host = matching.object("routeConfiguration").object("vhost");
                    let route = &mut self.route_config["virtual_hosts"][0]["routes"][0];
                    host.object("route").is("name", route["name"].clone());
                    merge(route, value);
                }
                ("CLUSTER", "MERGE") => {
                    let mut cluster = matching.object("cluster");
                    let name =
                        format!("outbound|{}||{}", cluster.take("portNumber"), cluster.text("service"));
                    assert_eq!(self.cluster["name"], name, "the patch meets no cluster");
                    merge(&mut self.cluster, value);
                }
                other => panic!("{other:?} is not known here"),
            }
        }
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

/// Namespace and name.
fn metadata(object: &mut Fields) -> (String, String) {
    object.take("kind");
    let mut metadata = object.object("metadata");
    (metadata.text("namespace"), metadata.text("name"))
}

/// As protobuf merges: fields of messages one by one, lists appended, anything else replaced.
fn merge(into: &mut Value, value: Value) {
    match (into, value) {
        (Value::Object(into), Value::Object(fields)) => {
            assert!(!into.contains_key("@type"), "messages of a type of their own are not merged here");
            for (name, value) in fields {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(items)) => into.extend(items),
        (into, value) => *into = value,
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
    fn merging_is_that_of_protobuf() {
        let mut into = json!({"a": {"b": 1, "c": [1]}, "d": "5s"});
        merge(&mut into, json!({"a": {"b": 2, "c": [2], "e": {}}, "d": "6s"}));
        assert_eq!(into, json!({"a": {"b": 2, "c": [1, 2], "e": {}}, "d": "6s"}));
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
