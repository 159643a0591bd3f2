//! The decision layer: which pod serves a request.
//!
//! A [`Profile`] runs small parts in five stages. Preparations read the request and the index into typed slots; filters
//! take pods out; scorers rate those that are left; the picker chooses one and the order of fallbacks; the workflow
//! then executes. Each part declares the slots that it reads and writes, and a profile that doesn't fit together is
//! refused when it is built.
//!
//! Pods are named by their position in the configuration throughout.
//!
//! To add a part, write one file with a [`part::Part`] and add one line to [`registry`].

mod build;
mod builtin;
mod decision;
mod filters;
pub mod part;
mod peers;
mod pickers;
mod positions;
mod prepare;
mod profile;
pub mod registry;
mod residency;
mod rng;
pub mod schema;
mod scorers;
mod slots;

pub use build::build;
pub use builtin::{BUILT_IN, BuiltIn};
pub use decision::{Decision, MAX_FALLBACKS, Order, Refused};
pub use part::{Body, Input, PodState};
pub use positions::Positions;
pub use prepare::is_token;
pub use profile::{Profile, Scratch, Seen, World};
pub use residency::{Matches, Residency};
pub use rng::Rng;
pub use slots::{SlotId, Slots};
