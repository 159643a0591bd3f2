//! Pods by what the configuration calls them.

use crate::pipeline::part::{Built, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps the pods that bear a label with one of the given values.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// Name of the label, as in `pods[].labels`.
    label: String,
    /// Values that will do.
    #[schemars(length(min = 1))]
    any_of: Vec<String>,
}

impl Part for Label {
    const NAME: &'static str = "label";
    const STAGE: Stage = Stage::Filter;

    fn build(self, site: &mut Site<'_>) -> Built {
        let bearers: Positions = (0..)
            .zip(site.pods)
            .filter(|(_, pod)| pod.labels.get(&self.label).is_some_and(|value| self.any_of.contains(value)))
            .map(|(i, _)| i)
            .collect();
        if self.any_of.is_empty() {
            site.refuse("any_of", "is empty; name at least one value");
        } else if bearers.is_empty() && !site.dynamic {
            let problem = format!(
                "no pod bears the label {:?} with one of {:?}; add it to the labels of a pod",
                self.label, self.any_of
            );
            site.refuse("any_of", problem);
        }
        Built::Filter(Box::new(Bearers(bearers)))
    }
}

struct Bearers(Positions);

impl Filter for Bearers {
    fn filter(&self, _view: &View<'_>, kept: &mut Positions) {
        *kept = kept.intersect(&self.0);
    }
}
