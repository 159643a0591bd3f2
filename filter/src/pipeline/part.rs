//! The contracts of parts: one trait for each stage, and what a part says of itself for the registry.

use super::decision::Order;
use super::positions::Positions;
use super::residency::Residency;
use super::rng::Rng;
use super::slots::{SlotId, Slots};
use crate::blocks::{BlockSize, Chain};
use crate::config::{Bounds, Mistakes};
use crate::pods::{Engine, Pod, Speed};
use crate::request::Request;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::fmt;

/// The stages of a decision, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Reads the request and the index into slots.
    Prepare,
    /// Takes pods out.
    Filter,
    /// Rates those that are left.
    Score,
    /// Chooses one, and the order of fallbacks.
    Pick,
}

impl Stage {
    /// The field of a profile that lists parts of this stage.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Filter => "filters",
            Self::Score => "scorers",
            Self::Pick => "picker",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "preparation",
            Self::Filter => "filter",
            Self::Score => "scorer",
            Self::Pick => "picker",
        })
    }
}

/// The parsed body, as far as parts read it: [`Request`], or something simpler in tests.
pub trait Body {
    /// Model asked for.
    fn model(&self) -> Option<&str>;
    /// The end user that the body names.
    fn user(&self) -> Option<&str>;
    /// The chain of the prompt's whole blocks.
    fn chain(&self, size: BlockSize) -> Chain;
    /// Whether the answer is to be streamed.
    fn streams(&self) -> bool {
        false
    }
    /// Whether the engine computes the whole prompt, whatever its cache holds.
    fn computes_all(&self) -> bool {
        false
    }
    /// Tokens in a block of the chain that [`Body::chain`] gave, about.
    fn block_tokens(&self, size: BlockSize) -> f32 {
        size.tokens()
    }
}

impl Body for Request<'_> {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn chain(&self, size: BlockSize) -> Chain {
        Request::chain(self, size)
    }

    fn streams(&self) -> bool {
        self.stream
    }

    fn computes_all(&self) -> bool {
        self.computes_all
    }
}

/// The request, as preparations see it.
pub struct Input<'a> {
    /// Looks up a request header by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<Vec<u8>>,
    /// The body; `None` where it was not read or could not be understood.
    pub body: Option<&'a dyn Body>,
}

/// What is known of one pod at this moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodState {
    /// Requests sent there that have not ended, from all workers.
    pub in_flight: u32,
    /// Of these, those that wait for their first token.
    pub waiting: u32,
    /// Tokens that these still have to have prefilled.
    pub prefill: u32,
    /// Tokens of all prompts under way there.
    pub context: u32,
    /// Requests that waited there when its engine was heard last, and came from elsewhere.
    pub foreign: f32,
    /// Does it answer?
    pub healthy: bool,
    /// Is it none of those that the request may go to?
    pub outside: bool,
    /// Has it all the requests that it may have?
    pub full: bool,
    /// Part of its capacity that it takes requests by, above 0: less than 1 after it asked for less.
    pub share: f32,
    /// How many times longer it takes than the fleet.
    pub slowness: f32,
}

impl Default for PodState {
    /// An idle pod like any other.
    fn default() -> Self {
        Self {
            in_flight: 0,
            waiting: 0,
            prefill: 0,
            context: 0,
            foreign: 0.0,
            healthy: true,
            outside: false,
            full: false,
            share: 1.0,
            slowness: 1.0,
        }
    }
}

/// The pods, as filters, scorers and pickers see them; every slice is by position.
pub struct View<'a> {
    /// What the configuration says.
    pub pods: &'a [Pod],
    /// What is known now.
    pub states: &'a [PodState],
    /// What engines said of themselves lately; `None`, or nothing at all, where one didn't.
    pub engines: &'a [Option<Engine>],
    /// How long first tokens take.
    pub speed: Speed,
    /// Requests in flight by weight: comparable between pods of unequal capacity.
    pub load: &'a [f32],
    /// What preparations wrote.
    pub slots: &'a Slots,
}

impl View<'_> {
    /// A pod's load by weight. Unknown positions are infinitely loaded.
    pub fn load(&self, pod: usize) -> f32 {
        self.load.get(pod).copied().unwrap_or(f32::INFINITY)
    }

    /// What a pod's engine said lately.
    pub fn engine(&self, pod: usize) -> Option<&Engine> {
        self.engines.get(pod)?.as_ref()
    }

    /// Tokens that a pod has to prefill before it comes to this request. What waits there and came from elsewhere is taken to be
    /// like this request.
    pub fn tokens_ahead(&self, pod: usize) -> f32 {
        let Some(state) = self.states.get(pod) else { return 0.0 };
        state.prefill as f32 + state.foreign * self.slots.prompt_tokens()
    }

    /// Seconds until this request's first token, if it had this many tokens before it.
    pub fn seconds(&self, pod: usize, tokens: f32) -> f32 {
        let Some(state) = self.states.get(pod) else { return f32::INFINITY };
        state.slowness / state.share * self.speed.seconds(tokens)
    }

    /// Seconds until this request's first token, with all that is ahead and what the pod doesn't hold of its prompt.
    pub fn first_token(&self, pod: usize) -> f32 {
        self.seconds(pod, self.tokens_ahead(pod) + self.slots.uncached_tokens(pod))
    }

    /// Requests in flight on these pods, with the one that is decided now, over their weights: a mean load that is
    /// never 0.
    pub fn mean_load(&self, among: &Positions) -> f32 {
        let (mut requests, mut weight) = (1.0, 0.0);
        for (i, (pod, state)) in self.pods.iter().zip(self.states).enumerate() {
            if among.contains(i) {
                requests += state.in_flight as f32;
                weight += pod.weight;
            }
        }
        requests / weight
    }
}

/// Reads the request into slots.
pub trait Prepare {
    /// Writes what depends on the request alone. Called once a request. What is absent or malformed stays empty; that
    /// is never an error.
    fn prepare(&self, input: &Input<'_>, slots: &mut Slots);
    /// Writes what depends on the index. Called before each decision, of which there may be several a request, with
    /// those slots emptied.
    fn locate(&self, _slots: &mut Slots, _index: &dyn Residency) {}
}

/// Takes pods out.
pub trait Filter {
    /// Removes from `kept` whatever must not serve this request. May leave nobody: the profile decides what then.
    fn filter(&self, view: &View<'_>, kept: &mut Positions);
    /// Is whom it takes out busy, and nothing else? Then a request that is refused may come again soon.
    fn is_about_load(&self) -> bool {
        false
    }
}

/// Rates pods.
pub trait Score {
    /// Writes for each pod of `among` a score in [0, 1], more is better, to its position in `scores`, which is 0
    /// before. What lies outside is clamped, and NaN counts as 0.
    fn score(&self, view: &View<'_>, among: &Positions, scores: &mut [f32]);
}

/// Chooses.
pub trait Pick {
    /// Pushes pods of `among`, best first, until `order` is full or nobody is left. `scores` are weighted sums by
    /// position.
    fn pick(&self, view: &View<'_>, among: &Positions, scores: &[f32], rng: &mut Rng, order: &mut Order);
}

/// A part, built.
pub enum Built {
    /// For [`Stage::Prepare`].
    Prepare(Box<dyn Prepare>),
    /// For [`Stage::Filter`].
    Filter(Box<dyn Filter>),
    /// For [`Stage::Score`].
    Score(Box<dyn Score>),
    /// For [`Stage::Pick`].
    Pick(Box<dyn Pick>),
}

/// A part's configuration type, and everything the registry tells of the part. Unknown fields must be refused
/// (`#[serde(deny_unknown_fields)]`). Its documentation is the part's, in one paragraph, and that of each field the field's.
pub trait Part: DeserializeOwned + JsonSchema {
    /// `type` in the configuration; unique in its stage.
    const NAME: &'static str;
    /// Where it stands.
    const STAGE: Stage;
    /// Every slot that it may read.
    const READS: &'static [SlotId] = &[];
    /// The slots that it writes.
    const WRITES: &'static [SlotId] = &[];

    /// The slots that it reads, configured as it is and with these pods.
    fn reads(&self, _pods: &[Pod]) -> Vec<SlotId> {
        Self::READS.to_vec()
    }

    /// Checks the configuration, reporting every mistake to `site`, and builds the part. What it returns is dropped
    /// where a mistake was reported.
    fn build(self, site: &mut Site<'_>) -> Built;
}

/// Where a part is built: what it may look at, and where its mistakes go.
pub struct Site<'a> {
    /// The pods that there are: configured ones, and those found so far.
    pub pods: &'a [Pod],
    /// May others come? Then what no pod has is no mistake.
    pub dynamic: bool,
    /// How prompts are cut.
    pub block_size: BlockSize,
    /// Path of the part in the configuration.
    pub path: &'a str,
    /// Where mistakes are collected.
    pub mistakes: &'a mut Mistakes,
}

impl Site<'_> {
    /// Reports a wrong field: what is wrong, and the cure.
    pub fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.mistakes.add(format!("{}.{field}", self.path), problem);
    }

    /// Reports a number, if there is one, outside its range.
    pub fn within<T: PartialOrd + fmt::Display>(
        &mut self,
        field: &str,
        value: impl Into<Option<T>>,
        bounds: Bounds<T>,
    ) {
        if let Some(problem) = value.into().and_then(|value| bounds.problem(&value)) {
            self.refuse(field, problem);
        }
    }
}
