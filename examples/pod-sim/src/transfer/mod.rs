//! Disaggregated prefill and decode: one pod computes a prompt's KV, another fetches it and generates.
//!
//! A protocol says what a router must write into the two requests, its *legs*, and is as strict as the engine it stands for:
//! what that would refuse, or what would make it hang, is answered with an error at once. A leg of prefill becomes an
//! [`Offer`], under whose key the pod keeps the KV in its [`store`]; a leg of decode becomes a [`Claim`], with which the pod
//! asks over the network ([`wire`]), at the address that came by the request. Nothing else is known between pods.

mod base64;
mod mooncake;
mod nixl;
mod p2p_nccl;
mod sglang;
pub mod store;
mod trtllm;
pub mod wire;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::Value;

use crate::body::Body;
use crate::endpoint::Endpoint;
use crate::engine::Running;
use crate::fields::{Fields, Invalid};
use crate::tokens::Prose;
use store::{Kv, Reserved, Shown, Store, Taken};

/// The protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM's NixlConnector.
    Nixl,
    /// SGLang's prefill and decode servers.
    Sglang,
    /// vLLM's P2pNcclConnector.
    P2pNccl,
    /// vLLM's MooncakeConnector.
    Mooncake,
    /// TensorRT-LLM's context and generation servers.
    Trtllm,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "nixl" => Self::Nixl,
            "sglang" => Self::Sglang,
            "p2p-nccl" => Self::P2pNccl,
            "mooncake" => Self::Mooncake,
            "trtllm" => Self::Trtllm,
            _ => return Err("one of nixl, sglang, p2p-nccl, mooncake, trtllm is needed".into()),
        })
    }
}

/// What a pod is there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It computes prompts for others.
    Prefill,
    /// It generates from what others computed.
    Decode,
    /// Either, as the request says.
    #[default]
    Both,
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "prefill" => Self::Prefill,
            "decode" => Self::Decode,
            "both" => Self::Both,
            _ => return Err("one of prefill, decode, both is needed".into()),
        })
    }
}

/// Which part of a request a pod is asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Leg {
    /// Compute the prompt and keep its KV.
    Prefill,
    /// Fetch the KV and generate.
    Decode,
    /// All of it, as an ordinary pod.
    #[default]
    Alone,
}

/// How a pod takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The protocol it speaks.
    pub kind: Kind,
    /// What it is there for.
    pub role: Role,
    /// How long the legs wait for each other, where they do.
    pub timeout: Duration,
    /// How long KV is kept that nobody fetches.
    pub ttl: Duration,
}

/// Why a leg is refused, for the router to read.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status to answer with.
    pub status: StatusCode,
    /// What is wrong.
    pub why: String,
}

impl From<Invalid> for Refusal {
    fn from(Invalid(why): Invalid) -> Self {
        bad(why)
    }
}

/// The request is wrong.
fn bad(why: impl Into<String>) -> Refusal {
    Refusal { status: StatusCode::BAD_REQUEST, why: why.into() }
}

/// The engine fails, if the router was wrong or not.
fn broken(why: impl Into<String>) -> Refusal {
    Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, why: why.into() }
}

/// What a protocol reads of a request.
pub struct Asked<'a> {
    /// What is asked for.
    pub endpoint: Endpoint,
    /// The body's fields.
    pub fields: &'a Fields<'a>,
    /// `x-request-id`.
    pub request_id: Option<&'a str>,
    /// The body as the engine reads it, with one prompt.
    pub body: &'a Body,
    /// The answer that the prompt has.
    pub answer: Prose,
    /// The id that the answer will have.
    pub id: &'a str,
    /// Blocks that the prompt takes.
    pub blocks: usize,
    /// Nothing is left to generate: the answer's first token ends it.
    pub ends_at_once: bool,
}

/// KV that a leg of prefill will leave.
#[derive(Debug)]
pub struct Offer {
    /// Under which it is kept.
    pub key: String,
    /// What must be shown for it, beside the prompt.
    pub terms: Value,
    /// The answer comes when the KV has been fetched, and not before.
    pub until_fetched: bool,
    /// How the answer ends, if otherwise than its length says.
    pub finish: Option<&'static str>,
}

/// KV that a leg of decode needs.
#[derive(Debug)]
pub struct Claim {
    /// Who knows where it is.
    pub source: Source,
    /// Under which it is kept there.
    pub key: String,
    /// What is shown for it, beside the prompt.
    pub terms: Value,
    /// It may not be there yet.
    pub wait: bool,
}

/// Where KV is.
#[derive(Debug)]
pub enum Source {
    /// At this `ip:port`.
    At(String),
    /// Where the Mooncake bootstrap server at `ip:port` says that this engine is.
    Engine {
        /// The bootstrap server.
        bootstrap: String,
        /// The engine's id.
        id: String,
    },
}

/// What the pod has to do for a request.
#[derive(Debug)]
pub enum Plan {
    /// Answer as an ordinary pod.
    Alone,
    /// Compute the prompt and keep its KV. The key is in use for as long as the request runs, if routers make such keys.
    Prefill(Offer, Option<Reserved>),
    /// Fetch KV and go on from there.
    Decode(Claim, Option<Reserved>),
}

/// KV that was fetched.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// From which side listener.
    pub from: String,
    /// What the prefill pod told of it.
    pub taken: Taken,
    /// Whether usage tells the prefill pod's cached tokens and not those that needed no computing here.
    pub tells_prefill: bool,
}

/// One protocol: what it demands of each leg.
trait Protocol: std::fmt::Debug + Send + Sync {
    /// Which leg a request is, be it right or wrong.
    fn leg(&self, role: Role, endpoint: Endpoint, fields: &Fields) -> Leg;

    /// Checks what holds for every request, of whatever leg.
    fn check(&self, _: &Asked) -> Result<(), Refusal> {
        Ok(())
    }

    /// Checks a leg of prefill.
    fn prefill(&self, pod: &Transfer, asked: &Asked) -> Result<Offer, Refusal>;

    /// Checks a leg of decode.
    fn decode(&self, pod: &Transfer, asked: &Asked) -> Result<Claim, Refusal>;

    /// Writes into the prefill's answer what the router is to hand over.
    fn tell(&self, _terms: Value, _: Endpoint, _prompt: &[u32], _answer: &mut Value) {}

    /// What must be shown, of which the offer knows all but how much of the prompt was cached.
    fn terms(&self, offer: &Offer, _cached: usize) -> Value {
        offer.terms.clone()
    }

    /// Whether KV is handed over even of a prompt whose answer ends at its first token.
    fn hands_over_ends(&self) -> bool {
        true
    }

    /// The prompt's tokens, where a body of this protocol may bring them along.
    fn prompt(&self, _: Endpoint, _: &Fields) -> Result<Option<Vec<u32>>, Invalid> {
        Ok(None)
    }

    /// What the side listener answers to a GET.
    fn lookup(&self, _: &Transfer, _: &str) -> Option<Value> {
        None
    }

    /// Whether routers make the keys, so that one may be in use already.
    fn keys_of_routers(&self) -> bool {
        true
    }

    /// See [`Fetched::tells_prefill`].
    fn tells_prefill(&self) -> bool {
        false
    }
}

/// A pod's part in disaggregation.
#[derive(Debug)]
pub struct Transfer {
    settings: Settings,
    side: SocketAddr,
    protocol: Box<dyn Protocol>,
    store: Arc<Store>,
    engine_id: Mutex<String>,
}

impl Transfer {
    /// One whose side listener has this address. Tell it to [`wire::listen`].
    pub fn new(settings: Settings, mut side: SocketAddr) -> Self {
        if side.ip().is_unspecified() {
            side.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        let protocol: Box<dyn Protocol> = match settings.kind {
            Kind::Nixl => Box::new(nixl::Nixl),
            Kind::Sglang => Box::new(sglang::Sglang),
            Kind::P2pNccl => Box::new(p2p_nccl::P2pNccl),
            Kind::Mooncake => Box::new(mooncake::Mooncake),
            Kind::Trtllm => Box::new(trtllm::Trtllm),
        };
        Self { settings, side, protocol, store: Arc::default(), engine_id: Mutex::new(uuid()) }
    }

    /// How it takes part.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The address of its side listener.
    pub fn side(&self) -> SocketAddr {
        self.side
    }

    /// What it keeps.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The engine's id, new with each restart.
    pub fn engine_id(&self) -> String {
        self.engine_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A restart: all KV is gone, and who the engine was.
    pub fn reset(&self) {
        self.store.reset();
        *self.engine_id.lock().unwrap_or_else(PoisonError::into_inner) = uuid();
    }

    /// Which leg a request is. What can't be read is none.
    pub fn leg(&self, endpoint: Endpoint, body: &[u8]) -> Leg {
        match Fields::parse(body) {
            Ok(fields) if endpoint != Endpoint::Embeddings => {
                self.protocol.leg(self.settings.role, endpoint, &fields)
            }
            _ => Leg::Alone,
        }
    }

    /// The prompt's tokens, where a body of this protocol brings them along.
    pub fn prompt(&self, endpoint: Endpoint, fields: &Fields) -> Result<Option<Vec<u32>>, Invalid> {
        self.protocol.prompt(endpoint, fields)
    }

    /// Checks a request.
    pub fn plan(&self, asked: &Asked) -> Result<Plan, Refusal> {
        self.protocol.check(asked)?;
        let leg = self.protocol.leg(self.settings.role, asked.endpoint, asked.fields);
        match (leg, self.settings.role) {
            (Leg::Alone, _) => return Ok(Plan::Alone),
            (Leg::Prefill, Role::Decode) => return Err(bad("a leg of prefill was sent to a decode pod")),
            (Leg::Decode, Role::Prefill) => return Err(bad("a leg of decode was sent to a prefill pod")),
            _ => {}
        }
        if asked.body.prompts.len() != 1 {
            return Err(bad("prompt: a handoff is of one prompt; send each on its own"));
        }
        let reserve = |key: &str| {
            if !self.protocol.keys_of_routers() {
                return Ok(None);
            }
            let reserved = self.store.reserve(key);
            reserved.map(Some).ok_or_else(|| bad(format!("{key} is in use by another request")))
        };
        if asked.body.choices != 1 {
            // Engines give the KV to one choice and free it under the others, or let them wait for each other.
            return Err(bad(
                "n: a handoff is for one choice; send more of them to one pod, or each on its own",
            ));
        }
        if leg == Leg::Prefill {
            let offer = self.protocol.prefill(self, asked)?;
            if asked.ends_at_once && !self.protocol.hands_over_ends() {
                return Ok(Plan::Alone);
            }
            let reserved = reserve(&offer.key)?;
            return Ok(Plan::Prefill(offer, reserved));
        }
        let claim = self.protocol.decode(self, asked)?;
        // A pod that is both keeps the KV of one leg under the key that the other claims.
        let reserved = if self.settings.role == Role::Both { None } else { reserve(&claim.key)? };
        Ok(Plan::Decode(claim, reserved))
    }

    /// Writes into the prefill's answer what the router is to hand over.
    pub fn tell(&self, offer: &Offer, cached: usize, endpoint: Endpoint, prompt: &[u32], answer: &mut Value) {
        self.protocol.tell(self.protocol.terms(offer, cached), endpoint, prompt, answer);
    }

    /// Keeps the KV of a prompt with so many tokens, and waits for it to be fetched where the protocol does.
    pub async fn offer(&self, offer: &Offer, running: Running, tokens: usize) -> Result<(), Refusal> {
        let cached = running.cached_tokens();
        let shown = Shown { prompt: running.answer().seed, terms: self.protocol.terms(offer, cached) };
        let kv = Kv { shown, tokens, cached, pinned: Some(running.pin()) };
        if !offer.until_fetched {
            self.store.hold(&offer.key, kv, self.settings.ttl);
            return Ok(());
        }
        let fetched = self.store.hold_until_fetched(&offer.key, kv, self.settings.timeout).await;
        fetched.map_err(|why| broken(format!("prefill of {} failed: {why}", offer.key)))
    }

    /// Fetches KV for a prompt with so many tokens.
    pub async fn fetch(&self, claim: &Claim, prompt: u64, tokens: usize) -> Result<Fetched, Refusal> {
        let failed = |why: String| broken(format!("KV load failed: {why}"));
        let from = match &claim.source {
            Source::At(address) => address.clone(),
            Source::Engine { bootstrap, id } => mooncake::find(bootstrap, id).await.map_err(failed)?,
        };
        let shown = Shown { prompt, terms: claim.terms.clone() };
        let patience = if claim.wait { self.settings.timeout } else { Duration::ZERO };
        let taken = wire::take(&from, &claim.key, &shown, patience).await.map_err(failed)?;
        if taken.tokens != tokens {
            return Err(failed(format!("{} tokens were prefilled, the prompt has {tokens}", taken.tokens)));
        }
        Ok(Fetched { from, taken, tells_prefill: self.protocol.tells_prefill() })
    }

    /// What the side listener answers to a GET.
    pub fn lookup(&self, path: &str) -> Option<Value> {
        self.protocol.lookup(self, path)
    }
}

/// What vLLM's connectors demand of a prefill: one token, whole. With more, or with an answer that ends of itself, no KV would be
/// handed over.
fn one_token_whole(asked: &Asked) -> Result<(), Refusal> {
    one_token(asked)?;
    if asked.body.stream {
        return Err(bad("stream: must be false where a prompt is computed for another pod"));
    }
    if asked.fields.raw("stream_options").is_some() {
        return Err(bad("stream_options: can only be defined when `stream=True`"));
    }
    Ok(())
}

/// The part of it that holds for streams as well.
fn one_token(asked: &Asked) -> Result<(), Refusal> {
    // Real completions know no other bound.
    let names =
        if asked.endpoint == Endpoint::Completions { &["max_tokens"] } else { asked.endpoint.limits() };
    if names.iter().all(|name| asked.fields.raw(name).is_none()) {
        return Err(bad(format!(
            "{}: must be 1 where a prompt is computed for another pod",
            names.join(" or ")
        )));
    }
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
        if let Some(most) = asked.fields.get::<u64>(name)?.filter(|most| *most != 1) {
            return Err(bad(format!(
                "{name}: must be 1 where a prompt is computed for another pod, got {most}"
            )));
        }
    }
    Ok(())
}

/// A random number, as nobody guesses it.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// One above 2^53, which a double can't hold: odd, and below 2^63.
fn random_beyond_doubles() -> u64 {
    (random() >> 1) | 1 << 61 | 1
}

/// A random UUID.
fn uuid() -> String {
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a protocol makes of a request.
    pub fn plan(
        kind: Kind,
        role: Role,
        endpoint: Endpoint,
        id: Option<&str>,
        body: &Value,
    ) -> Result<Plan, String> {
        plan_at(&transfer(kind, role), endpoint, id, body)
    }

    pub fn transfer(kind: Kind, role: Role) -> Transfer {
        let settings = Settings { kind, role, timeout: Duration::from_secs(1), ttl: Duration::from_secs(1) };
        Transfer::new(settings, "0.0.0.0:7".parse().unwrap())
    }

    pub fn plan_at(
        pod: &Transfer,
        endpoint: Endpoint,
        id: Option<&str>,
        body: &Value,
    ) -> Result<Plan, String> {
        let text = body.to_string();
        let fields = Fields::parse(text.as_bytes()).unwrap();
        let body = Body::parse(endpoint, text.as_bytes()).unwrap();
        let asked = Asked {
            endpoint,
            fields: &fields,
            request_id: id,
            body: &body,
            answer: Prose { seed: 7 },
            id: "id-1",
            blocks: 3,
            ends_at_once: false,
        };
        pod.plan(&asked).map_err(|refusal| format!("{} {}", refusal.status.as_u16(), refusal.why))
    }

    /// A chat with these fields too.
    pub fn chat(extra: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    }

    #[test]
    fn ids_are_random_and_of_their_form() {
        let id = uuid();
        assert_ne!(id, uuid());
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{id}");
        let number = random_beyond_doubles();
        assert!(number < 1 << 63);
        assert_ne!(number as f64 as u64, number);
    }

    #[test]
    fn a_leg_for_the_other_role_and_many_prompts_are_refused() {
        let params = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let body = chat(json!({"max_tokens": 1, "kv_transfer_params": params}));
        let why = plan(Kind::Nixl, Role::Decode, Endpoint::Chat, None, &body).unwrap_err();
        assert!(why.starts_with("400") && why.contains("decode pod"), "{why}");
        let many = json!({"prompt": ["a", "b"], "max_tokens": 1, "kv_transfer_params": params});
        let why = plan(Kind::Nixl, Role::Both, Endpoint::Completions, None, &many).unwrap_err();
        assert!(why.starts_with("400") && why.contains("one prompt"), "{why}");
        let choices = chat(json!({"n": 2, "max_tokens": 1, "kv_transfer_params": params}));
        let why = plan(Kind::Nixl, Role::Both, Endpoint::Chat, None, &choices).unwrap_err();
        assert!(why.starts_with("400 n:"), "{why}");
        let room = chat(json!({"n": 2, "bootstrap_host": "h", "bootstrap_room": 1}));
        let why = plan(Kind::Sglang, Role::Decode, Endpoint::Chat, None, &room).unwrap_err();
        assert!(why.starts_with("400 n:"), "{why}");
    }

    #[test]
    fn a_prefill_for_others_is_of_one_token() {
        let params = json!({"do_remote_decode": true, "do_remote_prefill": false});
        for (extra, named) in [
            (json!({}), "max_completion_tokens or max_tokens"),
            (json!({"max_tokens": 2}), "max_tokens"),
            (json!({"max_tokens": 1, "max_completion_tokens": 9}), "max_completion_tokens"),
            (json!({"max_tokens": 1, "stream": true}), "stream"),
            (json!({"max_tokens": 1, "stream_options": {"include_usage": true}}), "stream_options"),
        ] {
            let mut body = chat(extra);
            body["kv_transfer_params"] = params.clone();
            let why = plan(Kind::Nixl, Role::Prefill, Endpoint::Chat, None, &body).unwrap_err();
            assert!(why.starts_with(&format!("400 {named}:")), "{why}");
        }
    }
}
