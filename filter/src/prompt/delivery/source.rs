//! Where a model's tokenizer.json and tokenizer_config.json are to be had.

use std::fmt;
use std::time::Duration;

/// Where both files of a model are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// At a server.
    Fetched(Remote),
    /// In the module, under the name that they were [built in](super::built_in) by.
    BuiltIn(String),
}

/// Files that Envoy reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// An Envoy cluster.
    pub cluster: String,
    /// The path of the folder that holds both files, ending in a slash.
    pub path: String,
    /// Until the answer is whole.
    pub timeout: Duration,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetched(Remote { cluster, path, .. }) => write!(f, "{path} of {cluster:?}"),
            Self::BuiltIn(name) => write!(f, "{name:?}, built in,"),
        }
    }
}
