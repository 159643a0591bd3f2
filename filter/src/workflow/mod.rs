//! How a decision becomes an action.
//!
//! * A [`Selector`] runs one profile: a pod, and no side effects.
//! * A [`Plan`] is an ordered list of selectors; each sees what the earlier ones chose. One step is the plan of every
//!   ordinary request; [`PrefillDecode`] has two.
//! * The [`Executor`] asks the index, runs the steps, records the outcome for the other workers, and sets the routing header.
//! * A [`protocol`] says what is different in the request of each of the two pods.
//!
//! What follows a callout's answer, and a failure, is in [`crate::stream`]: it is the request's life.

mod executor;
mod plan;
pub mod protocol;
mod record;
mod subset;

pub use executor::{DESTINATION, Executor, Limit, Outcome, RANK, RANK_HEADER, Sent, Step, TwoSteps};
pub use plan::{Aggregated, Plan, PrefillDecode, Prospect, Selector, Worth};
pub use record::{Record, recorded, session, withdrawn};
