//! Recorded traces in Mooncake's format: when requests came, and which blocks of 512 tokens their prompts share.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Session;
use crate::endpoint::Endpoint;
use crate::tokens::{Prose, mix};

/// Tokens that one hash id stands for.
const BLOCK_TOKENS: usize = 512;

/// One request of a trace.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Line {
    /// Milliseconds from the trace's start.
    pub timestamp: u64,
    /// Tokens of the prompt.
    pub input_length: usize,
    /// Tokens of the answer.
    pub output_length: usize,
    /// One id for each block of the prompt, the last of which may be partial.
    pub hash_ids: Vec<u64>,
}

/// How to replay it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The model asked for.
    pub model: String,
    /// How many times faster than recorded.
    pub speed: f64,
    /// Tokens sent for each one recorded; prompts are long.
    pub scale: f64,
    /// Most requests under way at once; later ones wait for their turn.
    pub concurrency: usize,
}

/// Reads at most `limit` lines. The error names the line.
pub fn parse(text: &str, limit: usize) -> Result<Vec<Line>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(limit);
    lines
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))
        })
        .collect()
}

/// Sends the requests when they are due.
pub async fn play(session: &Arc<Session>, settings: &Settings, lines: Vec<Line>) {
    let started = Instant::now();
    let room = Arc::new(Semaphore::new(settings.concurrency));
    let mut requests = JoinSet::new();
    for (index, line) in lines.into_iter().enumerate() {
        let due = Duration::try_from_secs_f64(line.timestamp as f64 / 1000.0 / settings.speed);
        sleep_until(started + due.unwrap_or_default()).await;
        let permit = room.clone().acquire_owned().await;
        let (session, settings) = (session.clone(), settings.clone());
        requests.spawn(async move {
            let body = json!({"model": settings.model, "prompt": prompt(&line, settings.scale), "stream": true,
                "stream_options": {"include_usage": true}, "temperature": 0, "ignore_eos": true,
                "max_tokens": scaled(line.output_length, settings.scale)});
            session.send(Endpoint::Completions, &body, index + 1, 1).await;
            drop(permit);
        });
        // Those that have ended are let go, so that a long trace doesn't pile them up.
        while requests.try_join_next().is_some() {}
    }
    requests.join_all().await;
}

/// The prompt of a line. Each id has a text of its own, one word a token, so equal ids give equal text.
fn prompt(line: &Line, scale: f64) -> String {
    let mut text = String::new();
    let mut tokens_left = line.input_length;
    for id in &line.hash_ids {
        let tokens = tokens_left.min(BLOCK_TOKENS);
        tokens_left -= tokens;
        // From 1 on, for the space before each word: blocks must not run into each other.
        Prose { seed: mix(*id) }.push_words(1, 1 + scaled(tokens, scale), &mut text);
    }
    text
}

/// At least one token, for prompts and answers can't be empty.
fn scaled(tokens: usize, scale: f64) -> usize {
    ((tokens as f64 * scale).round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens;

    fn tokens_of(ids: &[u64], input_length: usize, scale: f64) -> Vec<u32> {
        let line = Line { timestamp: 0, input_length, output_length: 1, hash_ids: ids.to_vec() };
        let mut out = Vec::new();
        tokens::push_text(&prompt(&line, scale), &mut out);
        out
    }

    #[test]
    fn lines_are_read_up_to_the_limit_and_mistakes_name_their_line() {
        let good = r#"{"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [3, 9]}"#;
        let line = Line { timestamp: 27, input_length: 600, output_length: 5, hash_ids: vec![3, 9] };
        assert_eq!(parse(&format!("{good}\n\n{good}\n"), 9), Ok(vec![line.clone(), line.clone()]));
        assert_eq!(parse(&format!("{good}\nnonsense"), 1), Ok(vec![line]));
        assert!(parse(&format!("{good}\nnonsense"), 2).unwrap_err().starts_with("line 2: "));
    }

    #[test]
    fn prompts_have_the_recorded_length_and_share_what_ids_share() {
        let long = tokens_of(&[1, 2, 3], 1100, 1.0);
        assert_eq!(long.len(), 1100);
        let other = tokens_of(&[1, 2, 4], 1536, 1.0);
        let common = long.iter().zip(&other).take_while(|(a, b)| a == b).count();
        assert!((1024..1030).contains(&common), "{common}: two blocks, and words that happen to be equal");
        assert_eq!(tokens_of(&[1, 2, 3], 1536, 0.125).len(), 3 * 64);
    }
}
