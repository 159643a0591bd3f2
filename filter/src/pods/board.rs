//! What was learnt of the pods by asking, as all VMs of an Envoy read it: one value in shared data.
//!
//! Whoever asks writes it whole. Keys are never freed, so there are [`PLACES`] of them for all configurations that there ever
//! are: a configuration takes one that nobody has, or whose owner has been silent for a minute. Readers know theirs by the
//! configuration's digest in it.

use super::discovery::Found;
use super::engine::{Engine, Lora, MOST_ADAPTERS};
use crate::host::{Cas, Expect, HostResult, SharedData, Versioned, Write};
use crate::index::wire::{self, Put, Reader};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_64;

/// Configurations that can have a board at one time.
const PLACES: usize = 32;
/// Ticks after which a place whose value didn't change is free: a minute. Whoever has one writes at least every few seconds.
const SILENT: u64 = 600;
/// Most pods that are told of, those that are found and those that said something.
const MOST: usize = 4096;

const FORMAT: u8 = 1;

/// What an engine said, and when.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Told {
    /// What it said.
    pub engine: Engine,
    /// Tokens in a block of its KV cache.
    pub block_size: Option<u32>,
    /// Blocks of its KV cache.
    pub blocks: Option<u32>,
    /// The tick of this VM at which it said so; below 0 where that was before the VM began.
    pub at: i64,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Content {
    /// What Envoy's admin knows.
    pub found: Vec<Found>,
    /// What engines said, by [`key`].
    pub told: BTreeMap<u64, Told>,
}

/// By what a pod is known here: a digest of [`Pod::id`](super::Pod::id).
pub fn key(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

/// The board of one configuration, in one VM.
#[derive(Debug)]
pub struct Board {
    fingerprint: u64,
    /// Ticks after which what an engine said is forgotten.
    stale: u64,
    now: u64,
    place: Option<usize>,
    seen: Option<Cas>,
    /// What stood at each place when this VM wanted one, and since which tick.
    watched: BTreeMap<usize, (Cas, u64)>,
    /// Changes with what is found.
    version: u64,
    news: u64,
    content: Content,
    /// What this VM alone heard.
    heard: BTreeMap<u64, Told>,
}

impl Board {
    /// An empty board.
    pub fn new(fingerprint: u64, stale: u64) -> Self {
        Self {
            fingerprint,
            stale,
            now: 0,
            place: None,
            seen: None,
            watched: BTreeMap::new(),
            version: 0,
            news: 0,
            content: Content::default(),
            heard: BTreeMap::new(),
        }
    }

    /// Changes whenever other pods were found.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The last tick of this VM at which it was read.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What is written there.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// What Envoy's admin knows.
    pub fn found(&self) -> &[Found] {
        &self.content.found
    }

    /// Changes whenever anything new was read or heard.
    pub fn news(&self) -> u64 {
        self.news
    }

    /// What a pod's engine said last, unless that is too long ago. The pod is named by its [`key`].
    pub fn told(&self, key: u64) -> Option<Engine> {
        let fresh = |told: &&Told| (self.now as i64).saturating_sub(told.at) < self.stale as i64;
        let told = self.content.told.get(&key).filter(fresh);
        let heard = self.heard.get(&key).filter(fresh);
        let (newer, older) = match (told, heard) {
            (Some(told), Some(heard)) if heard.at > told.at => (heard, Some(told)),
            (Some(told), heard) => (told, heard),
            (None, heard) => (heard?, None),
        };
        // What is heard is less than what is asked for.
        let older = older.map(|told| told.engine.clone()).unwrap_or_default();
        let Engine { running, waiting, kv_usage, asleep, lora } = newer.engine.clone();
        Some(Engine {
            running: running.or(older.running),
            waiting: waiting.or(older.waiting),
            kv_usage: kv_usage.or(older.kv_usage),
            // Who answers is awake.
            asleep,
            lora: lora.or(older.lora),
        })
    }

    /// A pod's engine said something to this VM.
    pub fn hear(&mut self, id: &str, engine: Engine) {
        let key = key(id);
        if self.heard.len() < MOST || self.heard.contains_key(&key) {
            self.heard.insert(key, Told { engine, at: self.now as i64, ..Told::default() });
            self.news += 1;
        }
    }

    /// Reads what is new. `now` counts this VM's ticks.
    pub fn read(&mut self, host: &impl SharedData, now: u64) -> HostResult<()> {
        self.now = now;
        self.heard.retain(|_, told| (now as i64).saturating_sub(told.at) < self.stale as i64);
        if let Some(place) = self.place {
            match host.shared_get(&name(place))? {
                Some(there) if self.take(&there) => return Ok(()),
                _ => self.place = None,
            }
        }
        for place in 0..PLACES {
            let Some(there) = host.shared_get(&name(place))? else { break };
            if self.take(&there) {
                self.place = Some(place);
                break;
            }
        }
        Ok(())
    }

    /// Takes a value, if it is of this configuration.
    fn take(&mut self, there: &Versioned) -> bool {
        if self.seen == Some(there.cas) {
            return true;
        }
        let Some((fingerprint, content)) = read(&there.value, self.now) else { return false };
        if fingerprint != self.fingerprint {
            return false;
        }
        self.seen = Some(there.cas);
        self.news += 1;
        if content.found != self.content.found {
            self.version += 1;
        }
        self.content = content;
        true
    }

    /// Writes what was learnt. Says whether it is there now; else there was no place, or another wrote at the same time.
    pub fn write(&mut self, host: &impl SharedData, content: &Content) -> HostResult<bool> {
        let bytes = write(self.fingerprint, content, self.now);
        if let (Some(place), Some(seen)) = (self.place, self.seen) {
            return Ok(host.shared_set(&name(place), &bytes, Expect::Version(seen))? == Write::Done);
        }
        if self.place.is_some() {
            // Just taken: what stands there is read first.
            return Ok(false);
        }
        for place in 0..PLACES {
            let expect = match host.shared_get(&name(place))? {
                None => Expect::Absent,
                Some(there) => match self.watched.get(&place) {
                    Some((cas, since)) if *cas == there.cas => {
                        if self.now.saturating_sub(*since) < SILENT {
                            continue;
                        }
                        Expect::Version(there.cas)
                    }
                    _ => {
                        self.watched.insert(place, (there.cas, self.now));
                        continue;
                    }
                },
            };
            if host.shared_set(&name(place), &bytes, expect)? == Write::Done {
                self.place = Some(place);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn name(place: usize) -> String {
    format!("wp/board/{place}")
}

fn write(fingerprint: u64, content: &Content, now: u64) -> Vec<u8> {
    let mut out = wire::begin(64 + content.found.len() * 64 + content.told.len() * 40);
    out.put_u8(FORMAT);
    out.put_u64(fingerprint);
    let found = content.found.get(..MOST).unwrap_or(&content.found);
    out.put_u16(u16::try_from(found.len()).unwrap_or(u16::MAX));
    for Found { cluster, address, hostname, zone, weight, healthy } in found {
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        for text in [cluster, &address, hostname, zone] {
            out.put_text(text);
        }
        out.put_u32(*weight);
        out.put_u8(u8::from(*healthy));
    }
    out.put_u16(u16::try_from(content.told.len().min(MOST)).unwrap_or(u16::MAX));
    for (key, Told { engine, block_size, blocks, at }) in content.told.iter().take(MOST) {
        out.put_u64(*key);
        out.put_u32(u32::try_from((now as i64).saturating_sub(*at).max(0)).unwrap_or(u32::MAX));
        for number in [engine.running, engine.waiting, engine.kv_usage] {
            out.put_u32(number.unwrap_or(f32::NAN).to_bits());
        }
        out.put_u32(block_size.unwrap_or(0));
        out.put_u32(blocks.unwrap_or(0));
        out.put_u8(u8::from(engine.asleep));
        let Some(Lora { max, running, waiting }) = &engine.lora else {
            out.put_u8(0);
            continue;
        };
        out.put_u8(1);
        out.put_u32(*max);
        for adapters in [running, waiting] {
            let adapters = adapters.get(..MOST_ADAPTERS).unwrap_or(adapters);
            out.put_u8(u8::try_from(adapters.len()).unwrap_or(u8::MAX));
            out.put_u64s(adapters);
        }
    }
    wire::seal(&mut out);
    out
}

fn read(bytes: &[u8], now: u64) -> Option<(u64, Content)> {
    let mut from = wire::open(bytes)?;
    (from.u8()? == FORMAT).then_some(())?;
    let fingerprint = from.u64()?;
    let count = usize::from(from.u16()?);
    let found = (0..count.min(MOST)).map(|_| found(&mut from)).collect::<Option<_>>()?;
    let count = usize::from(from.u16()?);
    let told =
        (0..count.min(MOST)).map(|_| Some((from.u64()?, told(&mut from, now)?))).collect::<Option<_>>()?;
    from.end()?;
    Some((fingerprint, Content { found, told }))
}

fn found(from: &mut Reader<'_>) -> Option<Found> {
    let cluster = from.text()?.to_owned();
    let address = match from.text()? {
        "" => None,
        text => Some(text.parse::<SocketAddr>().ok()?),
    };
    let (hostname, zone) = (from.text()?.to_owned(), from.text()?.to_owned());
    Some(Found { cluster, address, hostname, zone, weight: from.u32()?, healthy: from.u8()? == 1 })
}

fn told(from: &mut Reader<'_>, now: u64) -> Option<Told> {
    let at = (now as i64).saturating_sub(i64::from(from.u32()?));
    let mut number = || Some(Some(f32::from_bits(from.u32()?)).filter(|number| (0.0..1e9).contains(number)));
    let (running, waiting, kv_usage) = (number()?, number()?, number()?);
    let mut positive = || Some(Some(from.u32()?).filter(|number| *number > 0));
    let (block_size, blocks) = (positive()?, positive()?);
    let asleep = from.u8()? == 1;
    let lora = match from.u8()? {
        0 => None,
        _ => {
            let max = from.u32()?;
            let mut adapters = || {
                let count = usize::from(from.u8()?);
                (count <= MOST_ADAPTERS).then_some(())?;
                from.u64s(count)
            };
            Some(Lora { max, running: adapters()?, waiting: adapters()? })
        }
    };
    Some(Told { engine: Engine { running, waiting, kv_usage, asleep, lora }, block_size, blocks, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeShared;
    use proptest::prelude::*;

    fn content(waiting: f32, at: i64) -> Content {
        let engine = Engine { waiting: Some(waiting), ..Engine::default() };
        let found = vec![Found {
            cluster: "pods".into(),
            address: Some("10.0.0.1:80".parse().unwrap()),
            hostname: "a".into(),
            zone: String::new(),
            weight: 1,
            healthy: false,
        }];
        Content { found, told: [(key("a"), Told { engine, at, ..Told::default() })].into() }
    }

    #[test]
    fn what_one_writes_all_of_its_configuration_read_until_it_is_stale() {
        let shared = FakeShared::default();
        let (mut writer, mut reader) = (Board::new(7, 50), Board::new(7, 50));
        let mut other = Board::new(8, 50);
        writer.read(&shared, 100).unwrap();
        assert!(writer.write(&shared, &content(3.0, 95)).unwrap());
        for board in [&mut reader, &mut other] {
            board.read(&shared, 1000).unwrap();
        }
        assert_eq!((reader.version(), other.version()), (1, 0));
        assert_eq!(reader.told(key("a")).unwrap().waiting, Some(3.0));
        assert!(!reader.found()[0].healthy);
        reader.read(&shared, 1044).unwrap();
        assert!(reader.told(key("a")).is_some());
        reader.read(&shared, 1045).unwrap();
        assert_eq!(reader.told(key("a")), None, "it was five ticks old when it was written");
        assert!(other.write(&shared, &content(9.0, 0)).unwrap());
        writer.read(&shared, 101).unwrap();
        assert!(writer.write(&shared, &content(4.0, 101)).unwrap());
        reader.read(&shared, 1046).unwrap();
        assert_eq!(reader.told(key("a")).unwrap().waiting, Some(4.0));
        assert_eq!(reader.version(), 1, "the same pods");
        assert_eq!(shared.keys(), 2);
    }

    #[test]
    fn what_a_vm_hears_itself_counts_while_it_is_newer() {
        let shared = FakeShared::default();
        let mut board = Board::new(7, 50);
        board.read(&shared, 10).unwrap();
        board.hear("a", Engine { waiting: Some(5.0), ..Engine::default() });
        assert_eq!(board.told(key("a")).unwrap().waiting, Some(5.0));
        board.write(&shared, &content(3.0, 12)).unwrap();
        board.read(&shared, 12).unwrap();
        assert_eq!(board.told(key("a")).unwrap().waiting, Some(3.0));
    }

    #[test]
    fn places_are_bounded_and_those_of_the_silent_are_taken_over() {
        let shared = FakeShared::default();
        for fingerprint in 0..PLACES as u64 {
            assert!(Board::new(fingerprint, 50).write(&shared, &Content::default()).unwrap());
        }
        let mut late = Board::new(999, 50);
        let (mut living, mut tick) = (Board::new(0, 50), 0);
        let taken = loop {
            living.read(&shared, tick).unwrap();
            assert!(living.write(&shared, &content(1.0, tick as i64)).unwrap(), "tick {tick}");
            late.read(&shared, tick).unwrap();
            if late.write(&shared, &Content::default()).unwrap() {
                break tick;
            }
            tick += 1;
        };
        assert_eq!(taken, SILENT);
        assert_eq!(shared.keys(), PLACES);
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_are_a_board(mut inner in prop::collection::vec(any::<u8>(), 0..300), format: bool) {
            if let (true, Some(first)) = (format, inner.first_mut()) {
                *first = FORMAT;
            }
            let mut bytes = wire::begin(0);
            bytes.extend(&inner);
            wire::seal(&mut bytes);
            let _ = read(&bytes, 5);
            let good = write(1, &content(2.0, 3), 5);
            prop_assert_eq!(read(&good, 5), Some((1, content(2.0, 3))));
            prop_assert_eq!(read(&good[..good.len() - 1], 5), None);
        }
    }
}
