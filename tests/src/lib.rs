//! The harness of the end-to-end tests: simulated pods, a real Envoy with the shipped configuration, and clients.
//!
//! A test starts [`Pods`], then an [`Envoy`] in front of them, and sends [`Request`]s; what a client library would
//! refuse to send goes over a [`Raw`] connection. Every port is free when it is taken, every file is in a directory
//! of its own, and whatever a test started ends with it, however the test ends.
//!
//! Environment: `ENVOY_BIN` names the Envoy binary, `WARMPATH_WASM` the module under test and `POD_SIM` the simulated
//! pod; `tests/run.sh` builds and sets them. `ENVOY_CONTAINER` runs Envoy in a container (see `tests/container.sh`).

mod client;
mod config;
mod container;
mod disaggregated;
mod envoy;
pub mod envoy_gateway;
mod fields;
mod istio;
mod manifests;
mod pods;
pub mod predictions;
mod process;
mod publisher;
mod raw;
mod tokens;
mod version;
mod wait;

pub use client::{Exchange, Request, Response, Streaming};
pub use disaggregated::Disaggregated;
pub use envoy::{Builder, Envoy};
pub use istio::IstioGateway;
pub use pods::{Pods, Seen};
pub use process::{Process, temporary_dir};
pub use publisher::{Publisher, batch, python};
pub use raw::{Head, Raw};
pub use version::{breaks_off_http2, heeds_limits_of_routes};
pub use wait::{DEADLINE, wait_for, wait_long, wait_until};

use std::path::PathBuf;

/// The root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A prompt of so many words, other ones for each number.
pub fn words(number: usize, count: usize) -> String {
    (0..count).map(|i| format!("word{} ", (number * 7919 + i * 104_729) % 99_991)).collect()
}
