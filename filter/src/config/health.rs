//! How load is learnt and bounded: metrics of engines, the breaker, admission.

use super::bounds::{Bounds, within};
use super::calls::Calls;
use super::mistake::Mistakes;
use super::raw::{RawAdmission, RawBreaker, RawMetrics, RawNames, RawNumber, RawPod, RawUsage};
use crate::index::Index;
use crate::pods::metrics::engines::{Mapping, Names, Number, Usage};
use crate::pods::{BreakerSettings, MOST_MODELS, Pod};
use crate::workflow::Limit;
use std::collections::BTreeMap;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Ticks of a second.
const SECOND: u64 = 10;
/// The engine of whoever names none.
pub(super) const DEFAULT_ENGINE: &str = "vllm";

/// How engines are asked for their load.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsSettings {
    /// What the configuration calls the engine.
    pub engine: String,
    /// What its series mean.
    pub mapping: Mapping,
    /// The Envoy cluster by which pods are asked, for [`Pod::called_by`].
    pub cluster: Option<String>,
    /// Where they have metrics.
    pub path: String,
    /// The port at which they have them, where it is another.
    pub port: Option<u16>,
    /// Ticks from one question to the next.
    pub period_ticks: u64,
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// Ticks after which an answer counts no longer.
    pub stale_ticks: u64,
    /// Sent as a bearer's token.
    pub api_key: Option<String>,
    /// Whether engines are asked for their load with each request, too.
    pub orca: bool,
}

/// How many requests may be in flight.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// In all.
    pub max_in_flight: Option<u32>,
    /// At each pod that has no bound of its own.
    pub max_in_flight_per_pod: Option<u32>,
    /// Of models, by their digest.
    pub models: BTreeMap<u64, u32>,
    /// What who is sent away is told.
    pub retry_after_seconds: u32,
}

impl Admission {
    /// Whether anything is bounded, so that it must be known what is in flight.
    pub fn counts(&self, pods: &[Pod]) -> bool {
        self.max_in_flight.is_some()
            || self.max_in_flight_per_pod.is_some()
            || !self.models.is_empty()
            || pods.iter().any(|pod| pod.max_in_flight.is_some())
    }

    /// By what requests of a model are counted, if they are.
    pub fn counted(&self, model: &str) -> Option<u64> {
        Some(xxh3_64(model.as_bytes())).filter(|model| self.models.contains_key(model))
    }

    /// The limit that one more request would exceed.
    pub fn exceeded(
        &self,
        index: &Index,
        in_flight: impl FnOnce() -> u64,
        model: Option<&str>,
    ) -> Option<Limit> {
        if let Some(most) = self.max_in_flight
            && in_flight() >= u64::from(most)
        {
            return Some(Limit::Total(most));
        }
        let model = self.counted(model?)?;
        let most = *self.models.get(&model)?;
        (index.of_model(model) >= most).then_some(Limit::Model(most))
    }
}

/// Checks how engines are asked.
pub(super) fn metrics(
    raw: Option<&RawMetrics>,
    calls: Calls<'_>,
    mistakes: &mut Mistakes,
) -> Option<MetricsSettings> {
    let raw = raw?;
    let known = [
        ("vllm", "/metrics", Mapping::vllm()),
        ("sglang", "/metrics", Mapping::sglang()),
        ("tensorrt-llm", "/prometheus/metrics", Mapping::tensorrt_llm()),
        ("max", "/metrics", Mapping::max()),
    ];
    let engine = raw.engine.as_deref().unwrap_or(DEFAULT_ENGINE);
    let found = known.into_iter().find(|(name, ..)| *name == engine);
    let (path, mapping) = match (found, &raw.names) {
        (Some((_, path, mapping)), None) => (path, mapping),
        (None, Some(names)) if engine == "custom" => ("/metrics", custom(names, mistakes)?),
        (Some(_), Some(_)) => {
            mistakes
                .add("metrics.names", "are those of metrics.engine; remove them, or set it to \"custom\"");
            return None;
        }
        (None, None) if engine == "custom" => {
            mistakes.add("metrics.names", "are missing; give at least one of running, waiting and kv_usage");
            return None;
        }
        (None, _) => {
            let cure = "take one of vllm, sglang, tensorrt-llm, max, or custom with metrics.names";
            mistakes.add("metrics.engine", format!("{engine:?} is not known; {cure}"));
            return None;
        }
    };
    let path = raw.path.as_deref().unwrap_or(path);
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        mistakes.add("metrics.path", format!("{path:?} is no path; give one such as /metrics"));
    }
    within("metrics.period_milliseconds", raw.period_milliseconds, RawMetrics::PERIOD_MILLISECONDS, mistakes);
    within(
        "metrics.timeout_milliseconds",
        raw.timeout_milliseconds,
        RawMetrics::TIMEOUT_MILLISECONDS,
        mistakes,
    );
    within("metrics.stale_seconds", raw.stale_seconds, RawMetrics::STALE_SECONDS, mistakes);
    within("metrics.port", raw.port, RawMetrics::PORT, mistakes);
    let key =
        |key: &String| (1..=4096).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if raw.api_key.as_ref().is_some_and(|api_key| !key(api_key)) {
        mistakes.add("metrics.api_key", "is no key; give 1 to 4096 printable characters without spaces");
    }
    let cluster = calls.need("metrics.cluster", raw.cluster.as_deref(), mistakes);
    calls.refuse("metrics.cluster", raw.cluster.as_deref(), mistakes);
    if raw.port.is_some() && calls == Calls::Itself {
        mistakes.add("metrics.port", "is of no use where routing.by is \"cluster\"; remove it");
    } else if raw.port.is_some() && raw.cluster.is_none() {
        let cure = "is another than the pods' own: name in metrics.cluster the Envoy cluster with override_host that has them at it";
        mistakes.add("metrics.port", cure);
    }
    Some(MetricsSettings {
        engine: engine.to_owned(),
        mapping,
        cluster,
        path: path.to_owned(),
        port: raw.port,
        period_ticks: raw.period_milliseconds.div_ceil(100),
        timeout: Duration::from_millis(raw.timeout_milliseconds),
        stale_ticks: raw.stale_seconds * SECOND,
        api_key: raw.api_key.clone(),
        orca: raw.orca,
    })
}

fn custom(raw: &RawNames, mistakes: &mut Mistakes) -> Option<Mapping> {
    let number = |number: &RawNumber| match number.clone() {
        RawNumber::Series(series) => Number { series, label: None },
        RawNumber::Label { series, label } => Number { series, label: Some(label) },
    };
    let names = Names {
        running: raw.running.clone(),
        waiting: raw.waiting.clone(),
        kv_usage: raw.kv_usage.clone().map(|usage| match usage {
            RawUsage::Share(series) => Usage::Share(series),
            RawUsage::Of { used, total } => Usage::Of { used, total },
        }),
        block_size: raw.block_size.as_ref().map(number),
        blocks: raw.blocks.as_ref().map(number),
        lora: raw.lora.clone(),
    };
    Mapping::custom(&names).map_err(|problem| mistakes.add("metrics.names", problem)).ok()
}

/// Checks when pods are passed over.
pub(super) fn breaker(raw: &RawBreaker, mistakes: &mut Mistakes) -> BreakerSettings {
    within("breaker.failures", raw.failures, RawBreaker::FAILURES, mistakes);
    within("breaker.failure_share", raw.failure_share, RawBreaker::FAILURE_SHARE, mistakes);
    within("breaker.open_seconds", raw.open_seconds, RawBreaker::SECONDS, mistakes);
    let longer = Bounds::new(raw.open_seconds.max(1), RawBreaker::MOST_SECONDS);
    within("breaker.max_open_seconds", raw.max_open_seconds, longer, mistakes);
    within("breaker.first_token_seconds", raw.first_token_seconds, RawBreaker::SECONDS, mistakes);
    BreakerSettings {
        failures: raw.failures as f32,
        failure_share: raw.failure_share,
        open_ticks: raw.open_seconds * SECOND,
        max_open_ticks: raw.max_open_seconds * SECOND,
        first_token_ticks: raw.first_token_seconds * SECOND,
    }
}

/// Checks how many requests may be in flight.
pub(super) fn admission(raw: &RawAdmission, mistakes: &mut Mistakes) -> Admission {
    let most = |field: &str, value: Option<u32>, mistakes: &mut Mistakes| {
        within(&format!("admission.{field}"), value, RawPod::MAX_IN_FLIGHT, mistakes);
    };
    most("max_in_flight", raw.max_in_flight, mistakes);
    most("max_in_flight_per_pod", raw.max_in_flight_per_pod, mistakes);
    if raw.models.len() > MOST_MODELS {
        let problem = format!("has {} models; at most {MOST_MODELS} are counted", raw.models.len());
        mistakes.add("admission.models", problem);
    }
    for (model, value) in raw.models.iter().take(MOST_MODELS) {
        most(&format!("models.{}", model.escape_debug()), Some(*value), mistakes);
    }
    within(
        "admission.retry_after_seconds",
        raw.retry_after_seconds,
        RawAdmission::RETRY_AFTER_SECONDS,
        mistakes,
    );
    Admission {
        max_in_flight: raw.max_in_flight,
        max_in_flight_per_pod: raw.max_in_flight_per_pod,
        models: raw.models.iter().map(|(model, most)| (xxh3_64(model.as_bytes()), *most)).collect(),
        retry_after_seconds: raw.retry_after_seconds,
    }
}
