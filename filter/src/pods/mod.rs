//! Pods: who they are, how much each has to do, and which failed lately.

mod health;
mod ledger;
mod load;
mod pod;

pub use health::Health;
pub use ledger::Ledger;
pub use load::{Load, SILENT};
pub use pod::{MAX_PODS, Pod};
