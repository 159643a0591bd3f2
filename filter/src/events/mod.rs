//! What engines say of their own caches: KV events.
//!
//! They come on a [`Connection`] that an engine's publisher makes to Envoy ([`zmtp`]), or in requests ([`Ingest`]). A [`batch`] is
//! decoded, the [`Intake`] finds out whose it is, and the cache's [`feed`] turns it into changes of the index: own hashes from
//! token ids, the engine's [`names`] for removals. [`Feeds`] brings them into the log, from which all workers learn.

pub mod batch;
mod connection;
mod event;
pub mod feed;
mod feeds;
mod ingest;
mod intake;
mod lists;
pub mod names;
#[cfg(test)]
mod tests;
mod value;
pub mod zmtp;

pub use connection::Connection;
pub use feeds::{Feeds, Mode};
pub use ingest::Ingest;
pub use intake::{Complaints, Intake};

/// The root id of a network filter that engines' publishers connect to.
pub const ZMQ_ROOT: &str = "kv-events-zmq";
/// The root id of an HTTP filter that takes events.
pub const HTTP_ROOT: &str = "kv-events-http";
