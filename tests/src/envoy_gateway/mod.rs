//! What Envoy Gateway makes of the manifests in `examples/`, for exactly the fields that those have: the xDS that it would give
//! Envoy, in one file. Names, order and settings are those of its translator (1.9).
//!
//! What differs: routes are inlined where it serves them by RDS, endpoints are listed where it serves them by EDS, and the
//! module is a file where Envoy would fetch it from the gateway.

use crate::fields::Fields;
use crate::manifests::{Manifest, Manifests};
use serde_json::{Value, json};
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

/// The Envoy configuration for the manifests of a file in `examples/`, with these pods behind their Service.
pub fn translate(file: &str, pods: &[SocketAddr]) -> Value {
    let mut manifests = Manifests::load(file);
    let proxy = proxy(&mut manifests);
    let gateway = manifests.one("Gateway");
    let mut route = manifests.one("HTTPRoute");
    let translated = Gateway::new(gateway).rules(&mut manifests, rules(&mut route), &route, pods);
    route.spec.is("parentRefs", json!([{"name": "llm"}]));
    let finished = translated.finish(&mut manifests, proxy, |_| ());
    manifests.done();
    finished
}

/// The same for Envoy AI Gateway, which makes a route of its own and puts its external processor into the chain. That can't be had
/// here: a filter stands in for it that does the same to the chain. It holds the headers until the body is whole, sets the
/// model's header, and has the route taken anew.
pub fn translate_ai(file: &str, pods: &[SocketAddr]) -> Value {
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
    let translated = Gateway::new(gateway).rules(&mut manifests, rules, &route, pods);
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
    Pods,
    NotFound,
}

struct Rule {
    matches: Value,
    action: Action,
    add: Value,
}

fn rules(route: &mut Manifest) -> Vec<Rule> {
    let rule = |mut rule: Fields| {
        rule.is("matches", json!([{"path": {"type": "PathPrefix", "value": "/"}}]));
        rule.is("backendRefs", json!([{"name": "vllm", "port": 8000}]));
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
        Rule { matches: json!({"prefix": "/"}), action: Action::Pods, add: json!(add) }
    };
    route.spec.list("rules").into_iter().map(rule).collect()
}

fn ai_rule(mut rule: Fields) -> Rule {
    rule.is("backendRefs", json!([{"name": "vllm"}]));
    rule.is("timeouts", json!({"request": "0s"}));
    let matches = rule.take("matches");
    let header = &matches[0]["headers"][0];
    let matches = json!({"prefix": "/", "headers": [{"name": header["name"], "string_match": {"exact": header["value"]}}]});
    Rule { matches, action: Action::Pods, add: json!([]) }
}

/// What is made so far.
struct Gateway {
    /// `namespace/name/listener`.
    name: String,
    routes: Vec<Value>,
    cluster: Value,
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
        Self { name, routes: Vec::new(), cluster: Value::Null, filters: vec![router], hcm }
    }

    /// Makes the routes, and the cluster of the first rule.
    fn rules(
        mut self,
        manifests: &mut Manifests,
        rules: Vec<Rule>,
        route: &Manifest,
        pods: &[SocketAddr],
    ) -> Self {
        let cluster = format!("httproute/{}/{}/rule/0", route.namespace, route.name);
        let endpoint = |pod: &SocketAddr| {
            json!({
                "endpoint": {"address": {"socket_address": {"address": pod.ip().to_string(), "port_value": pod.port()}}},
                "load_balancing_weight": 1,
            })
        };
        self.cluster = json!({
            "name": cluster, "type": "STATIC", "connect_timeout": "10s", "ignore_health_on_host_removal": true,
            "per_connection_buffer_limit_bytes": 32768, "common_lb_config": {}, "dns_lookup_family": "V4_PREFERRED",
            "circuit_breakers": {"thresholds": [{"max_retries": 1024}]},
            "load_assignment": {"cluster_name": cluster, "endpoints": [{
                "lb_endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
                "load_balancing_weight": 1, "locality": {"region": format!("{cluster}/backend/0")},
            }]},
        });
        for (i, rule) in rules.into_iter().enumerate() {
            let mut made = json!({"name": format!("httproute/{}/{}/rule/{i}/match/0/*", route.namespace, route.name), "match": rule.matches});
            match rule.action {
                Action::Pods => {
                    made["route"] =
                        json!({"cluster": cluster, "upgrade_configs": [{"upgrade_type": "websocket"}]})
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
        self.traffic(manifests.one("BackendTrafficPolicy"));
        self.client(manifests.one("ClientTrafficPolicy"));
        self.extension(manifests.one("EnvoyExtensionPolicy"));
        self
    }

    fn traffic(&mut self, mut policy: Manifest) {
        policy.spec.take("targetRefs");
        let mut balancer = policy.spec.object("loadBalancer");
        balancer.is("type", json!("LeastRequest"));
        let sources = balancer.object("endpointOverride").take("extractFrom");
        let named = |name: &str, config: Value| json!({"typed_extension_config": {"name": format!("envoy.load_balancing_policies.{name}"), "typed_config": config}});
        let fallback = named(
            "least_request",
            json!({"@type": format!("{EXTENSIONS}.load_balancing_policies.least_request.v3.LeastRequest")}),
        );
        let config = json!({
            "@type": format!("{EXTENSIONS}.load_balancing_policies.override_host.v3.OverrideHost"),
            "override_host_sources": sources, "fallback_policy": {"policies": [fallback]},
        });
        self.cluster["load_balancing_policy"] = json!({"policies": [named("override_host", config)]});

        let buffer = policy.spec.maybe("requestBuffer");
        if let Some(buffer) = &buffer {
            let limit = bytes(buffer["limit"].as_str().expect("a quantity"));
            let kind = format!("{EXTENSIONS}.filters.http.buffer.v3");
            let filter = json!({"name": ORDER[0], "disabled": true, "typed_config": {"@type": format!("{kind}.Buffer"), "max_request_bytes": limit}});
            self.filters.push(filter);
            for route in &mut self.routes {
                route["typed_per_filter_config"][ORDER[0]] = json!({"@type": format!("{kind}.BufferPerRoute"), "buffer": {"max_request_bytes": limit}});
            }
        }

        let mut http = policy.spec.object("timeout").object("http");
        let request = http.take("requestTimeout");
        let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        self.cluster["typed_extension_protocol_options"] = json!({options: {
            "@type": format!("type.googleapis.com/{options}"),
            "common_http_protocol_options": {"idle_timeout": http.take("connectionIdleTimeout")},
            "explicit_http_config": {"http_protocol_options": {}},
        }});

        let mut retry = policy.spec.object("retry");
        let mut on = retry.object("retryOn");
        let triggers = on.take("triggers");
        let triggers: Vec<_> =
            triggers.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let retry_policy = json!({
            "num_retries": retry.take("numRetries"), "retry_on": triggers.join(","), "retriable_status_codes": on.take("httpStatusCodes"),
            "host_selection_retry_max_attempts": 5,
            "retry_host_predicate": [{"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": format!("{EXTENSIONS}.retry.host.previous_hosts.v3.PreviousHostsPredicate")}}],
        });
        for route in self.routes.iter_mut().filter(|route| route.get("route").is_some()) {
            let action = &mut route["route"];
            action["timeout"] = request.clone();
            action["retry_policy"] = retry_policy.clone();
            if buffer.is_some() {
                // A buffered upgrade would wait for ever.
                action.as_object_mut().expect("an object").remove("upgrade_configs");
            }
        }

        let mut breaker = policy.spec.object("circuitBreaker");
        self.cluster["circuit_breakers"]["thresholds"][0] = json!({
            "max_connections": breaker.take("maxConnections"), "max_pending_requests": breaker.take("maxPendingRequests"),
            "max_requests": breaker.take("maxParallelRequests"), "max_retries": breaker.take("maxParallelRetries"),
        });
    }

    fn client(&mut self, mut policy: Manifest) {
        policy.spec.take("targetRefs");
        self.hcm["stream_idle_timeout"] =
            policy.spec.object("timeout").object("http").take("streamIdleTimeout");
        let mut headers = policy.spec.object("headers");
        let removed = headers.object("earlyRequestHeaders").take("remove");
        let removed: Vec<_> =
            removed.as_array().expect("a list").iter().map(|name| json!({"remove": name})).collect();
        self.hcm["early_header_mutation_extensions"] = json!([{
            "name": "envoy.http.early_header_mutation.header_mutation",
            "typed_config": {"@type": format!("{EXTENSIONS}.http.early_header_mutation.header_mutation.v3.HeaderMutation"), "mutations": removed},
        }]);
    }

    fn extension(&mut self, mut policy: Manifest) {
        policy.spec.take("targetRefs");
        let id = |kind: &str, i: usize| {
            format!("envoyextensionpolicy/{}/{}/{kind}/{i}", policy.namespace, policy.name)
        };
        let mut names = Vec::new();
        for (i, mut wasm) in policy.spec.maybe_list("wasm").into_iter().enumerate() {
            let mut code = wasm.object("code");
            code.is("type", json!("Image"));
            assert!(code.object("image").text("url").contains("/warmpath:"));
            let mut config = json!({
                "name": wasm.take("name"),
                "vm_config": {"vm_id": id("wasm", i), "runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": "warmpath.wasm"}}},
                "configuration": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": wasm.take("config").to_string()},
            });
            if let Some(open) = wasm.maybe("failOpen") {
                config["fail_open"] = open;
            }
            names.push(format!("{}/{}", ORDER[2], id("wasm", i)));
            self.filters.push(json!({"name": names[i], "disabled": true, "typed_config": {"@type": format!("{EXTENSIONS}.filters.http.wasm.v3.Wasm"), "config": config}}));
        }
        for (i, mut lua) in policy.spec.maybe_list("lua").into_iter().enumerate() {
            lua.is("type", json!("Inline"));
            let name = format!("{}/{}", ORDER[1], id("lua", i));
            self.filters.push(json!({"name": name, "disabled": true, "typed_config": {"@type": format!("{EXTENSIONS}.filters.http.lua.v3.Lua"), "default_source_code": {"inline_string": lua.take("inline")}}}));
            names.push(name);
        }
        for route in &mut self.routes {
            for name in &names {
                route["typed_per_filter_config"][name] =
                    json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}});
            }
        }
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
        json!({
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "static_resources": {"listeners": [listener], "clusters": [self.cluster, admin]},
        })
    }
}

/// Adds a field to all places of a JSONPath of the form `..list[?(@.name=='NAME')].a.b` or `..list[*].a.b`; returns how many
/// there are.
fn add(node: &mut Value, path: &str, name: &str, value: &Value) -> usize {
    let known = "a JSONPath of the form ..list[?(@.name=='NAME')].a.b or ..list[*].a.b";
    let (list, rest) = path.strip_prefix("..").and_then(|path| path.split_once('[')).expect(known);
    let (wanted, rest) = rest.split_once(']').expect(known);
    let wanted = match wanted {
        "*" => None,
        wanted => {
            Some(wanted.strip_prefix("?(@.name=='").and_then(|name| name.strip_suffix("')")).expect(known))
        }
    };
    let mut places = 0;
    if let Some(items) = node.get_mut(list).and_then(Value::as_array_mut) {
        for item in items.iter_mut().filter(|item| wanted.is_none_or(|wanted| item["name"] == wanted)) {
            let mut at = item;
            for step in rest.split('.').skip(1) {
                at = at.get_mut(step).unwrap_or_else(|| panic!("{path}: no {step}"));
            }
            at.as_object_mut().expect("an object").insert(name.to_owned(), value.clone());
            places += 1;
        }
    }
    let inside: Vec<_> = match node {
        Value::Object(fields) => fields.values_mut().collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    };
    places + inside.into_iter().map(|child| add(child, path, name, value)).sum::<usize>()
}

fn bytes(quantity: &str) -> u64 {
    let number: u64 =
        quantity.strip_suffix("Mi").and_then(|number| number.parse().ok()).expect("a quantity in Mi");
    number << 20
}
