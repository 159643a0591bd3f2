//! Scorers: how well each pod would serve a request. One file a part.

pub mod affinity;
pub mod consistent_hash;
pub mod in_flight;
pub mod kv_usage;
pub mod latency;
pub mod lora;
pub mod predicted_ttft;
pub mod prefix;
pub mod queue;
pub mod running;
pub mod session;
pub mod token_load;
mod told;
