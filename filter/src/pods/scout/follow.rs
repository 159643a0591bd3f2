//! What follows from what engines say, beside scores: how much a pod can hold, that its cache is empty, that its blocks have
//! another size.

use super::{Complaint, Scout};
use crate::config::Router;
use crate::fleet::Fleet;
use crate::host::{Host, Level};
use crate::index::{Delta, OnUnseen};
use crate::metrics::Metric;
use crate::pods::{Pod, key};
use std::collections::BTreeMap;

impl Scout {
    /// How much each pod is thought to hold follows what its engine says of its cache; and who left is forgotten.
    pub(super) fn keep_bounds(&mut self, fleet: &mut Fleet, router: &Router) {
        let keys: BTreeMap<_, _> = router.pods().iter().map(|pod| (key(&pod.id()), pod)).collect();
        self.content.told.retain(|key, _| keys.contains_key(key));
        self.queries.retain(|key, _| keys.contains_key(key));
        if router.settings().pod_blocks.is_some() {
            return;
        }
        for (pod, told) in keys.iter().filter_map(|(key, pod)| Some((pod, self.content.told.get(key)?))) {
            let Some((blocks, size)) = told.blocks.zip(told.block_size) else { continue };
            // What is told is of all ranks together.
            let tokens = u64::from(blocks) * u64::from(size) / u64::from(pod.ranks.max(1));
            for id in pod.cache_ids() {
                fleet.index.set_pod_tokens(&id, tokens);
            }
        }
    }

    /// Says where blocks are of another size than engines'.
    pub(super) fn compare_blocks(&mut self, host: &impl Host, fleet: &Fleet, router: &Router) {
        let tokenizers = &router.settings().tokenizers;
        let mut others = 0;
        let mut first = None;
        for pod in router.pods() {
            let Some(size) = self.content.told.get(&key(&pod.id())).and_then(|told| told.block_size) else {
                continue;
            };
            let serves = |models: &[String]| {
                pod.models.is_empty() || models.iter().any(|model| pod.models.contains(model))
            };
            let wrong =
                tokenizers.iter().find(|one| serves(&one.models) && one.block_tokens != size as usize);
            if let Some(tokenizer) = wrong {
                others += 1;
                first.get_or_insert((pod.name.clone(), size, tokenizer.block_tokens));
            }
        }
        fleet.metrics.record(host, Metric::OtherBlockSize, others);
        if let Some((name, size, ours)) = first {
            self.complain(
                host,
                fleet.ticks(),
                Complaint::BlockSize,
                &format!(
                    "warmpath: {name} has blocks of {size} tokens, while tokenizers[].block_tokens is {ours}; set it to {size}, \
                     or what is predicted is off by up to a block."
                ),
            );
        }
    }
}

/// An engine counts from the beginning again: what was routed to its caches before is gone. One that says itself what it holds says
/// that too.
pub(super) fn restarted(host: &impl Host, fleet: &mut Fleet, pod: &Pod) {
    let exact = *fleet.index.exact();
    let caches = pod.cache_ids().filter_map(|id| fleet.index.find(&id));
    let guessed: Vec<_> = caches.filter(|cache| !exact.contains(cache.slot)).collect();
    if guessed.is_empty() {
        return;
    }
    let name = &pod.name;
    host.log(
        Level::Info,
        &format!("warmpath: the engine of {name} has started anew, so its cache is empty."),
    );
    let deltas: Vec<_> = guessed.into_iter().map(|pod| Delta::Cleared { pod }).collect();
    let _ = fleet.index.append(host, &deltas, OnUnseen::Go);
    fleet.metrics.add(host, Metric::Restarted, 1);
}
