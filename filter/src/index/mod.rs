//! Which pod holds how much of a prompt.

mod aging;
mod bitmap;
mod query;
mod table;

pub use aging::Aging;
pub use bitmap::{MAX_SLOTS, PodSet, Slot};
pub use query::Depths;
pub use table::{Block, BlockHash, SHARDS, Stored, Table};
