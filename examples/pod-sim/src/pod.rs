//! One pod: an engine that can be restarted, the faults that wait for its requests, and what it has seen.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::engine::{Engine, Settings};
use crate::fault::Faults;
use crate::journal::Journal;
use crate::transfer::Transfer;

/// What a pod's server does, apart from its engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The models it serves; the first is the one of requests that name none.
    pub models: Vec<String>,
    /// Tokens of an answer that nothing cuts short.
    pub answer_tokens: usize,
    /// Whether usage tells `cached_tokens`.
    pub prompt_tokens_details: bool,
    /// Longest body, in bytes.
    pub max_body: usize,
    /// How long an idle connection stays open.
    pub keep_alive: Duration,
    /// How many requests the journal keeps.
    pub journal: usize,
    /// Whether it keeps their bodies.
    pub journal_bodies: bool,
}

/// See the module's docs.
#[derive(Debug)]
pub struct Pod {
    /// What it calls itself in `x-pod`.
    pub name: String,
    /// What its server does.
    pub options: Options,
    /// Faults that wait for requests.
    pub faults: Faults,
    /// The requests it has seen.
    pub journal: Arc<Journal>,
    /// Its part in disaggregation, if it has one.
    pub transfer: Option<Arc<Transfer>>,
    settings: Settings,
    life: Mutex<(Life, watch::Sender<()>)>,
}

/// An engine from its start to its restart.
#[derive(Clone, Debug)]
pub struct Life {
    /// The engine.
    pub engine: Arc<Engine>,
    end: watch::Receiver<()>,
}

impl Life {
    fn new(settings: &Settings) -> (Self, watch::Sender<()>) {
        let (sender, end) = watch::channel(());
        (Self { engine: Arc::new(Engine::new(settings.clone())), end }, sender)
    }

    /// Returns when the engine has been restarted.
    pub async fn ended(&self) {
        // Nothing is ever sent: what ends the wait is that the sender is gone.
        let _ = self.end.clone().changed().await;
    }
}

impl Pod {
    /// A pod with a cold engine.
    pub fn new(name: String, settings: Settings, options: Options, transfer: Option<Arc<Transfer>>) -> Self {
        let life = Mutex::new(Life::new(&settings));
        let journal = Journal::new(options.journal);
        Self { name, options, faults: Faults::default(), journal, transfer, settings, life }
    }

    /// The engine of now.
    pub fn life(&self) -> Life {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Restarts it: an empty cache, counters at 0, no faults, no records, no KV for others; requests under way lose their connection.
    pub fn reset(&self) {
        *self.life.lock().unwrap_or_else(PoisonError::into_inner) = Life::new(&self.settings);
        if let Some(transfer) = &self.transfer {
            transfer.reset();
        }
        self.faults.clear();
        self.journal.clear();
    }
}
