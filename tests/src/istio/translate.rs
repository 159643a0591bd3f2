//! Each kind of object, field by field.

use super::{IstioGateway, RBAC, WASM};
use crate::fields::Fields;
use serde_json::{Value, json};

const ROUTER: &str = "envoy.filters.http.router";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// What Istio sets in place of Envoy's 1024.
const NO_LIMIT: u32 = u32::MAX;

impl IstioGateway {
    /// A listener as Istio makes it for any Gateway, without a route yet.
    pub(super) fn gateway(mut gateway: Fields) -> Self {
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
    pub(super) fn http_route(&mut self, mut route: Fields) {
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

    pub(super) fn destination_rule(&mut self, mut rule: Fields) {
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
    pub(super) fn wasm_plugin(&mut self, mut plugin: Fields) {
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

    pub(super) fn envoy_filter(&mut self, mut filter: Fields) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_that_of_protobuf() {
        let mut into = json!({"a": {"b": 1, "c": [1]}, "d": "5s"});
        merge(&mut into, json!({"a": {"b": 2, "c": [2], "e": {}}, "d": "6s"}));
        assert_eq!(into, json!({"a": {"b": 2, "c": [1, 2], "e": {}}, "d": "6s"}));
    }
}
