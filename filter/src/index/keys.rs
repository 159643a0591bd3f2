//! The fixed set of keys under which an index lives in shared data.

use super::entry::FORMAT;
use std::fmt::Write as _;

/// Names the keys of one index. Shared data never frees a key, so there is no other way to make one.
#[derive(Debug, Clone)]
pub(crate) struct Keys(Box<str>);

impl Keys {
    /// Indices with another format or fingerprint share no key.
    pub(crate) fn new(fingerprint: u64) -> Self {
        Self(format!("wp/{FORMAT}/{fingerprint:016x}/").into())
    }

    fn numbered(&self, kind: &str, number: u64) -> String {
        let mut key = String::with_capacity(self.0.len() + kind.len() + 20);
        key.push_str(&self.0);
        key.push_str(kind);
        // Writing to a string cannot fail.
        let _ = write!(key, "{number}");
        key
    }

    /// The place of a position of the log.
    pub(crate) fn log(&self, place: u64) -> String {
        self.numbered("log/", place)
    }

    /// A shard of the checkpoint.
    pub(crate) fn shard(&self, shard: usize) -> String {
        self.numbered("shard/", shard as u64)
    }

    /// A life's ledger.
    pub(crate) fn ledger(&self, number: usize) -> String {
        self.numbered("ledger/", number as u64)
    }

    /// The lowest position that the checkpoint contains.
    pub(crate) fn floor(&self) -> String {
        format!("{}floor", self.0)
    }

    /// Who does the housekeeping.
    pub(crate) fn lease(&self) -> String {
        format!("{}lease", self.0)
    }

    /// How many lives there were.
    pub(crate) fn lives(&self) -> String {
        format!("{}lives", self.0)
    }
}
