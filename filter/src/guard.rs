//! Notices that Envoy holds requests without ever giving their bodies.
//!
//! That happens where `allow_on_headers_stop_iteration` is missing from the plugin's configuration: a paused request
//! then hangs until its client gives up. So until a first body callback has shown that the setting is there, held
//! requests are watched, and one that waited a second is sent on by load. After a few of these, requests are no
//! longer held at all, but for a probe now and then, since it may have been only slow clients.

use std::collections::VecDeque;

/// Ticks after which a held request is sent on: a second.
const PATIENCE: u64 = 10;
/// Requests sent on in a row before holding stops.
const ENOUGH: u32 = 3;
/// Ticks between probes once holding stopped: half a minute.
const PROBE: u64 = 300;
/// Requests watched at once; beyond it, requests are not held.
const MOST_WATCHED: usize = 4096;

/// Watches the held requests of one plugin configuration. `S` refers to a stream.
#[derive(Debug)]
pub struct Guard<S> {
    body_seen: bool,
    unanswered: u32,
    last_probe: u64,
    watched: VecDeque<(u64, S)>,
}

impl<S> Default for Guard<S> {
    fn default() -> Self {
        Self { body_seen: false, unanswered: 0, last_probe: 0, watched: VecDeque::new() }
    }
}

impl<S> Guard<S> {
    /// Whether a request may be held for its body; if so, it is watched from `now` (in ticks) where needed. One that `must` be read to
    /// be served is held as long as there is room to watch it.
    pub fn may_hold(&mut self, now: u64, must: bool, stream: impl FnOnce() -> S) -> bool {
        if self.body_seen {
            return true;
        }
        let probing = must || self.unanswered < ENOUGH || now.saturating_sub(self.last_probe) >= PROBE;
        if !probing || self.watched.len() >= MOST_WATCHED {
            return false;
        }
        if !must {
            self.last_probe = now;
        }
        self.watched.push_back((now, stream()));
        true
    }

    /// A body arrived for a request that was held: the setting is there.
    pub fn body_arrived(&mut self) {
        if !self.body_seen {
            self.body_seen = true;
            self.unanswered = 0;
            self.watched = VecDeque::new();
        }
    }

    /// The next request that has been held for too long, if any.
    pub fn overdue(&mut self, now: u64) -> Option<S> {
        let (since, _) = self.watched.front()?;
        if now.saturating_sub(*since) < PATIENCE {
            return None;
        }
        self.watched.pop_front().map(|(_, stream)| stream)
    }

    /// An overdue request was sent on. True once: when this is the one that shows the setting to be missing.
    pub fn sent_on(&mut self) -> bool {
        self.unanswered = self.unanswered.saturating_add(1);
        self.unanswered == ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_the_watch() {
        let mut guard = Guard::default();
        assert!(guard.may_hold(0, false, || 1));
        guard.body_arrived();
        assert_eq!(guard.overdue(1000), None);
        assert!(guard.may_hold(1000, false, || 2));
        assert_eq!(guard.overdue(5000), None, "nothing is watched any more");
    }

    #[test]
    fn held_requests_are_sent_on_after_a_second_and_holding_stops() {
        let mut guard = Guard::default();
        for stream in 0..3 {
            assert!(guard.may_hold(stream, false, || stream));
        }
        assert_eq!(guard.overdue(9), None);
        assert_eq!(guard.overdue(10), Some(0));
        assert_eq!(guard.overdue(10), None, "the second was held a tick later");
        assert!(!guard.sent_on());
        assert_eq!(guard.overdue(12), Some(1));
        assert!(!guard.sent_on());
        assert_eq!(guard.overdue(12), Some(2));
        assert!(guard.sent_on(), "reported once");
        assert!(!guard.may_hold(13, false, || 4));
        assert!(guard.may_hold(13, true, || 4), "it can't go unread");
        assert!(guard.may_hold(2 + 300, false, || 5), "a probe");
        assert!(!guard.may_hold(2 + 301, false, || 6));
        guard.body_arrived();
        assert!(guard.may_hold(400, false, || 7));
    }

    #[test]
    fn the_watch_is_bounded() {
        let mut guard = Guard::default();
        let held = (0..10_000).filter(|stream| guard.may_hold(0, false, || *stream)).count();
        assert_eq!(held, MOST_WATCHED);
    }
}
