//! Sends requests, shows each as it ends, and keeps the figures.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::time::Instant;

use super::client::Client;
use super::ideal::Ideal;
use super::summary::{Row, Summary, Totals};
use crate::body::Body;
use crate::endpoint::Endpoint;
use crate::tokens;

/// One run of a load.
#[derive(Debug)]
pub struct Session {
    client: Client,
    quiet: bool,
    started: Instant,
    /// Knows requests from when they are sent.
    sent: Mutex<Ideal>,
    /// Knows requests, and their answers, from when they are answered.
    answered: Mutex<Ideal>,
    rows: Mutex<Vec<Row>>,
}

impl Session {
    /// Starts a run against a server whose cache has blocks of `block_size` tokens. Unless `quiet`, prints the heading.
    pub fn new(client: Client, block_size: usize, quiet: bool) -> Self {
        if !quiet {
            println!("{}", Row::HEADING);
        }
        Self {
            client,
            quiet,
            started: Instant::now(),
            sent: Mutex::new(Ideal::new(block_size)),
            answered: Mutex::new(Ideal::new(block_size)),
            rows: Mutex::default(),
        }
    }

    /// Sends one request with one prompt, prints and records how it went, and returns the answer's text.
    pub async fn send(
        &self,
        endpoint: Endpoint,
        body: &Value,
        conversation: usize,
        turn: usize,
    ) -> Option<String> {
        let path = if endpoint == Endpoint::Chat { "/v1/chat/completions" } else { "/v1/completions" };
        let bytes = body.to_string().into_bytes();
        let mut prompt = match Body::parse(endpoint, &bytes) {
            Ok(mut body) => body.prompts.pop().unwrap_or_default(),
            Err(wrong) => unreachable!("the load made a body that can't be read: {}", wrong.0),
        };
        let mut row = Row { conversation, turn, own_tokens: prompt.len(), ..Row::default() };
        row.ideal_tokens = lock(&self.answered).cached(&prompt);
        row.bound_tokens = {
            let mut sent = lock(&self.sent);
            let cached = sent.cached(&prompt);
            sent.add(&prompt);
            cached
        };
        row.sent_ms = self.started.elapsed().as_secs_f64() * 1000.0;
        let text = match self.client.post(path, &format!("replay-{conversation}-{turn}"), bytes).await {
            Ok(reply) => {
                tokens::push_text(&reply.text, &mut prompt);
                lock(&self.answered).add(&prompt[..prompt.len() - 1]);
                lock(&self.sent).add(&prompt[..prompt.len() - 1]);
                row.ttft_ms = reply.ttft.as_secs_f64() * 1000.0;
                row.total_ms = reply.total.as_secs_f64() * 1000.0;
                row.prompt_tokens = reply.prompt_tokens;
                row.cached_tokens = reply.cached_tokens;
                row.completion_tokens = reply.completion_tokens;
                row.pod = reply.pod;
                row.matched = reply.matched;
                Some(reply.text)
            }
            Err(error) => {
                row.error = Some(error);
                None
            }
        };
        if !self.quiet {
            println!("{row}");
        }
        lock(&self.rows).push(row);
        text
    }

    /// Ends the run.
    pub fn finish(self, label: String, load: BTreeMap<String, Value>) -> Summary {
        let seconds = self.started.elapsed().as_secs_f64();
        let rows = self.rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        Summary { label, load, totals: Totals::of(&rows, seconds), rows }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
