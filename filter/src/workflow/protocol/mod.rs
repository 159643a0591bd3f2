//! How engines hand the KV of a prompt from the pod that prefilled it to the pod that decodes: one file a protocol.
//!
//! A [`Protocol`] says what changes in the client's request for each of the two pods, and what of the first one's answer the
//! second must have. It talks to nobody: callouts, time-outs and what to do about failures are the same for all of them, in
//! [`crate::stream`]. To add one, write one file with a [`Spoken`] and add one line to [`PROTOCOLS`].

mod body;
mod mooncake;
mod nixl;
mod p2p_nccl;
mod sglang;
mod tensorrt_llm;
mod vllm;

#[cfg(test)]
mod made_up;
#[cfg(test)]
mod tests;

pub use body::{Body, FIELDS, Fields};

use crate::config::Mistakes;
use crate::pipeline::schema::one_of;
use crate::pods::Pod;
use crate::request::{Edit, Endpoint};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// All protocols.
pub static PROTOCOLS: &[Entry] = &[
    Entry::of::<nixl::Nixl>(),
    Entry::of::<sglang::Sglang>(),
    Entry::of::<p2p_nccl::P2pNccl>(),
    Entry::of::<mooncake::Mooncake>(),
    Entry::of::<tensorrt_llm::TensorRtLlm>(),
    #[cfg(test)]
    Entry::of::<made_up::MadeUp>(),
];

/// When the decode pod gets its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// When the prefill pod has answered, with what it said.
    InTurn,
    /// At once with the prefill pod: the two find each other.
    AtOnce,
}

/// What both pods of one request have in common.
pub struct Pair<'a> {
    /// The client's body.
    pub body: Body<'a>,
    /// The pod that prefills.
    pub prefill: &'a Pod,
    /// The pod that decodes.
    pub decode: &'a Pod,
    /// A number that is no other attempt's.
    pub secret: u128,
    /// What the prefill pod answered to the [`Question`]; empty where there is none.
    pub learnt: &'a str,
}

impl Pair<'_> {
    /// The secret as a version 4 UUID.
    pub fn uuid(&self) -> String {
        let bits = self.secret & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
        let hex = format!("{bits:032x}");
        let mut rest = hex.as_str();
        let parts = [8, 4, 4, 4, 12].map(|len| {
            let (part, after) = rest.split_at_checked(len).unwrap_or((rest, ""));
            rest = after;
            part
        });
        parts.join("-")
    }
}

/// What is different in the request that one of the pods gets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leg {
    /// Changes to the client's body.
    pub edits: Vec<Edit<'static>>,
    /// Headers that take the place of the client's.
    pub headers: Vec<(&'static str, String)>,
}

/// What the answer of a prefill pod means.
#[derive(Debug, PartialEq, Eq)]
pub enum Handoff {
    /// The decode pod goes on from it.
    Decode(Leg),
    /// The prefill ended in a way that leaves nothing to hand over: the decode pod does all by itself.
    Nothing,
}

/// What a prefill pod must be asked before its first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The Envoy cluster that reaches the pods there.
    pub cluster: String,
    /// `ip:port`.
    pub address: String,
    /// Path of a GET.
    pub path: &'static str,
}

/// A way to hand over KV.
pub trait Protocol {
    /// When the decode pod gets its request.
    fn order(&self) -> Order;

    /// The endpoints at which engines speak it.
    fn endpoints(&self) -> &'static [Endpoint];

    /// Fields of bodies by which engines speak it: a client's own are never passed on.
    fn own_fields(&self) -> &'static [&'static str];

    /// Headers by which engines speak it: likewise.
    fn own_headers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether a [`Leg`] of the decode pod may have headers.
    fn sets_headers(&self) -> bool {
        false
    }

    /// Whether a decode pod takes a request without a handoff, and then prefills by itself.
    fn decodes_alone(&self) -> bool;

    /// Whether another decode pod can use a handoff of which the first never heard.
    fn is_transferable(&self) -> bool;

    /// Why a pod can't take part, if it can't: the protocol has to name an address that isn't known.
    fn unfit_pod(&self, _pod: &Pod) -> Option<String> {
        None
    }

    /// Why a request can't be split by this protocol, if it can't, beside what [`Body::unfit`] says.
    fn unfit(&self, _body: &Body<'_>) -> Option<&'static str> {
        None
    }

    /// What takes out of a client's body what only a router may say.
    fn strip(&self, body: &Fields<'_>) -> Vec<Edit<'static>> {
        body.without(self.own_fields())
    }

    /// Envoy clusters beside the pods' own that it needs.
    fn clusters(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Whether what is handed over stays in the decode pod's prefix cache, so that the next request finds it there.
    fn stays_at_decode(&self) -> bool {
        true
    }

    /// What a prefill pod must be asked before its first request.
    fn question(&self, _prefill: &Pod) -> Option<Question> {
        None
    }

    /// What of the answer to that is [`Pair::learnt`]. The error says what is wrong with it.
    fn learn(&self, _answer: &[u8]) -> Result<String, String> {
        Ok(String::new())
    }

    /// The request that the prefill pod gets.
    fn prefill(&self, pair: &Pair<'_>) -> Leg;

    /// What the prefill pod's answer means; with [`Order::AtOnce`] it is asked beforehand, with an empty answer. The error says
    /// what is wrong with the answer.
    fn decode(&self, pair: &Pair<'_>, answer: &[u8]) -> Result<Handoff, String>;
}

/// A protocol's configuration type, and everything that is told of it. Unknown fields must be refused
/// (`#[serde(deny_unknown_fields)]`). Its documentation is the protocol's, in one paragraph, and that of each field the field's.
pub trait Spoken: DeserializeOwned + JsonSchema {
    /// `type` in the configuration.
    const NAME: &'static str;

    /// Checks the configuration at `path`. What it returns is dropped where a mistake was reported.
    fn build(self, path: &str, mistakes: &mut Mistakes) -> Box<dyn Protocol>;
}

/// A protocol as the registry knows it.
pub struct Entry {
    /// `type` in the configuration.
    pub name: &'static str,
    /// What it is and its fields, for the reference. Not in the module, as of parts.
    schema: Option<fn(&mut SchemaGenerator) -> Schema>,
    make: fn(Value, &str, &mut Mistakes) -> Option<Box<dyn Protocol>>,
}

impl Entry {
    const fn of<P: Spoken>() -> Self {
        let schema: Option<fn(&mut SchemaGenerator) -> Schema> =
            if cfg!(target_arch = "wasm32") { None } else { Some(P::json_schema) };
        Self { name: P::NAME, schema, make: make::<P> }
    }

    /// Builds the protocol from its fields. `None` where mistakes were reported.
    pub fn make(&self, fields: Value, path: &str, mistakes: &mut Mistakes) -> Option<Box<dyn Protocol>> {
        (self.make)(fields, path, mistakes)
    }
}

/// What a workflow may say of its protocol.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    one_of(PROTOCOLS.iter().filter_map(|entry| Some((entry.name, entry.schema?(generator)))))
}

fn make<P: Spoken>(fields: Value, path: &str, mistakes: &mut Mistakes) -> Option<Box<dyn Protocol>> {
    match serde_path_to_error::deserialize::<_, P>(fields) {
        Ok(protocol) => {
            let before = mistakes.count();
            let built = protocol.build(path, mistakes);
            (mistakes.count() == before).then_some(built)
        }
        Err(error) => {
            mistakes.add_serde(path, &error);
            None
        }
    }
}

/// Labels of pods that say where its KV is to be had, if not at its own address and the configured port.
const KV_HOST: &str = "kv_host";
const KV_PORT: &str = "kv_port";

/// Where a pod hands over KV: host, and port.
fn kv_address(pod: &Pod, port: u16) -> Option<(&str, u16)> {
    let host = match pod.labels.get(KV_HOST) {
        Some(host) => host.as_str(),
        None => pod.target.rsplit_once(':').map(|(host, _)| host)?,
    };
    let port = pod.labels.get(KV_PORT).map_or(Some(port), |port| port.parse().ok())?;
    Some((host, port))
}

/// [`Protocol::unfit`] where such an address must be known.
fn without_kv_address(pod: &Pod, port: u16) -> Option<String> {
    match kv_address(pod, port) {
        Some(_) => None,
        None => Some(format!(
            "the pod {:?} has no IP address, or a label {KV_PORT} that is no port; give it the labels {KV_HOST} and {KV_PORT}",
            pod.name
        )),
    }
}

/// [`Protocol::unfit_pod`] where a pod must be one engine: which of its ranks prefills isn't told to the other pod.
fn without_ranks(pod: &Pod) -> Option<String> {
    (pod.ranks > 1).then(|| {
        format!(
            "the pod {:?} has several ranks, which this protocol can't name; leave out ranks, and the engines find each other",
            pod.name
        )
    })
}
