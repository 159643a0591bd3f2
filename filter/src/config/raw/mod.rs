//! The configuration as written, and what each field means: the schema and the reference are made from it. Unknown and doubled
//! fields are refused; ranges and references are checked in `build`.

mod engines;
mod limits;
mod pods;
mod workflows;

pub use engines::{RawKvEvents, RawMetrics, RawNames, RawNumber, RawTokenizer, RawUsage};
pub use limits::{RawAdmission, RawBlocks, RawBreaker, RawIndex, RawLimits};
pub use pods::{RawDiscovery, RawMatch, RawPod, RawPodRule};
pub use workflows::{OnFailure, RawPrefill, RawWorkflow, RawWorth};

use super::bounds::Bounds;
use super::entries::Entries;
use super::profiles::{DEFAULT_PROFILE, MAX_PROFILES, MAX_RULES};
use super::router::Via;
use super::settings::{DEFAULT_FALLBACKS, DEFAULT_HEADER, MAX_TOKENIZERS};
use super::workflows::MAX_WORKFLOWS;
use crate::pipeline::{MAX_FALLBACKS, schema};
use crate::pods::MAX_PODS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Configuration of Warmpath's filter in Envoy. Pods alone are enough.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Warmpath", extend("anyOf" = [{"required": ["pods"]}, {"required": ["discovery"]}]))]
pub struct RawConfig {
    /// The pods to choose from, by IP address or by cluster. Required without `discovery`.
    #[serde(default)]
    #[schemars(length(max = MAX_PODS))]
    pub pods: Option<Vec<RawPod>>,
    /// Finds pods by asking Envoy's admin. Pods of `pods` stay, with their own settings. See `examples/discovery`.
    #[serde(default)]
    pub discovery: Option<RawDiscovery>,
    /// The profile of requests that no rule of `select` matches: a built-in one, or one of `profiles`.
    #[serde(default)]
    #[schemars(extend("default" = DEFAULT_PROFILE))]
    pub profile: Option<String>,
    /// Profiles of your own, by names of 1 to 64 letters, digits, `-` and `_` that no built-in profile has.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_PROFILES))]
    pub profiles: Entries<RawProfile>,
    /// In place of `profile`: the workflow of requests that no rule of `select` matches.
    #[serde(default)]
    pub workflow: Option<String>,
    /// Workflows, by names like those of profiles: prefill at one pod and decode at another. See `examples/prefill-decode-nixl`.
    #[serde(default)]
    #[schemars(extend("maxProperties" = MAX_WORKFLOWS))]
    pub workflows: Entries<RawWorkflow>,
    /// Rules by which requests come to other profiles and workflows. The first that matches counts.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    pub select: Vec<RawSelect>,
    /// How prompts are cut into blocks to be compared.
    #[serde(default)]
    pub blocks: RawBlocks,
    /// Bounds of the index, which says what pods hold.
    #[serde(default)]
    pub index: RawIndex,
    /// Bounds of the requests that are read. What is beyond goes by load.
    #[serde(default)]
    pub limits: RawLimits,
    /// How the chosen pod is told to Envoy.
    #[serde(default)]
    pub routing: RawRouting,
    /// Requests with this header are answered with `x-warmpath-*` headers, which say why they went where they went.
    #[serde(default)]
    pub debug_header: Option<String>,
    /// Tokenizers: prompts of their models are compared as the engine's own tokens. See `examples/exact-tokens`.
    #[serde(default)]
    #[schemars(length(max = MAX_TOKENIZERS))]
    pub tokenizers: Vec<RawTokenizer>,
    /// How engines say themselves what they hold. See `examples/kv-events`.
    #[serde(default)]
    pub kv_events: RawKvEvents,
    /// How engines are asked for their load, if they are to be. See `examples/discovery`.
    #[serde(default)]
    pub metrics: Option<RawMetrics>,
    /// When a pod is passed over: no connection; two requests in a row that broke off or that a retry took elsewhere; too many
    /// failures; a streamed answer without a token. For `open_seconds`, then one request at a time tries it. But for no connection,
    /// never more than half of the pods.
    #[serde(default)]
    pub breaker: RawBreaker,
    /// How many requests may be in flight. What is over is answered with 429.
    #[serde(default)]
    pub admission: RawAdmission,
    /// The schema by which an editor checks this file. The filter doesn't look at it.
    #[serde(default, rename = "$schema")]
    _schema: Option<String>,
}

/// A part: its `type` and its fields.
pub type RawPart = Entries<Value>;

/// A profile: small parts in the order in which they see the pods.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["picker"]))]
pub struct RawProfile {
    /// What is read of the request and of the index, in this order.
    #[schemars(schema_with = "schema::preparations")]
    pub prepare: Vec<RawPart>,
    /// What takes pods out, in this order.
    #[schemars(schema_with = "schema::filters")]
    pub filters: Vec<RawPart>,
    /// What rates the pods that are left: the weighted sum counts.
    #[schemars(schema_with = "schema::scorers")]
    pub scorers: Vec<RawPart>,
    /// What chooses one, and the order of the others.
    #[schemars(schema_with = "schema::pickers")]
    pub picker: Option<RawPart>,
}

/// A rule: conditions, of which there must be one at least and all must hold, and the profile or workflow that they lead to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawSelect {
    /// The path without its query, or its beginning and `*`: `/v1/*`.
    #[serde(default)]
    pub path: Option<String>,
    /// The model that the body names. Makes the request wait for its body.
    #[serde(default)]
    pub model: Option<String>,
    /// A header that must be there.
    #[serde(default)]
    pub header: Option<RawHeader>,
    /// The profile of these requests.
    #[serde(default)]
    pub profile: Option<String>,
    /// In place of `profile`: their workflow.
    #[serde(default)]
    pub workflow: Option<String>,
}

/// A header that must be there, with that value if one is given.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawHeader {
    /// Its name, in any case.
    pub name: String,
    /// Its whole value; any, without it.
    #[serde(default)]
    pub value: Option<String>,
}

/// How the chosen pod is told to Envoy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawRouting {
    /// What the routing header holds.
    pub by: RawBy,
    /// The routing header: the one that `override_host` or `cluster_header` names. The default is the endpoint picker protocol's.
    #[schemars(extend("default" = DEFAULT_HEADER))]
    pub header: Option<String>,
    /// Addresses after the first, which Envoy's retries take in order. Not where `by` is `cluster`.
    #[schemars(transform = Self::FALLBACKS.schema(), extend("default" = DEFAULT_FALLBACKS))]
    pub fallbacks: Option<usize>,
    /// Who puts the choice into that header; `filter-state` is for where nothing can set Envoy's
    /// `allow_on_headers_stop_iteration`, and not where `by` is `cluster`.
    pub via: Via,
    /// Whether to narrow the choice to the addresses in dynamic metadata (`envoy.lb.subset_hint`,
    /// `x-gateway-destination-endpoint-subset`), and to tell who served in `x-gateway-destination-endpoint-served`. Not where `by` is
    /// `cluster`.
    pub endpoint_picker: bool,
}

impl RawRouting {
    pub const FALLBACKS: Bounds<usize> = Bounds::new(0, MAX_FALLBACKS);
}

impl Default for RawRouting {
    fn default() -> Self {
        Self { by: RawBy::Address, header: None, fallbacks: None, via: Via::Header, endpoint_picker: false }
    }
}

/// What the routing header holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RawBy {
    /// Addresses, for a cluster with `override_host`.
    Address,
    /// The name of a pod's own cluster, for a route with `cluster_header`.
    Cluster,
}
