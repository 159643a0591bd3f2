//! Bounds: of prompts, of what is remembered of them, and of what pods have to do.

use super::pods::RawPod;
use crate::blocks::BlockSize;
use crate::config::bounds::Bounds;
use crate::config::entries::Entries;
use crate::pods::MOST_MODELS;
use crate::request::Limits;
use schemars::JsonSchema;
use serde::Deserialize;

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
