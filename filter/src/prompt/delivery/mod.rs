//! How a tokenizer's files come into a VM.
//!
//! They may be [built in]. Else one VM, the one that keeps house (mostly Envoy's main thread, which serves no traffic), fetches them once through an
//! Envoy cluster, makes the [image](super::Image) of them, and puts that into shared data. Every VM, that one included,
//! takes it from there in slices, tick by tick. What fails is said, and tried again later; meanwhile prompts are compared as
//! text.
//!
//! [built in]: built_in

pub mod built_in;
mod shelf;
mod source;

use super::convert::{self, convert};
use super::template::ChatTemplate;
use super::tokenizer::Tokenizer;
use crate::host::{Headers, Host, Level};
use shelf::{Shelf, Taken, Taking};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

pub use source::{Remote, Source};

/// Chunks of 1 MiB that are taken in one tick.
const CHUNKS_A_TICK: usize = 4;
/// Ticks after the first failure until the next try; doubled with each.
const FIRST_PAUSE: u64 = 20;
const LONGEST_PAUSE: u64 = 3000;
/// Ticks after which an answer that never came is given up. Longer than any time-out of a source.
const LOST: u64 = 700;
/// A larger tokenizer_config.json than any in use.
const MAX_CONFIG_BYTES: usize = 8 << 20;

/// One of the two files of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Tokenizer,
    Config,
}

impl File {
    const fn name(self) -> &'static str {
        match self {
            Self::Tokenizer => "tokenizer.json",
            Self::Config => "tokenizer_config.json",
        }
    }

    const fn max_bytes(self) -> usize {
        match self {
            Self::Tokenizer => convert::MAX_JSON_BYTES,
            Self::Config => MAX_CONFIG_BYTES,
        }
    }
}

/// What a model's prompts are tokenized with.
#[derive(Debug)]
pub struct Loaded {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// `None` where the model has none.
    pub template: Option<ChatTemplate>,
}

#[derive(Debug)]
enum State {
    /// Nothing on the shelf that was not tried.
    Waiting,
    /// A call is under way.
    Fetching {
        call: u32,
        file: File,
        image: Vec<u8>,
        since: u64,
    },
    Taking(Taking),
    Ready(Box<Loaded>),
}

/// The tokenizer of one source in one VM: on its way, or there.
#[derive(Debug)]
pub struct Delivery {
    source: Source,
    shelf: Shelf,
    /// Bytes to remember blocks of text in, see [`super::Segments`].
    memory: usize,
    state: State,
    /// Ticks of this VM before which nothing is tried.
    not_before: u64,
    pause: u64,
    /// What was taken from the shelf and was no use. Who keeps house fetches the files instead of trying it again.
    refused: Option<shelf::Label>,
    failures: u64,
}

impl Delivery {
    /// A delivery that has not begun.
    pub fn new(source: Source, memory: usize) -> Self {
        let shelf = Shelf::new(match &source {
            Source::Fetched(Remote { cluster, path, .. }) => xxh3_64(format!("{cluster}\0{path}").as_bytes()),
            // Nothing is put there.
            Source::BuiltIn(_) => 0,
        });
        let state = State::Waiting;
        Self { source, shelf, memory, state, not_before: 0, pause: FIRST_PAUSE, refused: None, failures: 0 }
    }

    /// What was delivered.
    pub fn loaded(&mut self) -> Option<&mut Loaded> {
        match &mut self.state {
            State::Ready(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// How often something failed on the way, in this VM.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// What is to be done at a tick. `now` counts the VM's ticks; `keeps_house`: whether this is the VM that fetches; `seed`:
    /// see [`Tokenizer::load`].
    pub fn tick(&mut self, host: &impl Host, now: u64, keeps_house: bool, seed: u64) {
        match &self.state {
            State::Ready(_) => {}
            State::Fetching { since, .. } if now.saturating_sub(*since) < LOST => {}
            State::Fetching { file, .. } => {
                let name = file.name();
                self.failed(host, now, &format!("no answer for {name}"));
            }
            State::Waiting if now < self.not_before => {}
            State::Waiting => match &self.source {
                Source::Fetched(remote) => {
                    let remote = remote.clone();
                    self.begin(host, now, keeps_house, &remote);
                }
                Source::BuiltIn(name) => match load_built_in(name, seed, self.memory) {
                    Ok(loaded) => self.ready(host, loaded),
                    Err(error) => self.failed(host, now, &error),
                },
            },
            State::Taking(_) => self.take(host, now, seed),
        }
    }

    fn begin(&mut self, host: &impl Host, now: u64, keeps_house: bool, remote: &Remote) {
        match self.shelf.label(host) {
            // Only who can put something better there turns from what was no use; others try it again, ever more rarely:
            // the same files may have been put there once more, whole.
            Ok(Some(label)) if !keeps_house || self.refused != Some(label) => {
                self.state = State::Taking(Taking::begin(label))
            }
            Ok(_) if keeps_house => self.fetch(host, now, remote, File::Tokenizer, Vec::new()),
            Ok(_) => {}
            Err(error) => self.failed(host, now, &error),
        }
    }

    fn fetch(&mut self, host: &impl Host, now: u64, remote: &Remote, file: File, image: Vec<u8>) {
        let Remote { cluster, path, timeout } = remote;
        let path = format!("{path}{}", file.name());
        let headers =
            [(":method", "GET"), (":path", &path), (":authority", cluster), ("accept", "application/json")];
        match host.call(cluster, &headers, b"", *timeout) {
            Ok(call) => self.state = State::Fetching { call, file, image, since: now },
            Err(error) => self.failed(host, now, &format!("cluster {cluster:?} cannot be called: {error}")),
        }
    }

    /// An answer came to a call of this VM. Says whether it was for this delivery.
    pub fn on_answer(&mut self, host: &impl Host, now: u64, call: u32) -> bool {
        let (State::Fetching { call: own, file, image, .. }, Source::Fetched(remote)) =
            (&mut self.state, &self.source)
        else {
            return false;
        };
        if *own != call {
            return false;
        }
        let (file, image, remote) = (*file, std::mem::take(image), remote.clone());
        self.state = State::Waiting;
        let status = host.header(Headers::Answer, ":status").ok().flatten().unwrap_or_default();
        let body = match status.as_slice() {
            b"200" => host.answer_body(file.max_bytes() + 1).map_err(|error| error.to_string()),
            // Not every model has one.
            b"404" if file == File::Config => Ok(b"{}".to_vec()),
            // Envoy drops what is over its own limit, and says no more.
            b"" => Err("no answer in time, or one over Envoy's http.async_response_buffer_limit (a runtime key; 32 MiB \
                        where it isn't set)"
                .to_owned()),
            status => Err(format!("answered {}", String::from_utf8_lossy(status))),
        };
        let what = format!("GET {}{} from {:?}", remote.path, file.name(), remote.cluster);
        match body {
            Ok(body) if body.len() > file.max_bytes() => {
                self.failed(host, now, &format!("{what}: over {} bytes", file.max_bytes()));
            }
            Ok(body) => self.received(host, now, &remote, file, &body, image),
            Err(error) => self.failed(host, now, &format!("{what}: {error}")),
        }
        true
    }

    fn received(
        &mut self,
        host: &impl Host,
        now: u64,
        remote: &Remote,
        file: File,
        body: &[u8],
        image: Vec<u8>,
    ) {
        match file {
            File::Tokenizer => match convert(body) {
                Ok(image) => self.fetch(host, now, remote, File::Config, image),
                Err(error) => self.failed(host, now, &error),
            },
            File::Config => {
                if let Err(error) = ChatTemplate::load(body) {
                    return self.failed(host, now, &error);
                }
                match self.shelf.put(host, &[&image, body]) {
                    // It is taken from the shelf like everybody's.
                    Ok(_) => self.refused = None,
                    Err(error) => self.failed(host, now, &error),
                }
            }
        }
    }

    fn take(&mut self, host: &impl Host, now: u64, seed: u64) {
        let State::Taking(taking) = &mut self.state else { return };
        let label = taking.label();
        let loaded = match taking.step(host, &self.shelf, CHUNKS_A_TICK) {
            Ok(Taken::More) => return,
            Ok(Taken::Files(files)) => match files.as_slice() {
                [image, config] => load(image, config, seed, self.memory),
                files => Err(format!("{} files in the place of two", files.len())),
            },
            Ok(Taken::Broken) => Err("what another VM left in shared data is not whole".to_owned()),
            // Says nothing of what is there.
            Err(error) => return self.failed(host, now, &error),
        };
        match loaded {
            Ok(loaded) => self.ready(host, loaded),
            Err(error) => {
                self.refused = Some(label);
                self.failed(host, now, &error);
            }
        }
    }

    fn ready(&mut self, host: &impl Host, loaded: Loaded) {
        let bytes = loaded.tokenizer.memory_bytes();
        host.log(Level::Info, &format!("warmpath: tokenizer {} is loaded, {bytes} bytes", self.source));
        self.state = State::Ready(Box::new(loaded));
        self.pause = FIRST_PAUSE;
    }

    fn failed(&mut self, host: &impl Host, now: u64, error: &dyn fmt::Display) {
        self.state = State::Waiting;
        self.failures += 1;
        self.not_before = now.saturating_add(self.pause);
        host.log(
            Level::Warn,
            &format!(
                "warmpath: tokenizer {} cannot be had: {error}. Its prompts are compared as text; the next try is in {} s.",
                self.source,
                self.pause / 10
            ),
        );
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

fn load_built_in(name: &str, seed: u64, memory: usize) -> Result<Loaded, String> {
    let built_in = built_in::find(name)?;
    load(built_in.image, built_in.config, seed, memory)
}

fn load(image: &[u8], config: &[u8], seed: u64, memory: usize) -> Result<Loaded, String> {
    let tokenizer = Tokenizer::load(image, seed, memory).map_err(|error| error.to_string())?;
    let template = ChatTemplate::load(config).map_err(|error| error.to_string())?;
    Ok(Loaded { tokenizer, template })
}

#[cfg(test)]
mod tests;
