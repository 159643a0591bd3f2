//! Workflows: plans of more than one step.

use super::RawPart;
use crate::config::bounds::Bounds;
use crate::workflow::protocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prefill at one pod, decode at another.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawWorkflow {
    /// How the engines hand over KV.
    #[schemars(schema_with = "protocol::schema")]
    pub protocol: RawPart,
    /// The Envoy cluster with `override_host` that has the pods, for calls of them. Without it, that in which they were found;
    /// required where there are pods besides, in `pods`, unless `discovery.pods_of` is one cluster; it must have all of them, those
    /// that are found, too. Not where `routing.by` is `cluster`, since each pod is its own.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The first step.
    #[serde(default)]
    pub prefill: RawPrefill,
    /// The second step.
    #[serde(default)]
    pub decode: RawDecode,
    /// Requests that are served in one step.
    #[serde(default)]
    pub aggregated: Option<RawAggregated>,
    /// When prefill at a pod of its own is worth it. Otherwise the request is served in one step.
    #[serde(default)]
    pub remote_prefill: RawWorth,
}

/// The first step.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawPrefill {
    /// The profile that chooses who prefills.
    pub profile: String,
    /// The Envoy cluster that has these pods, where it is another than the workflow's.
    pub cluster: Option<String>,
    /// How long prefill may take, all attempts together.
    #[schemars(transform = Self::TIMEOUT_SECONDS.schema())]
    pub timeout_seconds: u64,
    /// Most pods that are tried.
    #[schemars(transform = Self::ATTEMPTS.schema())]
    pub attempts: usize,
    /// What to do when none of them gave a handoff.
    pub on_failure: OnFailure,
}

impl RawPrefill {
    pub const TIMEOUT_SECONDS: Bounds<u64> = Bounds::new(1, 3600);
    pub const ATTEMPTS: Bounds<usize> = Bounds::new(1, 8);
}

impl Default for RawPrefill {
    fn default() -> Self {
        Self {
            profile: "prefill".to_owned(),
            cluster: None,
            timeout_seconds: 120,
            attempts: 2,
            on_failure: OnFailure::Aggregated,
        }
    }
}

/// What to do when no prefill pod gave a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// Serve the request in one step.
    Aggregated,
    /// Answer it with 503.
    Refuse,
}

/// The second step.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawDecode {
    /// The profile that chooses who decodes.
    pub profile: String,
    /// Whether Envoy's retries may take a handoff to another pod. Only where they are for pods that could not be reached.
    pub retry_on_connect_failure: bool,
}

impl Default for RawDecode {
    fn default() -> Self {
        Self { profile: "decode".to_owned(), retry_on_connect_failure: false }
    }
}

/// Requests that are served in one step.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawAggregated {
    /// The profile that chooses who serves them. Without it, that of `decode`, if pods that decode by the protocol serve requests
    /// alone; if not, nobody.
    #[serde(default)]
    pub profile: Option<String>,
    /// The Envoy cluster that has these pods, where it is another than the workflow's.
    #[serde(default)]
    pub cluster: Option<String>,
}

/// When prefill elsewhere is worth it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawWorth {
    /// Tokens of the prompt that the decode pod doesn't hold, at least.
    #[schemars(transform = Self::MIN_TOKENS.schema())]
    pub min_tokens: u32,
    /// Share of the prompt that the decode pod doesn't hold, at least.
    #[schemars(transform = Self::MIN_SHARE.schema())]
    pub min_share: f32,
    /// How many times longer than at the decode pod alone the first token may take, as predicted; `null`: however long.
    #[schemars(transform = Self::MAX_SLOWDOWN.schema())]
    pub max_slowdown: Option<f32>,
}

impl RawWorth {
    pub const MIN_TOKENS: Bounds<u32> = Bounds::new(0, 10_000_000);
    pub const MIN_SHARE: Bounds<f32> = Bounds::new(0.0, 1.0);
    pub const MAX_SLOWDOWN: Bounds<f32> = Bounds::new(0.1, 1000.0);
}

impl Default for RawWorth {
    fn default() -> Self {
        Self { min_tokens: 256, min_share: 0.1, max_slowdown: Some(2.0) }
    }
}

impl RawWorth {
    /// Whether it says anything but the defaults.
    pub fn is_set(&self) -> bool {
        let Self { min_tokens, min_share, max_slowdown } = Self::default();
        (self.min_tokens, self.min_share, self.max_slowdown) != (min_tokens, min_share, max_slowdown)
    }
}
