//! Filters: which pods may not serve a request. One file a part.

pub mod affinity;
pub mod concurrency_cap;
pub mod concurrency_floor;
pub mod health;
pub mod label;
pub mod model;
pub mod prefix_threshold;
pub mod stick_or_spill;
