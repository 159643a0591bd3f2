//! What an engine says of itself, as far as decisions look at it.

use xxhash_rust::xxh3::xxh3_64;

/// Adapters of one engine that are kept.
pub const MOST_ADAPTERS: usize = 64;

/// What an engine said lately. What it doesn't say is `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Engine {
    /// Requests in its batch.
    pub running: Option<f32>,
    /// Requests in its queue.
    pub waiting: Option<f32>,
    /// Part of its KV cache that requests under way hold, 0 to 1.
    pub kv_usage: Option<f32>,
    /// Whether it sleeps: what comes waits until somebody wakes it.
    pub asleep: bool,
    /// Its LoRA adapters, where it serves any.
    pub lora: Option<Lora>,
}

/// LoRA adapters, by [`adapter`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lora {
    /// How many may be loaded at once.
    pub max: u32,
    /// Those that requests under way use.
    pub running: Vec<u64>,
    /// Those that queued requests wait for.
    pub waiting: Vec<u64>,
}

/// The digest by which an adapter is known: names are the engines', and of any length.
pub fn adapter(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}
