//! How a decision becomes an action.
//!
//! * A [`Selector`] runs one profile: a pod, and no side effects.
//! * A [`Workflow`] is an ordered plan of selectors; each sees what the earlier ones chose.
//! * The [`Executor`] is the only one of them that talks to Envoy: it asks the index, runs the plan, records the
//!   outcome for the other workers, and sets the routing header.
//!
//! One pod and one step is the plan of every ordinary request; it is the degenerate case, not a special one.

mod executor;
mod plan;
pub mod protocol;
mod record;

pub use executor::{Executor, Limit, Outcome, RANK_HEADER, Sent, Step, TwoSteps};
pub use plan::{Aggregated, Plan, PrefillDecode, Prospect, Selector, Worth};
pub use record::{Record, recorded, session, withdrawn};
