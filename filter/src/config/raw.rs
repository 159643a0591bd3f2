//! The configuration as written. Unknown and doubled fields are refused; ranges and references are checked in `build`.

use super::entries::Entries;
use super::router::{PodBy, Via};
use super::workflows::RawWorkflow;
use crate::blocks::BlockSize;
use crate::request::Limits;
use serde::Deserialize;
use serde_json::Value;

/// The whole plugin configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    #[serde(default)]
    pub pods: Option<Vec<RawPod>>,
    #[serde(default)]
    pub discovery: Option<RawDiscovery>,
    #[serde(default)]
    pub profile: Option<String>,
    #[serde(default)]
    pub profiles: Entries<RawProfile>,
    #[serde(default)]
    pub workflow: Option<String>,
    #[serde(default)]
    pub workflows: Entries<RawWorkflow>,
    #[serde(default)]
    pub select: Vec<RawSelect>,
    #[serde(default)]
    pub blocks: RawBlocks,
    #[serde(default)]
    pub index: RawIndex,
    #[serde(default)]
    pub limits: RawLimits,
    #[serde(default)]
    pub routing: RawRouting,
    #[serde(default)]
    pub debug_header: Option<String>,
    #[serde(default)]
    pub tokenizers: Vec<RawTokenizer>,
    #[serde(default)]
    pub kv_events: RawKvEvents,
    #[serde(default)]
    pub metrics: Option<RawMetrics>,
    #[serde(default)]
    pub breaker: RawBreaker,
    #[serde(default)]
    pub admission: RawAdmission,
}

/// How engines tell what they hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawKvEvents {
    pub pod_by: PodBy,
    pub token: Option<String>,
    pub max_message_bytes: usize,
    pub cache_blocks: usize,
}

impl Default for RawKvEvents {
    fn default() -> Self {
        Self { pod_by: PodBy::Topic, token: None, max_message_bytes: 4 << 20, cache_blocks: 262_144 }
    }
}

/// Where the tokenizer of some models is to be had.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTokenizer {
    pub models: Vec<String>,
    #[serde(default)]
    pub aliases: Entries<String>,
    #[serde(default)]
    pub cluster: Option<String>,
    #[serde(default)]
    pub path: Option<String>,
    #[serde(default)]
    pub built_in: Option<String>,
    #[serde(default = "RawTokenizer::block_tokens")]
    pub block_tokens: usize,
    #[serde(default = "RawTokenizer::timeout_seconds")]
    pub timeout_seconds: u64,
    #[serde(default = "RawTokenizer::memory_bytes")]
    pub memory_bytes: usize,
    #[serde(default = "RawTokenizer::max_new_bytes")]
    pub max_new_bytes: usize,
}

impl RawTokenizer {
    /// vLLM's.
    fn block_tokens() -> usize {
        16
    }

    fn timeout_seconds() -> u64 {
        30
    }

    fn memory_bytes() -> usize {
        32 << 20
    }

    /// Two to four milliseconds of a worker's time for natural text.
    fn max_new_bytes() -> usize {
        128 << 10
    }
}

/// One pod.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPod {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub address: Option<String>,
    #[serde(default)]
    pub cluster: Option<String>,
    #[serde(default)]
    pub models: Vec<String>,
    #[serde(default)]
    pub labels: Entries<String>,
    #[serde(default)]
    pub weight: Option<f32>,
    #[serde(default)]
    pub max_in_flight: Option<u32>,
    #[serde(default = "RawPod::ranks")]
    pub ranks: u32,
}

impl RawPod {
    fn ranks() -> u32 {
        1
    }
}

/// How pods are found.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawDiscovery {
    pub cluster: String,
    pub pods_of: Vec<String>,
    #[serde(default = "RawDiscovery::period_seconds")]
    pub period_seconds: u64,
    #[serde(default = "RawDiscovery::timeout_seconds")]
    pub timeout_seconds: u64,
    #[serde(default)]
    pub rules: Vec<RawPodRule>,
}

impl RawDiscovery {
    fn period_seconds() -> u64 {
        2
    }

    fn timeout_seconds() -> u64 {
        1
    }
}

/// What is known of pods that are found. All conditions that it gives must hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPodRule {
    #[serde(default, rename = "match")]
    pub conditions: RawMatch,
    #[serde(default)]
    pub models: Option<Vec<String>>,
    #[serde(default)]
    pub labels: Entries<String>,
    #[serde(default)]
    pub weight: Option<f32>,
    #[serde(default)]
    pub max_in_flight: Option<u32>,
    #[serde(default)]
    pub ranks: Option<u32>,
}

/// Patterns of what Envoy says of an endpoint.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawMatch {
    pub hostname: Option<String>,
    pub zone: Option<String>,
    pub cluster: Option<String>,
    pub address: Option<String>,
}

/// A part: its `type` and its fields.
pub type RawPart = Entries<Value>;

/// A profile.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawProfile {
    /// Preparations, in their order.
    pub prepare: Vec<RawPart>,
    /// Filters, in their order.
    pub filters: Vec<RawPart>,
    /// Scorers.
    pub scorers: Vec<RawPart>,
    /// The picker, which must be there.
    pub picker: Option<RawPart>,
}

/// A rule that chooses a profile or a workflow. All conditions that it gives must hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSelect {
    #[serde(default)]
    pub path: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub header: Option<RawHeader>,
    #[serde(default)]
    pub profile: Option<String>,
    #[serde(default)]
    pub workflow: Option<String>,
}

/// A header that must be there, with that value if one is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawHeader {
    pub name: String,
    #[serde(default)]
    pub value: Option<String>,
}

/// How prompts are cut.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawBlocks {
    pub size: usize,
}

impl Default for RawBlocks {
    fn default() -> Self {
        Self { size: BlockSize::default().bytes() }
    }
}

/// Bounds of the index.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawIndex {
    pub max_blocks: u32,
    pub pod_blocks: Option<u32>,
    pub ttl_seconds: u32,
}

impl Default for RawIndex {
    fn default() -> Self {
        Self { max_blocks: 500_000, pod_blocks: None, ttl_seconds: 3600 }
    }
}

/// Bounds of what a client may send.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawLimits {
    pub max_body_bytes: usize,
    pub max_messages: usize,
    pub max_parts: usize,
}

impl Default for RawLimits {
    fn default() -> Self {
        let Limits { max_messages, max_parts } = Limits::default();
        Self { max_body_bytes: 8 << 20, max_messages, max_parts }
    }
}

/// How the chosen pod is told to Envoy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRouting {
    pub by: RawBy,
    pub header: Option<String>,
    pub fallbacks: Option<usize>,
    pub via: Via,
    pub endpoint_picker: bool,
}

impl Default for RawRouting {
    fn default() -> Self {
        Self { by: RawBy::Address, header: None, fallbacks: None, via: Via::Header, endpoint_picker: false }
    }
}

/// What the routing header holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RawBy {
    /// Addresses, for a cluster with `override_host`.
    Address,
    /// The name of a pod's own cluster, for a route with `cluster_header`.
    Cluster,
}

/// How engines are asked for their load.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawMetrics {
    pub engine: Option<String>,
    pub names: Option<RawNames>,
    pub cluster: Option<String>,
    pub path: Option<String>,
    pub port: Option<u16>,
    pub period_milliseconds: u64,
    pub timeout_milliseconds: u64,
    pub stale_seconds: u64,
    pub api_key: Option<String>,
    pub orca: bool,
}

impl Default for RawMetrics {
    fn default() -> Self {
        Self {
            engine: None,
            names: None,
            cluster: None,
            path: None,
            port: None,
            period_milliseconds: 1000,
            timeout_milliseconds: 1000,
            stale_seconds: 10,
            api_key: None,
            orca: false,
        }
    }
}

/// What an engine calls its series.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawNames {
    pub running: Option<String>,
    pub waiting: Option<String>,
    pub kv_usage: Option<RawUsage>,
    pub block_size: Option<RawNumber>,
    pub blocks: Option<RawNumber>,
    pub lora: Option<String>,
}

/// How the use of a KV cache is told.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum RawUsage {
    /// As a share from 0 to 1.
    Share(String),
    /// In use, and in all.
    Of { used: String, total: String },
}

/// How a number is told.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum RawNumber {
    /// By a series.
    Series(String),
    /// By a label of one.
    Label { series: String, label: String },
}

/// When a pod is passed over.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawBreaker {
    pub failures: u32,
    pub failure_share: f32,
    pub open_seconds: u64,
    pub max_open_seconds: u64,
    pub first_token_seconds: u64,
}

impl Default for RawBreaker {
    fn default() -> Self {
        Self {
            failures: 5,
            failure_share: 0.5,
            open_seconds: 3,
            max_open_seconds: 60,
            first_token_seconds: 60,
        }
    }
}

/// How many requests may be in flight.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawAdmission {
    pub max_in_flight: Option<u32>,
    pub max_in_flight_per_pod: Option<u32>,
    pub models: Entries<u32>,
    pub retry_after_seconds: u32,
}

impl Default for RawAdmission {
    fn default() -> Self {
        Self {
            max_in_flight: None,
            max_in_flight_per_pod: None,
            models: Entries::default(),
            retry_after_seconds: 1,
        }
    }
}
