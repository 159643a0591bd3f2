//! Pods that prefill and pods that decode, and an Envoy that runs a workflow over them.

use crate::envoy::Builder;
use crate::{Envoy, Pods, root};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Simulated pods of both roles, in a process each: what one knows came from the other by the protocol alone.
pub struct Disaggregated {
    /// `prefill-1` and so on.
    pub prefill: Pods,
    /// `decode-1` and so on.
    pub decode: Pods,
    /// Ordinary ones, `whole-1` and so on, where the protocol's own serve nothing alone.
    pub whole: Option<Pods>,
    /// Addresses of decode pods that are no more.
    pub gone: Vec<SocketAddr>,
    protocol: &'static str,
}

impl Disaggregated {
    /// Starts pods that speak a protocol, as pod-sim calls it, with further arguments for all of them.
    #[track_caller]
    pub fn start(protocol: &'static str, prefill: usize, decode: usize, arguments: &[&str]) -> Self {
        let start = |role: &str, count: usize| {
            // One pod alone would have no number.
            let name = if count == 1 { format!("{role}-1") } else { role.to_owned() };
            let common = ["--kv-transfer", protocol, "--role", role, "--name", &name, "--journal-bodies"];
            Pods::start(count, &[&common, arguments].concat())
        };
        let (prefill, decode) = (start("prefill", prefill), start("decode", decode));
        Self { prefill, decode, whole: None, gone: Vec::new(), protocol }
    }

    /// With ordinary pods, too.
    #[track_caller]
    pub fn with_whole(mut self, arguments: &[&str]) -> Self {
        let common = ["--name", "whole-1", "--journal-bodies"];
        self.whole = Some(Pods::start(1, &[&common, arguments].concat()));
        self
    }

    /// The configuration of an example with this folder's name, with these pods in place of its own.
    #[track_caller]
    pub fn example(&self, name: &str) -> Builder {
        let file = root().join("examples").join(name).join("envoy.yaml");
        let mut builder = Envoy::from_template(&file).plugin("/pods", json!(self.pods()));
        for role in ["prefill", "decode", "whole"] {
            let addresses: Vec<_> = self.of_role(role).map(|(_, address, _)| address).collect();
            if !addresses.is_empty() {
                builder = builder.endpoints(role, &addresses);
            }
        }
        if self.protocol == "mooncake" {
            builder = builder.endpoints("bootstrap", &self.bootstrap_servers());
        }
        builder
    }

    /// An Envoy with a workflow `pd` over these pods; `more` is merged into it.
    #[track_caller]
    pub fn envoy(&self, more: Value) -> Builder {
        let kind = self.protocol_name();
        let mut protocol = json!({"type": kind});
        if kind == "mooncake" {
            protocol["bootstrap_cluster"] = json!("bootstrap");
        }
        let mut workflow = json!({"protocol": protocol, "cluster": "pods", "remote_prefill": {"min_tokens": 0, "min_share": 0, "max_slowdown": 1000}});
        if self.whole.is_some() {
            workflow["aggregated"] = json!({"profile": "whole"});
        } else if matches!(kind, "sglang" | "p2p-nccl") {
            workflow.as_object_mut().expect("an object").remove("remote_prefill");
        }
        merge(&mut workflow, more);
        let mut builder = self
            .in_front(Envoy::builder())
            .plugin("/workflows", json!({"pd": workflow}))
            .plugin("/workflow", json!("pd"))
            .plugin("/debug_header", json!("x-warmpath-debug"));
        if self.whole.is_some() {
            let whole = json!({
                "filters": [{"type": "label", "label": "role", "any_of": ["whole"], "strict": true}],
                "picker": {"type": "best"},
            });
            builder = builder.plugin("/profiles", json!({"whole": whole}));
        }
        builder
    }

    fn protocol_name(&self) -> &'static str {
        if self.protocol == "trtllm" { "tensorrt-llm" } else { self.protocol }
    }

    /// Puts these pods into the shipped configuration: all in one cluster.
    fn in_front(&self, builder: Builder) -> Builder {
        let roles = ["prefill", "decode", "whole"];
        let addresses: Vec<_> =
            roles.iter().flat_map(|role| self.of_role(role)).map(|(_, address, _)| address).collect();
        let builder = builder.addresses(&addresses).plugin("/pods", json!(self.pods()));
        if self.protocol == "mooncake" {
            return builder.edit("/static_resources/clusters/1", self.bootstrap_cluster());
        }
        builder
    }

    /// The pods of a role: names, addresses, and what more is known of them.
    fn of_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = (String, SocketAddr, Value)> + 'a {
        let of = match role {
            "prefill" => Some(&self.prefill),
            "decode" => Some(&self.decode),
            _ => self.whole.as_ref(),
        };
        let there = of.into_iter().flat_map(move |pods| {
            pods.addresses().iter().enumerate().map(move |(i, address)| {
                let mut labels = json!({"role": role, "rack": format!("rack-{i}")});
                if let Some(port) = pods.get(i, "/sim/stats")["kv_port"].as_u64() {
                    labels["kv_port"] = json!(port.to_string());
                }
                (format!("{role}-{}", i + 1), *address, json!({"labels": labels}))
            })
        });
        let gone = self.gone.iter().filter(move |_| role == "decode");
        let unreachable = json!({"labels": {"role": "decode", "rack": "rack-0"}, "weight": 100});
        there.chain(gone.map(move |address| ("gone".to_owned(), *address, unreachable.clone())))
    }

    /// All pods, as the filter's configuration has them.
    fn pods(&self) -> Vec<Value> {
        let all = ["prefill", "decode", "whole"].into_iter().flat_map(|role| self.of_role(role));
        let listed = all.map(|(name, address, mut pod)| {
            pod["name"] = json!(name);
            pod["address"] = json!(address.to_string());
            pod
        });
        listed.collect()
    }

    fn bootstrap_servers(&self) -> Vec<SocketAddr> {
        let server = |pod| {
            let stats = self.prefill.get(pod, "/sim/stats");
            stats["bootstrap"].as_str().and_then(|address| address.parse().ok()).expect("an address")
        };
        (0..self.prefill.addresses().len()).map(server).collect()
    }

    /// The cluster of the prefill pods' bootstrap servers.
    fn bootstrap_cluster(&self) -> Value {
        let endpoint = |address: SocketAddr| json!({"endpoint": {"address": {"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}}}});
        let endpoints: Vec<_> = self.bootstrap_servers().into_iter().map(endpoint).collect();
        let policy = |name: &str, config: Value| json!({"typed_extension_config": {"name": format!("envoy.load_balancing_policies.{name}"), "typed_config": config}});
        let round_robin = policy(
            "round_robin",
            json!({"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"}),
        );
        let override_host = policy(
            "override_host",
            json!({
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
                "fallback_policy": {"policies": [round_robin]},
            }),
        );
        json!({
            "name": "bootstrap", "type": "STATIC", "connect_timeout": "1s",
            "load_balancing_policy": {"policies": [override_host]},
            "load_assignment": {"cluster_name": "bootstrap", "endpoints": [{"lb_endpoints": endpoints}]},
        })
    }

    /// KV that prefill pods hold and nobody has fetched.
    pub fn held(&self) -> u64 {
        let held = |pod| self.prefill.get(pod, "/sim/stats")["kv_held"].as_u64().expect("a number");
        (0..self.prefill.addresses().len()).map(held).sum()
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
