//! Pods near the one that an earlier step chose score.

use crate::pipeline::part::{Built, Part, Score, Site, Stage, View};
use crate::pipeline::peers::Label;
use crate::pipeline::positions::Positions;
use crate::pipeline::slots::SlotId;
use schemars::JsonSchema;
use serde::Deserialize;

/// For the decode step of a workflow: the share of these labels that a pod has in common with the prefill pod, such as its rack
/// or NVLink domain. 0 for all where no earlier step chose a pod.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Affinity {
    /// Names of labels, as in `pods[].labels`. Without it `rack` and `domain`, where pods bear them.
    #[schemars(length(min = 1))]
    labels: Option<Vec<String>>,
}

/// What many call the places within which KV travels fast.
const COMMON: [&str; 2] = ["rack", "domain"];

impl Part for Affinity {
    const NAME: &'static str = "affinity";
    const STAGE: Stage = Stage::Score;
    const READS: &'static [SlotId] = &[SlotId::Peer];

    fn build(self, site: &mut Site<'_>) -> Built {
        let labels = match &self.labels {
            Some(names) => names.iter().map(|name| Label::named(site, "labels", name)).collect(),
            None => COMMON.iter().map(|name| Label::read(site.pods, name)).filter(Label::is_borne).collect(),
        };
        if self.labels.as_ref().is_some_and(Vec::is_empty) {
            site.refuse("labels", "is empty; name at least one label");
        }
        Built::Score(Box::new(Near { labels }))
    }
}

struct Near {
    labels: Vec<Label>,
}

impl Score for Near {
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]) {
        let Some(peer) = view.slots.peer else { return };
        for pod in among.iter() {
            let shared = self.labels.iter().filter(|label| label.is_shared(pod, peer)).count();
            if let Some(score) = scores.get_mut(pod) {
                *score = shared as f32 / self.labels.len() as f32;
            }
        }
    }
}
