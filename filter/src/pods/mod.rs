//! Pods: what configuration says of each.

mod pod;

pub use pod::{MAX_PODS, Pod};
