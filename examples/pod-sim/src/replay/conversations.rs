//! Multi-turn conversations that share system prompts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Session;
use crate::endpoint::Endpoint;
use crate::tokens::{Prose, mix};

/// The load's settings. Equal ones give equal conversations.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The model asked for.
    pub model: String,
    /// Decides every text, length and pause.
    pub seed: u64,
    /// How many conversations.
    pub conversations: usize,
    /// Turns of each.
    pub turns: usize,
    /// Different system prompts; each conversation has one of them.
    pub system_prompts: usize,
    /// The n-th of them comes in proportion to 1/n^skew; 0: each as often as the others.
    pub skew: f64,
    /// Words of a system prompt.
    pub system_words: usize,
    /// Words of what the user says in a turn, on average; half to one and a half times that.
    pub turn_words: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
    /// Conversations under way at once.
    pub concurrency: usize,
    /// Pause before a turn, on average, in real milliseconds; half to one and a half times that.
    pub think_ms: u64,
}

/// Holds all conversations. One that meets an error ends there.
pub async fn play(session: &Arc<Session>, settings: &Settings) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut speakers = JoinSet::new();
    for _ in 0..settings.concurrency {
        let (session, settings, next) = (session.clone(), settings.clone(), next.clone());
        speakers.spawn(async move {
            loop {
                let conversation = next.fetch_add(1, Ordering::Relaxed);
                if conversation >= settings.conversations {
                    return;
                }
                converse(&session, &settings, conversation).await;
            }
        });
    }
    speakers.join_all().await;
}

async fn converse(session: &Session, settings: &Settings, conversation: usize) {
    let mut messages = vec![system(settings, conversation)];
    for turn in 0..settings.turns {
        sleep(Duration::from_millis(about(settings.think_ms, draw(settings, conversation, turn, "pause"))))
            .await;
        messages.push(user(settings, conversation, turn));
        let body = json!({"model": settings.model, "messages": messages, "stream": true, "temperature": 0,
            "stream_options": {"include_usage": true}, "max_tokens": settings.answer_tokens, "ignore_eos": true});
        let Some(answer) = session.send(Endpoint::Chat, &body, conversation + 1, turn + 1).await else {
            return;
        };
        messages.push(json!({"role": "assistant", "content": answer}));
    }
}

fn system(settings: &Settings, conversation: usize) -> Value {
    let which = which_system(settings, draw(settings, conversation, 0, "system"));
    let mut text = String::new();
    Prose { seed: mix(settings.seed ^ mix(which)) }.push_words(0, settings.system_words, &mut text);
    json!({"role": "system", "content": text})
}

/// A system prompt, as `chance` will have it.
fn which_system(settings: &Settings, chance: u64) -> u64 {
    let prompts = settings.system_prompts.max(1);
    if settings.skew == 0.0 {
        return chance % prompts as u64;
    }
    let weights = (1..=prompts).map(|n| (n as f64).powf(-settings.skew));
    let mut rest = (chance >> 11) as f64 / (1u64 << 53) as f64 * weights.clone().sum::<f64>();
    let chosen = weights.into_iter().position(|weight| {
        rest -= weight;
        rest < 0.0
    });
    chosen.unwrap_or(prompts - 1) as u64
}

fn user(settings: &Settings, conversation: usize, turn: usize) -> Value {
    let words = about(settings.turn_words as u64, draw(settings, conversation, turn, "length")) as usize;
    let mut text = String::new();
    Prose { seed: draw(settings, conversation, turn, "text") }.push_words(0, words.max(1), &mut text);
    json!({"role": "user", "content": text})
}

/// A number that depends on nothing but its arguments.
fn draw(settings: &Settings, conversation: usize, turn: usize, what: &str) -> u64 {
    let what = what.bytes().fold(settings.seed, |seed, byte| mix(seed ^ u64::from(byte)));
    mix(mix(what ^ conversation as u64) ^ turn as u64)
}

/// Half to one and a half times `mean`, as `chance` will have it.
fn about(mean: u64, chance: u64) -> u64 {
    mean / 2 + chance % mean.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(seed: u64) -> Settings {
        Settings {
            model: "m".into(),
            seed,
            conversations: 40,
            turns: 3,
            system_prompts: 4,
            skew: 0.0,
            system_words: 50,
            turn_words: 20,
            answer_tokens: 8,
            concurrency: 1,
            think_ms: 10,
        }
    }

    #[test]
    fn equal_seeds_give_equal_loads_and_others_other_ones() {
        let texts = |seed: u64| -> Vec<Value> {
            let settings = settings(seed);
            (0..40)
                .flat_map(|c| [system(&settings, c), user(&settings, c, 0), user(&settings, c, 1)])
                .collect()
        };
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
    }

    #[test]
    fn conversations_share_as_many_system_prompts_as_asked_and_nothing_else() {
        let settings = settings(1);
        let mut systems: Vec<String> = (0..40).map(|c| system(&settings, c).to_string()).collect();
        systems.sort_unstable();
        systems.dedup();
        assert_eq!(systems.len(), 4);
        let mut users: Vec<String> = (0..40)
            .flat_map(|c| (0..3).map(move |t| (c, t)))
            .map(|(c, t)| user(&settings, c, t).to_string())
            .collect();
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.len(), 120);
    }

    #[test]
    fn lengths_stay_between_half_and_one_and_a_half() {
        for chance in 0..200 {
            assert!((10..=30).contains(&about(20, chance)));
        }
        assert_eq!(about(0, 7), 0);
    }

    #[test]
    fn a_skewed_load_asks_for_the_first_prompts_most() {
        let settings = Settings { skew: 1.0, system_prompts: 10, ..settings(1) };
        let mut counts = [0; 10];
        for conversation in 0..10_000 {
            counts[which_system(&settings, draw(&settings, conversation, 0, "system")) as usize] += 1;
        }
        // The n-th in proportion to 1/n, of which there are 2.93 in all.
        for (n, count) in (1..).zip(counts) {
            let expected = 10_000.0 / 2.929 / f64::from(n);
            assert!(
                (f64::from(count) - expected).abs() < 5.0 * expected.sqrt(),
                "{n}: {count}, not {expected}"
            );
        }
    }
}
