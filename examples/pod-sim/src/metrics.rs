//! Load and cache figures under vLLM's names: Prometheus text, and the ORCA header that vLLM adds when asked.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;

/// The text of `/metrics`. vLLM puts all under its first model's name.
pub fn prometheus(engine: &Engine, model: &str) -> String {
    let settings = engine.settings();
    let counters = engine.counters();
    let labels = format!("engine=\"0\",model_name=\"{}\"", escape(model));
    let mut out = String::with_capacity(2048);
    let mut write = |kind: &str, name: &str, labels: &str, value: f64| {
        // Writing to a String can't fail.
        let _ = writeln!(out, "# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value:?}");
    };
    let waiting = counters.waiting.load(Relaxed) as f64;
    write("gauge", "num_requests_running", &labels, counters.running.load(Relaxed) as f64);
    write("gauge", "num_requests_waiting", &labels, waiting);
    write("gauge", "num_requests_waiting_by_reason", &format!("{labels},reason=\"capacity\""), waiting);
    write("gauge", "kv_cache_usage_perc", &labels, usage(engine));
    write("counter", "prefix_cache_queries_total", &labels, counters.queried.load(Relaxed) as f64);
    write("counter", "prefix_cache_hits_total", &labels, counters.hit.load(Relaxed) as f64);
    write("counter", "prompt_tokens_total", &labels, counters.queried.load(Relaxed) as f64);
    write("counter", "generation_tokens_total", &labels, counters.generated.load(Relaxed) as f64);
    let config = format!(
        "block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{}\"",
        settings.block_size, settings.blocks
    );
    write("gauge", "cache_config_info", &config, 1.0);
    out
}

/// The value of `endpoint-load-metrics` for a request whose `endpoint-load-metrics-format` is `format`.
pub fn orca(engine: &Engine, format: &str) -> Option<String> {
    let (usage, waiting) = (usage(engine), engine.counters().waiting.load(Relaxed));
    match format {
        "TEXT" => Some(format!(
            "TEXT named_metrics.kv_cache_usage_perc={usage:?}, named_metrics.num_requests_waiting={waiting}"
        )),
        "JSON" => Some(format!(
            "JSON {{\"named_metrics\":{{\"kv_cache_usage_perc\":{usage:?},\"num_requests_waiting\":{waiting}}}}}"
        )),
        _ => None,
    }
}

/// Share of the blocks that running requests hold, 0 to 1.
fn usage(engine: &Engine) -> f64 {
    let cache = engine.cache();
    cache.in_use() as f64 / cache.capacity().max(1) as f64
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
