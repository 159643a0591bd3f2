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
    /// Which answer to the prompt: each has a text of its own.
    pub choice: u64,
    /// The KV came from another pod, so that no more than the last token is to be computed.
    pub fetched: bool,
}

impl Work<'_> {
    /// The first answer to a prompt.
    pub fn answer(prompt: &[u32], seed: u64) -> Prose {
        Prose { seed: prompt.iter().fold(seed, |seed, token| mix(seed ^ u64::from(*token))) }
    }
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
            answer: match (Work::answer(work.prompt, work.seed), work.choice) {
                (first, 0) => first,
                (Prose { seed }, choice) => Prose { seed: mix(seed ^ choice) },
            },
            slowness: work.slowness,
            first_token: ready,
            _permit: permit,
        };
        self.counters.queried.fetch_add(work.prompt.len() as u64, Ordering::Relaxed);
        self.counters.hit.fetch_add(cached as u64, Ordering::Relaxed);
        let missing = if work.fetched { 1 } else { work.prompt.len() - cached };
        let cost = self.settings.time.prefill(missing, work.slowness);
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

    /// Ends the request and keeps its blocks in use.
    pub fn pin(mut self) -> Pinned {
        Pinned { engine: self.counted.engine.clone(), held: self.held.take() }
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

/// Blocks that are in use although their request is over: another pod is to fetch them. Dropping it frees them.
#[derive(Debug)]
pub struct Pinned {
    engine: Arc<Engine>,
    held: Option<Held>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.cache().release(held);
            self.engine.freed.notify_waiters();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::task::JoinHandle;

    /// 1000 prompt tokens a second, 100 generated ones, blocks of 10.
    fn engine(blocks: u32, max_running: usize) -> Arc<Engine> {
        let time =
            TimeModel { prefill_rate: 1000.0, decode_rate: 100.0, speedup: 1.0, chunk: Duration::ZERO };
        Arc::new(Engine::new(Settings { blocks, block_size: 10, max_running, time }))
    }

    fn prompt(seed: u32, length: u32) -> Vec<u32> {
        (0..length).map(|index| seed * 1_000_000 + index).collect()
    }

    /// Runs a request to its end. Gives the time of its first token since `start`, and what was cached.
    fn run(
        engine: &Arc<Engine>,
        prompt: Vec<u32>,
        generate: usize,
        start: Instant,
    ) -> JoinHandle<(u128, usize)> {
        let engine = engine.clone();
        tokio::spawn(async move {
            let work = Work { prompt: &prompt, seed: 0, generate, slowness: 1.0, choice: 0, fetched: false };
            let mut running = engine.start(work).await.unwrap();
            let first = start.elapsed().as_millis();
            running.generate_all(generate).await;
            (first, running.cached_tokens())
        })
    }

    #[tokio::test(start_paused = true)]
    async fn prompts_are_prefilled_one_after_the_other_and_the_second_finds_the_first() {
        let (engine, start) = (engine(1000, 9), Instant::now());
        let first = run(&engine, prompt(1, 500), 1, start);
        let same = run(&engine, prompt(1, 500), 1, start);
        let other = run(&engine, prompt(2, 300), 1, start);
        assert_eq!(first.await.unwrap(), (500, 0));
        // All but the last token's block.
        assert_eq!(same.await.unwrap(), (510, 490));
        assert_eq!(other.await.unwrap(), (810, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_batch_makes_the_next_wait_for_an_end() {
        let (engine, start) = (engine(1000, 1), Instant::now());
        let first = run(&engine, prompt(1, 100), 11, start);
        let second = run(&engine, prompt(2, 100), 1, start);
        tokio::time::sleep(Duration::from_millis(150)).await;
        let load = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed);
        assert_eq!((load(&engine.counters().running), load(&engine.counters().waiting)), (1, 1));
        assert_eq!(first.await.unwrap().0, 100);
        assert_eq!(
            second.await.unwrap().0,
            300,
            "100 ms of prefill and 100 ms of decode, then its own 100 ms"
        );
        assert_eq!((load(&engine.counters().running), load(&engine.counters().waiting)), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_in_the_cache_the_queue_waits_in_order() {
        let (engine, start) = (engine(10, 9), Instant::now());
        let first = run(&engine, prompt(1, 60), 11, start);
        let large = run(&engine, prompt(2, 50), 1, start);
        let small = run(&engine, prompt(3, 10), 1, start);
        assert_eq!(first.await.unwrap().0, 60);
        assert_eq!(large.await.unwrap().0, 60 + 100 + 50);
        assert_eq!(small.await.unwrap().0, 60 + 100 + 50 + 10, "it would fit, but it came later");
        let work =
            Work { prompt: &prompt(4, 100), seed: 0, generate: 1, slowness: 1.0, choice: 0, fetched: false };
        assert_eq!(engine.start(work).await.unwrap_err(), TooLong { limit: 100 });
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_frees_the_pod_at_once() {
        let (engine, start) = (engine(100, 1), Instant::now());
        let leaves = run(&engine, prompt(1, 900), 1, start);
        let queued = run(&engine, prompt(2, 100), 1, start);
        let last = run(&engine, prompt(3, 100), 1, start);
        tokio::time::sleep(Duration::from_millis(50)).await;
        queued.abort();
        leaves.abort();
        assert_eq!(last.await.unwrap(), (150, 0));
        assert_eq!(engine.cache().in_use(), 0);
        assert_eq!(engine.counters().running.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_at_their_rate_and_are_cached_for_the_next_turn() {
        let engine = engine(100, 1);
        let first = prompt(1, 25);
        let mut running = engine
            .start(Work { prompt: &first, seed: 0, generate: 17, slowness: 2.0, choice: 0, fetched: false })
            .await
            .unwrap();
        let start = Instant::now();
        for expected in 1..=17 {
            assert_eq!(running.generate(17).await, expected);
            assert_eq!(start.elapsed().as_millis(), 20 * (expected as u128 - 1));
        }
        let answer = running.answer();
        drop(running);
        let mut next = first;
        next.extend((0..17).map(|index| answer.token(index)));
        next.extend(prompt(2, 30));
        let next = engine
            .start(Work { prompt: &next, seed: 0, generate: 1, slowness: 1.0, choice: 0, fetched: false })
            .await
            .unwrap();
        assert_eq!(next.cached_tokens(), 40, "25 + 17 tokens, of which the last was never computed");
    }

    #[tokio::test(start_paused = true)]
    async fn seeds_keep_prompts_apart() {
        let engine = engine(100, 1);
        for seed in [1, 2] {
            let work =
                Work { prompt: &prompt(1, 50), seed, generate: 1, slowness: 1.0, choice: 0, fetched: false };
            assert_eq!(engine.start(work).await.unwrap().cached_tokens(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_fetched_is_not_computed_and_is_cached_afterwards() {
        let (engine, start) = (engine(100, 1), Instant::now());
        let prompt = prompt(1, 55);
        let work = Work { prompt: &prompt, seed: 0, generate: 1, slowness: 1.0, choice: 0, fetched: true };
        let running = engine.start(work).await.unwrap();
        assert_eq!((start.elapsed().as_millis(), running.cached_tokens()), (1, 0));
        drop(running);
        let again = run(&engine, prompt, 1, start);
        assert_eq!(again.await.unwrap(), (6, 50));
    }

    #[tokio::test(start_paused = true)]
    async fn pinned_blocks_stay_in_use_and_the_batch_goes_on() {
        let engine = engine(10, 1);
        let work = |prompt| Work { prompt, seed: 0, generate: 1, slowness: 1.0, choice: 0, fetched: false };
        let (first, second) = (prompt(1, 59), prompt(2, 40));
        let pinned = engine.start(work(&first)).await.unwrap().pin();
        assert_eq!(engine.cache().in_use(), 6);
        assert_eq!(engine.counters().running.load(Ordering::Relaxed), 0);
        let waits = run(&engine, second, 1, Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(engine.counters().waiting.load(Ordering::Relaxed), 1, "5 blocks are not free");
        drop(pinned);
        waits.await.unwrap();
        assert_eq!(engine.cache().in_use(), 0);
    }
}
