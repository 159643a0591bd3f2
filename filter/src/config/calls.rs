//! By which Envoy clusters pods are called.

use super::mistake::Mistakes;
use super::raw::{RawBy, RawConfig};

/// What is known of where pods are endpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Calls<'a> {
    /// Each pod is a cluster.
    Itself,
    /// All must be in one, if it is known which.
    In(Option<&'a str>),
    /// All are found, each in one of several.
    Found,
}

impl<'a> Calls<'a> {
    /// As the configuration has it.
    pub(super) fn of(raw: &'a RawConfig) -> Self {
        let is_one = |pattern: &&String| !pattern.contains('*');
        let pods_of = raw.discovery.as_ref().map(|discovery| discovery.pods_of.as_slice());
        match (raw.routing.by, pods_of) {
            (RawBy::Cluster, _) => Self::Itself,
            (RawBy::Address, Some([cluster])) if is_one(&cluster) => Self::In(Some(cluster)),
            (RawBy::Address, Some(_)) if raw.pods.as_ref().is_none_or(Vec::is_empty) => Self::Found,
            (RawBy::Address, _) => Self::In(None),
        }
    }

    /// The cluster by which pods are called, where it is the same for all; for [`crate::pods::Pod::called_by`].
    pub(super) fn cluster(self, named: Option<&str>) -> Option<String> {
        match self {
            Self::Itself => None,
            Self::Found => named.map(str::to_owned),
            Self::In(known) => named.or(known).map(str::to_owned),
        }
    }

    /// The same; a mistake where there is none.
    pub(super) fn need(self, path: &str, named: Option<&str>, mistakes: &mut Mistakes) -> Option<String> {
        let cluster = self.cluster(named);
        if cluster.is_none() && matches!(self, Self::In(_)) {
            let cure = "name the Envoy cluster with override_host that has the pods, all of them";
            mistakes.add(path, format!("is missing; {cure}"));
        }
        cluster
    }

    /// A mistake where one is named and none is used.
    pub(super) fn refuse(self, path: &str, named: Option<&str>, mistakes: &mut Mistakes) {
        if named.is_some() && self == Self::Itself {
            let problem =
                "is of no use where routing.by is \"cluster\", since each pod is its own; remove it";
            mistakes.add(path, problem);
        }
    }
}
