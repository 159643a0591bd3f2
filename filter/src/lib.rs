//! Warmpath sends every LLM request to the GPU pod whose KV cache already holds its prefix, from inside Envoy.
//!
//! # One request
//!
//! [`stream`] is the request's life. At its headers, whatever a client says in routing headers is stripped; an inference
//! call whose profile reads the prompt is held until its body is whole. [`request`] reads the body in one pass and
//! [`blocks`] hashes the prompt into a chain: of its text, or of the engine's own tokens where [`prompt`] has the model's
//! tokenizer. [`workflow`] runs a profile of the [`pipeline`] on what the [`index`] says,
//! records the outcome for the other workers, and names the pod in the routing header; or two profiles choose who prefills and
//! who decodes, and the prefill pod is called first, or at once. Where nothing lets this filter hold the headers, stock filters
//! behind it do, and take the name from filter state ([`config::Via`]). When the answer comes, what was
//! recorded is confirmed, moved or withdrawn; when the stream ends, its request in flight ends.
//!
//! # Three layers
//!
//! * **Data** ([`index`], [`pods`]): which pod holds how much of a chain, and how much each has to do. Each Envoy worker has a
//!   VM of its own without shared memory, so each keeps a replica, and replicas follow one log in Envoy's shared data. What a
//!   pod holds is what was routed to it, or what its engine says by KV events ([`events`]). Which pods there are, and what
//!   engines say of their load, one VM asks and all read ([`pods::Scout`], [`pods::Board`]).
//! * **Decision** ([`pipeline`], [`config`]): small parts, put together into profiles by configuration, and refused when
//!   they are loaded if they don't fit together.
//! * **Execution** ([`workflow`]): selectors without side effects, plans of them, the protocols by which engines hand over KV
//!   ([`workflow::protocol`]), and one executor that talks to Envoy.
//!
//! # What is shared by whom
//!
//! A [`plugin::Plugin`] is one plugin configuration in one VM; a [`fleet::Fleet`] is what all of them in that VM share: the
//! replica, the loads, the clock of ticks. Other VMs are reached through shared data alone.
//!
//! # Rules
//!
//! * Logic is native and pure. Envoy is behind one trait, [`host::Host`]; only `abi`, which exists on wasm32 alone, names
//!   proxy-wasm.
//! * Nothing panics: a panic traps the VM and with it every stream of its worker. Lints deny what could.
//! * Every failure steps down (prefix, load, Envoy's own policy), is counted in [`metrics`], and stops nobody's traffic.
//! * Every table, queue, name and buffer has a bound, and what a client or shared data says is hostile until it is parsed.
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
#[cfg(not(target_arch = "wasm32"))]
pub mod check;
pub mod config;
pub mod events;
pub mod explain;
pub mod fleet;
pub mod guard;
pub mod host;
pub mod index;
pub mod metrics;
pub mod pipeline;
pub mod places;
pub mod plugin;
pub mod pods;
pub mod prompt;
#[cfg(not(target_arch = "wasm32"))]
pub mod reference;
pub mod request;
pub mod stream;
pub mod workflow;

#[cfg(target_arch = "wasm32")]
mod abi;

/// The version of this build, as in `CHANGELOG.md`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
