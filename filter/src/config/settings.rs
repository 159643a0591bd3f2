//! What holds for all profiles: blocks, limits, routing, tokenizers, KV events and how load is learnt.

use super::bounds::within;
use super::calls::Calls;
use super::discovery::discovery;
use super::health;
use super::mistake::Mistakes;
use super::raw::{RawBlocks, RawBy, RawConfig, RawIndex, RawKvEvents, RawLimits, RawRouting, RawTokenizer};
use super::router::{KvEventsSettings, Routing, Settings, TokenizerSettings, Via};
use crate::blocks::BlockSize;
use crate::pipeline::is_token;
use crate::prompt::delivery::{Remote, Source};
use crate::request::Limits;
use std::time::Duration;

/// Most tokenizers: each takes memory in every VM.
pub(super) const MAX_TOKENIZERS: usize = 16;
/// The routing header of whoever names none: what the endpoint picker protocol calls it.
pub(super) const DEFAULT_HEADER: &str = "x-gateway-destination-endpoint";
/// Fallbacks for whoever gives no number.
pub(super) const DEFAULT_FALLBACKS: usize = 3;

/// Checks them.
pub(super) fn settings(raw: &RawConfig, mistakes: &mut Mistakes) -> Settings {
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

/// Reports what is no name of a header.
pub(super) fn check_header(path: &str, name: &str, mistakes: &mut Mistakes) {
    if !is_token(name) {
        mistakes.add(path, format!("\"{}\" is no name of a header", name.escape_debug()));
    }
}
