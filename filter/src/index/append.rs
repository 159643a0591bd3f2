//! Appending to the log.

use crate::host::{Host, Write};
use crate::pods::Load;

use super::Delta;
use super::entry::{self, Draft};
use super::follower::{Follower, Step};

/// Most places that one entry is tried at before it is given up.
const ATTEMPTS: usize = 64;

/// What an append does when the log turns out to be longer than was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnseen {
    /// Applies what is new and appends nothing, so that the caller can decide again.
    Return,
    /// Applies what is new and appends behind it.
    Go,
}

/// Outcome of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The deltas are in the log and applied.
    Done,
    /// Nothing was appended: there were entries that had not been seen, and now are.
    Unseen,
    /// The ring is full until the checkpoint gets on. Dropped, and counted.
    Full,
    /// Not all was appended: a hostcall failed, others were faster too often, or this VM is still loading. Counted.
    Failed,
}

impl Follower {
    /// Appends deltas, and applies them. After a [`Follower::catch_up`] that found nothing new since: one hostcall for
    /// each 8 KiB.
    pub(crate) fn append(
        &mut self,
        host: &impl Host,
        load: &mut Load,
        deltas: &[Delta],
        mut on_unseen: OnUnseen,
    ) -> Appended {
        self.begin(host);
        for mut draft in entry::drafts(deltas) {
            let outcome = self.append_one(host, load, &mut draft, on_unseen);
            match outcome {
                Appended::Done => {}
                Appended::Unseen => return outcome,
                Appended::Full => {
                    self.counts.full += 1;
                    return outcome;
                }
                Appended::Failed => {
                    self.counts.failed += 1;
                    return outcome;
                }
            }
            // What follows the first belongs to it.
            on_unseen = OnUnseen::Go;
        }
        Appended::Done
    }

    fn append_one(
        &mut self,
        host: &impl Host,
        load: &mut Load,
        draft: &mut Draft,
        on_unseen: OnUnseen,
    ) -> Appended {
        let Some(life) = self.writer() else { return Appended::Failed };
        let time = u32::try_from(host.now().as_secs()).unwrap_or(u32::MAX);
        let mut unseen = false;
        for _ in 0..ATTEMPTS {
            let position = self.replica.position();
            let expect = match self.end {
                Some((end, expect)) if end == position => expect,
                _ => match self.step(host, load) {
                    Step::End(expect) => expect,
                    Step::Stuck => return Appended::Failed,
                    Step::Skipped => continue,
                    Step::Applied => {
                        unseen = true;
                        continue;
                    }
                },
            };
            if unseen && on_unseen == OnUnseen::Return {
                return Appended::Unseen;
            }
            let room = self.log.has_room(host, &self.keys, position);
            match self.counted(room) {
                Some(true) => {}
                Some(false) => return Appended::Full,
                None => return Appended::Failed,
            }
            let bytes = draft.stamp(position, life, time);
            let written = self.log.commit(host, &self.keys, position, expect, bytes);
            self.end = None;
            match written {
                Ok(Write::Done) => {
                    // Through the same bytes as everybody else.
                    match entry::read(bytes) {
                        entry::Read::Entry(entry) => {
                            self.settle(&entry.deltas);
                            self.apply(&entry, load);
                        }
                        _ => self.replica.skip(),
                    }
                    return Appended::Done;
                }
                Ok(Write::Conflict) => {}
                Err(_) => {
                    self.counts.host_errors += 1;
                    return Appended::Failed;
                }
            }
        }
        if unseen && on_unseen == OnUnseen::Return { Appended::Unseen } else { Appended::Failed }
    }
}
