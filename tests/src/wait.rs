//! Waiting for a condition instead of for a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: generous, since two cores run many tests at once.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Polls until `probe` gives a value; panics after [`DEADLINE`], naming what was waited for.
#[track_caller]
pub fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_long(DEADLINE, what, probe)
}

/// The same, with a deadline of its own.
#[track_caller]
pub fn wait_long<T>(deadline: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Polls until `condition` holds; panics after [`DEADLINE`], naming what was waited for.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}
