//! What the series of each engine mean: the text of its metrics -> [`Reading`].
//!
//! Names are compared whole: `num_requests_waiting_by_reason` says again what `num_requests_waiting` said. The tables are those
//! of the engines' sources, which are named beside them; where a name changed, the newer comes first and counts if it is there.

use std::borrow::Cow;

use super::prometheus::{Labels, Samples, is_label, metric};
use super::{LoraReading, MAX_ADAPTER_NAME, MAX_ADAPTERS, Reading, Sum, is_usable};

/// Longest series or label of a configuration, in bytes.
const MAX_NAME: usize = 256;

/// What a series is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Running,
    Waiting,
    KvUsage,
    KvUsed,
    KvTotal,
    BlockSize,
    Blocks,
    /// 1 for each rank that is awake.
    Awake,
    /// A time. What is told is in the labels.
    Lora,
    PrefixQueries,
    PrefixHits,
    PrefixMisses,
}
use About::*;

type Text = Cow<'static, str>;

/// A condition on the labels of a series. A label that isn't there is empty, as for Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Only {
    /// The label has this value.
    Is { label: Text, value: Text },
    /// The label has no other value than 0: others say the same once more. Unless the other label is there.
    First { label: Text, unless: Text },
}

impl Only {
    fn is_met(&self, labels: &Labels<'_>) -> bool {
        let value = |label: &str| labels.get(label).unwrap_or_default();
        match self {
            Self::Is { label, value: wanted } => value(label) == *wanted,
            Self::First { label, unless } => matches!(&*value(label), "" | "0") || !value(unless).is_empty(),
        }
    }
}

/// A series, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    about: About,
    name: Text,
    /// The label whose text is the number, where it isn't the value.
    label: Option<Text>,
    only: Cow<'static, [Only]>,
}

const fn series(about: About, name: &'static str) -> Rule {
    Rule { about, name: Cow::Borrowed(name), label: None, only: Cow::Borrowed(&[]) }
}

const fn series_if(about: About, name: &'static str, only: &'static [Only]) -> Rule {
    Rule { about, name: Cow::Borrowed(name), label: None, only: Cow::Borrowed(only) }
}

const fn label(about: About, name: &'static str, label: &'static str, only: &'static [Only]) -> Rule {
    Rule { about, name: Cow::Borrowed(name), label: Some(Cow::Borrowed(label)), only: Cow::Borrowed(only) }
}

const fn is(label: &'static str, value: &'static str) -> Only {
    Only::Is { label: Cow::Borrowed(label), value: Cow::Borrowed(value) }
}

const fn first(label: &'static str, unless: &'static str) -> Only {
    Only::First { label: Cow::Borrowed(label), unless: Cow::Borrowed(unless) }
}

/// Of three series for each rank the one that is 0 while it sleeps, at either level.
static VLLM_AWAKE: [Only; 1] = [is("sleep_state", "awake")];

/// vllm/v1/metrics/loggers.py, and vllm/config/cache.py for what `cache_config_info` has.
static VLLM: [Rule; 12] = [
    series(Running, "vllm:num_requests_running"),
    series(Waiting, "vllm:num_requests_waiting"),
    series(KvUsage, "vllm:kv_cache_usage_perc"),
    series(KvUsage, "vllm:gpu_cache_usage_perc"),
    label(BlockSize, "vllm:cache_config_info", "block_size", &[]),
    label(Blocks, "vllm:cache_config_info", "num_gpu_blocks", &[]),
    series_if(Awake, "vllm:engine_sleep_state", &VLLM_AWAKE),
    series(Lora, "vllm:lora_requests_info"),
    series(PrefixQueries, "vllm:prefix_cache_queries_total"),
    series(PrefixQueries, "vllm:gpu_prefix_cache_queries_total"),
    series(PrefixHits, "vllm:prefix_cache_hits_total"),
    series(PrefixHits, "vllm:gpu_prefix_cache_hits_total"),
];

/// A scheduler that isn't the first of its rank tells of the same requests and the same cache. With priorities, the number of
/// all is under the empty one, and again under each.
static SGLANG_ONCE: [Only; 3] = [is("priority", ""), first("pp_rank", ""), first("tp_rank", "dp_rank")];

/// python/sglang/srt/observability/metrics_collector.py.
static SGLANG: [Rule; 9] = [
    series_if(Running, "sglang:num_running_reqs", &SGLANG_ONCE),
    series_if(Waiting, "sglang:num_queue_reqs", &SGLANG_ONCE),
    series_if(KvUsage, "sglang:token_usage", &SGLANG_ONCE),
    series_if(BlockSize, "sglang:page_size", &SGLANG_ONCE),
    series_if(Blocks, "sglang:num_pages", &SGLANG_ONCE),
    // Before these were series of their own.
    label(BlockSize, "sglang:cache_config_info", "page_size", &SGLANG_ONCE),
    label(Blocks, "sglang:cache_config_info", "num_pages", &SGLANG_ONCE),
    // Those of requests that ended; hits by where they were found.
    series(PrefixQueries, "sglang:prompt_tokens_total"),
    series(PrefixHits, "sglang:cached_tokens_total"),
];

/// tensorrt_llm/metrics/collector.py.
static TENSORRT_LLM: [Rule; 7] = [
    series(Running, "trtllm_num_requests_running"),
    series(Waiting, "trtllm_num_requests_waiting"),
    series(KvUsage, "trtllm_kv_cache_utilization"),
    series(BlockSize, "trtllm_kv_cache_tokens_per_block"),
    series(Blocks, "trtllm_kv_cache_max_blocks"),
    series(PrefixHits, "trtllm_kv_cache_reused_blocks_total"),
    series(PrefixMisses, "trtllm_kv_cache_missed_blocks_total"),
];

/// max/python/max/serve/telemetry/metrics.py, named as OpenTelemetry's exporter names them: with the unit, and for counters
/// with an end.
static MAX: [Rule; 9] = [
    series(Running, "maxserve_num_requests_running"),
    series(Waiting, "maxserve_num_requests_queued"),
    series(KvUsed, "maxserve_cache_num_used_blocks"),
    series(KvTotal, "maxserve_cache_num_total_blocks"),
    series(Blocks, "maxserve_cache_num_total_blocks"),
    series(PrefixHits, "maxserve_cache_hits_tokens_total"),
    series(PrefixHits, "maxserve_cache_hits_total"),
    series(PrefixMisses, "maxserve_cache_misses_tokens_total"),
    series(PrefixMisses, "maxserve_cache_misses_total"),
];

/// Which series mean what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    rules: Cow<'static, [Rule]>,
}

/// Series of an engine that no mapping is made for.
///
/// A series is a name, with labels where it takes those to tell which is meant: `queue{kind="all"}`. A label that is empty there
/// may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Requests that the engine works on.
    pub running: Option<String>,
    /// Requests that wait in it.
    pub waiting: Option<String>,
    /// Use of its KV cache.
    pub kv_usage: Option<Usage>,
    /// Tokens in a block.
    pub block_size: Option<Number>,
    /// Blocks in all.
    pub blocks: Option<Number>,
    /// A series like vLLM's `lora_requests_info`: its value a time, its labels `max_lora`, `running_lora_adapters` and
    /// `waiting_lora_adapters`.
    pub lora: Option<String>,
}

/// How the use of a KV cache is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// As a share from 0 to 1.
    Share(String),
    /// As blocks, or tokens, in use and in all.
    Of {
        /// In use.
        used: String,
        /// In all.
        total: String,
    },
}

/// How a number is told: as the value of a series, or as the text of one of its labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Number {
    /// The series.
    pub series: String,
    /// The label.
    pub label: Option<String>,
}

impl Mapping {
    const fn of(rules: &'static [Rule]) -> Self {
        Self { rules: Cow::Borrowed(rules) }
    }

    /// vLLM, at `/metrics`.
    pub const fn vllm() -> Self {
        Self::of(&VLLM)
    }

    /// SGLang with `--enable-metrics`, at `/metrics`.
    pub const fn sglang() -> Self {
        Self::of(&SGLANG)
    }

    /// TensorRT-LLM's `trtllm-serve`, at `/prometheus/metrics`.
    pub const fn tensorrt_llm() -> Self {
        Self::of(&TENSORRT_LLM)
    }

    /// MAX, at `/metrics`.
    pub const fn max() -> Self {
        Self::of(&MAX)
    }

    /// An engine of other names.
    ///
    /// # Errors
    /// Where one is no series, or none of load is there.
    pub fn custom(names: &Names) -> Result<Self, String> {
        let mut rules = Vec::new();
        let plain = [(Running, &names.running), (Waiting, &names.waiting), (Lora, &names.lora)];
        for (about, name) in plain {
            rules.extend(name.as_deref().map(|name| rule(about, name, None)).transpose()?);
        }
        match &names.kv_usage {
            Some(Usage::Share(name)) => rules.push(rule(KvUsage, name, None)?),
            Some(Usage::Of { used, total }) => {
                rules.extend([rule(KvUsed, used, None)?, rule(KvTotal, total, None)?]);
            }
            None => {}
        }
        if rules.iter().all(|rule| rule.about == Lora) {
            return Err("none of running, waiting and kv_usage has a series".to_owned());
        }
        for (about, number) in [(BlockSize, &names.block_size), (Blocks, &names.blocks)] {
            if let Some(Number { series, label }) = number {
                rules.push(rule(about, series, label.as_deref())?);
            }
        }
        Ok(Self { rules: rules.into() })
    }
}

/// The rule for a series of a configuration.
fn rule(about: About, text: &str, label: Option<&str>) -> Result<Rule, String> {
    if text.len() > MAX_NAME {
        return Err(format!("a series has {} bytes, {MAX_NAME} are the most", text.len()));
    }
    let no_series = || format!("{text:?} is no series: it is to be like name or name{{label=\"value\"}}");
    let (name, rest) = metric(text).ok_or_else(no_series)?;
    let labels = match rest.strip_prefix('{').map(Labels::split) {
        None if rest.is_empty() => Labels::default(),
        Some(Some((labels, ""))) => labels,
        _ => return Err(no_series()),
    };
    let only = labels
        .iter()
        .map(|(label, value)| Only::Is { label: label.to_owned().into(), value: value.into_owned().into() });
    if let Some(label) = label.filter(|label| label.len() > MAX_NAME || !is_label(label)) {
        let label: String = label.chars().take(MAX_NAME).collect();
        return Err(format!("{label:?} is no name of a label"));
    }
    Ok(Rule {
        about,
        name: name.to_owned().into(),
        label: label.map(|label| label.to_owned().into()),
        only: only.collect(),
    })
}

/// Reads what an engine says of its load. `None` where none of the series is there: it is another engine, or none.
pub fn read(text: &[u8], mapping: &Mapping) -> Option<Reading> {
    let mut found = Found { rules: &mapping.rules, sums: vec![Sum::default(); mapping.rules.len()] };
    let mut newest: Option<(f64, Labels<'_>)> = None;
    let mut is_there = false;
    let mut samples = Samples::new(text);
    let is_wanted = |name: &[u8]| mapping.rules.iter().any(|rule| rule.name.as_bytes() == name);
    while let Some(sample) = samples.next_of(is_wanted) {
        for (rule, sum) in found.rules.iter().zip(&mut found.sums) {
            if rule.name != sample.name || !rule.only.iter().all(|only| only.is_met(&sample.labels)) {
                continue;
            }
            is_there = true;
            if let Some(label) = &rule.label {
                // Such a text may be `None`.
                let number = sample.labels.get(label).and_then(|text| text.parse().ok());
                sum.add(number.unwrap_or(f64::NAN));
            } else if rule.about != Lora {
                sum.add(sample.value);
            } else if is_usable(sample.value) && newest.is_none_or(|(time, _)| time <= sample.value) {
                // Each combination of adapters leaves a series behind; the last that was set is the one that is so.
                newest = Some((sample.value, sample.labels));
            }
        }
    }
    let lora = newest.map(|(_, labels)| lora(&labels));
    is_there.then(|| Reading { lora, unread: samples.unread(), ..found.reading() })
}

/// What the series of each rule gave.
struct Found<'a> {
    rules: &'a [Rule],
    sums: Vec<Sum>,
}

impl Found<'_> {
    /// Of the first rule about something for which there was anything.
    fn sum(&self, about: About) -> Sum {
        let mut sums = self.rules.iter().zip(&self.sums).filter(|(rule, _)| rule.about == about);
        sums.find(|(_, sum)| sum.count > 0).map(|(_, sum)| *sum).unwrap_or_default()
    }

    fn kv_usage(&self) -> Option<f32> {
        let share = self.sum(KvUsage).share();
        share.or_else(|| {
            let (used, total) = (self.sum(KvUsed).total()?, self.sum(KvTotal).total()?);
            (total > 0.0).then(|| (used / total).min(1.0) as f32)
        })
    }

    fn reading(&self) -> Reading {
        let prefix_hits = self.sum(PrefixHits).total();
        let misses = self.sum(PrefixMisses).total();
        let queries = self.sum(PrefixQueries).total();
        Reading {
            running: self.sum(Running).requests(),
            waiting: self.sum(Waiting).requests(),
            kv_usage: self.kv_usage(),
            block_size: self
                .sum(BlockSize)
                .mean()
                .filter(|size| (1.0..=u32::MAX.into()).contains(size))
                .map(|size| size as u32),
            blocks: self.sum(Blocks).total().map(|blocks| blocks as u64).filter(|blocks| *blocks > 0),
            asleep: self.sum(Awake).total().map(|awake| awake == 0.0),
            prefix_queries: queries.or_else(|| Some((prefix_hits? + misses?).min(f64::MAX))),
            prefix_hits,
            ..Reading::default()
        }
    }
}

/// What the labels of vLLM's series say of adapters.
fn lora(labels: &Labels<'_>) -> LoraReading {
    let list = |label: &str| -> Vec<String> {
        let text = labels.get(label).unwrap_or_default();
        let names = text.split(',').map(str::trim);
        let names = names.filter(|name| (1..=MAX_ADAPTER_NAME).contains(&name.len()));
        names.take(MAX_ADAPTERS).map(str::to_owned).collect()
    };
    LoraReading {
        max: labels.get("max_lora").and_then(|max| max.parse().ok()).unwrap_or_default(),
        running: list("running_lora_adapters"),
        waiting: list("waiting_lora_adapters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn data(file: &str) -> Vec<u8> {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/metrics");
        std::fs::read(dir.join(file)).unwrap()
    }

    fn vllm(text: &str) -> Reading {
        read(text.as_bytes(), &Mapping::vllm()).unwrap()
    }

    fn adapters(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_vllm_0_32_said_is_read() {
        // Four at once were the most. Three for the base model and four for adapters were under way when it was busy, and
        // `max_lora` was 2.
        let idle = Reading {
            running: Some(0.0),
            waiting: Some(0.0),
            kv_usage: Some(0.0),
            block_size: Some(32),
            blocks: Some(512),
            asleep: Some(false),
            lora: Some(LoraReading { max: 2, ..LoraReading::default() }),
            prefix_queries: Some(1146.0),
            prefix_hits: Some(512.0),
            unread: 0,
        };
        assert_eq!(read(&data("vllm-0.32.txt"), &Mapping::vllm()), Some(idle.clone()));
        let both = adapters(&["chat", "sql"]);
        let busy = Reading {
            running: Some(4.0),
            waiting: Some(3.0),
            kv_usage: Some(0.070_450_1),
            lora: Some(LoraReading { max: 2, running: both.clone(), waiting: both }),
            prefix_queries: Some(2299.0),
            prefix_hits: Some(1280.0),
            ..idle
        };
        assert_eq!(read(&data("vllm-0.32-busy.txt"), &Mapping::vllm()), Some(busy));
    }

    #[test]
    fn each_engine_is_read_by_its_own_names() {
        let sglang = Reading {
            running: Some(7.0),
            waiting: Some(1.0),
            kv_usage: Some(0.375),
            block_size: Some(64),
            blocks: Some(2000),
            prefix_queries: Some(8_128_902.0),
            prefix_hits: Some(2500.0),
            ..Reading::default()
        };
        let tensorrt_llm = Reading {
            running: Some(8.0),
            waiting: Some(3.0),
            kv_usage: Some(0.62),
            block_size: Some(32),
            blocks: Some(4096),
            prefix_queries: Some(1000.0),
            prefix_hits: Some(250.0),
            ..Reading::default()
        };
        let max = Reading {
            running: Some(6.0),
            waiting: Some(2.0),
            kv_usage: Some(0.25),
            blocks: Some(1200),
            prefix_queries: Some(4096.0),
            prefix_hits: Some(1024.0),
            ..Reading::default()
        };
        let all = [
            ("sglang.txt", Mapping::sglang(), sglang),
            ("tensorrt-llm.txt", Mapping::tensorrt_llm(), tensorrt_llm),
            ("max.txt", Mapping::max(), max),
        ];
        for (file, mapping, expected) in &all {
            assert_eq!(read(&data(file), mapping).as_ref(), Some(expected), "{file}");
            for other in all.iter().filter(|(other, ..)| other != file) {
                assert_eq!(read(&data(other.0), mapping), None, "{} as {file}", other.0);
            }
            assert_eq!(read(&data(file), &Mapping::vllm()), None, "{file}");
        }
    }

    #[test]
    fn ranks_and_models_are_added_up() {
        let reading = vllm(
            "vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1\n\
             vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 2\n\
             vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 4\n\
             vllm:num_requests_waiting{engine=\"0\"} 1\n\
             vllm:num_requests_waiting{engine=\"1\"} NaN\n\
             vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 100\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
             vllm:kv_cache_usage_perc{engine=\"1\"} 1\n\
             vllm:gpu_cache_usage_perc{engine=\"0\"} 0.1\n\
             vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n\
             vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"50\"} 1\n\
             vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n\
             vllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 1\n",
        );
        let expected = Reading {
            running: Some(7.0),
            waiting: Some(1.0),
            kv_usage: Some(0.75),
            block_size: Some(16),
            blocks: Some(150),
            asleep: Some(false),
            ..Reading::default()
        };
        assert_eq!(reading, expected);
    }

    #[test]
    fn older_names_count_where_newer_ones_are_not() {
        let old = "vllm:gpu_cache_usage_perc 0.25\nvllm:gpu_prefix_cache_hits_total 7\n";
        let reading = vllm(old);
        assert_eq!((reading.kv_usage, reading.prefix_hits), (Some(0.25), Some(7.0)));
        let no_number = vllm(&format!("{old}vllm:kv_cache_usage_perc NaN\n"));
        assert_eq!(no_number.kv_usage, Some(0.25));
        let old = b"sglang:cache_config_info{page_size=\"1\",num_pages=\"900\"} 1\n";
        let reading = read(old, &Mapping::sglang()).unwrap();
        assert_eq!((reading.block_size, reading.blocks), (Some(1), Some(900)));
    }

    #[test]
    fn one_scheduler_of_a_rank_tells() {
        let running = |labels: &[&str]| {
            let lines = labels.iter().map(|labels| format!("sglang:num_running_reqs{{{labels}}} 3\n"));
            let reading = read(lines.collect::<String>().as_bytes(), &Mapping::sglang());
            reading.and_then(|reading| reading.running)
        };
        assert_eq!(running(&["tp_rank=\"0\"", "tp_rank=\"1\"", "tp_rank=\"2\""]), Some(3.0));
        assert_eq!(running(&["tp_rank=\"0\",dp_rank=\"0\"", "tp_rank=\"1\",dp_rank=\"1\""]), Some(6.0));
        assert_eq!(running(&["pp_rank=\"0\"", "pp_rank=\"1\""]), Some(3.0));
        assert_eq!(running(&["priority=\"\"", "priority=\"0\"", "priority=\"None\""]), Some(3.0));
        assert_eq!(running(&["priority=\"0\""]), None);
    }

    #[test]
    fn numbers_that_cannot_be_meant_are_absent() {
        for value in ["NaN", "-1", "+Inf", "-Inf"] {
            let names =
                ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "lora_requests_info"];
            let text: String = names.iter().map(|name| format!("vllm:{name} {value}\n")).collect();
            assert_eq!(vllm(&text), Reading::default(), "{value}");
        }
        for text in ["None", "", "0", "-16", "NaN", "inf", "1e30"] {
            let line = format!("vllm:cache_config_info{{block_size=\"{text}\",num_gpu_blocks=\"None\"}} 1\n");
            assert_eq!(vllm(&line), Reading::default(), "{text:?}");
        }
        let most = vllm("vllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 7\n");
        assert_eq!((most.running, most.kv_usage), (Some(f32::MAX), Some(1.0)));
        assert_eq!(read(b"", &Mapping::vllm()), None);
        assert_eq!(read(b"up 1\nvllm:num_requests_runnin 1\n", &Mapping::vllm()), None);
        let none =
            read(b"maxserve_cache_num_used_blocks 0\nmaxserve_cache_num_total_blocks 0\n", &Mapping::max());
        assert_eq!(none, Some(Reading::default()), "no share of nothing, and no blocks");
    }

    #[test]
    fn lines_that_are_none_are_counted() {
        let reading = vllm(
            "?\nvllm:num_requests_running 1\nvllm:num_requests_waiting one\nvllm:num_requests_waiting\n",
        );
        assert_eq!((reading.running, reading.waiting, reading.unread), (Some(1.0), None, 2));
    }

    #[test]
    fn an_engine_sleeps_at_either_level() {
        let state = |awake, level_1, level_2| {
            let line = |state, value| format!("vllm:engine_sleep_state{{sleep_state=\"{state}\"}} {value}\n");
            let lines =
                [line("awake", awake), line("weights_offloaded", level_1), line("discard_all", level_2)];
            vllm(&lines.concat()).asleep
        };
        assert_eq!(state(1, 0, 0), Some(false));
        assert_eq!(state(0, 1, 0), Some(true));
        assert_eq!(state(0, 0, 1), Some(true));
        assert_eq!(vllm("vllm:num_requests_running 1\n").asleep, None);
    }

    #[test]
    fn of_adapters_the_newest_series_counts() {
        let line = |running: &str, waiting: &str, time: &str| {
            format!(
                "vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"{running}\",\
                 waiting_lora_adapters=\"{waiting}\"}} {time}\n"
            )
        };
        let text = [
            line("a", "b", "1.5e9"),
            line("b, c", ",a,", "1.6e9"),
            line("d", "", "1.4e9"),
            line("e", "", "NaN"),
        ];
        let expected = LoraReading { max: 4, running: adapters(&["b", "c"]), waiting: adapters(&["a"]) };
        assert_eq!(vllm(&text.concat()).lora, Some(expected));
        assert_eq!(vllm("vllm:lora_requests_info 1\n").lora, Some(LoraReading::default()));
    }

    #[test]
    fn adapters_have_a_bound() {
        let many: Vec<_> = (0..1000).map(|n| n.to_string()).collect();
        let long = "x".repeat(MAX_ADAPTER_NAME + 1);
        let text = format!(
            "vllm:lora_requests_info{{max_lora=\"5000000000\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{long},{},y\"}} 1\n",
            many.join(","),
            &long[1..]
        );
        let lora = vllm(&text).lora.unwrap();
        assert_eq!(
            (lora.max, lora.running.len(), lora.running.last().unwrap().as_str()),
            (0, MAX_ADAPTERS, "63")
        );
        assert_eq!(lora.waiting, [&long[1..], "y"]);
    }

    #[test]
    fn other_engines_are_read_by_names_of_a_configuration() {
        let text = b"nv_trt_llm_request_metrics{request_type=\"active\",version=\"1\"} 5\n\
            nv_trt_llm_request_metrics{request_type=\"waiting\",version=\"1\"} 2\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",version=\"1\"} 0.5\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",version=\"1\"} 64\n\
            blocks{state=\"used\"} 3\nblocks{state=\"all\"} 4\ninfo{blocks=\"12\"} 1\n";
        let number = |series: &str, label: Option<&str>| {
            Some(Number { series: series.to_owned(), label: label.map(str::to_owned) })
        };
        let mut names = Names {
            running: Some("nv_trt_llm_request_metrics{request_type=\"active\"}".to_owned()),
            waiting: Some("nv_trt_llm_request_metrics{request_type=\"waiting\",}".to_owned()),
            kv_usage: Some(Usage::Share(
                "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"}".to_owned(),
            )),
            block_size: number("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"}", None),
            blocks: number("info", Some("blocks")),
            lora: Some("loras".to_owned()),
        };
        let expected = Reading {
            running: Some(5.0),
            waiting: Some(2.0),
            kv_usage: Some(0.5),
            block_size: Some(64),
            blocks: Some(12),
            ..Reading::default()
        };
        assert_eq!(read(text, &Mapping::custom(&names).unwrap()), Some(expected.clone()));
        names.kv_usage = Some(Usage::Of {
            used: "blocks{state=\"used\"}".to_owned(),
            total: "blocks{state=\"all\"}".to_owned(),
        });
        let reading = read(text, &Mapping::custom(&names).unwrap());
        assert_eq!(reading, Some(Reading { kv_usage: Some(0.75), ..expected }));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let running =
            |name: &str| Mapping::custom(&Names { running: Some(name.to_owned()), ..Names::default() });
        assert!(running("a:b_1{c=\"d\"}").is_ok());
        let long = "x".repeat(MAX_NAME + 1);
        for none in ["", "1a", "a b", "a{", "a{b}", "a{b=c}", "a{b=\"c\"", "a{b=\"c\"} ", "a\n", "é", &long]
        {
            let why = running(none).unwrap_err();
            assert!(!why.is_empty() && why.len() < 1000, "{none}");
        }
        let only_lora = Names { lora: Some("loras".to_owned()), ..Names::default() };
        for names in [Names::default(), only_lora] {
            assert!(Mapping::custom(&names).unwrap_err().contains("none of running"));
        }
        let blocks = Some(Number { series: "info".to_owned(), label: Some("a b".to_owned()) });
        let names = Names { running: Some("r".to_owned()), blocks, ..Names::default() };
        assert!(Mapping::custom(&names).unwrap_err().contains("\"a b\""));
    }

    /// `cargo test --release -p warmpath --lib pods::metrics -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn how_long_it_takes() {
        let text = data("vllm-0.32-busy.txt");
        let mapping = Mapping::vllm();
        let mut least = Duration::MAX;
        for _ in 0..2000 {
            #[allow(clippy::disallowed_methods)]
            let start = std::time::Instant::now();
            std::hint::black_box(read(std::hint::black_box(&text), &mapping));
            least = least.min(start.elapsed());
        }
        eprintln!("{} bytes: {least:?} at least", text.len());
    }
}
