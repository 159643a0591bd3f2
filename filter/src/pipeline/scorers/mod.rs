//! Scorers: how well each pod would serve a request. One file a part.

pub mod consistent_hash;
pub mod in_flight;
pub mod prefix;
pub mod session;
