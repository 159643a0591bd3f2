//! Configuration: JSON as written (`raw`), checked and built (`build`) into a [`Router`].
//!
//! [`load`] is the only way in (with pods that were found: [`load_with`]), and every mistake is found there: with its path,
//! what is wrong and the cure. What it returns can't fail later.

mod bounds;
mod build;
mod calls;
mod discovery;
mod entries;
mod health;
mod mistake;
mod pattern;
mod pods;
mod profiles;
mod raw;
mod reach;
mod router;
mod select;
mod settings;
mod workflows;

pub use bounds::Bounds;
pub use build::{MAX_CONFIG_BYTES, load, load_with};
pub use discovery::{DiscoverySettings, PodRule};
pub use entries::Entries;
pub use health::{Admission, MetricsSettings};
pub use mistake::{Mistake, Mistakes};
pub use pattern::Pattern;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use raw::RawConfig;
pub use raw::{RawPart, RawProfile};
pub use reach::{Reach, reach};
pub use router::{HeaderLookup, KvEventsSettings, PodBy, Router, Routing, Settings, TokenizerSettings, Via};
