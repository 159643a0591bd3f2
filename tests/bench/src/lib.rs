//! What the benchmarks share: routers and pods, and the load on them.

pub mod dynamo;
pub mod load;
pub mod mock;
pub mod prompts;
pub mod router;
