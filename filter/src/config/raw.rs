//! The configuration as written, and what each field means: the schema and the reference are made from it. Unknown and doubled
//! fields are refused; ranges and references are checked in `build`.

use super::bounds::Bounds;
use super::build::{
    DEFAULT_FALLBACKS, DEFAULT_HEADER, DEFAULT_PROFILE, MAX_PROFILES, MAX_RULES, MAX_TOKENIZERS,
};
use super::discovery;
use super::entries::Entries;
use super::health::DEFAULT_ENGINE;
use super::pods::{MAX_LABELS, MAX_MODELS, MAX_WEIGHT};
use super::router::PodBy;
use super::workflows::{MAX_WORKFLOWS, RawWorkflow};
use crate::blocks::BlockSize;
use crate::pipeline::{MAX_FALLBACKS, schema};
use crate::pods::{MAX_PODS, MOST_MODELS};
use crate::request::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Configuration of Warmpath's filter in Envoy. Pods alone are enough.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Warmpath", extend("anyOf" = [{"required": ["pods"]}, {"required": ["discovery"]}]))]
pub struct RawConfig {
    /// The pods to choose from, by IP address or by cluster. Required without `discovery`.
    #[serde(default)]
    #[schemars(length(max = MAX_PODS))]
    pub pods: Option<Vec<RawPod>>,
    /// Finds pods by asking Envoy's admin. Pods of `pods` stay, with their own settings. See `examples/discovery`.
    #[serde(default)]
    pub discovery: Option<RawDiscovery>,
    /// The profile of requests that no rule of `select` matches: a built-in one, or one of `profiles`.
    #[serde(default)]
    #[schemars(extend("default" = DEFAULT_PROFILE))]
    pub profile: Option<String>,
    /// Profiles of your own, by names of 1 to 64 letters, digits, `-` and `_` that no built-in profile has.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_PROFILES))]
    pub profiles: Entries<RawProfile>,
    /// In place of `profile`: the workflow of requests that no rule of `select` matches.
    #[serde(default)]
    pub workflow: Option<String>,
    /// Workflows, by names like those of profiles: prefill at one pod and decode at another. See `examples/prefill-decode-nixl`.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_WORKFLOWS))]
    pub workflows: Entries<RawWorkflow>,
    /// Rules by which requests come to other profiles and workflows. The first that matches counts.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    pub select: Vec<RawSelect>,
    /// How prompts are cut into blocks to be compared.
    #[serde(default)]
    pub blocks: RawBlocks,
    /// Bounds of the index, which says what pods hold.
    #[serde(default)]
    pub index: RawIndex,
    /// Bounds of the requests that are read. What is beyond goes by load.
    #[serde(default)]
    pub limits: RawLimits,
    /// How the chosen pod is told to Envoy.
    #[serde(default)]
    pub routing: RawRouting,
    /// Requests with this header are answered with `x-warmpath-*` headers, which say why they went where they went.
    #[serde(default)]
    pub debug_header: Option<String>,
    /// Tokenizers: prompts of their models are compared as the engine's own tokens. See `examples/exact-tokens`.
    #[serde(default)]
    #[schemars(length(max = MAX_TOKENIZERS))]
    pub tokenizers: Vec<RawTokenizer>,
    /// How engines say themselves what they hold. See `examples/kv-events`.
    #[serde(default)]
    pub kv_events: RawKvEvents,
    /// How engines are asked for their load, if they are to be. See `examples/discovery`.
    #[serde(default)]
    pub metrics: Option<RawMetrics>,
    /// When a pod is passed over: no connection; two requests in a row that broke off or that a retry took elsewhere; too many
    /// failures; a streamed answer without a token. For `open_seconds`, then one request at a time tries it. But for no connection,
    /// never more than half of the pods.
    #[serde(default)]
    pub breaker: RawBreaker,
    /// How many requests may be in flight. What is over is answered with 429.
    #[serde(default)]
    pub admission: RawAdmission,
    /// The schema by which an editor checks this file. The filter doesn't look at it.
    #[serde(default, rename = "$schema")]
    _schema: Option<String>,
}

/// How engines tell what they hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawKvEvents {
    /// What says which pod speaks on a connection.
    pub pod_by: PodBy,
    /// What a request that brings events by HTTP must bear as its token: 16 to 4096 printable characters without spaces.
    pub token: Option<String>,
    /// Longest message that is taken, in bytes.
    #[schemars(transform = Self::MAX_MESSAGE_BYTES.schema())]
    pub max_message_bytes: usize,
    /// Most blocks of one cache that are known by the engine's names; what is beyond isn't matched.
    #[schemars(transform = Self::CACHE_BLOCKS.schema())]
    pub cache_blocks: usize,
}

impl RawKvEvents {
    pub const MAX_MESSAGE_BYTES: Bounds<usize> = Bounds::new(64 << 10, 64 << 20);
    pub const CACHE_BLOCKS: Bounds<usize> = Bounds::new(1000, 16_000_000);
}

impl Default for RawKvEvents {
    fn default() -> Self {
        Self { pod_by: PodBy::Topic, token: None, max_message_bytes: 4 << 20, cache_blocks: 262_144 }
    }
}

/// The tokenizer of some models: `cluster` and `path`, or `built_in`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawTokenizer {
    /// Names by which requests ask for these models, LoRA adapters included. Requests that name none are taken for the first.
    #[schemars(length(min = 1))]
    pub models: Vec<String>,
    /// Other names of these models: alias to model.
    #[serde(default)]
    pub aliases: Entries<String>,
    /// The Envoy cluster that has the tokenizer's files.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The folder of `tokenizer.json` and `tokenizer_config.json` there, such as `/qwen3/`.
    #[serde(default)]
    pub path: Option<String>,
    /// The name of a tokenizer that was built into the module (`wasm-build.sh --tokenizer`).
    #[serde(default)]
    pub built_in: Option<String>,
    /// Tokens in a block of the engine's cache. The default is vLLM's.
    #[serde(default = "RawTokenizer::block_tokens")]
    #[schemars(transform = Self::BLOCK_TOKENS.schema())]
    pub block_tokens: usize,
    /// How long the files are waited for.
    #[serde(default = "RawTokenizer::timeout_seconds")]
    #[schemars(transform = Self::TIMEOUT_SECONDS.schema())]
    pub timeout_seconds: u64,
    /// Bytes in which blocks of tokenized text are remembered, in each worker.
    #[serde(default = "RawTokenizer::memory_bytes")]
    #[schemars(transform = Self::MEMORY_BYTES.schema())]
    pub memory_bytes: usize,
    /// Bytes of text that no earlier prompt began with, of which more are not tokenized for one request: the prompt is then
    /// compared by its start. The default takes 2 to 4 ms of a worker's time for natural text.
    #[serde(default = "RawTokenizer::max_new_bytes")]
    #[schemars(transform = Self::MAX_NEW_BYTES.schema())]
    pub max_new_bytes: usize,
}

impl RawTokenizer {
    pub const BLOCK_TOKENS: Bounds<usize> = Bounds::new(1, 4096);
    pub const TIMEOUT_SECONDS: Bounds<u64> = Bounds::new(1, 60);
    pub const MEMORY_BYTES: Bounds<usize> = Bounds::new(0, 1 << 30);
    pub const MAX_NEW_BYTES: Bounds<usize> = Bounds::new(16 << 10, 8 << 20);

    fn block_tokens() -> usize {
        16
    }

    fn timeout_seconds() -> u64 {
        30
    }

    fn memory_bytes() -> usize {
        32 << 20
    }

    fn max_new_bytes() -> usize {
        128 << 10
    }
}

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

/// A part: its `type` and its fields.
pub type RawPart = Entries<Value>;

/// A profile: small parts in the order in which they see the pods.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["picker"]))]
pub struct RawProfile {
    /// What is read of the request and of the index, in this order.
    #[schemars(schema_with = "schema::preparations")]
    pub prepare: Vec<RawPart>,
    /// What takes pods out, in this order.
    #[schemars(schema_with = "schema::filters")]
    pub filters: Vec<RawPart>,
    /// What rates the pods that are left: the weighted sum counts.
    #[schemars(schema_with = "schema::scorers")]
    pub scorers: Vec<RawPart>,
    /// What chooses one, and the order of the others.
    #[schemars(schema_with = "schema::pickers")]
    pub picker: Option<RawPart>,
}

/// A rule: conditions, of which there must be one at least and all must hold, and the profile or workflow that they lead to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawSelect {
    /// The path without its query, or its beginning and `*`: `/v1/*`.
    #[serde(default)]
    pub path: Option<String>,
    /// The model that the body names. Makes the request wait for its body.
    #[serde(default)]
    pub model: Option<String>,
    /// A header that must be there.
    #[serde(default)]
    pub header: Option<RawHeader>,
    /// The profile of these requests.
    #[serde(default)]
    pub profile: Option<String>,
    /// In place of `profile`: their workflow.
    #[serde(default)]
    pub workflow: Option<String>,
}

/// A header that must be there, with that value if one is given.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawHeader {
    /// Its name, in any case.
    pub name: String,
    /// Its whole value; any, without it.
    #[serde(default)]
    pub value: Option<String>,
}

/// How prompts are cut.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawBlocks {
    /// Bytes of a block of the prompt. The first 64 blocks are looked up one by one, later ones ever more rarely, so that a match
    /// is exact to 1/32 of its length.
    #[schemars(transform = Self::SIZE.schema())]
    pub size: usize,
}

impl RawBlocks {
    pub const SIZE: Bounds<usize> = Bounds::new(BlockSize::MIN, BlockSize::MAX);
}

impl Default for RawBlocks {
    fn default() -> Self {
        Self { size: BlockSize::default().bytes() }
    }
}

/// Bounds of the index.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawIndex {
    /// Blocks that the index of a worker holds, over all pods: 59 MB for each million.
    #[schemars(transform = Self::MAX_BLOCKS.schema())]
    pub max_blocks: u32,
    /// How much a pod is thought to hold, in blocks of `blocks.size`: about the text that fits into its KV cache. Without it, what
    /// its engine says (`metrics`), else 32768.
    #[schemars(transform = Self::POD_BLOCKS.schema())]
    pub pod_blocks: Option<u32>,
    /// After so long without use a block is forgotten.
    #[schemars(transform = Self::TTL_SECONDS.schema())]
    pub ttl_seconds: u32,
}

impl RawIndex {
    pub const MAX_BLOCKS: Bounds<u32> = Bounds::new(1000, 16_000_000);
    pub const POD_BLOCKS: Bounds<u32> = Bounds::new(1, 16_000_000);
    pub const TTL_SECONDS: Bounds<u32> = Bounds::new(1, 30 * 24 * 3600);
}

impl Default for RawIndex {
    fn default() -> Self {
        Self { max_blocks: 500_000, pod_blocks: None, ttl_seconds: 3600 }
    }
}

/// Bounds of what a client may send.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawLimits {
    /// Longer bodies go by load, unread.
    #[schemars(transform = Self::MAX_BODY_BYTES.schema())]
    pub max_body_bytes: usize,
    /// Chats of more messages go by load.
    #[schemars(transform = Self::MAX_ITEMS.schema())]
    pub max_messages: usize,
    /// Chats of more content parts in all go by load.
    #[schemars(transform = Self::MAX_ITEMS.schema())]
    pub max_parts: usize,
}

impl RawLimits {
    pub const MAX_BODY_BYTES: Bounds<usize> = Bounds::new(1024, 64 << 20);
    pub const MAX_ITEMS: Bounds<usize> = Bounds::new(1, 100_000);
}

impl Default for RawLimits {
    fn default() -> Self {
        let Limits { max_messages, max_parts } = Limits::default();
        Self { max_body_bytes: 8 << 20, max_messages, max_parts }
    }
}

/// How the chosen pod is told to Envoy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawRouting {
    /// What the routing header holds.
    pub by: RawBy,
    /// The routing header: the one that `override_host` or `cluster_header` names. The default is the endpoint picker protocol's.
    #[schemars(extend("default" = DEFAULT_HEADER))]
    pub header: Option<String>,
    /// Addresses after the first, which Envoy's retries take in order. Not where `by` is `cluster`.
    #[schemars(transform = Self::FALLBACKS.schema(), extend("default" = DEFAULT_FALLBACKS))]
    pub fallbacks: Option<usize>,
    /// Whether to narrow the choice to the addresses in dynamic metadata (`envoy.lb.subset_hint`,
    /// `x-gateway-destination-endpoint-subset`), and to tell who served in `x-gateway-destination-endpoint-served`. Not where `by` is
    /// `cluster`.
    pub endpoint_picker: bool,
}

impl RawRouting {
    pub const FALLBACKS: Bounds<usize> = Bounds::new(0, MAX_FALLBACKS);
}

impl Default for RawRouting {
    fn default() -> Self {
        Self { by: RawBy::Address, header: None, fallbacks: None, endpoint_picker: false }
    }
}

/// What the routing header holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RawBy {
    /// Addresses, for a cluster with `override_host`.
    Address,
    /// The name of a pod's own cluster, for a route with `cluster_header`.
    Cluster,
}

/// How engines are asked for their load.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMetrics {
    /// The engine, whose series are known: `vllm`, `sglang`, `tensorrt-llm` or `max`; or `custom`, with `names`.
    #[schemars(extend("default" = DEFAULT_ENGINE))]
    pub engine: Option<String>,
    /// What a `custom` engine calls its series.
    pub names: Option<RawNames>,
    /// The Envoy cluster with `override_host` that has the pods. Required unless `discovery.pods_of` is one cluster; not where
    /// `routing.by` is `cluster`, since each pod is asked by its own.
    pub cluster: Option<String>,
    /// Where pods have their metrics. Without it `/metrics`, and TensorRT-LLM's `/prometheus/metrics`.
    pub path: Option<String>,
    /// The port at which they have them, where it is another than their own: `cluster` must have them at it.
    #[schemars(transform = Self::PORT.schema())]
    pub port: Option<u16>,
    /// Time from one question to the next.
    #[schemars(transform = Self::PERIOD_MILLISECONDS.schema())]
    pub period_milliseconds: u64,
    /// How long an answer is waited for.
    #[schemars(transform = Self::TIMEOUT_MILLISECONDS.schema())]
    pub timeout_milliseconds: u64,
    /// After so long an answer counts no longer.
    #[schemars(transform = Self::STALE_SECONDS.schema())]
    pub stale_seconds: u64,
    /// Sent as a bearer's token: 1 to 4096 printable characters without spaces.
    pub api_key: Option<String>,
    /// Whether engines are also asked to tell their load with each answer (ORCA).
    pub orca: bool,
}

impl RawMetrics {
    pub const PORT: Bounds<u16> = Bounds::new(1, u16::MAX);
    pub const PERIOD_MILLISECONDS: Bounds<u64> = Bounds::new(200, 60_000);
    pub const TIMEOUT_MILLISECONDS: Bounds<u64> = Bounds::new(100, 60_000);
    pub const STALE_SECONDS: Bounds<u64> = Bounds::new(1, 600);
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

/// What an engine calls its series: at least one of `running`, `waiting` and `kv_usage`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawNames {
    /// Requests that it runs. With labels where only some of the series count: `name{label="value"}`.
    pub running: Option<String>,
    /// Requests that wait in its queue.
    pub waiting: Option<String>,
    /// How full its KV cache is.
    pub kv_usage: Option<RawUsage>,
    /// Tokens in a block of its cache.
    pub block_size: Option<RawNumber>,
    /// Blocks of its cache.
    pub blocks: Option<RawNumber>,
    /// The series whose labels tell of LoRA adapters as vLLM's do.
    pub lora: Option<String>,
}

/// How the use of a KV cache is told.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum RawUsage {
    /// A series of the share from 0 to 1.
    Share(String),
    /// Two series.
    Of {
        /// What is in use.
        used: String,
        /// What there is in all.
        total: String,
    },
}

/// How a number is told.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum RawNumber {
    /// The value of a series.
    Series(String),
    /// The text of a label.
    Label {
        /// The series.
        series: String,
        /// Its label.
        label: String,
    },
}

/// When a pod is passed over.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawBreaker {
    /// A pod with more failures (5xx, time-outs) of late, each counting half after ten seconds, is passed over, if they are also
    /// `failure_share` of its answers.
    #[schemars(transform = Self::FAILURES.schema())]
    pub failures: u32,
    /// The part of its answers that `failures` must be for a pod to be passed over.
    #[schemars(transform = Self::FAILURE_SHARE.schema())]
    pub failure_share: f32,
    /// How long a pod is passed over at first; twice as long each time that the request which then tries it fails.
    #[schemars(transform = Self::SECONDS.schema())]
    pub open_seconds: u64,
    /// How long a pod is passed over at most. At least `open_seconds`.
    #[schemars(transform = Self::SECONDS.schema())]
    pub max_open_seconds: u64,
    /// A streamed answer without a token for so long is a failure.
    #[schemars(transform = Self::SECONDS.schema())]
    pub first_token_seconds: u64,
}

impl RawBreaker {
    pub const FAILURES: Bounds<u32> = Bounds::new(1, 10_000);
    pub const FAILURE_SHARE: Bounds<f32> = Bounds::above(0.0, 1.0);
    pub const SECONDS: Bounds<u64> = Bounds::new(1, Self::MOST_SECONDS);
    pub const MOST_SECONDS: u64 = 3600;
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
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawAdmission {
    /// Most requests in flight over all pods.
    #[schemars(transform = RawPod::MAX_IN_FLIGHT.schema())]
    pub max_in_flight: Option<u32>,
    /// Most requests in flight at each pod that has no `max_in_flight` of its own.
    #[schemars(transform = RawPod::MAX_IN_FLIGHT.schema())]
    pub max_in_flight_per_pod: Option<u32>,
    /// Most requests in flight of a model, by its name. Makes requests wait for their bodies.
    #[schemars(transform = RawPod::MAX_IN_FLIGHT.schema_of_values(), extend("maxProperties" = MOST_MODELS))]
    pub models: Entries<u32>,
    /// When who is sent away is told to come again (`retry-after`).
    #[schemars(transform = Self::RETRY_AFTER_SECONDS.schema())]
    pub retry_after_seconds: u32,
}

impl RawAdmission {
    pub const RETRY_AFTER_SECONDS: Bounds<u32> = Bounds::new(1, 3600);
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
