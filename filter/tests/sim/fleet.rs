//! A fleet in simulated time: pods of unequal speed with caches of bounded size, and requests that share prefixes by Zipf's law.
//!
//! A pod prefills one prompt at a time, in the order in which they came, while it decodes up to a batch of others. Its cache holds
//! so many blocks and forgets the least recently used. The router knows what the filter would of engines that send KV events: what
//! they hold, what was routed and is under way, and how long first tokens took.

use super::{Ask, Desk};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use warmpath::blocks::{BlockHash, depth_within};
use warmpath::pipeline::Rng;
use warmpath::pods::{Pace, Speed};

/// Tokens in a block of 256 bytes.
const BLOCK: f64 = 64.0;

/// Pods, and what they are asked.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// Tokens that each pod prefills in a second.
    pub rates: Vec<f64>,
    /// Blocks of each pod's cache.
    pub cache: usize,
    /// Requests that a pod decodes at once.
    pub batch: usize,
    /// Prefixes, the n-th asked for in proportion to 1/n^`skew`.
    pub prefixes: usize,
    pub skew: f64,
    /// Blocks of a prefix, and of what follows it, from and to.
    pub prefix_blocks: (usize, usize),
    pub rest_blocks: (usize, usize),
    /// Tokens of an answer, on average; each takes this many seconds.
    pub answer: f64,
    pub token_seconds: f64,
    /// Requests in a second, and in all.
    pub rate: f64,
    pub requests: usize,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Milliseconds to the first token.
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    /// Blocks found in caches by blocks of all prompts.
    pub hits: f64,
    /// Requests of each pod.
    pub served: Vec<usize>,
}

/// Blocks of one pod, the least recently used forgotten first.
#[derive(Default)]
struct Cache {
    /// When each was used last.
    used: HashMap<BlockHash, u64>,
    by_use: BTreeMap<(u64, Reverse<usize>), BlockHash>,
    order: HashMap<BlockHash, (u64, Reverse<usize>)>,
    clock: u64,
}

impl Cache {
    fn held(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|hash| self.used.contains_key(hash)).count()
    }

    /// Uses a chain; returns what is forgotten for it.
    fn put(&mut self, chain: &[BlockHash], capacity: usize) -> Vec<BlockHash> {
        self.clock += 1;
        for (depth, hash) in chain.iter().enumerate() {
            if let Some(key) = self.order.remove(hash) {
                self.by_use.remove(&key);
            }
            let key = (self.clock, Reverse(depth));
            self.by_use.insert(key, *hash);
            self.order.insert(*hash, key);
            self.used.insert(*hash, self.clock);
        }
        let mut forgotten = Vec::new();
        while self.used.len() > capacity
            && let Some((_, hash)) = self.by_use.pop_first()
        {
            self.used.remove(&hash);
            self.order.remove(&hash);
            forgotten.push(hash);
        }
        forgotten
    }
}

struct Request {
    chain: Vec<BlockHash>,
    at: f64,
    answer: f64,
    /// What the router thinks that the pod has to prefill, and what was ahead of it.
    prefill: u32,
    context: u32,
    ahead: u32,
}

#[derive(Default)]
struct Pod {
    cache: Cache,
    queue: VecDeque<usize>,
    prefilling: bool,
    decoding: usize,
    pace: Pace,
}

impl Pod {
    /// The next of the queue, whose prefill begins now, if the pod is free for it.
    fn next(&mut self, batch: usize) -> Option<usize> {
        if self.prefilling || self.decoding >= batch {
            return None;
        }
        let request = self.queue.pop_front()?;
        self.prefilling = true;
        Some(request)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    FirstToken(usize, usize),
    Ends(usize, usize),
}

/// Runs a fleet behind a router.
pub fn run(desk: &mut Desk, fleet: &Fleet, seed: u64) -> Figures {
    let mut rng = Rng::new(seed);
    let mut pods: Vec<Pod> = fleet.rates.iter().map(|_| Pod::default()).collect();
    let weights: Vec<f64> = (1..=fleet.prefixes).map(|n| (n as f64).powf(-fleet.skew)).collect();
    let sum: f64 = weights.iter().sum();
    let lengths: Vec<usize> = (0..fleet.prefixes).map(|_| between(&mut rng, fleet.prefix_blocks)).collect();
    let mut requests: Vec<Request> = Vec::new();
    let mut events = BinaryHeap::from([(Reverse(0_u64), Event::Arrives)]);
    let (mut first_tokens, mut served) = (Vec::new(), vec![0; pods.len()]);
    let (mut hits, mut blocks, mut aged) = (0, 0, 0.0);
    while let Some((Reverse(micros), event)) = events.pop() {
        let now = micros as f64 / 1e6;
        let at = |seconds: f64| Reverse(((now + seconds) * 1e6) as u64);
        // What was learnt loses half of its weight in a minute.
        let half = ((aged - now) / 60.0).exp2() as f32;
        aged = now;
        for pod in &mut pods {
            let Pace { count, work, seconds, work_squared, work_seconds } = &mut pod.pace;
            [count, work, seconds, work_squared, work_seconds].into_iter().for_each(|sum| *sum *= half);
        }
        let pod = match event {
            Event::Arrives => {
                if requests.len() == fleet.requests {
                    continue;
                }
                let mut chance = f64::from(rng.unit()) * sum;
                let prefix = weights.iter().position(|weight| {
                    chance -= weight;
                    chance < 0.0
                });
                let prefix = prefix.unwrap_or(0);
                let n = requests.len() as u64;
                let shared = (0..lengths[prefix]).map(|i| ((prefix as u64 + 1) << 40) + ((i as u64) << 2));
                let own = (0..between(&mut rng, fleet.rest_blocks))
                    .map(|i| ((n + 1) << 20) + (1 << 62) + ((i as u64) << 2));
                let chain: Vec<BlockHash> = shared.chain(own).collect();
                let mut all = Pace::default();
                pods.iter().for_each(|pod| all.add(&pod.pace));
                desk.speed = Speed::fit(&all);
                for (state, pod) in desk.states.iter_mut().zip(&pods) {
                    state.slowness = desk.speed.slowness(&pod.pace);
                }
                // As the filter does, a long chain is looked up by some of its hashes alone.
                let kept = chain.iter().take(depth_within(chain.len())).copied().collect();
                // Each prefix is asked for in four sessions.
                let session = format!("{prefix}/{}", rng.below(4));
                let headers = vec![("x-session-id".to_owned(), session)];
                let pod = desk
                    .decide(&Ask { chain: kept, headers, ..Ask::default() })
                    .expect("somebody serves")
                    .pod;
                if let Some(session) = desk.slots.session {
                    desk.index.store(pod, &[session]);
                }
                let (job, state) = (desk.slots.job(pod), &mut desk.states[pod]);
                let ahead = state.prefill;
                state.in_flight += 1;
                state.waiting += 1;
                state.prefill += job.prefill;
                state.context += job.context;
                let kept = desk.slots.chain.hashes.clone();
                desk.index.store(pod, &kept);
                served[pod] += 1;
                let answer = fleet.answer * f64::from(0.5 + rng.unit());
                requests.push(Request {
                    chain,
                    at: now,
                    answer,
                    prefill: job.prefill,
                    context: job.context,
                    ahead,
                });
                pods[pod].queue.push_back(requests.len() - 1);
                events.push((at(-f64::from(1.0 - rng.unit()).ln() / fleet.rate), Event::Arrives));
                pod
            }
            Event::FirstToken(pod, request) => {
                let Request { at: sent, answer, prefill, ahead, .. } = requests[request];
                first_tokens.push((now - sent) * 1000.0);
                pods[pod].pace.add(&Pace::of(ahead + prefill, (now - sent) as f32));
                desk.states[pod].waiting -= 1;
                desk.states[pod].prefill -= prefill;
                pods[pod].prefilling = false;
                pods[pod].decoding += 1;
                let slowness = fleet.rates[0] / fleet.rates[pod];
                events.push((at(answer * fleet.token_seconds * slowness), Event::Ends(pod, request)));
                pod
            }
            Event::Ends(pod, request) => {
                pods[pod].decoding -= 1;
                desk.states[pod].in_flight -= 1;
                desk.states[pod].context -= requests[request].context;
                pod
            }
        };
        let Some(request) = pods[pod].next(fleet.batch) else { continue };
        let chain = &requests[request].chain;
        let held = pods[pod].cache.held(chain);
        hits += held;
        blocks += chain.len();
        let forgotten = pods[pod].cache.put(chain, fleet.cache);
        desk.index.remove(pod, &forgotten);
        let seconds = 0.01 + (chain.len() - held) as f64 * BLOCK / fleet.rates[pod];
        events.push((at(seconds), Event::FirstToken(pod, request)));
    }
    // What comes first finds everything cold, whoever routes.
    first_tokens.drain(..first_tokens.len() / 10);
    first_tokens.sort_by(f64::total_cmp);
    let percentile =
        |percent: usize| first_tokens[(first_tokens.len() * percent / 100).min(first_tokens.len() - 1)];
    Figures {
        mean: first_tokens.iter().sum::<f64>() / first_tokens.len() as f64,
        p50: percentile(50),
        p99: percentile(99),
        hits: hits as f64 / blocks as f64,
        served,
    }
}

fn between(rng: &mut Rng, (from, to): (usize, usize)) -> usize {
    from + rng.below(to - from + 1)
}
