//! Pods in miniature, to see what decisions lead to: clients that hold conversations one turn after the other, pods
//! that prefill one prompt at a time and decode all at once, and an index that knows what was routed.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod fleet;

use std::collections::{BinaryHeap, HashMap, HashSet};
use warmpath::blocks::{self, BlockHash, BlockSize, Chain};
use warmpath::config::{Router, load};
use warmpath::pipeline::{
    BUILT_IN, Body, BuiltIn, Decision, Input, Matches, PodState, Positions, Residency, Rng, Scratch, Seen,
    Slots,
};
use warmpath::pods::{Engine, Speed};

/// A router over `count` pods named pod-0, ...; `rest` is more of the configuration.
pub fn router(count: usize, rest: &str) -> Router {
    let pods: Vec<_> =
        (0..count).map(|i| format!(r#"{{"name": "pod-{i}", "address": "10.0.0.1:{}"}}"#, 1000 + i)).collect();
    router_of(&pods.join(","), rest)
}

/// Built-in profiles that are no steps of a workflow.
pub fn for_one_step() -> impl Iterator<Item = &'static BuiltIn> {
    BUILT_IN.iter().filter(|built_in| !matches!(built_in.name, "prefill" | "decode"))
}

fn fallbacks(router: &Router) -> usize {
    router.settings().routing.fallbacks()
}

/// A router over these pods.
pub fn router_of(pods: &str, rest: &str) -> Router {
    load(format!(r#"{{"pods": [{pods}], {rest}}}"#).as_bytes()).unwrap()
}

/// A request whose prompt is already blocks.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    pub chain: Vec<BlockHash>,
    pub model: Option<String>,
    pub user: Option<String>,
    pub headers: Vec<(String, String)>,
}

impl Ask {
    pub fn prompt(chain: &[BlockHash]) -> Self {
        Self { chain: chain.to_vec(), ..Self::default() }
    }

    pub fn session(name: &str) -> Self {
        Self { headers: vec![("x-session-id".into(), name.into())], ..Self::default() }
    }
}

impl Body for Ask {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn chain(&self, _size: BlockSize) -> Chain {
        Chain { hashes: self.chain.clone(), cached: Vec::new() }
    }
}

/// Which pods were sent which blocks.
#[derive(Default)]
pub struct Index(HashMap<BlockHash, Positions>);

impl Index {
    pub fn store(&mut self, pod: usize, chain: &[BlockHash]) {
        for hash in chain {
            self.0.entry(*hash).or_default().insert(pod);
        }
    }

    pub fn remove(&mut self, pod: usize, hashes: &[BlockHash]) {
        for hash in hashes {
            if let Some(pods) = self.0.get_mut(hash) {
                pods.remove(pod);
            }
        }
    }

    pub fn forget(&mut self, pod: usize) {
        self.0.values_mut().for_each(|pods| pods.remove(pod));
    }
}

impl Residency for Index {
    fn depths(&self, chain: &Chain, out: &mut Matches) {
        // Block by block: who holds this one, and all before it?
        let mut held = Vec::new();
        let mut holders: Positions = (0..warmpath::pods::MAX_PODS).collect();
        for hash in &chain.hashes {
            holders = holders.intersect(&self.0.get(hash).copied().unwrap_or_default());
            held.push(holders);
        }
        let mut seen = Positions::default();
        for (i, holders) in held.iter().enumerate().rev() {
            let new: Positions = holders.iter().filter(|pod| !seen.contains(*pod)).collect();
            out.push(blocks::worth(i as u32 + 1), new);
            seen = seen.union(holders);
        }
    }
}

/// A router, what it knows, and what it is told of load.
pub struct Desk {
    pub router: Router,
    pub states: Vec<PodState>,
    pub engines: Vec<Option<Engine>>,
    pub speed: Speed,
    pub index: Index,
    pub slots: Slots,
    pub scratch: Scratch,
    turn: u64,
}

impl Desk {
    pub fn new(router: Router, seed: u64) -> Self {
        let states = vec![PodState::default(); router.pods().len()];
        Self {
            router,
            states,
            engines: Vec::new(),
            speed: Speed::default(),
            index: Index::default(),
            slots: Slots::default(),
            scratch: Scratch::new(seed),
            turn: 0,
        }
    }

    /// Decides, and tells index and load at once, as the filter does.
    pub fn send(&mut self, ask: &Ask) -> usize {
        let decision = self.decide(ask).unwrap();
        self.states[decision.pod].in_flight += 1;
        let chain = self.slots.chain.hashes.clone();
        self.index.store(decision.pod, &chain);
        if let Some(session) = self.slots.session {
            self.index.store(decision.pod, &[session]);
        }
        decision.pod
    }

    /// Decides, and changes nothing.
    pub fn decide(&mut self, ask: &Ask) -> Result<Decision, warmpath::pipeline::Refused> {
        let header = |name: &str| {
            ask.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_bytes().to_vec())
        };
        let Self { router, states, engines, speed, index, slots, scratch, turn } = self;
        let profile =
            router.select("/v1/chat/completions", &header, ask.model.as_deref()).unwrap().single().unwrap();
        *turn += 1;
        profile.prepare(&Input { header: &header, body: Some(ask) }, *turn, slots);
        let seen = Seen { states, engines, speed: *speed, index };
        router.decide(profile, &seen, slots, scratch, fallbacks(router))
    }

    /// Decides the last request again, by the only profile.
    pub fn again(&mut self) -> Result<Decision, warmpath::pipeline::Refused> {
        let Self { router, states, engines, speed, index, slots, scratch, .. } = self;
        let seen = Seen { states, engines, speed: *speed, index };
        router.decide(&router.profiles()[0], &seen, slots, scratch, fallbacks(router))
    }

    pub fn done(&mut self, pod: usize) {
        self.states[pod].in_flight -= 1;
    }
}

/// A load of conversations.
#[derive(Debug, Clone)]
pub struct Load {
    /// Conversations at any time; each has one request in flight.
    pub clients: usize,
    /// System prompts, one of which each conversation begins with.
    pub systems: usize,
    /// Blocks of a system prompt.
    pub system_blocks: usize,
    /// Blocks that each turn adds.
    pub turn_blocks: usize,
    /// Turns of a conversation.
    pub turns: usize,
    /// Blocks of an answer, on average; each takes 1 to decode.
    pub answer: f64,
    /// Time from an answer's end to the next turn, on average.
    pub think: f64,
    /// Requests in all.
    pub requests: usize,
}

/// Time to prefill a block, where decoding one takes 1.
const PREFILL: f64 = 0.05;

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Blocks of all prompts, those that their pod had, and those that any pod had.
    pub blocks: usize,
    pub hits: usize,
    pub ideal: usize,
    /// Turns after the first, and those on the pod of the turn before.
    pub later_turns: usize,
    pub stuck: usize,
    /// Sum of times to first token.
    pub first_token: f64,
    /// Requests by pod.
    pub served: Vec<usize>,
    /// Greatest number in flight on a pod over the mean then, for means of at least 4.
    pub worst_ratio: f64,
    /// Pods in the order of decisions.
    pub order: Vec<usize>,
}

impl Outcome {
    pub fn hit_share(&self) -> f64 {
        self.hits as f64 / self.ideal.max(1) as f64
    }

    pub fn stuck_share(&self) -> f64 {
        self.stuck as f64 / self.later_turns.max(1) as f64
    }

    pub fn mean_first_token(&self) -> f64 {
        self.first_token / self.order.len() as f64
    }
}

struct Client {
    chain: Vec<BlockHash>,
    turn: usize,
    pod: usize,
}

/// Runs a load; `event` is called before each request with its number and may change the world.
pub fn run(desk: &mut Desk, load: &Load, seed: u64, mut event: impl FnMut(usize, &mut Desk)) -> Outcome {
    let mut rng = Rng::new(seed);
    let count = desk.states.len();
    let mut caches = vec![HashSet::new(); count];
    let mut anywhere = HashSet::new();
    let mut prefill_until = vec![0.0_f64; count];
    let mut outcome = Outcome { served: vec![0; count], ..Outcome::default() };
    let mut clients: Vec<_> = (0..load.clients).map(|_| Client { chain: vec![], turn: 0, pod: 0 }).collect();
    // Who speaks next, at what time in millionths: those in flight, their answers' ends.
    let mut ends = BinaryHeap::new();
    for (i, _) in clients.iter().enumerate() {
        ends.push((std::cmp::Reverse((rng.unit() * 1e6) as u64), i, false));
    }
    while outcome.order.len() < load.requests {
        let Some((std::cmp::Reverse(time), i, busy)) = ends.pop() else { break };
        let now = time as f64 / 1e6;
        let client = &mut clients[i];
        if busy {
            desk.done(client.pod);
            let pause = -f64::from(1.0 - rng.unit()).ln() * load.think;
            ends.push((std::cmp::Reverse(((now + pause) * 1e6) as u64), i, false));
            continue;
        }
        if client.turn == load.turns || client.chain.is_empty() {
            client.turn = 0;
            let system = rng.below(load.systems) as u64;
            client.chain = (0..load.system_blocks as u64).map(|block| 1 + system * 10_000 + block).collect();
        }
        client.chain.extend((0..load.turn_blocks).map(|_| rng.bits()));
        event(outcome.order.len(), desk);
        let pod = desk.send(&Ask::prompt(&client.chain));
        if client.turn > 0 {
            outcome.later_turns += 1;
            outcome.stuck += usize::from(client.pod == pod);
        }
        client.pod = pod;
        client.turn += 1;
        let cached = client.chain.iter().take_while(|hash| caches[pod].contains(*hash)).count();
        outcome.blocks += client.chain.len();
        outcome.hits += cached;
        outcome.ideal += client.chain.iter().take_while(|hash| anywhere.contains(*hash)).count();
        caches[pod].extend(client.chain.iter().copied());
        anywhere.extend(client.chain.iter().copied());
        let first = now.max(prefill_until[pod]) + PREFILL * (client.chain.len() - cached) as f64;
        prefill_until[pod] = first;
        outcome.first_token += first - now;
        outcome.served[pod] += 1;
        outcome.order.push(pod);
        let mean = desk.states.iter().map(|state| f64::from(state.in_flight)).sum::<f64>() / count as f64;
        if mean >= 4.0 {
            let most = desk.states.iter().map(|state| state.in_flight).max().unwrap_or(0);
            outcome.worst_ratio = outcome.worst_ratio.max(f64::from(most) / mean);
        }
        let decoded = load.answer * f64::from(0.5 + rng.unit());
        ends.push((std::cmp::Reverse(((first + decoded) * 1e6) as u64), i, true));
    }
    outcome
}
