//! The engine of one pod: queue, batch, prefix cache and the time that work takes.
//!
//! Requests wait in one queue, first come first served. The one at its head waits for room in the batch and in the
//! cache, then has its prompt prefilled, alone: a pod that is busy with a long prompt makes all behind it wait. Decoding
//! goes on for all running requests at once, each at the same rate.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Queue, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::cache::{Held, PrefixCache};
use crate::chain::Chain;
use crate::time::TimeModel;
use crate::tokens::{Prose, mix};

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Blocks in the prefix cache.
    pub blocks: u32,
    /// Tokens in a block.
    pub block_size: usize,
    /// Requests that run at once.
    pub max_running: usize,
    /// How long work takes.
    pub time: TimeModel,
}

/// One life of an engine: a restart is a new one.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    cache: Mutex<PrefixCache>,
    /// Holding it is being at the head of the queue; it guards the time at which the last prefill ends.
    head: Queue<Instant>,
    batch: Arc<Semaphore>,
    freed: Notify,
    counters: Counters,
}

/// Gauges and counters for metrics; tokens count as vLLM counts them.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests in the queue.
    pub waiting: AtomicUsize,
    /// Requests being prefilled or decoded.
    pub running: AtomicUsize,
    /// Prompt tokens looked up in the prefix cache.
    pub queried: AtomicU64,
    /// Prompt tokens found there.
    pub hit: AtomicU64,
    /// Tokens generated.
    pub generated: AtomicU64,
}

/// What a request brings.
#[derive(Debug)]
pub struct Work<'a> {
    /// The prompt, not empty.
    pub prompt: &'a [u32],
    /// See [`Chain::seed`].
    pub seed: u64,
    /// Tokens to generate; 0 for embeddings.
    pub generate: usize,
    /// How many times longer than usual all takes.
    pub slowness: f64,
}

/// The prompt and its answer fit in no cache of this size.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The most tokens of prompt and answer together.
    pub limit: usize,
}

impl Engine {
    /// A cold engine.
    pub fn new(settings: Settings) -> Self {
        Self {
            cache: Mutex::new(PrefixCache::new(settings.blocks)),
            head: Queue::new(Instant::now()),
            batch: Arc::new(Semaphore::new(settings.max_running)),
            freed: Notify::new(),
            counters: Counters::default(),
            settings,
        }
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its gauges and counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its cache, locked: don't hold it.
    pub fn cache(&self) -> MutexGuard<'_, PrefixCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many blocks a prompt and its answer take.
    pub fn blocks_for(&self, prompt: usize, generate: usize) -> Result<usize, TooLong> {
        let Settings { blocks, block_size, .. } = self.settings;
        let needed = prompt.saturating_add(generate).div_ceil(block_size);
        if needed > blocks as usize {
            return Err(TooLong { limit: blocks as usize * block_size });
        }
        Ok(needed)
    }

    /// Waits in the queue, then prefills. Returns when the first token is there. Dropping the future leaves the queue
    /// or ends the prefill; dropping what it returns ends the request.
    pub async fn start(self: &Arc<Self>, work: Work<'_>) -> Result<Running, TooLong> {
        let total = self.blocks_for(work.prompt.len(), work.generate)?;
        let block_size = self.settings.block_size;
        let mut chain = Chain::new(work.seed, block_size);
        chain.push(work.prompt);
        let mut ready = Instant::now();
        let waiting = Counted::new(self.clone(), |counters| &counters.waiting);
        let head = self.head.lock().await;
        let permit = match self.batch.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let permit = self.batch.clone().acquire_owned().await.expect("the batch is never closed");
                ready = Instant::now();
                permit
            }
        };
        // The last token is always computed, for its logits: vLLM looks up all before it.
        let findable = &chain.hashes()[..(work.prompt.len() - 1) / block_size];
        let held = loop {
            let freed = self.freed.notified();
            if let Some(held) = self.cache().take(findable, total) {
                break held;
            }
            freed.await;
            ready = Instant::now();
        };
        drop(waiting);
        let running = Counted::new(self.clone(), |counters| &counters.running);
        let cached = held.hits() * block_size;
        let mut running = Running {
            counted: running,
            held: Some(held),
            chain,
            published: 0,
            cached,
            generated: 0,
            answer: Prose {
                seed: work.prompt.iter().fold(work.seed, |seed, token| mix(seed ^ u64::from(*token))),
            },
            slowness: work.slowness,
            first_token: ready,
            _permit: permit,
        };
        self.counters.queried.fetch_add(work.prompt.len() as u64, Ordering::Relaxed);
        self.counters.hit.fetch_add(cached as u64, Ordering::Relaxed);
        let cost = self.settings.time.prefill(work.prompt.len() - cached, work.slowness);
        // Counted from when it could start, not from when this task was woken: timers are coarse beside short prefills.
        let prefill = Prefill { ends: ready.max(*head) + cost, head };
        sleep_until(prefill.ends).await;
        running.first_token = prefill.ends;
        drop(prefill);
        running.publish();
        Ok(running)
    }
}

/// A prefill under way. However it ends, the next can't have begun before now.
struct Prefill<'a> {
    head: tokio::sync::MutexGuard<'a, Instant>,
    ends: Instant,
}

impl Drop for Prefill<'_> {
    fn drop(&mut self) {
        *self.head = self.ends.min(Instant::now());
    }
}

/// A request past its prefill.
#[derive(Debug)]
pub struct Running {
    counted: Counted,
    held: Option<Held>,
    chain: Chain,
    published: usize,
    cached: usize,
    generated: usize,
    answer: Prose,
    slowness: f64,
    first_token: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Running {
    /// Prompt tokens that were found in the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached
    }

    /// The answer's text, which the prompt decides.
    pub fn answer(&self) -> Prose {
        self.answer
    }

    /// Waits until at least one token more is there, up to `most` in all, and returns how many are. Tokens that come
    /// within one chunk's time come together.
    pub async fn generate(&mut self, most: usize) -> usize {
        if self.generated < most {
            let time = self.counted.engine.settings.time;
            if self.generated > 0 {
                let next = self.first_token + time.decode(self.generated, self.slowness);
                sleep_until(next.max(Instant::now() + time.chunk)).await;
            }
            let since = Instant::now().saturating_duration_since(self.first_token);
            let ready = 1 + time.decoded_in(since, self.slowness, most - 1);
            self.record(ready.max(self.generated + 1));
        }
        self.generated
    }

    /// Waits until all `count` tokens are there.
    pub async fn generate_all(&mut self, count: usize) {
        if count > 0 {
            let time = self.counted.engine.settings.time;
            sleep_until(self.first_token + time.decode(count - 1, self.slowness)).await;
            self.record(count);
        }
    }

    /// Takes note of `count` tokens generated in all. The last has no block yet: it is computed with the next.
    fn record(&mut self, count: usize) {
        for index in self.generated.max(1)..count {
            self.chain.push(&[self.answer.token(index - 1)]);
        }
        let engine = &self.counted.engine;
        engine.counters.generated.fetch_add((count - self.generated) as u64, Ordering::Relaxed);
        self.generated = count;
        self.publish();
    }

    /// Makes blocks that are newly full known to the cache.
    fn publish(&mut self) {
        let Some(held) = &self.held else { return };
        if self.published < self.chain.hashes().len() {
            let mut cache = self.counted.engine.cache();
            for (index, hash) in self.chain.hashes().iter().enumerate().skip(self.published) {
                cache.publish(held, index, *hash);
            }
            self.published = self.chain.hashes().len();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.counted.engine.cache().release(held);
            self.counted.engine.freed.notify_waiters();
        }
    }
}

/// One more on a gauge for as long as it lives.
#[derive(Debug)]
struct Counted {
    engine: Arc<Engine>,
    gauge: fn(&Counters) -> &AtomicUsize,
}

impl Counted {
    fn new(engine: Arc<Engine>, gauge: fn(&Counters) -> &AtomicUsize) -> Self {
        gauge(&engine.counters).fetch_add(1, Ordering::Relaxed);
        Self { engine, gauge }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.gauge)(&self.engine.counters).fetch_sub(1, Ordering::Relaxed);
    }
}
