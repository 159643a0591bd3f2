//! Configuration: JSON as written (`raw`), checked and built (`build`) into a [`Router`].
//!
//! [`load`] is the only way in, and every mistake is found there: with its path, what is wrong and the cure. What it
//! returns can't fail later.

mod build;
mod entries;
mod mistake;
mod pods;
mod raw;
mod router;
mod select;

pub use build::{MAX_CONFIG_BYTES, load};
pub use entries::Entries;
pub use mistake::{Mistake, Mistakes};
pub use raw::{RawPart, RawProfile};
pub use router::{HeaderLookup, KvEventsSettings, PodBy, Router, Routing, Settings, TokenizerSettings};
