//! Pods: who they are, where Envoy finds them, how much each has to do, and which failed lately.

pub mod discovery;
mod health;
mod ledger;
mod load;
pub mod metrics;
mod pod;

pub use discovery::Found;
pub use health::Health;
pub use ledger::Ledger;
pub use load::{Load, SILENT};
pub use pod::{MAX_PODS, Pod};
