//! A GPU pod without the GPU, and the load to try it with.
//!
//! `pod-sim` answers like vLLM's server, and like SGLang's at `/generate`: with text nobody wants, after a time that a model of
//! one decides, and with a prefix cache whose hits are real. It shares no code with the filter, so what it reports about a
//! request is evidence. `replay` sends conversations or a recorded trace and measures what comes back.
//!
//! A request's way through a pod: [`server`] reads it and lets [`fault`]s strike, [`body`] turns it into
//! [`tokens`], [`inference`] leads it through the [`engine`] (queue, batch, [`cache`], [`time`]) and gives the [`answer`].
//! With [`transfer`] one pod computes a prompt and another answers it.

pub mod answer;
pub mod body;
pub mod cache;
pub mod chain;
pub mod chat;
pub mod endpoint;
pub mod engine;
pub mod fault;
pub mod fields;
pub mod flags;
pub mod inference;
pub mod journal;
pub mod metrics;
pub mod payload;
pub mod pod;
pub mod prompt;
pub mod replay;
pub mod server;
pub mod time;
pub mod tokens;
pub mod transfer;
