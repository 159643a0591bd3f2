//! From messages to feeds: which pod speaks, of which model, and what is said where it can't be taken.

use crate::config::PodBy;
use crate::host::{Host, Level};
use crate::metrics::Metric;
use crate::plugin::Plugin;
use crate::pods::Pod;
use std::cell::RefCell;
use std::collections::BTreeMap;

use super::batch::Batch;
use super::feed::{Model, Sequence};
use super::feeds::{Arrival, Cache, Speaker, Taken};

/// Ticks between two log lines about the same: a minute.
const QUIET: u64 = 600;
/// Longest quotation of what a publisher said.
const MOST_QUOTED: usize = 100;

/// Whose events they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The pod, as it was when the publisher was heard first.
    pub pod: Pod,
    /// The model that its blocks are of, as the publisher calls it or as the pod is configured.
    pub model: String,
}

/// Why events are not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Nobody knows this pod, or it may not speak for it.
    Stranger(String),
    /// Not ZMTP, or not as it is spoken here.
    Protocol(String),
    /// No batch.
    Unreadable(String),
    /// Nobody hashes prompts of this model as tokens.
    NoTokenizer(String),
    /// A rank that the pod isn't configured to have.
    NoRank(u32),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stranger(why) | Self::Protocol(why) => f.write_str(why),
            Self::Unreadable(why) => write!(f, "a batch can't be read: {why}"),
            Self::NoTokenizer(model) => {
                write!(
                    f,
                    "{model:?} has no tokenizer, so its blocks can't be looked for; name it under `tokenizers`"
                )
            }
            Self::NoRank(rank) => {
                write!(f, "it speaks of data-parallel rank {rank}; give the pod more `ranks`")
            }
        }
    }
}

impl Problem {
    const fn metric(&self) -> Metric {
        match self {
            Self::Stranger(_) => Metric::KvEventsStrangers,
            Self::Protocol(_) => Metric::KvEventsProtocol,
            Self::Unreadable(_) => Metric::KvEventsUnreadable,
            Self::NoTokenizer(_) => Metric::KvEventsNoTokenizer,
            Self::NoRank(_) => Metric::KvEventsNoRank,
        }
    }
}

/// When what was complained of last, so that logs stay short.
#[derive(Debug, Default)]
pub struct Complaints {
    last: RefCell<BTreeMap<u32, u64>>,
}

impl Complaints {
    /// Whether a complaint about this metric may be logged now.
    pub fn may(&self, metric: Metric, now: u64) -> bool {
        let Ok(mut last) = self.last.try_borrow_mut() else { return false };
        let is_due = last.get(&(metric as u32)).is_none_or(|last| now.saturating_sub(*last) >= QUIET);
        if is_due {
            last.insert(metric as u32, now);
        }
        is_due
    }
}

/// Takes the events of one plugin configuration.
pub struct Intake<'a, H: Host> {
    /// Envoy.
    pub host: &'a H,
    /// The configuration.
    pub plugin: &'a Plugin,
}

/// A batch as it arrives.
pub struct Message<'a> {
    /// Whose it is.
    pub source: &'a Source,
    /// What it says.
    pub batch: &'a Batch,
    /// Its number.
    pub number: Option<u64>,
    /// Whether its publisher has heard nothing before it.
    pub anew: bool,
    /// Who says it.
    pub speaker: Speaker,
}

impl<H: Host> Intake<'_, H> {
    /// The pod and model that a topic such as `kv@pod-1@llama` names. A pod is named by its name, its address, or its
    /// address's host where no other has that.
    pub fn by_topic(&self, topic: &[u8]) -> Result<Source, Problem> {
        let stranger = |what: &str| {
            let topic = quoted(topic);
            Problem::Stranger(format!(
                "the topic {topic:?} {what}; engines are to publish under kv@POD@MODEL"
            ))
        };
        let text = str::from_utf8(topic).map_err(|_| stranger("is no text"))?;
        let rest = text.strip_prefix("kv@").ok_or_else(|| stranger("names no pod"))?;
        let (pod, model) = rest.split_once('@').map_or((rest, None), |(pod, model)| (pod, Some(model)));
        let pod = self.plugin.pod_named(pod).ok_or_else(|| stranger("names a pod that isn't configured"))?;
        Ok(self.source(pod, model.filter(|model| !model.is_empty())))
    }

    /// The pod that a connection comes from.
    pub fn by_address(&self, address: &str) -> Result<Source, Problem> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let pod = self.plugin.pod_named(host).ok_or_else(|| {
            let problem = "no single pod is configured with this address; with several pods of one address, set kv_events.pod_by to topic";
            Problem::Stranger(format!("it connects from {}: {problem}", quoted(address.as_bytes())))
        })?;
        Ok(self.source(pod, None))
    }

    /// The pod that a message is of, by what is configured to say it.
    pub fn source_of(&self, topic: &[u8]) -> Result<Source, Problem> {
        match self.plugin.settings.kv_events.pod_by {
            PodBy::Topic => self.by_topic(topic),
            PodBy::Address => {
                let address = self.host.property(&["source", "address"]).ok().flatten().unwrap_or_default();
                let source = self.by_address(&String::from_utf8_lossy(&address))?;
                // The topic may still say the model.
                let model = str::from_utf8(topic).ok().and_then(|topic| topic.strip_prefix("kv@"));
                let model = model.and_then(|rest| rest.split_once('@')).map(|(_, model)| model);
                Ok(self.source(source.pod, model))
            }
        }
    }

    /// A pod's events about a model: the one that is named, the pod's first, or the only one that is known.
    pub fn source(&self, pod: Pod, model: Option<&str>) -> Source {
        let first = pod.models.first().map(String::as_str);
        let only = match self.plugin.settings.tokenizers.as_slice() {
            [only] => only.models.first().map(String::as_str),
            _ => None,
        };
        let model = model.or(first).or(only).unwrap_or_default().to_owned();
        Source { pod, model }
    }

    /// Takes a batch. It is brought into the log by [`Intake::flush`].
    pub fn take(&self, message: &Message<'_>) -> Result<Taken, Problem> {
        let Message { source, batch, number, anew, speaker } = message;
        let settings = &self.plugin.settings;
        let known = self.plugin.tokenizer_of(Some(&source.model));
        let (tokenizer, _) = known.ok_or_else(|| Problem::NoTokenizer(quoted(source.model.as_bytes())))?;
        let pod = &source.pod;
        let id = pod.cache_id(batch.rank).ok_or(Problem::NoRank(batch.rank))?;
        let name = match batch.rank {
            0 => pod.name.clone(),
            rank => format!("{}#{rank}", pod.name),
        };
        let model = tokenizer.model(Some(&source.model)).unwrap_or_default();
        let arrival = Arrival {
            batch,
            number: *number,
            anew: *anew,
            speaker: *speaker,
            model: Model { name: model, block_tokens: tokenizer.block_tokens },
        };
        let Ok(mut fleet) = self.plugin.fleet.try_borrow_mut() else {
            return Err(Problem::Unreadable("this worker is busy".to_owned()));
        };
        let fleet = &mut *fleet;
        if fleet.index.find(&id).is_none() {
            fleet.catch_up(self.host);
        }
        let now = fleet.ticks();
        let cache = Cache { id: &id, name: &name };
        let taken =
            fleet.feeds.take(self.host, &fleet.index, cache, settings.kv_events.cache_blocks, arrival, now);
        let passed = taken.passed;
        for (metric, count) in [
            (Metric::KvEventsBatches, 1),
            (Metric::KvEventsStored, passed.stored),
            (Metric::KvEventsRemoved, passed.removed),
            (Metric::KvEventsOffloaded, passed.offloaded),
            (Metric::KvEventsOtherGroups, passed.other_groups),
            (Metric::KvEventsBlockSize, passed.other_size),
            (Metric::KvEventsRefused, passed.refused),
            (Metric::KvEventsForgotten, passed.forgotten),
            (Metric::KvEventsUnknown, passed.unknown),
            (Metric::KvEventsUnusable, passed.unusable),
            (Metric::KvEventsGaps, u64::from(taken.sequence == Sequence::Gap)),
            (Metric::KvEventsStarts, u64::from(taken.sequence == Sequence::Start)),
        ] {
            fleet.metrics.add(self.host, metric, count);
        }
        if passed.other_size > 0
            && let Some(size) = taken.mismatch
        {
            let cure = format!(
                "{name} caches blocks of {size} tokens, while prompts of {model:?} are hashed in blocks of {}: it \
                 stays approximate; set the tokenizer's block_tokens to {size}",
                tokenizer.block_tokens
            );
            self.say(Metric::KvEventsBlockSize, Level::Error, now, &cure);
        }
        if let Some(why) = taken.complaint {
            let why = format!("{name} sent an event that can't be used: {why}");
            self.say(Metric::KvEventsUnusable, Level::Warn, now, &why);
        }
        if passed.refused > 0 {
            let why = format!(
                "{name} holds more blocks than are known by name ({}); raise kv_events.cache_blocks",
                settings.kv_events.cache_blocks
            );
            self.say(Metric::KvEventsRefused, Level::Warn, now, &why);
        }
        Ok(taken)
    }

    /// Brings what was taken into the log.
    pub fn flush(&self) {
        let Ok(mut fleet) = self.plugin.fleet.try_borrow_mut() else { return };
        let fleet = &mut *fleet;
        let now = fleet.ticks();
        fleet.feeds.flush(self.host, &mut fleet.index, &fleet.metrics, now);
    }

    /// A connection was closed.
    pub fn closed(&self, connection: u32) {
        let Ok(mut fleet) = self.plugin.fleet.try_borrow_mut() else { return };
        let fleet = &mut *fleet;
        let now = fleet.ticks();
        fleet.feeds.closed(self.host, &mut fleet.index, connection, now);
    }

    /// A batch of this speaker can't be read: what it said is not to be relied on any more.
    pub fn skip(&self, speaker: Speaker, number: Option<u64>) {
        if let Ok(mut fleet) = self.plugin.fleet.try_borrow_mut() {
            fleet.feeds.skip(speaker, number);
        }
    }

    /// Counts a problem, and logs the first of its kind in a minute.
    pub fn report(&self, who: &str, problem: &Problem) {
        self.plugin.count(self.host, problem.metric());
        let now = self.plugin.fleet.try_borrow().map_or(0, |fleet| fleet.ticks());
        self.say(problem.metric(), Level::Warn, now, &format!("{who}: {problem}"));
    }

    fn say(&self, metric: Metric, level: Level, now: u64, what: &str) {
        if self.plugin.complaints.may(metric, now) {
            self.host.log(level, &format!("warmpath: KV events: {what} (said once a minute)"));
        }
    }
}

/// What a publisher said, fit for a log.
fn quoted(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(MOST_QUOTED).collect()
}
