//! Conversations through Envoy, and what was predicted of each request held against what its engine found in its cache.

use crate::{Envoy, Request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// What all pods serve.
#[derive(Debug, Clone, Copy)]
pub struct Engine {
    /// The model's name.
    pub model: &'static str,
    /// Tokens in a block.
    pub block: u64,
}

/// A request: what was predicted of its prompt, and what the engine says.
pub struct Outcome {
    /// Number of the conversation.
    pub conversation: usize,
    /// Number of the turn.
    pub turn: usize,
    /// The pod that was chosen.
    pub pod: String,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Of these, in the pod's cache as predicted.
    pub predicted: u64,
    /// Of these, in the pod's cache as its engine says.
    pub cached: u64,
    /// When it was sent, and answered.
    pub time: Range<Instant>,
}

fn ask(
    envoy: &Envoy,
    engine: Engine,
    conversation: usize,
    turn: usize,
    messages: &[Value],
) -> (Outcome, String) {
    let body =
        json!({"model": engine.model, "messages": messages, "max_tokens": 12, "temperature": 0, "seed": 1});
    let start = Instant::now();
    let answer = Request::json("/v1/chat/completions", &body).header("x-warmpath-debug", "1").send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-warmpath-prompt"), Some("tokens"));
    let said = answer.json();
    let prompt = said["usage"]["prompt_tokens"].as_u64().expect("a number");
    let matched =
        answer.header("x-warmpath-matched").and_then(|text| text.split_once('/')).expect("it is explained");
    let matched: u64 = matched.0.parse().expect("a number");
    let outcome = Outcome {
        conversation,
        turn,
        pod: answer.header("x-warmpath-pod").expect("it is explained").to_owned(),
        prompt,
        // The last token is always computed.
        predicted: (matched * engine.block).min((prompt - 1) / engine.block * engine.block),
        time: start..Instant::now(),
        cached: said["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
    };
    let text = said["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    (outcome, text)
}

/// A number that looks drawn, always the same.
fn drawn(seed: u64) -> u64 {
    let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
}

fn question(conversation: usize, turn: usize) -> Value {
    const WORDS: [&str; 12] =
        ["river", "engine", "of", "the", "cache", "größer", "prefix", "漢字", "and", "token", "warm", "path"];
    let seed = (conversation * 1000 + turn) as u64;
    let count = 20 + drawn(seed) % 60;
    let words: Vec<_> = (0..count).map(|n| WORDS[(drawn(seed * 100 + n) % 12) as usize]).collect();
    json!({"role": "user", "content": format!("{conversation}.{turn}: {}", words.join(" "))})
}

/// Four that many conversations share, so that no pod has all.
fn system(conversation: usize) -> Value {
    let name = ["river", "stone", "cloud", "grove"][conversation % 4];
    let content = format!("You are {name}, a careful assistant who answers in few words. ").repeat(6);
    json!({"role": "system", "content": content})
}

/// Conversations of several turns: `side` of them at a time, in an order that looks drawn.
#[track_caller]
pub fn converse(
    envoy: &Envoy,
    engine: Engine,
    conversations: Range<usize>,
    turns: usize,
    side: usize,
) -> Vec<Outcome> {
    let run = |conversations: Vec<usize>| {
        let mut open: BTreeMap<usize, Vec<Value>> =
            conversations.iter().map(|conversation| (*conversation, vec![system(*conversation)])).collect();
        let mut outcomes = Vec::new();
        let mut step = 0;
        while !open.is_empty() {
            step += 1;
            // Mostly one of the two oldest, so that some are still cached when they go on.
            let pick = (drawn(step) % open.len().min(3) as u64) as usize;
            let conversation = *open.keys().nth(pick).expect("there are so many");
            let messages = open.get_mut(&conversation).expect("it is open");
            let turn = messages.len() / 2;
            messages.push(question(conversation, turn));
            let (outcome, text) = ask(envoy, engine, conversation, turn, messages);
            messages.push(json!({"role": "assistant", "content": text}));
            outcomes.push(outcome);
            if turn + 1 == turns {
                open.remove(&conversation);
            }
        }
        outcomes
    };
    let run = &run;
    let shares = (0..side).map(|part| conversations.clone().filter(|n| n % side == part).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        let threads: Vec<_> = shares.map(|share| scope.spawn(move || run(share))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    })
}

/// Prints every difference with its cause, and the share of requests without one. A request that met others at its pod may find
/// less or more than was there when it was decided; of one that was alone the prediction was wrong.
#[track_caller]
pub fn report(what: &str, outcomes: &[Outcome]) -> f64 {
    let differ: Vec<_> = outcomes.iter().filter(|outcome| outcome.predicted != outcome.cached).collect();
    for outcome in &differ {
        let Outcome { conversation, turn, pod, prompt, predicted, cached, time } = outcome;
        let met = outcomes
            .iter()
            .filter(|other| other.pod == *pod && other.time.start < time.end && time.start < other.time.end);
        let met = met.count() - 1;
        eprintln!(
            "  {conversation}.{turn} at {pod}: of {prompt} tokens {predicted} predicted, {cached} cached; it met {met} others there"
        );
    }
    let equal = 100.0 * (outcomes.len() - differ.len()) as f64 / outcomes.len() as f64;
    let warm = outcomes.iter().filter(|outcome| outcome.cached > 0).count();
    let tokens = |of: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    eprintln!(
        "{what}: {} requests, {warm} with cached tokens; of {} prompt tokens {} were predicted and {} were cached; equal in \
         {equal:.1} % of requests",
        outcomes.len(),
        tokens(&|outcome| outcome.prompt),
        tokens(&|outcome| outcome.predicted),
        tokens(&|outcome| outcome.cached),
    );
    equal
}
