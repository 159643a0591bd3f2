//! Which pods have a label in common, as small numbers that are cheap to compare for each request.

use super::part::Site;
use crate::pods::Pod;

/// A label's values, by the pods' positions.
#[derive(Debug)]
pub struct Label {
    values: Vec<Option<usize>>,
}

impl Label {
    /// Reads a label of all pods.
    pub fn read(pods: &[Pod], name: &str) -> Self {
        let mut known: Vec<&str> = Vec::new();
        let mut number = |value| match known.iter().position(|other| *other == value) {
            Some(at) => at,
            None => {
                known.push(value);
                known.len() - 1
            }
        };
        let values = pods.iter().map(|pod| pod.labels.get(name).map(|value| number(value.as_str())));
        Self { values: values.collect() }
    }

    /// Reads one that the configuration names in `field`, where some pod must bear it.
    pub fn named(site: &mut Site<'_>, field: &str, name: &str) -> Self {
        let label = Self::read(site.pods, name);
        if !label.is_borne() && !site.dynamic {
            site.refuse(field, format!("no pod bears the label {name:?}; add it to the labels of pods"));
        }
        label
    }

    /// Whether any pod bears it.
    pub fn is_borne(&self) -> bool {
        self.values.iter().any(Option::is_some)
    }

    /// Whether two pods bear it with the same value.
    pub fn is_shared(&self, one: usize, other: usize) -> bool {
        let value = |pod: usize| self.values.get(pod).copied().flatten();
        value(one).is_some_and(|one| value(other) == Some(one))
    }
}
