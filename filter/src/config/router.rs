//! What a configuration becomes: everything that streams of one root context share, immutable.

use super::discovery::DiscoverySettings;
use super::health::{Admission, MetricsSettings};
use super::reach::{Reach, reach};
use super::select::{Rule, Target};
use crate::blocks::BlockSize;
use crate::pipeline::{Decision, Profile, Refused, Scratch, Seen, Slots, World};
use crate::pods::{BreakerSettings, Found, Pod};
use crate::prompt::delivery::Source;
use crate::request::{Edit, Limits};
use crate::workflow::protocol::Fields;
use crate::workflow::{Plan, PrefillDecode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Looks up a request header by its lower-case name.
pub type HeaderLookup<'a> = &'a dyn Fn(&str) -> Option<Vec<u8>>;

/// A configuration that was found right.
pub struct Router {
    pub(super) pods: Vec<Pod>,
    /// How many of the pods are the configuration's own; they come first.
    pub(super) configured: usize,
    pub(super) profiles: Vec<Profile>,
    pub(super) workflows: Vec<PrefillDecode>,
    pub(super) guarded_fields: Vec<&'static str>,
    pub(super) guarded_headers: Vec<&'static str>,
    pub(super) default: Target,
    pub(super) rules: Vec<Rule>,
    pub(super) settings: Settings,
}

/// What the rest of the filter needs of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How prompts are cut into blocks.
    pub block_size: BlockSize,
    /// Most blocks in a VM's index.
    pub max_blocks: u32,
    /// Most blocks that a pod is thought to hold; older ones are forgotten. `None`: what its engine says, if it does.
    pub pod_blocks: Option<u32>,
    /// How long a block is remembered after its last use.
    pub ttl_seconds: u32,
    /// Longest body that is read; longer ones go by load.
    pub max_body_bytes: usize,
    /// Bounds of what is read of a body; beyond them a request goes by load.
    pub limits: Limits,
    /// How the choice is told to Envoy.
    pub routing: Routing,
    /// Whether the rest of the endpoint picker protocol is followed: a subset that the gateway names, and who served.
    pub endpoint_picker: bool,
    /// A request with this header is answered with `x-warmpath-*` headers.
    pub debug_header: Option<String>,
    /// Tokenizers of models whose prompts are compared as tokens.
    pub tokenizers: Vec<TokenizerSettings>,
    /// How engines tell what they hold.
    pub kv_events: KvEventsSettings,
    /// How pods are found besides those that are configured, if they are.
    pub discovery: Option<DiscoverySettings>,
    /// How engines are asked for their load, if they are.
    pub metrics: Option<MetricsSettings>,
    /// When a pod is passed over.
    pub breaker: BreakerSettings,
    /// How many requests may be in flight.
    pub admission: Admission,
}

/// How engines tell what they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsSettings {
    /// What says which pod speaks.
    pub pod_by: PodBy,
    /// What a request that brings events must bear as its token, if it must.
    pub token: Option<String>,
    /// Longest message that is taken.
    pub max_message_bytes: usize,
    /// Most blocks of one cache that are known by the engine's names.
    pub cache_blocks: usize,
}

/// What says which pod speaks on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PodBy {
    /// The topic of each message, `kv@POD@MODEL`.
    Topic,
    /// The address that the connection comes from.
    Address,
}

impl TokenizerSettings {
    /// Whether a request for this model is this tokenizer's.
    pub fn serves(&self, model: &str) -> bool {
        self.aliases.contains_key(model) || self.models.iter().any(|name| name == model)
    }

    /// The model that a request for `model` is answered by. Engines take requests that name none as for their first.
    pub fn model<'a>(&'a self, model: Option<&'a str>) -> Option<&'a str> {
        let Some(model) = model else { return self.models.first().map(String::as_str) };
        Some(self.aliases.get(model).map_or(model, String::as_str))
    }
}

/// The tokenizer of some models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerSettings {
    /// Names by which requests ask for these models. Each has a cache of its own, as vLLM's LoRA adapters do.
    pub models: Vec<String>,
    /// Other names of these models.
    pub aliases: BTreeMap<String, String>,
    /// Where its files are.
    pub source: Source,
    /// Tokens in a block of the engine's cache.
    pub block_tokens: usize,
    /// Bytes in which blocks of tokenized text are remembered, in each VM.
    pub memory_bytes: usize,
    /// Bytes of text that no earlier prompt began with, of which more are not tokenized at once: the prompt is then compared
    /// by its start.
    pub max_new_bytes: usize,
}

/// Who puts the choice into the routing header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// Warmpath, which holds the headers until it has decided: needs `allow_on_headers_stop_iteration`.
    Header,
    /// What stands behind it in Envoy: a `buffer` filter holds the headers, and a route or a filter behind that sets the header
    /// to what it finds in filter state.
    FilterState,
}

/// How the chosen pod is told to Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Routing {
    /// Addresses in order, for a cluster with `override_host`.
    Address {
        /// The header.
        header: String,
        /// Addresses after the first.
        fallbacks: usize,
        /// Who puts them into the header.
        via: Via,
    },
    /// The name of the pod's own cluster, for a route with `cluster_header`.
    Cluster {
        /// The header.
        header: String,
    },
}

impl Routing {
    /// The header that carries the choice. Never let a client set it.
    pub fn header(&self) -> &str {
        match self {
            Self::Address { header, .. } | Self::Cluster { header } => header,
        }
    }

    /// Who sets that header.
    pub fn via(&self) -> Via {
        match self {
            Self::Address { via, .. } => *via,
            Self::Cluster { .. } => Via::Header,
        }
    }

    /// How many fallbacks it can carry.
    pub fn fallbacks(&self) -> usize {
        match self {
            Self::Address { fallbacks, .. } => *fallbacks,
            Self::Cluster { .. } => 0,
        }
    }
}

impl Router {
    /// The pods; what is known of them at run time is asked for by position in this slice.
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// The pods that there are by what was found now. Where its pods are not [`Router::pods`], the configuration is to be
    /// loaded anew with the same endpoints.
    pub fn reach(&self, found: &[Found]) -> Reach {
        reach(&self.settings, self.pods.get(..self.configured).unwrap_or_default(), found)
    }

    /// Whether any pod has several data-parallel ranks, or would have them once it is found.
    pub fn has_ranks(&self) -> bool {
        let discovery = self.settings.discovery.as_ref();
        self.pods.iter().any(|pod| pod.ranks > 1) || discovery.is_some_and(DiscoverySettings::has_ranks)
    }

    /// Everything but pods and profiles.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The profiles that some request can come to.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// A profile by its position.
    pub fn profile(&self, position: usize) -> Option<&Profile> {
        self.profiles.get(position)
    }

    /// Whether some of its pods hand over KV: then nothing that a client may not say reaches any pod.
    pub fn is_guarded(&self) -> bool {
        !self.workflows.is_empty()
    }

    /// Fields of bodies that are looked at where that is so.
    pub fn guarded_fields(&self) -> &[&'static str] {
        &self.guarded_fields
    }

    /// Headers that only a router may set there.
    pub fn guarded_headers(&self) -> &[&'static str] {
        &self.guarded_headers
    }

    /// What takes out of a body what only a router may say.
    pub fn strip(&self, body: &Fields<'_>) -> Vec<Edit<'static>> {
        let mut edits: Vec<Edit<'static>> = Vec::new();
        for edit in self.workflows.iter().flat_map(|workflow| workflow.protocol.strip(body)) {
            if edits.iter().all(|other| other.name() != edit.name()) {
                edits.push(edit);
            }
        }
        edits
    }

    /// The workflows that some request can come to.
    pub fn workflows(&self) -> &[PrefillDecode] {
        &self.workflows
    }

    /// Must this request's body be read before it can be decided: by the plan, to know the plan, or to count it by model?
    pub fn needs_body(&self, path: &str, header: HeaderLookup<'_>) -> bool {
        if !self.settings.admission.models.is_empty() {
            return true;
        }
        let target = match self.rules.iter().find(|rule| rule.matches_head(path, header)) {
            Some(rule) if rule.model.is_some() => return true,
            Some(rule) => rule.target,
            None => self.default,
        };
        match target {
            Target::Profile(profile) => self.profiles.get(profile).is_some_and(Profile::needs_body),
            Target::Workflow(_) => true,
        }
    }

    /// The plan of the first rule that matches, or the default one. `model` is `None` where the body was not read or names
    /// none.
    pub fn select(&self, path: &str, header: HeaderLookup<'_>, model: Option<&str>) -> Option<Plan<'_>> {
        let rule =
            self.rules.iter().find(|rule| rule.matches_model(model) && rule.matches_head(path, header));
        match rule.map_or(self.default, |rule| rule.target) {
            Target::Profile(profile) => self.profiles.get(profile).map(Plan::Single),
            Target::Workflow(workflow) => self.workflows.get(workflow).map(Plan::PrefillDecode),
        }
    }

    /// Decides by a profile, with so many fallbacks. What is seen is by position, like [`Router::pods`].
    pub fn decide(
        &self,
        profile: &Profile,
        seen: &Seen<'_>,
        slots: &mut Slots,
        scratch: &mut Scratch,
        fallbacks: usize,
    ) -> Result<Decision, Refused> {
        let world = World { pods: &self.pods, seen, fallbacks };
        profile.decide(&world, slots, scratch)
    }

    /// Writes what the routing header says of a decision: targets in order, by commas.
    pub fn destination(&self, decision: &Decision, out: &mut String) {
        out.clear();
        let rest = decision.fallbacks().iter().map(|pod| usize::from(*pod));
        for pod in std::iter::once(decision.pod).chain(rest).filter_map(|pod| self.pods.get(pod)) {
            if !out.is_empty() {
                out.push(',');
            }
            out.push_str(&pod.target);
        }
    }
}
