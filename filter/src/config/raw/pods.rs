//! Pods: those that are listed, and how others are found.

use crate::config::bounds::Bounds;
use crate::config::discovery;
use crate::config::entries::Entries;
use crate::config::pods::{MAX_LABELS, MAX_MODELS, MAX_WEIGHT};
use schemars::JsonSchema;
use serde::Deserialize;

/// One pod: `address` or `cluster`, as `routing.by` says.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPod {
    /// Its name in logs, headers and metrics, no other pod's. Without it, its address or cluster.
    #[serde(default)]
    pub name: Option<String>,
    /// `ip:port`, as in Envoy's cluster; names are not resolved.
    #[serde(default)]
    pub address: Option<String>,
    /// Its own Envoy cluster, where `routing.by` is `cluster`.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The models that it serves, by the names in requests. Without any, it serves all.
    #[serde(default)]
    #[schemars(length(max = MAX_MODELS))]
    pub models: Vec<String>,
    /// What profiles and workflows may go by, such as `role`, `zone` or `rack`.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_LABELS))]
    pub labels: Entries<String>,
    /// Its capacity, in proportion to that of the others.
    #[serde(default)]
    #[schemars(transform = Self::WEIGHT.schema(), extend("default" = Self::NO_WEIGHT))]
    pub weight: Option<f32>,
    /// Most requests in flight there. Goes before `admission.max_in_flight_per_pod`.
    #[serde(default)]
    #[schemars(transform = Self::MAX_IN_FLIGHT.schema())]
    pub max_in_flight: Option<u32>,
    /// Data-parallel ranks behind the address, each with a cache of its own. At most 512 over all pods.
    #[serde(default = "RawPod::ranks")]
    #[schemars(transform = Self::RANKS.schema())]
    pub ranks: u32,
}

impl RawPod {
    pub const WEIGHT: Bounds<f32> = Bounds::new(0.01, MAX_WEIGHT);
    /// The weight of a pod without one.
    pub const NO_WEIGHT: f32 = 1.0;
    pub const MAX_IN_FLIGHT: Bounds<u32> = Bounds::new(1, 1_000_000);
    pub const RANKS: Bounds<u32> = Bounds::new(1, 64);

    fn ranks() -> u32 {
        1
    }
}

/// How pods are found.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawDiscovery {
    /// The Envoy cluster by which Envoy's admin is asked.
    pub cluster: String,
    /// The clusters whose endpoints are pods, or, where `routing.by` is `cluster`, the clusters that are pods. `engine-*` means
    /// all that begin so.
    #[schemars(length(min = 1, max = discovery::MAX_PODS_OF))]
    pub pods_of: Vec<String>,
    /// Time from one question to the next.
    #[serde(default = "RawDiscovery::period_seconds")]
    #[schemars(transform = Self::PERIOD_SECONDS.schema())]
    pub period_seconds: u64,
    /// How long an answer is waited for.
    #[serde(default = "RawDiscovery::timeout_seconds")]
    #[schemars(transform = Self::TIMEOUT_SECONDS.schema())]
    pub timeout_seconds: u64,
    /// What is known of pods that are found. Of several that match, later ones win.
    #[serde(default)]
    #[schemars(length(max = discovery::MAX_RULES))]
    pub rules: Vec<RawPodRule>,
}

impl RawDiscovery {
    pub const PERIOD_SECONDS: Bounds<u64> = Bounds::new(1, 60);
    pub const TIMEOUT_SECONDS: Bounds<u64> = Bounds::new(1, 60);

    fn period_seconds() -> u64 {
        2
    }

    fn timeout_seconds() -> u64 {
        1
    }
}

/// What is known of pods that are found. All conditions of `match` must hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawPodRule {
    /// Which pods are meant; all, without it.
    #[serde(default, rename = "match")]
    pub conditions: RawMatch,
    /// Its models, as in `pods[]`.
    #[serde(default)]
    #[schemars(length(max = MAX_MODELS))]
    pub models: Option<Vec<String>>,
    /// Its labels, as in `pods[]`. Others that earlier rules gave stay.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_LABELS))]
    pub labels: Entries<String>,
    /// Its weight, as in `pods[]`. Without it, the weight of the endpoint in Envoy's cluster.
    #[serde(default)]
    #[schemars(transform = RawPod::WEIGHT.schema())]
    pub weight: Option<f32>,
    /// Most requests in flight there, as in `pods[]`.
    #[serde(default)]
    #[schemars(transform = RawPod::MAX_IN_FLIGHT.schema())]
    pub max_in_flight: Option<u32>,
    /// Its ranks, as in `pods[]`.
    #[serde(default)]
    #[schemars(transform = RawPod::RANKS.schema())]
    pub ranks: Option<u32>,
}

/// Conditions on an endpoint, by what Envoy says of it: a whole name, or its beginning and `*`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMatch {
    /// The name by which DNS gave it.
    pub hostname: Option<String>,
    /// Its locality's zone.
    pub zone: Option<String>,
    /// Its cluster.
    pub cluster: Option<String>,
    /// `ip:port`, or the IP address alone, such as `10.0.1.*`.
    pub address: Option<String>,
}
