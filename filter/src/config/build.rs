//! From the configuration as written to a [`Router`], with every mistake found.

use super::bounds::Bounds;
use super::calls::Calls;
use super::discovery::discovery;
use super::health;
use super::mistake::Mistakes;
use super::pods::build_pods;
use super::raw::{
    RawBlocks, RawBy, RawConfig, RawIndex, RawKvEvents, RawLimits, RawProfile, RawRouting, RawSelect,
    RawTokenizer,
};
use super::reach::{Reach, reach};
use super::router::{KvEventsSettings, Router, Routing, Settings, TokenizerSettings, Via};
use super::select::{PathPattern, Rule, Target};
use super::workflows;
use crate::blocks::BlockSize;
use crate::pipeline::{BUILT_IN, Profile, build as build_profile, is_token};
use crate::pods::{Found, Pod};
use crate::prompt::delivery::{Remote, Source};
use crate::request::Limits;
use crate::workflow::protocol::FIELDS;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

/// Longest configuration that is looked at.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;
/// Longest name of a profile.
const MAX_NAME: usize = 64;
/// Most profiles of a user's own.
pub(super) const MAX_PROFILES: usize = 32;
/// Most rules of `select`.
pub(super) const MAX_RULES: usize = 64;
/// Most tokenizers: each takes memory in every VM.
pub(super) const MAX_TOKENIZERS: usize = 16;
/// The profile of whoever names none.
pub(super) const DEFAULT_PROFILE: &str = "prefix-aware";
/// The routing header of whoever names none: what the endpoint picker protocol calls it.
pub(super) const DEFAULT_HEADER: &str = "x-gateway-destination-endpoint";
/// Fallbacks for whoever gives no number.
pub(super) const DEFAULT_FALLBACKS: usize = 3;

/// Reads and checks a plugin configuration in JSON.
pub fn load(json: &[u8]) -> Result<Router, Mistakes> {
    load_with(json, &[])
}

/// As [`load`], with the endpoints that were found by `discovery`. Mistakes are in the configuration alone: what was found
/// and can't be a pod is left out.
pub fn load_with(json: &[u8], found: &[Found]) -> Result<Router, Mistakes> {
    let mut mistakes = Mistakes::default();
    if json.trim_ascii().is_empty() {
        mistakes.add("", "is empty; name at least the pods: {\"pods\": [{\"address\": \"10.0.0.1:8000\"}]}");
    } else if json.len() > MAX_CONFIG_BYTES {
        mistakes.add("", format!("has {} bytes; at most {MAX_CONFIG_BYTES} are read", json.len()));
    }
    if json.trim_ascii_start().starts_with(b"[") {
        // Serde would take a list for an object with the fields in their order.
        mistakes.add(
            "",
            "is invalid: a list; give one JSON object: {\"pods\": [{\"address\": \"10.0.0.1:8000\"}]}",
        );
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let raw: RawConfig = match serde_path_to_error::deserialize(&mut deserializer) {
        Ok(raw) => raw,
        Err(error) => {
            mistakes.add_serde("", &error);
            return Err(mistakes);
        }
    };
    if let Err(error) = deserializer.end() {
        mistakes.add("", format!("{error}; only one JSON object may stand here"));
        return Err(mistakes);
    }
    build(&raw, found, mistakes)
}

fn build(raw: &RawConfig, found: &[Found], mut mistakes: Mistakes) -> Result<Router, Mistakes> {
    if raw.pods.is_none() && raw.discovery.is_none() {
        mistakes.add("", "missing field `pods`; list the pods there, or say in `discovery` how to find them");
        return Err(mistakes);
    }
    let fewest = usize::from(raw.discovery.is_none());
    let configured =
        build_pods(raw.pods.as_deref().unwrap_or_default(), fewest, raw.routing.by, &mut mistakes);
    let settings = settings(raw, &mut mistakes);
    let Reach { pods, .. } = reach(&settings, &configured, found);
    let mut profiles =
        Profiles { raw, pods: &pods, block_size: settings.block_size, names: Vec::new(), built: Vec::new() };
    profiles.build_own(&mut mistakes);
    let workflows =
        workflows::workflows(&raw.workflows, &settings.routing, Calls::of(raw), &mut profiles, &mut mistakes);
    let default = profiles.target("", raw.profile.as_deref(), raw.workflow.as_deref(), &mut mistakes);
    if raw.select.len() > MAX_RULES {
        mistakes.add("select", format!("has {} rules; at most {MAX_RULES} are allowed", raw.select.len()));
    }
    let rules = raw.select.iter().take(MAX_RULES).enumerate();
    let rules: Vec<_> = rules.filter_map(|(i, rule)| profiles.rule(i, rule, &mut mistakes)).collect();
    let Profiles { built, .. } = profiles;
    match default {
        Some(default) if mistakes.is_empty() => {
            let profiles = built.into_iter().flatten().collect();
            let workflows: Vec<_> = workflows.into_iter().flatten().collect();
            let protocols = || workflows.iter().map(|workflow| &workflow.protocol);
            let fields = FIELDS.iter().chain(protocols().flat_map(|protocol| protocol.own_fields()));
            let headers = protocols().flat_map(|protocol| protocol.own_headers());
            Ok(Router {
                pods,
                configured: configured.len(),
                profiles,
                guarded_fields: each_once(fields),
                guarded_headers: each_once(headers),
                workflows,
                default,
                rules,
                settings,
            })
        }
        _ => Err(mistakes),
    }
}

fn each_once<'a>(names: impl Iterator<Item = &'a &'static str>) -> Vec<&'static str> {
    names.copied().collect::<BTreeSet<_>>().into_iter().collect()
}

fn settings(raw: &RawConfig, mistakes: &mut Mistakes) -> Settings {
    let RawConfig { blocks, index, limits, .. } = raw;
    within("blocks.size", blocks.size, RawBlocks::SIZE, mistakes);
    within("index.max_blocks", index.max_blocks, RawIndex::MAX_BLOCKS, mistakes);
    within("index.pod_blocks", index.pod_blocks, RawIndex::POD_BLOCKS, mistakes);
    within("index.ttl_seconds", index.ttl_seconds, RawIndex::TTL_SECONDS, mistakes);
    within("limits.max_body_bytes", limits.max_body_bytes, RawLimits::MAX_BODY_BYTES, mistakes);
    within("limits.max_messages", limits.max_messages, RawLimits::MAX_ITEMS, mistakes);
    within("limits.max_parts", limits.max_parts, RawLimits::MAX_ITEMS, mistakes);
    if let Some(name) = &raw.debug_header {
        check_header("debug_header", name, mistakes);
    }
    let routing = routing(&raw.routing, mistakes);
    let discovery = raw.discovery.as_ref().map(|raw| discovery(raw, mistakes));
    Settings {
        metrics: health::metrics(raw.metrics.as_ref(), Calls::of(raw), mistakes),
        breaker: health::breaker(&raw.breaker, mistakes),
        admission: health::admission(&raw.admission, mistakes),
        block_size: BlockSize::new(blocks.size).unwrap_or_default(),
        max_blocks: index.max_blocks,
        pod_blocks: index.pod_blocks,
        ttl_seconds: index.ttl_seconds,
        max_body_bytes: limits.max_body_bytes,
        limits: Limits { max_messages: limits.max_messages, max_parts: limits.max_parts },
        endpoint_picker: raw.routing.endpoint_picker,
        routing,
        debug_header: raw.debug_header.as_ref().map(|name| name.to_ascii_lowercase()),
        tokenizers: tokenizers(&raw.tokenizers, mistakes),
        kv_events: kv_events(&raw.kv_events, mistakes),
        discovery,
    }
}

fn kv_events(raw: &RawKvEvents, mistakes: &mut Mistakes) -> KvEventsSettings {
    within("kv_events.max_message_bytes", raw.max_message_bytes, RawKvEvents::MAX_MESSAGE_BYTES, mistakes);
    within("kv_events.cache_blocks", raw.cache_blocks, RawKvEvents::CACHE_BLOCKS, mistakes);
    let plain =
        |token: &String| (16..=4096).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
    if raw.token.as_ref().is_some_and(|token| !plain(token)) {
        mistakes.add("kv_events.token", "is no token; give 16 to 4096 printable characters without spaces");
    }
    KvEventsSettings {
        pod_by: raw.pod_by,
        token: raw.token.clone(),
        max_message_bytes: raw.max_message_bytes,
        cache_blocks: raw.cache_blocks,
    }
}

fn tokenizers(raw: &[RawTokenizer], mistakes: &mut Mistakes) -> Vec<TokenizerSettings> {
    if raw.len() > MAX_TOKENIZERS {
        mistakes.add("tokenizers", format!("has {}; at most {MAX_TOKENIZERS} are allowed", raw.len()));
    }
    let mut named: Vec<&str> = Vec::new();
    let raw = raw.iter().take(MAX_TOKENIZERS).enumerate();
    raw.map(|(i, raw)| {
        let at = |field: &str| format!("tokenizers[{i}].{field}");
        if raw.models.is_empty() {
            mistakes.add(at("models"), "is empty; name the models, as requests do");
        }
        for (alias, model) in raw.aliases.iter().filter(|(_, model)| !raw.models.contains(model)) {
            mistakes
                .add(at("aliases"), format!("{alias:?} stands for {model:?}, which is none of the models"));
        }
        for model in raw.models.iter().map(String::as_str).chain(raw.aliases.iter().map(|(alias, _)| alias)) {
            if named.contains(&model) {
                mistakes.add(at("models"), format!("{model:?} has a tokenizer already"));
            }
            named.push(model);
        }
        within(&at("block_tokens"), raw.block_tokens, RawTokenizer::BLOCK_TOKENS, mistakes);
        within(&at("timeout_seconds"), raw.timeout_seconds, RawTokenizer::TIMEOUT_SECONDS, mistakes);
        within(&at("memory_bytes"), raw.memory_bytes, RawTokenizer::MEMORY_BYTES, mistakes);
        within(&at("max_new_bytes"), raw.max_new_bytes, RawTokenizer::MAX_NEW_BYTES, mistakes);
        TokenizerSettings {
            models: raw.models.clone(),
            aliases: raw.aliases.iter().map(|(alias, model)| (alias.to_owned(), model.clone())).collect(),
            source: source(raw, &at, mistakes),
            block_tokens: raw.block_tokens,
            memory_bytes: raw.memory_bytes,
            max_new_bytes: raw.max_new_bytes,
        }
    })
    .collect()
}

fn source(raw: &RawTokenizer, at: &dyn Fn(&str) -> String, mistakes: &mut Mistakes) -> Source {
    match (&raw.built_in, raw.cluster.as_deref(), raw.path.as_deref()) {
        (Some(name), None, None) => return Source::BuiltIn(name.clone()),
        (None, Some(cluster), Some(path)) => {
            if cluster.is_empty() {
                mistakes.add(at("cluster"), "is empty; name the Envoy cluster that has the files");
            }
            let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'?' && byte != b'#';
            if !path.starts_with('/') || !path.bytes().all(plain) {
                let cure = "give the folder of tokenizer.json, such as /qwen3/";
                mistakes.add(at("path"), format!("{path:?} is no path; {cure}"));
            }
        }
        _ => mistakes.add(at("cluster"), "give cluster and path, or built_in alone"),
    }
    Source::Fetched(Remote {
        cluster: raw.cluster.clone().unwrap_or_default(),
        path: format!("{}/", raw.path.as_deref().unwrap_or_default().trim_end_matches('/')),
        timeout: Duration::from_secs(raw.timeout_seconds),
    })
}

fn routing(raw: &RawRouting, mistakes: &mut Mistakes) -> Routing {
    let header = raw.header.as_deref().unwrap_or(DEFAULT_HEADER).to_ascii_lowercase();
    check_header("routing.header", &header, mistakes);
    match raw.by {
        RawBy::Address => {
            let fallbacks = raw.fallbacks.unwrap_or(DEFAULT_FALLBACKS);
            within("routing.fallbacks", fallbacks, RawRouting::FALLBACKS, mistakes);
            Routing::Address { header, fallbacks, via: raw.via }
        }
        RawBy::Cluster => {
            if raw.fallbacks.is_some() {
                let problem =
                    "a cluster_header names one cluster and has no fallbacks; remove it, or route by address";
                mistakes.add("routing.fallbacks", problem);
            }
            if raw.via == Via::FilterState {
                let problem = "comes too late for a cluster_header, by which Envoy has taken a route before; remove it, or route by address";
                mistakes.add("routing.via", problem);
            }
            if raw.endpoint_picker {
                let problem = "speaks of addresses; remove it, or route by address";
                mistakes.add("routing.endpoint_picker", problem);
            }
            Routing::Cluster { header }
        }
    }
}

/// The profiles that were asked for, each built once.
pub(super) struct Profiles<'a> {
    raw: &'a RawConfig,
    pods: &'a [Pod],
    block_size: BlockSize,
    names: Vec<String>,
    /// `None` where a mistake was reported.
    built: Vec<Option<Profile>>,
}

impl Profiles<'_> {
    /// Builds all that the user wrote, used or not: a wrong one is better found today.
    fn build_own(&mut self, mistakes: &mut Mistakes) {
        let own = &self.raw.profiles;
        if own.len() > MAX_PROFILES {
            mistakes
                .add("profiles", format!("has {} profiles; at most {MAX_PROFILES} are allowed", own.len()));
        }
        for (name, profile) in own.iter().take(MAX_PROFILES) {
            let path = format!("profiles.{}", name.escape_debug());
            if !is_name(name) {
                mistakes.add(path, NAME_CURE);
            } else if BUILT_IN.iter().any(|built_in| built_in.name == name) {
                mistakes.add(path, "is the name of a built-in profile; give yours another");
            } else {
                self.add(name, profile, mistakes);
            }
        }
    }

    fn add(&mut self, name: &str, raw: &RawProfile, mistakes: &mut Mistakes) -> usize {
        self.names.push(name.to_owned());
        self.built.push(build_profile(
            name,
            raw,
            self.pods,
            self.raw.discovery.is_some(),
            self.block_size,
            mistakes,
        ));
        self.built.len().saturating_sub(1)
    }

    /// The pods that they choose among.
    pub(super) fn pods(&self) -> &[Pod] {
        self.pods
    }

    /// A profile that was built.
    pub(super) fn get(&self, position: usize) -> Option<&Profile> {
        self.built.get(position)?.as_ref()
    }

    /// What requests come to: a profile or a workflow, not both. `at` is where that is written.
    fn target(
        &mut self,
        at: &str,
        profile: Option<&str>,
        workflow: Option<&str>,
        mistakes: &mut Mistakes,
    ) -> Option<Target> {
        let field = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        let name = match (profile, workflow) {
            (Some(_), Some(_)) => {
                mistakes.add(at, "names a profile and a workflow; remove one of the two");
                return None;
            }
            (None, Some(workflow)) => {
                let mut known = self.raw.workflows.iter().map(|(name, _)| name);
                if let Some(position) = known.position(|name| name == workflow) {
                    return Some(Target::Workflow(position));
                }
                let known: Vec<_> = self.raw.workflows.iter().map(|(name, _)| name).collect();
                let problem = format!(
                    "there is no workflow \"{}\" in `workflows`, which has {}",
                    workflow.escape_debug(),
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                );
                mistakes.add(field("workflow"), problem);
                return None;
            }
            (Some(profile), None) => profile,
            (None, None) => DEFAULT_PROFILE,
        };
        let position = self.find(&field("profile"), name, mistakes)?;
        if let Some(profile) = self.get(position) {
            workflows::refuse_peer(&field("profile"), profile, mistakes);
        }
        Some(Target::Profile(position))
    }

    /// The position of a profile, which is built now if it comes with Warmpath.
    pub(super) fn find(&mut self, path: &str, name: &str, mistakes: &mut Mistakes) -> Option<usize> {
        if let Some(at) = self.names.iter().position(|known| known == name) {
            return Some(at);
        }
        if self.raw.profiles.get(name).is_some() {
            return None; // Its own mistake was reported.
        }
        let Some(built_in) = BUILT_IN.iter().find(|built_in| built_in.name == name) else {
            let own = self.raw.profiles.iter().map(|(name, _)| name);
            let known: Vec<_> = BUILT_IN.iter().map(|built_in| built_in.name).chain(own).collect();
            let problem =
                format!("there is no profile \"{}\"; take one of {}", name.escape_debug(), known.join(", "));
            mistakes.add(path, problem);
            return None;
        };
        match serde_json::from_str(built_in.json) {
            Ok(raw) => Some(self.add(name, &raw, mistakes)),
            Err(error) => {
                mistakes.add(path, format!("the built-in profile can't be read: {error}"));
                None
            }
        }
    }

    fn rule(&mut self, i: usize, raw: &RawSelect, mistakes: &mut Mistakes) -> Option<Rule> {
        let before = mistakes.count();
        let at = format!("select[{i}]");
        if raw.path.is_none() && raw.model.is_none() && raw.header.is_none() {
            mistakes
                .add(&at, "has no condition; add path, model or header, or name the profile in `profile`");
        }
        let path = raw.path.as_deref().map(PathPattern::parse).transpose();
        let path = path.unwrap_or_else(|problem| {
            mistakes.add(format!("{at}.path"), problem);
            None
        });
        if let Some(header) = &raw.header {
            check_header(&format!("{at}.header.name"), &header.name, mistakes);
        }
        if raw.profile.is_none() && raw.workflow.is_none() {
            mistakes.add(&at, "leads nowhere; add profile or workflow");
        }
        let target = self.target(&at, raw.profile.as_deref(), raw.workflow.as_deref(), mistakes);
        let header =
            raw.header.as_ref().map(|header| (header.name.to_ascii_lowercase(), header.value.clone()));
        (mistakes.count() == before).then_some(Rule {
            path,
            model: raw.model.clone(),
            header,
            target: target?,
        })
    }
}

/// The cure for another name.
pub(super) const NAME_CURE: &str = "name it with 1 to 64 letters, digits, - and _";

pub(super) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

fn check_header(path: &str, name: &str, mistakes: &mut Mistakes) {
    if !is_token(name) {
        mistakes.add(path, format!("\"{}\" is no name of a header", name.escape_debug()));
    }
}

/// Reports a number, if there is one, outside its range.
pub(super) fn within<T: PartialOrd + Display>(
    path: &str,
    value: impl Into<Option<T>>,
    bounds: Bounds<T>,
    mistakes: &mut Mistakes,
) {
    if let Some(problem) = value.into().and_then(|value| bounds.problem(&value)) {
        mistakes.add(path, problem);
    }
}
