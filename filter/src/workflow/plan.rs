//! Plans: which profiles choose the pods of a request, in which order, and what is between them.

use super::protocol::Protocol;
use crate::config::Router;
use crate::pipeline::{Decision, Positions, Profile, Refused, Scratch, Seen, Slots};
use std::time::Duration;

/// One step of a plan: runs a profile on the slots that were prepared for it. It has no side effects, so it can be asked
/// again when more is known.
pub struct Selector<'a> {
    /// What it runs in.
    pub router: &'a Router,
    /// What it runs.
    pub profile: &'a Profile,
    /// Where it leaves off; more than the routing header carries where somebody else tries them in turn.
    pub fallbacks: usize,
}

impl Selector<'_> {
    /// Chooses a pod and its fallbacks.
    pub fn select(
        &self,
        seen: &Seen<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
    ) -> Result<Decision, Refused> {
        self.router.decide(self.profile, seen, slots, scratch, self.fallbacks)
    }
}

/// What is to be done with a request.
#[derive(Clone, Copy)]
pub enum Plan<'a> {
    /// One profile chooses one pod, which does all.
    Single(&'a Profile),
    /// One pod prefills, and another decodes.
    PrefillDecode(&'a PrefillDecode),
}

/// A workflow of two steps. The second sees which pod the first chose.
pub struct PrefillDecode {
    /// Its name in the configuration.
    pub name: String,
    /// Its position in the router.
    pub position: usize,
    /// How KV is handed over.
    pub protocol: Box<dyn Protocol>,
    /// Position of the profile that chooses who prefills.
    pub prefill: usize,
    /// Of the one that chooses who decodes.
    pub decode: usize,
    /// Of the one that chooses who serves a request in one step. `None`: nobody can.
    pub aggregated: Option<usize>,
    /// The same, for requests whose prefill failed. `None`: they are refused.
    pub on_failure: Option<usize>,
    /// How long prefill may take, all attempts together.
    pub timeout: Duration,
    /// Most prefill pods that are tried.
    pub attempts: usize,
    /// Whether Envoy's retries may take a handoff to another decode pod: where they are only for pods that could not be reached.
    pub retries_decode: bool,
    /// When it isn't worth it.
    pub worth: Worth,
    /// Pods that can't take part.
    pub unfit: Positions,
    /// The Envoy cluster by which prefill pods are called, for `Pod::called_by`.
    pub prefill_cluster: Option<String>,
    /// The one by which a pod is called that does all, after another refused a handoff. Without one, only pods that have their own.
    pub aggregated_cluster: Option<String>,
}

/// When prefill elsewhere is worth it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worth {
    /// Tokens of the prompt that the decode pod doesn't hold, at least.
    pub min_tokens: f32,
    /// The same, as a share of the prompt.
    pub min_share: f32,
    /// How many times longer than at the decode pod alone the first token may take.
    pub max_slowdown: f32,
}

/// What is known of a request when it is asked whether prefill elsewhere is worth it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prospect {
    /// Tokens of the prompt, about.
    pub prompt: f32,
    /// Of these, what the decode pod is not thought to hold.
    pub uncached: f32,
    /// Seconds to the first token at the decode pod alone; 0 where nothing is known.
    pub alone: f32,
    /// The same by the prefill pod, without the handoff.
    pub remote: f32,
}

/// Why a request of a workflow is served in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregated {
    /// Little of the prompt has to be computed.
    Short,
    /// The decode pod holds nearly all of it.
    Held,
    /// The decode pod alone is so much faster.
    Faster,
    /// The pod that is best for one step is best for both.
    Same,
    /// It is none that can be split.
    Unfit,
    /// There is no prefill pod to be had.
    NoPrefill,
    /// There is no decode pod to be had.
    NoDecode,
    /// Prefill was tried, and failed.
    Failed,
    /// Prefill ended with nothing to hand over.
    Nothing,
}

impl PrefillDecode {
    /// How many decode pods may be tried after the first, of those that the routing header can carry.
    pub fn fallbacks(&self, most: usize) -> usize {
        if self.retries_decode && self.protocol.is_transferable() { most } else { 0 }
    }
}

impl<'a> Plan<'a> {
    /// The profile of a plan of one step.
    pub fn single(self) -> Option<&'a Profile> {
        match self {
            Self::Single(profile) => Some(profile),
            Self::PrefillDecode(_) => None,
        }
    }
}

impl Worth {
    /// Why prefill elsewhere isn't worth it, if it isn't.
    pub fn against(&self, prospect: &Prospect) -> Option<Aggregated> {
        let Prospect { prompt, uncached, alone, remote } = *prospect;
        if uncached < self.min_tokens {
            // What is short because most of it is held is told apart: it says that the cache works.
            return Some(if prompt < self.min_tokens { Aggregated::Short } else { Aggregated::Held });
        }
        if uncached < self.min_share * prompt {
            return Some(Aggregated::Held);
        }
        (alone > 0.0 && remote > self.max_slowdown * alone).then_some(Aggregated::Faster)
    }
}

impl Aggregated {
    /// For people.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Short => "the prompt is short",
            Self::Held => "the decode pod holds most of it",
            Self::Faster => "the decode pod alone is faster",
            Self::Same => "one pod is best for both steps",
            Self::Unfit => "the request can't be split",
            Self::NoPrefill => "no prefill pod is to be had",
            Self::NoDecode => "no decode pod is to be had",
            Self::Failed => "prefill failed",
            Self::Nothing => "prefill had nothing to hand over",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_elsewhere_is_for_prompts_of_which_much_is_to_be_computed() {
        let worth = Worth { min_tokens: 256.0, min_share: 0.1, max_slowdown: 2.0 };
        for (prompt, uncached, alone, remote, against) in [
            (1000.0, 1000.0, 0.0, 0.0, None),
            (255.0, 255.0, 0.0, 0.0, Some(Aggregated::Short)),
            (1000.0, 255.0, 0.0, 0.0, Some(Aggregated::Held)),
            (10_000.0, 999.0, 0.0, 0.0, Some(Aggregated::Held)),
            (10_000.0, 1000.0, 0.0, 0.0, None),
            (1000.0, 1000.0, 0.5, 1.0, None),
            (1000.0, 1000.0, 0.5, 1.1, Some(Aggregated::Faster)),
            (1000.0, 1000.0, 0.0, 1.1, None),
        ] {
            let prospect = Prospect { prompt, uncached, alone, remote };
            assert_eq!(worth.against(&prospect), against, "{prospect:?}");
        }
        let always = Worth { min_tokens: 0.0, min_share: 0.0, max_slowdown: f32::INFINITY };
        assert_eq!(
            always.against(&Prospect { prompt: 0.0, uncached: 0.0, alone: 1.0, remote: 9.0 }),
            None,
            "who wants it always has it always"
        );
    }
}
