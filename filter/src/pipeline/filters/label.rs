//! Pods by what the configuration calls them.

use crate::pipeline::part::{Built, Field, Filter, Part, Site, Stage, View};
use crate::pipeline::positions::Positions;
use serde::Deserialize;

/// Configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    label: String,
    any_of: Vec<String>,
}

impl Part for Label {
    const NAME: &'static str = "label";
    const STAGE: Stage = Stage::Filter;
    const DOC: &'static str = "Keeps the pods that bear a label with one of the given values.";
    const FIELDS: &'static [Field] = &[
        Field {
            name: "label",
            kind: "string",
            default: "",
            doc: "Name of the label, as in `pods[].labels`.",
        },
        Field { name: "any_of", kind: "list of strings", default: "", doc: "Values that will do." },
    ];

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
