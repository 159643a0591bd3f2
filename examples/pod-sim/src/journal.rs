//! The last requests that a pod has seen, for tests to look at.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::transfer::Leg;

/// One request, as far as it has come.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    /// Counts requests from 0 since the pod's start.
    pub sequence: u64,
    /// The request's `x-request-id`; empty without one.
    pub id: String,
    /// Its path, with the query string.
    pub path: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: String,
    /// Counts the pod's connections: equal numbers came over one.
    pub connection: u64,
    /// All its headers; several of one name are joined with `, `.
    pub headers: BTreeMap<String, String>,
    /// Its trailers.
    pub trailers: BTreeMap<String, String>,
    /// Length of the body in bytes.
    pub body_bytes: usize,
    /// xxh3-64 of the body, in 16 hex digits.
    pub body_hash: String,
    /// The body as it came, where the pod keeps bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The model that answers.
    pub model: String,
    /// Tokens of all its prompts.
    pub prompt_tokens: usize,
    /// How many of them were found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated so far.
    pub completion_tokens: usize,
    /// What became of its KV, on a pod that takes part in disaggregation.
    pub kv: Option<KvRecord>,
    /// Real milliseconds from the end of the body to the first token.
    pub ttft_ms: Option<f64>,
    /// The status answered, 0 before that.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
}

/// A request's part in disaggregation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvRecord {
    /// What was asked for.
    pub leg: Leg,
    /// Prompt tokens whose KV came from another pod.
    pub fetched_tokens: usize,
    /// The side listener that it came from.
    pub from: Option<String>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It hasn't yet.
    #[default]
    Running,
    /// Answered whole.
    Done,
    /// Answered with an error.
    Rejected,
    /// Cut short by a fault.
    Faulted,
    /// The client left, or the pod was reset.
    Aborted,
}

/// A bounded list of the latest records.
#[derive(Debug)]
pub struct Journal {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    records: VecDeque<Record>,
}

impl Journal {
    /// An empty one that keeps `limit` records.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), state: Mutex::default() })
    }

    /// Adds a record and numbers it.
    pub fn begin(self: &Arc<Self>, mut record: Record) -> Entry {
        let mut state = self.lock();
        record.sequence = state.next;
        state.next += 1;
        let entry = Entry { journal: self.clone(), sequence: record.sequence };
        while state.records.len() >= self.limit {
            state.records.pop_front();
        }
        state.records.push_back(record);
        entry
    }

    /// The records kept, oldest first.
    pub fn records(&self) -> Vec<Record> {
        self.lock().records.iter().cloned().collect()
    }

    /// How many requests began since the start.
    pub fn begun(&self) -> u64 {
        self.lock().next
    }

    /// Forgets all records; numbers go on.
    pub fn clear(&self) {
        self.lock().records.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The record of a request under way. Dropped before an outcome was set, it counts as aborted.
#[derive(Debug)]
pub struct Entry {
    journal: Arc<Journal>,
    sequence: u64,
}

impl Entry {
    /// Changes the record, unless it is no longer kept.
    pub fn update(&self, change: impl FnOnce(&mut Record)) {
        let mut state = self.journal.lock();
        let index = state.records.binary_search_by_key(&self.sequence, |record| record.sequence);
        if let Some(record) = index.ok().and_then(|index| state.records.get_mut(index)) {
            change(record);
        }
    }

    /// Its number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.update(|record| {
            if record.outcome == Outcome::Running {
                record.outcome = Outcome::Aborted;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_are_kept_and_each_is_found_again() {
        let journal = Journal::new(2);
        let entries: Vec<Entry> = (0..3).map(|_| journal.begin(Record::default())).collect();
        for entry in &entries {
            entry.update(|record| record.prompt_tokens = entry.sequence() as usize + 10);
        }
        let kept: Vec<_> = journal.records().iter().map(|r| (r.sequence, r.prompt_tokens)).collect();
        assert_eq!(kept, [(1, 11), (2, 12)]);
    }

    #[test]
    fn a_request_that_nobody_finished_is_aborted() {
        let journal = Journal::new(2);
        let done = journal.begin(Record::default());
        done.update(|record| record.outcome = Outcome::Done);
        drop((done, journal.begin(Record::default())));
        let outcomes: Vec<_> = journal.records().iter().map(|r| r.outcome).collect();
        assert_eq!(outcomes, [Outcome::Done, Outcome::Aborted]);
    }
}
