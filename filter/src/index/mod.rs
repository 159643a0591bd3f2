//! Which pod holds how much of a prompt: the data layer.
//!
//! Every Envoy worker has a VM of its own, without shared memory. Each keeps a [`Replica`] in its own memory and answers
//! from it without a hostcall; replicas are equal because they change only by applying one log in order. The log is a
//! ring of keys in shared data ([`log`]), and a rolling [`checkpoint`] lets it be overwritten.
//!
//! [`Index`] is what a VM uses. Its parts, from the bottom: the block [`Table`] with its [`Depths`] query and [`Aging`];
//! [`Delta`] and [`Entry`], the log's format; the [`Roster`] of pods; the [`Replica`]; log, checkpoint, [`loader`];
//! [`follower`], which keeps a replica up with the log; [`lease`] and [`housekeeping`].

mod aging;
mod append;
mod bitmap;
mod checkpoint;
mod counts;
mod delta;
mod entry;
mod facade;
mod follower;
mod housekeeping;
mod keys;
mod lease;
mod life;
mod loader;
mod log;
mod query;
mod replica;
mod roster;
mod settings;
mod shard;
#[cfg(test)]
mod simulation;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use aging::{Aging, Goal};
pub use append::{Appended, OnUnseen};
pub use bitmap::{MAX_SLOTS, PodSet, Slot};
pub use counts::IndexCounts;
pub use delta::{Delta, MAX_POD_ID, PodRef};
pub use entry::{Entry, FORMAT, MAX_ENTRY};
pub use facade::Index;
pub use follower::{Budget, Standing};
pub(crate) use keys::Keys;
pub use query::Depths;
pub use replica::{Replica, ReplicaCounts};
pub use roster::{NoSlot, Roster, SlotState};
pub use settings::IndexSettings;
pub use table::{Block, BlockHash, SHARDS, Stored, Table};

/// How often a slot was freed. It wraps around.
pub type Generation = u16;
