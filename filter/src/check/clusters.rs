//! Settings of the pods' clusters.

use super::document::Node;
use super::report::Report;
use super::workflows::question_clusters;
use crate::config::{Pattern, Router, Routing};
use crate::prompt::delivery::Source;
use std::collections::{HashMap, HashSet};

/// vLLM closes a connection that was idle for this long, in seconds.
const ENGINE_IDLE: f64 = 5.0;
/// Envoy's bound of requests and pending requests where nothing is set.
const DEFAULT_REQUESTS: u64 = 1024;

/// The clusters of a file, by name.
pub struct Clusters<'a>(HashMap<&'a str, Node<'a>>);

impl<'a> Clusters<'a> {
    /// Those that the file itself lists. Others (CDS) can't be seen and are not spoken of.
    pub fn of(root: &Node<'a>) -> Self {
        let listed = root.at(&["static_resources", "clusters"]).map(|list| list.items()).unwrap_or_default();
        let resources = root.list("resources").into_iter().filter(|node| node.is_type("cluster.v3.Cluster"));
        Self(
            listed
                .into_iter()
                .chain(resources)
                .filter_map(|node| Some((node.text_of("name")?, node)))
                .collect(),
        )
    }

    /// Does this cluster take hosts from that header? One that can't be seen may.
    pub fn overrides_host(&self, name: &str, header: &str) -> bool {
        self.0.get(name).is_none_or(|cluster| overrides_host(cluster, header))
    }

    /// Whether this file lists clusters, and none of this name.
    pub fn is_absent(&self, name: &str) -> bool {
        !self.0.is_empty() && !self.0.contains_key(name)
    }

    fn check_tokenizers(&self, router: &Router, report: &mut Report) {
        let clusters = router.settings().tokenizers.iter().filter_map(|tokenizer| match &tokenizer.source {
            Source::Fetched(remote) => Some(remote.cluster.as_str()),
            Source::BuiltIn(_) => None,
        });
        for (i, tokenizer) in router.settings().tokenizers.iter().enumerate() {
            if let Source::BuiltIn(name) = &tokenizer.source {
                let problem = format!(
                    "{name:?} must be in the module, which cannot be seen from here; Envoy refuses it else (wasm-build.sh --tokenizer)"
                );
                report.warn(format!("tokenizers[{i}].built_in"), problem);
            }
        }
        for cluster in clusters.filter(|cluster| !self.0.is_empty() && !self.0.contains_key(cluster)) {
            let problem =
                format!("has no cluster {cluster:?}, from which a tokenizer is to be fetched; add it");
            report.warn("static_resources.clusters", problem);
        }
    }

    /// Clusters that are named and can't be seen. A pattern speaks of clusters that may come.
    fn check_discovery(&self, router: &Router, report: &mut Report) {
        let Some(discovery) = &router.settings().discovery else { return };
        let absent = |name: &&str| !self.0.is_empty() && !self.0.contains_key(name);
        if let Some(name) = Some(discovery.cluster.as_str()).filter(absent) {
            let problem =
                format!("has no cluster {name:?}, by which Envoy's admin is asked for pods; add it");
            report.warn("static_resources.clusters", problem);
        }
        for name in discovery.pods_of.iter().filter_map(Pattern::exact).filter(absent) {
            let problem = format!("has no cluster {name:?}, in which pods are to be found; add it");
            report.warn("static_resources.clusters", problem);
        }
    }

    /// The cluster by which engines are asked, where it can be seen that it is wrong.
    fn check_metrics(&self, router: &Router, report: &mut Report) {
        let settings = router.settings();
        let (Some(metrics), Routing::Address { header, .. }) = (&settings.metrics, &settings.routing) else {
            return;
        };
        for name in called(router, metrics.cluster.as_deref()) {
            let problem = if metrics.cluster.is_some() && self.is_absent(name) {
                format!("has no cluster {name:?}, by which engines are asked for their load; add it")
            } else if !self.overrides_host(name, header) {
                format!(
                    "cluster {name:?} has no override_host with the header {header}, so it is chance which engine is asked; add it, \
                     or name another in metrics.cluster"
                )
            } else {
                continue;
            };
            report.warn("static_resources.clusters", problem);
        }
    }

    /// Warns of the clusters by which the pods are reached.
    pub fn check(&self, router: &Router, report: &mut Report) {
        let mut used: Vec<_> = match &router.settings().routing {
            Routing::Address { header, .. } => {
                self.0.values().filter(|cluster| overrides_host(cluster, header)).collect()
            }
            Routing::Cluster { .. } => {
                let discovery = router.settings().discovery.as_ref();
                let is_pod = |name: &str| {
                    router.pods().iter().any(|pod| pod.target == name)
                        || discovery.is_some_and(|discovery| discovery.has_pods(name))
                };
                self.0.iter().filter(|(name, _)| is_pod(name)).map(|(_, cluster)| cluster).collect()
            }
        };
        used.sort_by(|a, b| a.path.cmp(&b.path));
        for cluster in &used {
            check_idle(cluster, report);
            check_breakers(cluster, report);
        }
        self.check_tokenizers(router, report);
        self.check_discovery(router, report);
        self.check_metrics(router, report);
        match &router.settings().routing {
            Routing::Address { .. } => {
                let asked: Vec<_> = question_clusters(router).collect();
                let has_pods = |cluster: &&&Node<'_>| {
                    cluster.text_of("name").is_none_or(|name| asked.iter().all(|asked| asked != name))
                };
                let of_pods: Vec<_> = used.iter().filter(has_pods).copied().collect();
                check_endpoints(&of_pods, router, report);
            }
            Routing::Cluster { .. } if !self.0.is_empty() => {
                for pod in router.pods().iter().filter(|pod| !self.0.contains_key(pod.target.as_str())) {
                    let problem =
                        format!("has no cluster {:?}, which is the pod {:?}; add it", pod.target, pod.name);
                    report.warn("static_resources.clusters", problem);
                }
            }
            Routing::Cluster { .. } => {}
        }
    }
}

/// The clusters by which pods are called where this one is named for it, or none is: those in which they are found, as far as they
/// have names.
pub fn called<'a>(router: &'a Router, named: Option<&'a str>) -> Vec<&'a str> {
    let found = || router.settings().discovery.iter().flat_map(|discovery| &discovery.pods_of);
    named.map_or_else(|| found().filter_map(Pattern::exact).collect(), |name| vec![name])
}

fn overrides_host(cluster: &Node<'_>, header: &str) -> bool {
    let policies =
        cluster.at(&["load_balancing_policy", "policies"]).map(|list| list.items()).unwrap_or_default();
    let sources = policies.iter().filter_map(|policy| policy.at(&["typed_extension_config", "typed_config"]));
    sources
        .filter(|policy| policy.is_type("override_host.v3.OverrideHost"))
        .flat_map(|policy| policy.list("override_host_sources"))
        .any(|source| source.text_of("header").is_some_and(|name| name.eq_ignore_ascii_case(header)))
}

fn check_idle(cluster: &Node<'_>, report: &mut Report) {
    const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let options = cluster.at(&["typed_extension_protocol_options", OPTIONS]);
    let common = options.as_ref().unwrap_or(cluster).field("common_http_protocol_options");
    let idle = common.as_ref().and_then(|common| common.field("idle_timeout")?.seconds());
    if !idle.is_some_and(|seconds| seconds > 0.0 && seconds < ENGINE_IDLE) {
        let inner = format!("typed_extension_protocol_options.{OPTIONS}.common_http_protocol_options");
        report.warn(
            common.map_or_else(|| cluster.path_of(&inner), |common| common.path) + ".idle_timeout",
            "is not below 5s: vLLM closes connections that were idle for 5 s, Envoy keeps them for an hour and runs into \
             resets; set it to 4s",
        );
    }
}

fn check_breakers(cluster: &Node<'_>, report: &mut Report) {
    let thresholds =
        cluster.at(&["circuit_breakers", "thresholds"]).map(|list| list.items()).unwrap_or_default();
    let default = thresholds
        .into_iter()
        .find(|threshold| threshold.text_of("priority").is_none_or(|priority| priority == "DEFAULT"));
    for name in ["max_requests", "max_pending_requests"] {
        let value = default.as_ref().and_then(|default| default.field(name)?.number());
        if value.is_none_or(|value| value <= DEFAULT_REQUESTS) {
            let inner = format!("circuit_breakers.thresholds[0].{name}");
            report.warn(
                default.as_ref().map_or_else(|| cluster.path_of(&inner), |default| default.path_of(name)),
                "is not above 1024, the default: generations are long, and the 1025th at a time is answered with 503; \
                 raise it, to 65536 say",
            );
        }
    }
}

/// A pod that no cluster lists is never reached: `override_host` skips addresses it doesn't know.
fn check_endpoints(clusters: &[&Node<'_>], router: &Router, report: &mut Report) {
    let lists: Option<Vec<_>> =
        clusters.iter().map(|cluster| cluster.at(&["load_assignment", "endpoints"])).collect();
    // Endpoints that come from elsewhere can't be seen.
    let Some(lists) = lists else { return };
    let Some(first) = lists.first() else { return };
    let known: HashSet<String> = lists
        .iter()
        .flat_map(|localities| localities.items())
        .flat_map(|locality| locality.list("lb_endpoints"))
        .filter_map(|endpoint| {
            let address = endpoint.at(&["endpoint", "address", "socket_address"])?;
            let (ip, port) = (address.text_of("address")?, address.field("port_value")?.number()?);
            Some(if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") })
        })
        .collect();
    for pod in router.pods().iter().filter(|pod| !known.contains(&pod.target)) {
        report.warn(
            &first.path,
            format!(
                "lacks {}, the pod {:?}: requests meant for it go to another; add the endpoint",
                pod.target, pod.name
            ),
        );
    }
}
