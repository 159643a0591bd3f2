//! Requests of this VM that wait for their first token, by when that is overdue.

use super::Running;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most requests that are watched; what exceeds it is not missed when it hangs.
const MOST: usize = 100_000;

/// A request under way, known to its stream and to whoever watches it. `None` once it ended.
pub type Shared = Rc<Cell<Option<Running>>>;

/// What is to be done about a request whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// Its answer is streamed, so its pod hangs, or is far behind.
    Hangs,
    /// Its answer comes at once when all of it is there: by now the prompt must have been prefilled.
    Prefilled,
}

/// See the module's docs.
#[derive(Debug, Default)]
pub struct Waiting {
    by_due: BTreeMap<(u64, u64), (Shared, Overdue)>,
    next: u64,
}

impl Waiting {
    /// Watches a request. The answer is to be given to [`Waiting::came`].
    pub fn watch(&mut self, due: u64, running: &Shared, overdue: Overdue) -> (u64, u64) {
        self.next = self.next.wrapping_add(1);
        if self.by_due.len() < MOST {
            self.by_due.insert((due, self.next), (running.clone(), overdue));
        }
        (due, self.next)
    }

    /// The first token came, or the request ended.
    pub fn came(&mut self, watched: (u64, u64)) {
        self.by_due.remove(&watched);
    }

    /// The next request that is overdue, if any; it is watched no longer.
    pub fn overdue(&mut self, now: u64) -> Option<(Shared, Overdue)> {
        let entry = self.by_due.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{PodRef, Slot};
    use crate::pods::Job;

    #[test]
    fn who_came_in_time_is_not_overdue() {
        let pod = PodRef { slot: Slot::new(0).unwrap(), generation: 0 };
        let shared = || Rc::new(Cell::new(Some(Running { pod, job: Job::default(), prefilled: false })));
        let mut waiting = Waiting::default();
        let first = waiting.watch(5, &shared(), Overdue::Hangs);
        let second = waiting.watch(3, &shared(), Overdue::Prefilled);
        waiting.watch(5, &shared(), Overdue::Prefilled);
        assert!(waiting.overdue(2).is_none());
        assert_eq!(waiting.overdue(5).map(|(_, overdue)| overdue), Some(Overdue::Prefilled));
        waiting.came(second);
        waiting.came(first);
        assert_eq!(waiting.overdue(5).map(|(_, overdue)| overdue), Some(Overdue::Prefilled));
        assert!(waiting.overdue(500).is_none());
    }
}
