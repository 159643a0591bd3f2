//! Warmpath sends every LLM request to the GPU pod whose KV cache already holds its prefix, from inside Envoy.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unreachable,
    clippy::todo,
    clippy::unimplemented,
    clippy::string_slice
)]
#![cfg_attr(test, allow(clippy::string_slice))]

pub mod blocks;
pub mod config;
pub mod explain;
pub mod fleet;
pub mod guard;
pub mod host;
pub mod index;
pub mod metrics;
pub mod pipeline;
pub mod plugin;
pub mod pods;
pub mod request;
pub mod stream;
pub mod workflow;

#[cfg(target_arch = "wasm32")]
mod abi;
