//! What Envoy Gateway makes of the manifests in `examples/`, for exactly the fields that those have: the xDS that it would give
//! Envoy, in one file. Names, order and settings are those of its translator (1.9).
//!
//! What differs: routes are inlined where it serves them by RDS, endpoints are listed where it serves them by EDS, and the
//! module is a file where Envoy would fetch it from the gateway.

mod patch;
mod policies;

use crate::fields::Fields;
use crate::manifests::{Manifest, Manifests};
use patch::add;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::net::SocketAddr;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions";
/// Filters in the gateway's own order, as far as they occur here.
const ORDER: [&str; 4] = [
    "envoy.filters.http.buffer",
    "envoy.filters.http.lua",
    "envoy.filters.http.wasm",
    "envoy.filters.http.router",
];

/// The pods behind a Service or a Backend, by its name.
pub type Backends<'a> = [(&'a str, &'a [SocketAddr])];

/// The Envoy configuration for the manifests of a file in `examples/`, with these pods behind their Services.
pub fn translate(file: &str, backends: &Backends<'_>) -> Value {
    let mut manifests = Manifests::load(file);
    let proxy = proxy(&mut manifests);
    let gateway = manifests.one("Gateway");
    let mut route = manifests.one("HTTPRoute");
    let translated = Gateway::new(gateway).rules(&mut manifests, rules(&mut route), &route, backends);
    route.spec.is("parentRefs", json!([{"name": "llm"}]));
    let finished = translated.finish(&mut manifests, proxy, |_| ());
    manifests.done();
    finished
}

/// The same for Envoy AI Gateway, which makes a route of its own and puts its external processor into the chain. That can't be had
/// here: a filter stands in for it that does the same to the chain. It holds the headers until the body is whole, sets the
/// model's header, and has the route taken anew.
pub fn translate_ai(file: &str, backends: &Backends<'_>) -> Value {
    let mut manifests = Manifests::load(file);
    let proxy = proxy(&mut manifests);
    let gateway = manifests.one("Gateway");
    let mut route = manifests.one("AIGatewayRoute");
    let mut backend = manifests.one("AIServiceBackend");
    backend.spec.is("schema", json!({"name": "OpenAI"}));
    backend
        .spec
        .is("backendRef", json!({"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "vllm"}));
    let mut endpoints = manifests.one("Backend");
    endpoints
        .spec
        .is("endpoints", json!([{"fqdn": {"hostname": "vllm.default.svc.cluster.local", "port": 8000}}]));
    let mut rules: Vec<_> = route.spec.list("rules").into_iter().map(ai_rule).collect();
    rules.push(Rule { matches: json!({"prefix": "/"}), action: Action::NotFound, add: json!([]) });
    route
        .spec
        .is("parentRefs", json!([{"name": "llm", "kind": "Gateway", "group": "gateway.networking.k8s.io"}]));
    let translated = Gateway::new(gateway).rules(&mut manifests, rules, &route, backends);
    let finished = translated.finish(&mut manifests, proxy, |filters| {
        let name = |filter: &Value| filter["name"].as_str().unwrap_or_default().to_owned();
        let first =
            filters.iter().position(|filter| ORDER[1..].iter().any(|kind| name(filter).starts_with(kind)));
        let buffer = filters.iter().rposition(|filter| name(filter).starts_with(ORDER[0]));
        let at = first.max(buffer.map(|buffer| buffer + 1)).expect("there is a router");
        filters.insert(
            at,
            json!({"name": "envoy.filters.http.ext_proc/aigateway", "typed_config": {
                "@type": format!("{EXTENSIONS}.filters.http.lua.v3.Lua"),
                "default_source_code": {"inline_string": PROCESSOR},
            }}),
        );
    });
    manifests.done();
    finished
}

/// What the class of the gateway says of its Envoy, if it says anything.
fn proxy(manifests: &mut Manifests) -> Option<Manifest> {
    let mut class = manifests.one("GatewayClass");
    class.spec.is("controllerName", json!("gateway.envoyproxy.io/gatewayclass-controller"));
    class.spec.has("parametersRef").then(|| {
        let proxy = manifests.one("EnvoyProxy");
        let named = json!({"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": proxy.name, "namespace": proxy.namespace});
        class.spec.is("parametersRef", named);
        proxy
    })
}

const PROCESSOR: &str = r#"
function envoy_on_request(handle)
  local body = handle:body()
  if body then
    local model = body:getBytes(0, body:length()):match('"model"%s*:%s*"([^"]*)"')
    if model then
      handle:headers():replace("x-ai-eg-model", model)
      handle:clearRouteCache()
    end
  end
end
"#;

enum Action {
    /// To the pods behind this name.
    Pods(String),
    NotFound,
}

struct Rule {
    matches: Value,
    action: Action,
    add: Value,
}

fn rules(route: &mut Manifest) -> Vec<Rule> {
    let rule = |mut rule: Fields| {
        let [mut found]: [Fields; 1] = rule.list("matches").try_into().ok().expect("one match");
        found.is("path", json!({"type": "PathPrefix", "value": "/"}));
        let [mut backend]: [Fields; 1] = rule.list("backendRefs").try_into().ok().expect("one Service");
        backend.is("port", json!(8000));
        let mut add = Vec::new();
        for mut filter in rule.maybe_list("filters") {
            filter.is("type", json!("RequestHeaderModifier"));
            let mut modifier = filter.object("requestHeaderModifier");
            for mut header in modifier.list("set") {
                add.push(json!({
                    "header": {"key": header.take("name"), "value": header.take("value")},
                    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                }));
            }
        }
        let matches = matches(found.maybe_list("headers"));
        Rule { matches, action: Action::Pods(backend.text("name")), add: json!(add) }
    };
    route.spec.list("rules").into_iter().map(rule).collect()
}

/// A match of all paths, with these headers.
fn matches(headers: Vec<Fields>) -> Value {
    let mut matches = json!({"prefix": "/"});
    let of = |mut header: Fields| {
        header.is("type", json!("Exact"));
        json!({"name": header.take("name"), "string_match": {"exact": header.take("value")}})
    };
    let headers: Vec<_> = headers.into_iter().map(of).collect();
    if !headers.is_empty() {
        matches["headers"] = json!(headers);
    }
    matches
}

fn ai_rule(mut rule: Fields) -> Rule {
    rule.is("backendRefs", json!([{"name": "vllm"}]));
    rule.is("timeouts", json!({"request": "0s"}));
    let [mut found]: [Fields; 1] = rule.list("matches").try_into().ok().expect("one match");
    Rule { matches: matches(found.list("headers")), action: Action::Pods("vllm".to_owned()), add: json!([]) }
}

/// What is made so far.
struct Gateway {
    /// `namespace/name/listener`.
    name: String,
    routes: Vec<Value>,
    clusters: Vec<Value>,
    filters: Vec<Value>,
    hcm: Value,
}

impl Gateway {
    fn new(mut gateway: Manifest) -> Self {
        gateway.spec.is("gatewayClassName", json!("llm"));
        gateway.spec.is("listeners", json!([{"name": "http", "protocol": "HTTP", "port": 80}]));
        let name = format!("{}/{}/http", gateway.namespace, gateway.name);
        let hcm = json!({
            "@type": HCM,
            "stat_prefix": "http-10080",
            "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
            "http2_protocol_options": {"initial_connection_window_size": 1_048_576, "initial_stream_window_size": 65536, "max_concurrent_streams": 100},
            "merge_slashes": true, "normalize_path": true, "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
            "server_header_transformation": "PASS_THROUGH", "use_remote_address": true,
        });
        let router = json!({"name": ORDER[3], "typed_config": {"@type": format!("{EXTENSIONS}.filters.http.router.v3.Router"), "suppress_envoy_headers": true}});
        Self { name, routes: Vec::new(), clusters: Vec::new(), filters: vec![router], hcm }
    }

    /// Makes the routes, and a cluster for each that goes to pods.
    fn rules(
        mut self,
        manifests: &mut Manifests,
        rules: Vec<Rule>,
        route: &Manifest,
        backends: &Backends<'_>,
    ) -> Self {
        for (i, rule) in rules.into_iter().enumerate() {
            let name = format!("httproute/{}/{}/rule/{i}", route.namespace, route.name);
            let mut made = json!({"name": format!("{name}/match/0/*"), "match": rule.matches});
            match rule.action {
                Action::Pods(backend) => {
                    let (_, pods) =
                        backends.iter().find(|(name, _)| *name == backend).expect("pods for each name");
                    self.clusters.push(cluster(&name, pods));
                    made["route"] =
                        json!({"cluster": name, "upgrade_configs": [{"upgrade_type": "websocket"}]})
                }
                Action::NotFound => {
                    made["direct_response"] =
                        json!({"status": 404, "body": {"inline_string": "No matching route found."}})
                }
            }
            if !rule.add.as_array().is_none_or(Vec::is_empty) {
                made["request_headers_to_add"] = rule.add;
            }
            self.routes.push(made);
        }
        // The gateway puts the more particular first: of equal paths, who asks for more headers.
        let headers = |route: &Value| route["match"]["headers"].as_array().map_or(0, Vec::len);
        self.routes.sort_by_key(|route| Reverse(headers(route)));
        self.traffic(manifests.one("BackendTrafficPolicy"));
        self.client(manifests.one("ClientTrafficPolicy"));
        self.extension(manifests.one("EnvoyExtensionPolicy"));
        self
    }

    /// Puts it together, patched.
    fn finish(
        mut self,
        manifests: &mut Manifests,
        proxy: Option<Manifest>,
        extend: impl FnOnce(&mut Vec<Value>),
    ) -> Value {
        let kind = |filter: &Value| {
            let name = filter["name"].as_str().unwrap_or_default();
            ORDER
                .iter()
                .position(|kind| name.starts_with(kind))
                .unwrap_or_else(|| panic!("no order for {name}"))
        };
        self.filters.sort_by_key(kind);
        if let Some(mut proxy) = proxy {
            for mut position in proxy.spec.list("filterOrder") {
                let (name, after) = (position.text("name"), position.text("after"));
                let is = |filter: &Value, kind: &str| {
                    filter["name"].as_str().is_some_and(|name| name.starts_with(kind))
                };
                let (moved, mut rest): (Vec<_>, Vec<_>) =
                    self.filters.into_iter().partition(|filter| is(filter, &name));
                let at = rest.iter().rposition(|filter| is(filter, &after)).map_or(rest.len(), |at| at + 1);
                rest.splice(at..at, moved);
                self.filters = rest;
            }
        }
        extend(&mut self.filters);
        self.hcm["http_filters"] = json!(self.filters);
        self.hcm["route_config"] = json!({
            "name": self.name, "ignore_port_in_host_matching": true,
            "virtual_hosts": [{"name": format!("{}/*", self.name), "domains": ["*"], "routes": self.routes}],
        });
        let mut listener = json!({
            "name": self.name, "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "per_connection_buffer_limit_bytes": 32768, "max_connections_to_accept_per_socket_event": 1,
            "default_filter_chain": {"name": self.name, "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": self.hcm}]},
        });
        for mut policy in manifests.take("EnvoyPatchPolicy") {
            policy.spec.take("targetRef");
            policy.spec.is("type", json!("JSONPatch"));
            for mut patch in policy.spec.list("jsonPatches") {
                // Routes are within the listener here, and bear its name there.
                let of = [".listener.v3.Listener", ".route.v3.RouteConfiguration"]
                    .map(|of| format!("type.googleapis.com/envoy.config{of}"));
                let kind = patch.text("type");
                assert!(of.contains(&kind), "{kind}");
                patch.is("name", listener["name"].clone());
                let mut operation = patch.object("operation");
                operation.is("op", json!("add"));
                let (path, name, value) =
                    (operation.text("jsonPath"), operation.text("path"), operation.take("value"));
                let places = add(&mut listener, &path, &name, &value);
                assert_eq!(places, 1, "places of {path}");
            }
        }
        let admin = json!({"name": "prometheus_stats", "type": "STATIC", "connect_timeout": "0.25s", "load_assignment": {"cluster_name": "prometheus_stats"}});
        let clusters = [&[admin][..], &self.clusters].concat();
        json!({
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "static_resources": {"listeners": [listener], "clusters": clusters},
        })
    }
}

fn cluster(name: &str, pods: &[SocketAddr]) -> Value {
    let endpoint = |pod: &SocketAddr| {
        json!({
            "endpoint": {"address": {"socket_address": {"address": pod.ip().to_string(), "port_value": pod.port()}}},
            "load_balancing_weight": 1,
        })
    };
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "10s", "ignore_health_on_host_removal": true,
        "per_connection_buffer_limit_bytes": 32768, "common_lb_config": {}, "dns_lookup_family": "V4_PREFERRED",
        "circuit_breakers": {"thresholds": [{"max_retries": 1024}]},
        "load_assignment": {"cluster_name": name, "endpoints": [{
            "lb_endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
            "load_balancing_weight": 1, "locality": {"region": format!("{name}/backend/0")},
        }]},
    })
}
