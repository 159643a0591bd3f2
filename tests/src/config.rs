//! The shipped Envoy configuration, pointed at a test's pods and at free ports.

use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::path::Path;

/// An Envoy configuration under edit.
pub struct Config {
    root: Value,
}

impl Config {
    /// Reads a YAML file.
    pub fn load(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut root: Value =
            serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        for listener in root["static_resources"]["listeners"].as_array_mut().into_iter().flatten() {
            set(listener, "/address/socket_address/port_value", json!(0));
        }
        set(&mut root, "/admin/address/socket_address", json!({"address": "127.0.0.1", "port_value": 0}));
        Self { root }
    }

    /// A configuration as it is.
    pub fn of(root: Value) -> Self {
        Self { root }
    }

    /// Makes `addresses` the endpoints of the cluster `pods` and the pods of the filter, as `pod-1` and so on.
    pub fn set_pods(&mut self, addresses: &[SocketAddr]) {
        self.set_endpoints("pods", addresses);
        let pods = addresses
            .iter()
            .zip(1..)
            .map(|(a, n)| json!({"name": format!("pod-{n}"), "address": a.to_string()}));
        self.edit_plugin("/pods", pods.collect());
    }

    /// Makes `addresses` the endpoints of a cluster.
    pub fn set_endpoints(&mut self, cluster: &str, addresses: &[SocketAddr]) {
        let endpoints: Vec<_> = addresses.iter().map(|address| endpoint(*address)).collect();
        let cluster = find(&mut self.root["static_resources"]["clusters"], cluster);
        set(cluster, "/load_assignment/endpoints/0/lb_endpoints", Value::Array(endpoints));
    }

    /// Names the module that Envoy loads.
    pub fn set_module(&mut self, file: &str) {
        for filter in self.wasm_filters() {
            set(filter, "/config/vm_config/code/local", json!({"filename": file}));
        }
    }

    /// Has stock filters behind Warmpath hold the headers and set the routing header, as where a control plane can't set
    /// `allow_on_headers_stop_iteration`.
    pub fn leave_to_filter_state(&mut self) {
        self.edit_plugin("/routing/via", json!("filter-state"));
        for filter in self.wasm_filters() {
            filter["config"].as_object_mut().expect("an object").remove("allow_on_headers_stop_iteration");
        }
        let buffer = json!({
            "name": "envoy.filters.http.buffer",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                "max_request_bytes": 33_554_432,
            }
        });
        let set = |header: &str, state: &str| {
            json!({
                "header": {"key": header, "value": format!("%FILTER_STATE({state}:PLAIN)%")},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            })
        };
        self.insert_filter_behind(buffer);
        self.hcm()["route_config"]["request_headers_to_add"] =
            json!([set("x-gateway-destination-endpoint", "wasm.warmpath.destination")]);
    }

    /// Sets a value by JSON pointer.
    pub fn edit(&mut self, pointer: &str, value: Value) {
        set(&mut self.root, pointer, value);
    }

    /// Sets a value of the HTTP connection manager by JSON pointer.
    pub fn edit_hcm(&mut self, pointer: &str, value: Value) {
        set(self.hcm(), pointer, value);
    }

    /// Puts an HTTP filter before all others.
    pub fn insert_filter(&mut self, filter: Value) {
        let filters = self.hcm()["http_filters"].as_array_mut().expect("a list");
        filters.insert(0, filter);
    }

    /// Puts an HTTP filter right behind Warmpath.
    pub fn insert_filter_behind(&mut self, filter: Value) {
        let filters = self.hcm()["http_filters"].as_array_mut().expect("a list");
        let warmpath = filters.iter().position(|filter| filter["name"] == "warmpath").expect("it is there");
        filters.insert(warmpath + 1, filter);
    }

    /// Sets a value of the HTTP options of the cluster `pods` by JSON pointer.
    pub fn edit_upstream_http(&mut self, pointer: &str, value: Value) {
        let options =
            "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        set(self.cluster(), &format!("{options}{pointer}"), value);
    }

    /// Sets a value of the filter's own configuration by JSON pointer; the pointer "" replaces all of it.
    pub fn edit_plugin(&mut self, pointer: &str, value: Value) {
        let text = self.wasm().pointer("/config/configuration/value").and_then(Value::as_str).unwrap_or("{}");
        let mut plugin = serde_json::from_str(text).expect("the template's plugin configuration is JSON");
        set(&mut plugin, pointer, value);
        self.set_plugin_text(&plugin.to_string());
    }

    /// Replaces the filter's configuration by a text, JSON or not. All of Warmpath's filters have the same.
    pub fn set_plugin_text(&mut self, text: &str) {
        for filter in self.wasm_filters() {
            set(filter, "/config/configuration/value", json!(text));
        }
    }

    /// Lets each listener hold as much of a request as its first virtual host does.
    pub fn hold_by_listener(&mut self) {
        for listener in self.root["static_resources"]["listeners"].as_array_mut().into_iter().flatten() {
            let host = "/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0";
            let limit = listener.pointer(&format!("{host}/request_body_buffer_limit")).cloned();
            if let Some(limit) = limit {
                set(listener, "/per_connection_buffer_limit_bytes", limit);
            }
        }
    }

    /// Envoy reads JSON as it reads YAML.
    pub fn to_json(&self) -> String {
        self.root.to_string()
    }

    fn cluster(&mut self) -> &mut Value {
        find(&mut self.root["static_resources"]["clusters"], "pods")
    }

    fn hcm(&mut self) -> &mut Value {
        &mut self.root["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    }

    /// Warmpath's filters in all listeners. A test may have put another in its place.
    fn wasm_filters(&mut self) -> impl Iterator<Item = &mut Value> {
        fn list<'v>(of: &'v mut Value, name: &str) -> impl Iterator<Item = &'v mut Value> {
            of.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
        }
        let listeners = list(&mut self.root["static_resources"], "listeners");
        let chains = listeners.flat_map(|listener| {
            let listener = listener.as_object_mut().into_iter().flatten();
            listener.flat_map(|(name, chains)| match name.as_str() {
                "filter_chains" => chains.as_array_mut().into_iter().flatten().collect(),
                "default_filter_chain" => vec![chains],
                _ => Vec::new(),
            })
        });
        let filters = chains.flat_map(|chain| list(chain, "filters")).flat_map(|filter| {
            let config = &mut filter["typed_config"];
            match config["http_filters"].is_array() {
                true => list(config, "http_filters").map(|filter| &mut filter["typed_config"]).collect(),
                false => vec![config],
            }
        });
        filters.filter(|config| config["@type"].as_str().is_some_and(|kind| kind.ends_with("wasm.v3.Wasm")))
    }

    fn wasm(&mut self) -> &mut Value {
        &mut find(&mut self.hcm()["http_filters"], "warmpath")["typed_config"]
    }
}

fn endpoint(address: SocketAddr) -> Value {
    let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
    json!({"endpoint": {"address": {"socket_address": socket}}})
}

fn find<'v>(list: &'v mut Value, name: &str) -> &'v mut Value {
    let found = list.as_array_mut().into_iter().flatten().find(|item| item["name"] == name);
    found.unwrap_or_else(|| panic!("the template has nothing named {name}"))
}

/// Sets what a JSON pointer names, making objects on the way; a last part "-" appends to a list.
fn set(root: &mut Value, pointer: &str, value: Value) {
    let mut at = root;
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        at = match at {
            Value::Object(map) => map.entry(part).or_insert(Value::Null),
            Value::Array(list) => {
                let end = list.len();
                let index = if part == "-" { Ok(end) } else { part.parse() };
                let index: usize = index.unwrap_or_else(|_| panic!("{pointer}: {part} is no index"));
                if index == end {
                    list.push(Value::Null);
                }
                &mut list[index]
            }
            _ => panic!("{pointer}: {part} lies within a scalar"),
        };
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_makes_objects_replaces_and_appends() {
        let mut root = json!({"a": [{"b": 1}]});
        set(&mut root, "/a/0/b", json!(2));
        set(&mut root, "/a/-", json!(3));
        set(&mut root, "/c/d~1e", json!(4));
        assert_eq!(root, json!({"a": [{"b": 2}, 3], "c": {"d/e": 4}}));
        set(&mut root, "", json!(5));
        assert_eq!(root, json!(5));
    }
}
