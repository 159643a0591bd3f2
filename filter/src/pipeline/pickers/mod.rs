//! Pickers: one pod, and the order of fallbacks. One file a part.

pub mod best;
pub mod power_of_two;
pub mod random;
pub mod round_robin;
mod smallest;
pub mod weighted_random;
