//! One pod as the configuration describes it. What changes while it serves (load, health) is not here.

use std::collections::BTreeMap;

/// Most pods that one configuration may name.
pub const MAX_PODS: usize = 256;

/// A pod: one serving engine behind one address, with a prefix cache of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// What people call it; unique in a configuration.
    pub name: String,
    /// What the routing header says to reach it: `ip:port`, or the name of an Envoy cluster.
    pub target: String,
    /// Models that it is known to serve. Empty: no statement, any model may be there.
    pub models: Vec<String>,
    /// Free names for filters to choose by, such as `role: decode`.
    pub labels: BTreeMap<String, String>,
    /// Capacity relative to the other pods, above 0. A pod of weight 2 is as loaded with 8 requests as one of weight 1
    /// with 4.
    pub weight: f32,
    /// Requests in flight that it should never exceed, if that is known.
    pub max_in_flight: Option<u32>,
    /// Data-parallel ranks, each with a cache of its own.
    pub ranks: u32,
    /// Whether Envoy knew of it, and not the configuration.
    pub found: bool,
    /// The Envoy cluster in which it was found, where pods are found by address.
    pub cluster: Option<String>,
}

impl Pod {
    /// Identity across configurations: the same name at another address is another engine with a cold cache, so both
    /// are in it. What a found pod is called depends on its neighbours, so its address is all.
    pub fn id(&self) -> String {
        if self.found || self.name == self.target {
            self.target.clone()
        } else {
            format!("{}@{}", self.name, self.target)
        }
    }

    /// The Envoy cluster by which it is called: the one that the configuration names, else the one that has it as an endpoint.
    /// Where routing is by cluster it is that itself.
    pub fn called_by<'a>(&'a self, named: Option<&'a str>) -> &'a str {
        named.or(self.cluster.as_deref()).unwrap_or(&self.target)
    }

    /// Identity of the cache of a rank; `None` where the pod has fewer.
    pub fn cache_id(&self, rank: u32) -> Option<String> {
        match rank {
            0 => Some(self.id()),
            rank => (rank < self.ranks).then(|| format!("{}#{rank}", self.id())),
        }
    }

    /// Identities of all its caches, by rank.
    pub fn cache_ids(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.ranks).filter_map(|rank| self.cache_id(rank))
    }
}
