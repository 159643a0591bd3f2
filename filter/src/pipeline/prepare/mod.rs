//! Preparations: request and index into slots. One file a part.

pub mod hash_key;
pub mod prefix;
pub mod session;
mod source;

pub use source::is_token;
