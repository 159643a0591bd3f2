//! The load: conversations or a recorded trace, sent to an OpenAI-compatible server and measured.
//!
//! [`conversations`] and [`trace`] decide what is sent and when; a [`Session`] sends it through a [`Client`], asks the
//! [`ideal`] cache what could have been had, prints a line and keeps a row; a [`Summary`] is what remains.

mod client;
pub mod conversations;
pub mod ideal;
mod session;
mod sse;
mod summary;
pub mod trace;

pub use client::{Client, Reply};
pub use session::Session;
pub use summary::{Row, Summary, Totals, compare};
