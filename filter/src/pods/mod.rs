//! Pods: who they are to the data layer, and how much each has to do.

mod ledger;
mod load;

pub use ledger::Ledger;
pub use load::{Load, SILENT};
