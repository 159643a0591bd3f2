//! KV that a prefill pod keeps for a decode pod to fetch, and the handoffs under way.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use crate::engine::Pinned;

/// What a decode pod must show to get KV: which prompt it has, and what the handoff told it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The seed of the prompt's answer: model, salt and every token are in it.
    pub prompt: u64,
    /// What came by the request, compared key by key. 64-bit integers count exactly.
    pub terms: Value,
}

/// One prompt's KV.
#[derive(Debug)]
pub struct Kv {
    /// What must be shown for it.
    pub shown: Shown,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How many of them the prefill pod had found in its own cache.
    pub cached: usize,
    /// Its blocks, which are in use until it is gone.
    pub pinned: Option<Pinned>,
}

/// What a decode pod is told of the KV that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How many of them the prefill pod had found in its own cache.
    pub cached: usize,
}

/// All that one pod keeps, by the key of its handoff.
#[derive(Debug, Default)]
pub struct Store {
    state: Mutex<State>,
    changed: Notify,
    fetched: AtomicU64,
    expired: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    held: HashMap<String, Entry>,
    active: HashSet<String>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    kv: Kv,
    number: u64,
    /// For a prefill that answers only when its KV has been fetched.
    waiting: Option<oneshot::Sender<Result<(), String>>>,
}

/// A key in use by a request of this pod, until it is dropped.
#[derive(Debug)]
pub struct Reserved {
    store: Arc<Store>,
    key: String,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.store.lock().active.remove(&self.key);
    }
}

impl Store {
    /// Marks a key as in use. `None` where it is already, or has KV that waits.
    pub fn reserve(self: &Arc<Self>, key: &str) -> Option<Reserved> {
        let mut state = self.lock();
        let free = !state.held.contains_key(key) && state.active.insert(key.to_owned());
        drop(state);
        free.then(|| Reserved { store: self.clone(), key: key.to_owned() })
    }

    /// Keeps KV for so long at most.
    pub fn hold(self: &Arc<Self>, key: &str, kv: Kv, ttl: Duration) {
        self.insert(key, kv, ttl, None);
    }

    /// Keeps KV and waits until it is fetched. The error says what came of it instead.
    pub async fn hold_until_fetched(
        self: &Arc<Self>,
        key: &str,
        kv: Kv,
        patience: Duration,
    ) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        self.insert(key, kv, patience, Some(sender));
        // Whoever leaves while it waits takes its KV along.
        let _left = Forget { store: self, key };
        receiver.await.unwrap_or_else(|_| Err("its KV was dropped".into()))
    }

    fn insert(
        self: &Arc<Self>,
        key: &str,
        kv: Kv,
        ttl: Duration,
        waiting: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.held.insert(key.to_owned(), Entry { kv, number, waiting });
        drop(state);
        self.changed.notify_waiters();
        let (store, key) = (self.clone(), key.to_owned());
        tokio::spawn(async move {
            sleep(ttl).await;
            store.expire(&key, number);
        });
    }

    fn expire(&self, key: &str, number: u64) {
        let mut state = self.lock();
        if state.held.get(key).is_none_or(|entry| entry.number != number) {
            return;
        }
        let entry = state.held.remove(key);
        drop(state);
        self.expired.fetch_add(1, Relaxed);
        if let Some(waiting) = entry.and_then(|entry| entry.waiting) {
            let _ = waiting.send(Err("nobody fetched its KV in time".into()));
        }
    }

    /// Gives KV away to whoever shows the right things, once. Waits for it for as long as `patience`; the error says what
    /// is wrong.
    pub async fn take(&self, key: &str, shown: &Shown, patience: Duration) -> Result<Taken, String> {
        let deadline = Instant::now() + patience;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = self.try_take(key, shown) {
                return result;
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Err(format!("no KV is held for {key}"));
            }
        }
    }

    fn try_take(&self, key: &str, shown: &Shown) -> Option<Result<Taken, String>> {
        let mut state = self.lock();
        let held = &state.held.get(key)?.kv.shown;
        if let Some(why) = difference(held, shown) {
            // A prefill that waits for this fetch learns of it; other KV stays for who has a right to it.
            if state.held[key].waiting.is_some() {
                let entry = state.held.remove(key);
                if let Some(waiting) = entry.and_then(|entry| entry.waiting) {
                    let _ = waiting.send(Err(why.clone()));
                }
            }
            return Some(Err(why));
        }
        let entry = state.held.remove(key)?;
        drop(state);
        self.fetched.fetch_add(1, Relaxed);
        if let Some(waiting) = entry.waiting {
            let _ = waiting.send(Ok(()));
        }
        Some(Ok(Taken { tokens: entry.kv.tokens, cached: entry.kv.cached }))
    }

    /// Forgets all KV.
    pub fn clear(&self) {
        let held = std::mem::take(&mut self.lock().held);
        for entry in held.into_values() {
            if let Some(waiting) = entry.waiting {
                let _ = waiting.send(Err("its KV was dropped".into()));
            }
        }
    }

    /// Forgets all KV and all counts.
    pub fn reset(&self) {
        self.clear();
        self.fetched.store(0, Relaxed);
        self.expired.store(0, Relaxed);
    }

    /// How much KV is held, was fetched, and was kept in vain until its time was over.
    pub fn counts(&self) -> [u64; 3] {
        let held = self.lock().held.len() as u64;
        [held, self.fetched.load(Relaxed), self.expired.load(Relaxed)]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Forget<'a> {
    store: &'a Store,
    key: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let entry = self.store.lock().held.remove(self.key);
        drop(entry);
    }
}

/// What keeps `shown` from being what it must be.
fn difference(held: &Shown, shown: &Shown) -> Option<String> {
    if let (Value::Object(right), Value::Object(told)) = (&held.terms, &shown.terms) {
        for (name, value) in right {
            match told.get(name) {
                None => return Some(format!("{name} is missing from the handoff; it was {value}")),
                Some(other) if other != value => {
                    return Some(format!("{name} of the handoff is {other}; it was {value}"));
                }
                Some(_) => {}
            }
        }
        if let Some(name) = told.keys().find(|name| !right.contains_key(*name)) {
            return Some(format!("{name} was not in the handoff"));
        }
    } else if held.terms != shown.terms {
        return Some(format!("the handoff is {}; it was {}", shown.terms, held.terms));
    }
    (held.prompt != shown.prompt).then(|| "the prompt is another than the one that was prefilled".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TTL: Duration = Duration::from_secs(9);
    const NOW: Duration = Duration::ZERO;

    fn shown(prompt: u64, terms: Value) -> Shown {
        Shown { prompt, terms }
    }

    fn kv(shown: &Shown) -> Kv {
        Kv { shown: shown.clone(), tokens: 5, cached: 2, pinned: None }
    }

    #[tokio::test(start_paused = true)]
    async fn kv_goes_once_to_who_shows_exactly_what_was_handed_over() {
        let store = Arc::new(Store::default());
        let right = shown(1, json!({"a": 9_007_199_254_740_993_u64, "b": {"c": [1, null]}}));
        store.hold("k", kv(&right), TTL);
        for (wrong, why) in [
            (shown(2, right.terms.clone()), "prompt"),
            (shown(1, json!({"a": 9_007_199_254_740_992_u64, "b": {"c": [1, null]}})), "a of the handoff"),
            (shown(1, json!({"a": 9_007_199_254_740_993_f64, "b": {"c": [1, null]}})), "a of the handoff"),
            (shown(1, json!({"a": 9_007_199_254_740_993_u64, "b": {"c": [1]}})), "b of the handoff"),
            (shown(1, json!({"a": 9_007_199_254_740_993_u64})), "b is missing"),
            (shown(1, json!({"a": 9_007_199_254_740_993_u64, "b": {"c": [1, null]}, "d": 1})), "d was not"),
        ] {
            let error = store.take("k", &wrong, NOW).await.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let order = shown(1, json!({"b": {"c": [1, null]}, "a": 9_007_199_254_740_993_u64}));
        assert_eq!(store.take("k", &order, NOW).await, Ok(Taken { tokens: 5, cached: 2 }));
        assert!(store.take("k", &right, NOW).await.unwrap_err().contains("no KV"));
        assert_eq!(store.counts(), [0, 1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn kv_that_nobody_fetches_expires() {
        let store = Arc::new(Store::default());
        let right = shown(1, json!({}));
        store.hold("k", kv(&right), TTL);
        sleep(TTL / 2).await;
        assert_eq!(store.counts(), [1, 0, 0]);
        sleep(TTL).await;
        assert_eq!(store.counts(), [0, 0, 1]);
        let why = store.hold_until_fetched("k", kv(&right), TTL).await.unwrap_err();
        assert!(why.contains("in time"), "{why}");
        assert_eq!(store.counts(), [0, 0, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn both_sides_wait_for_each_other_and_both_learn_of_a_mismatch() {
        let right = shown(1, json!({}));
        for (other, fits) in [(right.clone(), true), (shown(2, json!({})), false)] {
            let store = Arc::new(Store::default());
            let (taker, wanted) = (store.clone(), other);
            let fetch = tokio::spawn(async move { taker.take("k", &wanted, TTL).await });
            sleep(TTL / 2).await;
            assert_eq!(store.hold_until_fetched("k", kv(&right), TTL).await.is_ok(), fits);
            assert_eq!(fetch.await.unwrap().is_ok(), fits);
            assert_eq!(store.counts()[0], 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_free_again_when_its_request_is_over_and_its_kv_gone() {
        let store = Arc::new(Store::default());
        let first = store.reserve("k").unwrap();
        assert!(store.reserve("k").is_none());
        store.hold("k", kv(&shown(1, json!({}))), TTL);
        drop(first);
        assert!(store.reserve("k").is_none());
        store.clear();
        assert!(store.reserve("k").is_some());
    }
}
