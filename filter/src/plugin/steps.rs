//! What streams of two steps leave with their plugin: what prefill pods were asked, and prefills that go on without a stream.

use super::Plugin;
use crate::fleet::Fleet;
use crate::host::Host;
use crate::stream::{Progress, patience};
use crate::workflow::Sent;

/// Ticks for which what a prefill pod was asked counts as known: 30 seconds, in which an engine may start anew.
const LEARNT_TICKS: u64 = 300;
/// Most pods of which it is kept.
const MOST_LEARNT: usize = 1024;
/// Most prefills without a stream that are counted on.
const MOST_ORPHANS: usize = 4096;

impl Plugin {
    /// What a prefill pod answered to the protocol's question, if that was lately.
    pub fn learnt(&self, address: &str, now: u64) -> Option<String> {
        let learnt = self.learnt.try_borrow().ok()?;
        let (when, what) = learnt.get(address)?;
        (now.saturating_sub(*when) < LEARNT_TICKS).then(|| what.clone())
    }

    /// Keeps what a prefill pod answered.
    pub fn learn(&self, address: String, now: u64, what: String) {
        let Ok(mut learnt) = self.learnt.try_borrow_mut() else { return };
        if learnt.len() >= MOST_LEARNT {
            learnt.retain(|_, (when, _)| now.saturating_sub(*when) < LEARNT_TICKS);
        }
        if learnt.len() < MOST_LEARNT {
            learnt.insert(address, (now, what));
        }
    }

    /// A handoff came to nothing: a prefill pod may be another engine by now.
    pub fn forget_learnt(&self) {
        if let Ok(mut learnt) = self.learnt.try_borrow_mut() {
            learnt.clear();
        }
    }

    /// A prefill goes on, and nobody will hear of its end. It counts for as long as it is likely to take.
    pub fn orphan(&self, host: &impl Host, fleet: &mut Fleet, progress: Progress, sent: &Sent) {
        match self.orphans.try_borrow_mut() {
            Ok(mut orphans) if orphans.len() < MOST_ORPHANS => {
                orphans.push((sent.began.saturating_add(patience(sent)), progress));
            }
            _ => progress.end_unwatched(host, fleet),
        }
    }

    pub(super) fn end_orphans(&self, host: &impl Host, fleet: &mut Fleet) {
        let Ok(mut orphans) = self.orphans.try_borrow_mut() else { return };
        let now = fleet.ticks();
        for (_, progress) in orphans.extract_if(.., |(due, _)| *due <= now) {
            progress.end_unwatched(host, fleet);
        }
    }
}
