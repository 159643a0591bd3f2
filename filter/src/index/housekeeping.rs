//! What the holder of the lease decides: which pods are gone, and which blocks are too old or too many.
//!
//! It only proposes deltas. They take effect from the log, in all replicas alike.

use super::roster::SlotState;
use super::{BlockHash, Delta, Goal, IndexSettings, MAX_SLOTS, PodRef, PodSet, Replica, Slot};
use crate::blocks::Kind;
use std::collections::BTreeMap;

/// Ticks after which a pod that no living VM's configuration names has left.
const UNUSED_TICKS: u32 = 100;
/// Seconds of the log's clock until the slot of a pod that left may be taken again: its last streams end meanwhile.
const FREED_AFTER: u32 = 30;
/// Seconds without an entry after which one is appended for the clock alone.
const CLOCK_SECONDS: u32 = 5;
/// Seconds for which a guess about a pod that says itself what it holds is kept: prompts are computed and told of by then.
const GUESS_SECONDS: u32 = 15;
/// Most blocks that are removed in one tick.
const MOST_AGED: usize = 8192;

/// How many blocks each pod is thought to hold at most.
#[derive(Debug)]
pub(crate) struct Bounds {
    most: usize,
    text_tokens: u64,
    block_tokens: u64,
    /// By slot, what differs: of text, of tokens.
    by_slot: BTreeMap<Slot, [usize; 2]>,
}

impl Bounds {
    pub(crate) fn new(settings: &IndexSettings) -> Self {
        let IndexSettings { pod_blocks, text_tokens, block_tokens, .. } = *settings;
        Self { most: pod_blocks, text_tokens, block_tokens, by_slot: BTreeMap::new() }
    }

    /// The pod's engine says that its cache holds so many tokens.
    pub(crate) fn set_tokens(&mut self, slot: Slot, tokens: u64) {
        let blocks = |of: u64| usize::try_from(tokens / of.max(1)).unwrap_or(usize::MAX).max(1);
        self.by_slot.insert(slot, [blocks(self.text_tokens), blocks(self.block_tokens)]);
    }

    fn of(&self, slot: Slot, kind: Kind) -> usize {
        let Some([text, tokens]) = self.by_slot.get(&slot) else { return self.most };
        match kind {
            Kind::Text => *text,
            Kind::Tokens | Kind::Cached => *tokens,
        }
    }
}

/// The decisions of one holder of the lease.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    /// Ticks since anybody used a slot.
    unused: Vec<u32>,
}

impl Default for Housekeeping {
    fn default() -> Self {
        Self { unused: vec![0; MAX_SLOTS] }
    }
}

impl Housekeeping {
    /// Whether the log's clock stands still: nobody appended for a while, or the wall clock was set back.
    pub(crate) fn clock_is_due(replica: &Replica, wall: u32) -> bool {
        wall.checked_sub(replica.last_time()).is_none_or(|since| since >= CLOCK_SECONDS)
    }

    /// Pods that left, and slots that are free again. `in_use`: slots that the configuration of a living VM names.
    pub(crate) fn pods(&mut self, replica: &Replica, in_use: &PodSet) -> Vec<Delta> {
        let roster = replica.roster();
        let mut deltas = Vec::new();
        for (slot, unused) in Slot::all().zip(&mut self.unused) {
            let pod = roster.at(slot);
            let idle = roster.active().contains(slot) && !in_use.contains(slot);
            *unused = if idle { unused.saturating_add(1) } else { 0 };
            match roster.state(slot) {
                SlotState::Active if *unused >= UNUSED_TICKS => deltas.push(Delta::Left { pod }),
                SlotState::Leaving { since, .. } if replica.clock().saturating_sub(since) >= FREED_AFTER => {
                    deltas.push(Delta::Freed { pod });
                }
                _ => {}
            }
        }
        deltas
    }

    /// Blocks to remove: of pods that hold more than their share, those that nobody used for long, and the oldest of
    /// whatever there is most of while the whole index is nearly full.
    ///
    /// The pods of `exact` say themselves what they hold, so what is known of them by events stays, and what was guessed of
    /// them goes as soon as events should have confirmed it.
    pub(crate) fn blocks(
        replica: &mut Replica,
        settings: &IndexSettings,
        bounds: &Bounds,
        exact: &PodSet,
    ) -> Vec<Delta> {
        let clock = replica.clock();
        let Some((table, roster, aging)) = replica.aging() else { return Vec::new() };
        let mut left = MOST_AGED;
        let mut deltas = Vec::new();
        let mut remove = |pod: PodRef, hashes: Vec<BlockHash>| {
            if !hashes.is_empty() {
                deltas.push(Delta::Removed { pod, hashes });
            }
        };
        let comfortable = settings.max_blocks - settings.max_blocks / 16;
        let excess = table.len().saturating_sub(comfortable);
        let of_active = || roster.active().iter().flat_map(|slot| Kind::ALL.map(|kind| (slot, kind)));
        let largest = of_active().max_by_key(|(slot, kind)| table.held_of(*slot, *kind));
        for (slot, kind) in of_active() {
            let (worth, ttl) = match (kind, exact.contains(slot)) {
                (Kind::Cached, true) => (0, u32::MAX),
                (Kind::Tokens, true) => (table.worth_of(slot, kind), GUESS_SECONDS.min(settings.ttl_seconds)),
                _ => (table.worth_of(slot, kind), settings.ttl_seconds),
            };
            let over = Goal {
                blocks: if Some((slot, kind)) == largest { excess } else { 0 },
                worth: worth.saturating_sub(bounds.of(slot, kind)),
                most: left,
            };
            let mut hashes = Vec::new();
            match (over, clock.checked_sub(ttl)) {
                (Goal { blocks: 0, worth: 0, .. }, Some(before)) => {
                    aging.expired(table, (slot, kind), before, left, &mut hashes);
                }
                (Goal { blocks: 0, worth: 0, .. }, None) => {}
                _ => aging.oldest(table, (slot, kind), over, &mut hashes),
            }
            left = left.saturating_sub(hashes.len());
            remove(roster.at(slot), hashes);
            if left == 0 {
                break;
            }
        }
        deltas
    }
}
