//! What policies make of routes, clusters and filters.

use super::{EXTENSIONS, Gateway, ORDER};
use crate::fields::Fields;
use crate::manifests::Manifest;
use serde_json::{Value, json};

impl Gateway {
    pub(super) fn traffic(&mut self, mut policy: Manifest) {
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
        let balancing = json!({"policies": [named("override_host", config)]});

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
        let protocol = json!({options: {
            "@type": format!("type.googleapis.com/{options}"),
            "common_http_protocol_options": {"idle_timeout": http.take("connectionIdleTimeout")},
            "explicit_http_config": {"http_protocol_options": {}},
        }});

        let retry_policy = policy.spec.maybe("retry").map(|retry| retries(&retry));
        for route in self.routes.iter_mut().filter(|route| route.get("route").is_some()) {
            let action = &mut route["route"];
            action["timeout"] = request.clone();
            if let Some(retry_policy) = &retry_policy {
                action["retry_policy"] = retry_policy.clone();
            }
            if buffer.is_some() {
                // A buffered upgrade would wait for ever.
                action.as_object_mut().expect("an object").remove("upgrade_configs");
            }
        }

        let mut breaker = policy.spec.object("circuitBreaker");
        let threshold = json!({
            "max_connections": breaker.take("maxConnections"), "max_pending_requests": breaker.take("maxPendingRequests"),
            "max_requests": breaker.take("maxParallelRequests"), "max_retries": breaker.take("maxParallelRetries"),
        });
        for cluster in &mut self.clusters {
            cluster["load_balancing_policy"] = balancing.clone();
            cluster["typed_extension_protocol_options"] = protocol.clone();
            cluster["circuit_breakers"]["thresholds"][0] = threshold.clone();
        }
    }

    pub(super) fn client(&mut self, mut policy: Manifest) {
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

    pub(super) fn extension(&mut self, mut policy: Manifest) {
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
}

fn retries(retry: &Value) -> Value {
    let mut retry = Fields::of("retry", retry);
    let mut on = retry.object("retryOn");
    let triggers = on.take("triggers");
    let triggers: Vec<_> = triggers.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    json!({
        "num_retries": retry.take("numRetries"), "retry_on": triggers.join(","), "retriable_status_codes": on.take("httpStatusCodes"),
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [{"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": format!("{EXTENSIONS}.retry.host.previous_hosts.v3.PreviousHostsPredicate")}}],
    })
}

fn bytes(quantity: &str) -> u64 {
    let number: u64 =
        quantity.strip_suffix("Mi").and_then(|number| number.parse().ok()).expect("a quantity in Mi");
    number << 20
}
