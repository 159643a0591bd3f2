//! Pods: who they are, where Envoy finds them, how much each has to do, how fast it is, and which failed lately.

mod account;
mod board;
mod breaker;
pub mod discovery;
mod engine;
mod ledger;
mod load;
pub mod metrics;
mod pod;
mod scout;
mod speed;
mod waiting;

pub use account::{Account, Job, Pace, Results, Running, Work};
pub use board::{Board, Content, Told, key};
pub use breaker::{Breaker, BreakerSettings, Moment, Verdict};
pub use discovery::Found;
pub use engine::{Engine, Lora, MOST_ADAPTERS, adapter};
pub use ledger::{Ledger, MOST_MODELS};
pub use load::{Load, SILENT};
pub use pod::{MAX_PODS, Pod};
pub use scout::Scout;
pub use speed::Speed;
pub use waiting::{Overdue, Shared, Waiting};
