//! What engines have and tell: tokenizers, KV events, metrics.

use crate::config::bounds::Bounds;
use crate::config::entries::Entries;
use crate::config::health::DEFAULT_ENGINE;
use crate::config::router::PodBy;
use schemars::JsonSchema;
use serde::Deserialize;

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

/// How engines are asked for their load.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMetrics {
    /// The engine, whose series are known: `vllm`, `sglang`, `tensorrt-llm` or `max`; or `custom`, with `names`.
    #[schemars(extend("default" = DEFAULT_ENGINE))]
    pub engine: Option<String>,
    /// What a `custom` engine calls its series.
    pub names: Option<RawNames>,
    /// The Envoy cluster with `override_host` that has the pods. Without it, each is asked by the one in which it was found;
    /// required where there are pods besides, in `pods`, unless `discovery.pods_of` is one cluster; it must have all of them, those
    /// that are found, too. Not where `routing.by` is `cluster`, since each pod is its own.
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
