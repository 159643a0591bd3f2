//! All feeds that this VM hears, and what of theirs is on its way into the log.
//!
//! Each worker hears the engines whose connections it has; all workers learn what was said through the log. Where the log takes
//! nothing for a while, changes wait here within a bound; beyond it they are dropped, and every feed is uncertain from then on.

use crate::host::{Host, HostResult, MetricId, MetricKind};
use crate::index::{Appended, Delta, Index, OnUnseen, PodSet};
use crate::metrics::{Metric, Metrics};
use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::Batch;
use super::feed::{Feed, Model, Passed, Sequence};

/// Hashes that may wait for the log: 2 MB.
const MOST_WAITING: usize = 262_144;
/// Hashes that are appended at once: an entry of the log.
const ENTRY: usize = 960;
/// Waiting changes that are searched for those that a clearing makes needless.
const MOST_SEARCHED: usize = 4096;
/// Ticks without a word after which a publisher that has no connection of its own is thought to be gone: 30 s.
const SILENT: u64 = 300;
/// Ticks between two writings of gauges.
const GAUGES: u64 = 10;
/// Longest part of a metric's name that is a cache's.
const MOST_NAME: usize = 96;

/// Who says what a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// A connection of its own, by the number of its context.
    Connection(u32),
    /// Requests, which come on any connection.
    Requests,
}

/// One cache: a pod's, or that of one of its ranks.
#[derive(Debug, Clone, Copy)]
pub struct Cache<'a> {
    /// Its identity in the index.
    pub id: &'a str,
    /// What people call it.
    pub name: &'a str,
}

/// How good what is known of a cache is: the value of its gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// No events: by what was routed.
    Approximate,
    /// Events, but not from the beginning: by what was routed, and by what was stored since.
    Uncertain,
    /// By events.
    Exact,
}

/// A batch with what is said around it.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The batch.
    pub batch: &'a Batch,
    /// Its number, where it has one.
    pub number: Option<u64>,
    /// Whether its publisher has heard nothing before it. The first on a connection is always so.
    pub anew: bool,
    /// Who says it.
    pub speaker: Speaker,
    /// The model of its blocks.
    pub model: Model<'a>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// How it followed.
    pub sequence: Sequence,
    /// The number that the next must have.
    pub next: Option<u64>,
    /// What was in it.
    pub passed: Passed,
    /// The engine's block size, where that isn't the one that prompts are hashed in.
    pub mismatch: Option<u32>,
    /// What was unusable.
    pub complaint: Option<&'static str>,
}

#[derive(Debug)]
struct Heard {
    feed: Feed,
    /// `None` once its connection is closed.
    speaker: Option<Speaker>,
    /// The tick at which it was heard last.
    at: u64,
    /// From the engine's clock to ours when it was heard last.
    lag: Duration,
    gauges: Gauges,
}

/// The gauges and counters of one cache.
#[derive(Debug)]
struct Gauges {
    mode: HostResult<MetricId>,
    lag: HostResult<MetricId>,
    blocks: HostResult<MetricId>,
    waiting: HostResult<MetricId>,
    gaps: HostResult<MetricId>,
}

impl Gauges {
    fn define(host: &impl Host, name: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = name.chars().take(MOST_NAME).map(plain).collect();
        let define =
            |kind, what: &str| host.define_metric(kind, &format!("warmpath.kv_events.{name}.{what}"));
        Self {
            mode: define(MetricKind::Gauge, "mode"),
            lag: define(MetricKind::Gauge, "lag_milliseconds"),
            blocks: define(MetricKind::Gauge, "blocks"),
            waiting: define(MetricKind::Gauge, "blocks_waiting"),
            gaps: define(MetricKind::Counter, "gaps"),
        }
    }
}

fn record(host: &impl Host, id: &HostResult<MetricId>, value: u64) {
    if let Ok(id) = id {
        let _ = host.record_metric(*id, value);
    }
}

impl Heard {
    /// What was told is not what the index holds. Who can repeat it is asked to.
    fn doubt(&mut self) {
        if self.feed.is_exact() {
            self.feed.doubt();
            if self.speaker == Some(Speaker::Requests) || self.speaker.is_none() {
                self.feed.begin_again();
            }
        }
    }

    fn is_heard(&self, now: u64) -> bool {
        match self.speaker {
            Some(Speaker::Connection(_)) => true,
            Some(Speaker::Requests) => now.saturating_sub(self.at) < SILENT,
            None => false,
        }
    }

    fn mode(&self, now: u64) -> Mode {
        match (self.is_heard(now), self.feed.is_exact()) {
            (false, _) => Mode::Approximate,
            (true, false) => Mode::Uncertain,
            (true, true) => Mode::Exact,
        }
    }

    fn write(&self, host: &impl Host, now: u64) {
        record(host, &self.gauges.mode, self.mode(now) as u64);
        record(host, &self.gauges.lag, u64::try_from(self.lag.as_millis()).unwrap_or(u64::MAX));
        record(host, &self.gauges.blocks, self.feed.blocks() as u64);
        record(host, &self.gauges.waiting, self.feed.waiting() as u64);
    }
}

/// What a change weighs among those that wait.
fn weight(delta: &Delta) -> usize {
    1 + delta.hashes().len()
}

/// The feeds of one VM.
#[derive(Debug, Default)]
pub struct Feeds {
    /// By the cache's identity. As many as pods and ranks are configured, at most.
    heard: BTreeMap<Box<str>, Heard>,
    waiting: Vec<Delta>,
    waiting_hashes: usize,
}

impl Feeds {
    /// The number that the cache's next batch must have.
    pub fn next(&self, cache: &str) -> Option<u64> {
        self.heard.get(cache)?.feed.next()
    }

    /// How a batch of this number would follow, if a request brings it. `anew`: whoever sends it has heard nothing before.
    pub fn sequence(&self, index: &Index, cache: &str, number: Option<u64>, anew: bool) -> Sequence {
        match self.heard.get(cache) {
            Some(heard) => heard.feed.sequence(number, anew, index.find(cache)),
            None if number == Some(0) => Sequence::Start,
            None => Sequence::Gap,
        }
    }

    /// How good what this VM knows of a cache is.
    pub fn mode(&self, cache: &str, now: u64) -> Mode {
        self.heard.get(cache).map_or(Mode::Approximate, |heard| heard.mode(now))
    }

    /// Whether so much waits for the log that whoever can wait should.
    pub fn is_busy(&self) -> bool {
        self.waiting_hashes > MOST_WAITING / 2
    }

    /// Takes a batch of a cache, whose pod has a place in the index, or nothing of it where it has none. [`Feeds::flush`] brings
    /// it into the log.
    pub fn take(
        &mut self,
        host: &impl Host,
        index: &Index,
        cache: Cache<'_>,
        most_blocks: usize,
        arrival: Arrival<'_>,
        now: u64,
    ) -> Taken {
        let heard = self.heard.entry(cache.id.into()).or_insert_with(|| Heard {
            feed: Feed::new(most_blocks),
            speaker: None,
            at: now,
            lag: Duration::ZERO,
            gauges: Gauges::define(host, cache.name),
        });
        let Arrival { batch, number, anew, speaker, model } = arrival;
        let is_other = heard.speaker.replace(speaker) != Some(speaker);
        // Something may have been missed before it, whatever its number says.
        let anew = anew || (is_other && speaker != Speaker::Requests);
        let pod = index.find(cache.id);
        let sequence = heard.feed.sequence(number, anew, pod);
        heard.at = now;
        if batch.time > 0.0 {
            let then = Duration::try_from_secs_f64(batch.time).unwrap_or_default();
            heard.lag = host.now().saturating_sub(then);
        }
        let mut deltas = Vec::new();
        let passed = match pod {
            Some(pod) => heard.feed.apply(batch, number, (sequence, anew), pod, model, &mut deltas),
            None => {
                heard.feed.skip(number);
                Passed::default()
            }
        };
        // A clearing costs a look at every block of the index: one is enough.
        if let Some(Delta::Cleared { pod }) = deltas.first()
            && self.waiting.len() < MOST_SEARCHED
        {
            self.waiting.retain(|delta| delta.pod() != Some(*pod));
            self.waiting_hashes = self.waiting.iter().map(weight).sum();
        }
        self.waiting_hashes += deltas.iter().map(weight).sum::<usize>();
        self.waiting.append(&mut deltas);
        if sequence == Sequence::Gap
            && let Ok(id) = heard.gauges.gaps
        {
            let _ = host.increment_metric(id, 1);
        }
        if is_other {
            heard.write(host, now);
        }
        let mismatch = heard.feed.mismatch();
        Taken { sequence, next: heard.feed.next(), passed, mismatch, complaint: heard.feed.complaint() }
    }

    /// A batch that nobody could read: what its speaker said of any cache is not to be relied on any more.
    pub fn skip(&mut self, speaker: Speaker, number: Option<u64>) {
        for heard in self.heard.values_mut().filter(|heard| heard.speaker == Some(speaker)) {
            heard.feed.skip(number);
        }
    }

    /// Says that the publisher of a cache, which has no connection of its own, is there.
    pub fn still_there(&mut self, index: &mut Index, cache: &str, now: u64) {
        if let Some(heard) = self.heard.get_mut(cache) {
            heard.at = now;
            heard.speaker = heard.speaker.or(Some(Speaker::Requests));
        }
        self.tell(index, now);
    }

    /// A connection was closed: nobody says any more what its cache holds.
    pub fn closed(&mut self, host: &impl Host, index: &mut Index, connection: u32, now: u64) {
        let speaker = Some(Speaker::Connection(connection));
        for heard in self.heard.values_mut().filter(|heard| heard.speaker == speaker) {
            heard.speaker = None;
            heard.feed.lose();
            heard.write(host, now);
        }
        self.tell(index, now);
    }

    /// Brings into the log what waits for it, and tells others which caches are known.
    pub fn flush(&mut self, host: &impl Host, index: &mut Index, metrics: &Metrics, now: u64) {
        let refused = index.counts().refused_blocks;
        while let Some(count) = self.first_entry() {
            let (first, _) = self.waiting.split_at_checked(count).unwrap_or_default();
            if index.append(host, first, OnUnseen::Go) != Appended::Done {
                break;
            }
            self.waiting_hashes -= first.iter().map(weight).sum::<usize>();
            self.waiting.drain(..count);
        }
        if self.waiting_hashes > MOST_WAITING {
            metrics.add(host, Metric::KvEventsDropped, self.waiting_hashes as u64);
            self.waiting.clear();
            self.waiting_hashes = 0;
            self.heard.values_mut().for_each(Heard::doubt);
        }
        // What others removed from the index, or what it had no room for, is not there any more, whatever was told.
        let is_full = index.counts().refused_blocks > refused;
        let disturbed = index.take_disturbed();
        for heard in self.heard.values_mut() {
            if is_full || heard.feed.pod().is_some_and(|pod| disturbed.contains(pod.slot)) {
                heard.doubt();
            }
        }
        self.tell(index, now);
    }

    /// How many of the changes that wait make about one entry of the log.
    fn first_entry(&self) -> Option<usize> {
        let mut hashes = 0;
        let fit = self.waiting.iter().take_while(|delta| {
            hashes += weight(delta);
            hashes <= ENTRY
        });
        (!self.waiting.is_empty()).then(|| fit.count().max(1))
    }

    fn tell(&self, index: &mut Index, now: u64) {
        let exact = self.heard.iter().filter(|(_, heard)| heard.mode(now) == Mode::Exact);
        let exact: PodSet = exact.filter_map(|(id, _)| index.find(id)).map(|pod| pod.slot).collect();
        index.set_exact(exact);
    }

    /// What is to be done ten times a second.
    pub fn tick(&mut self, host: &impl Host, index: &mut Index, metrics: &Metrics, now: u64) {
        if self.heard.is_empty() {
            return;
        }
        self.flush(host, index, metrics, now);
        if now.is_multiple_of(GAUGES) {
            // Who is not heard any more is written once: by then another VM may hear it.
            for heard in self.heard.values_mut().filter(|heard| heard.speaker.is_some()) {
                heard.write(host, now);
                heard.speaker = heard.speaker.filter(|_| heard.is_heard(now));
            }
            self.heard.retain(|id, heard| heard.speaker.is_some() || index.find(id).is_some());
        }
    }
}
