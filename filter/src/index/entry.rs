//! An entry of the log: a batch of deltas that is applied whole or not at all.

use super::Delta;
use super::wire::{self, Put};

/// Longest entry, in bytes. Long chains are split over several.
pub const MAX_ENTRY: usize = 8 * 1024;

/// Format of entries, checkpoints and ledgers. It is part of every key, so that another build's are never read.
pub const FORMAT: u8 = 3;

/// Where [`Draft::stamp`] writes: behind the checksum and the format.
const STAMP: usize = wire::SEAL + 1;
/// Sequence, writer, time and the number of deltas.
const STAMP_BYTES: usize = 8 + 8 + 4 + 2;
const HEADER: usize = STAMP + STAMP_BYTES;

/// Fewest hashes worth splitting a delta for.
const WORTH_SPLITTING: usize = 16;

/// An entry as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its position in the log, from 0 on.
    pub seq: u64,
    /// The life of the VM that wrote it.
    pub writer: u64,
    /// The writer's wall clock, in seconds since the epoch. It can jump; replicas derive the log's clock from it.
    pub time: u32,
    /// The deltas, in order. None at all: the entry only moves the clock.
    pub deltas: Vec<Delta>,
}

/// What a value under a log key is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// An entry.
    Entry(Entry),
    /// An entry of that position, but its deltas make no sense.
    Malformed(u64),
    /// Not an entry.
    Garbage,
}

/// Reads an entry. Bounded in time and memory by the length of the bytes, which is bounded by [`MAX_ENTRY`].
pub(crate) fn read(bytes: &[u8]) -> Read {
    let (true, Some(mut from)) = (bytes.len() <= MAX_ENTRY, wire::open(bytes)) else { return Read::Garbage };
    let (Some(FORMAT), Some(seq)) = (from.u8(), from.u64()) else { return Read::Garbage };
    let mut rest = || {
        let (writer, time, count) = (from.u64()?, from.u32()?, from.u16()?);
        // A delta takes two bytes at least.
        let mut deltas = Vec::with_capacity(usize::from(count).min(from.left() / 2));
        for _ in 0..count {
            deltas.push(Delta::read(&mut from)?);
        }
        from.end()?;
        Some(Entry { seq, writer, time, deltas })
    };
    rest().map_or(Read::Malformed(seq), Read::Entry)
}

/// An entry that has no place in the log yet.
#[derive(Debug)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
    deltas: u16,
}

impl Draft {
    fn new(capacity: usize) -> Self {
        let mut bytes = wire::begin(capacity.min(MAX_ENTRY));
        bytes.put_u8(FORMAT);
        bytes.extend_from_slice(&[0; STAMP_BYTES]);
        Self { bytes, deltas: 0 }
    }

    fn room(&self) -> usize {
        match self.deltas {
            u16::MAX => 0,
            _ => MAX_ENTRY.saturating_sub(self.bytes.len()),
        }
    }

    fn push(&mut self, delta: &Delta, first: usize, count: usize) {
        delta.put(first, count, &mut self.bytes);
        self.deltas = self.deltas.saturating_add(1);
    }

    /// Gives the entry its place, and makes the bytes whole. May be called again with another place.
    pub(crate) fn stamp(&mut self, seq: u64, writer: u64, time: u32) -> &[u8] {
        let mut stamp = Vec::with_capacity(STAMP_BYTES);
        stamp.put_u64(seq);
        stamp.put_u64(writer);
        stamp.put_u32(time);
        stamp.put_u16(self.deltas);
        if let Some(place) = self.bytes.get_mut(STAMP..HEADER) {
            place.copy_from_slice(&stamp);
        }
        wire::seal(&mut self.bytes);
        &self.bytes
    }
}

/// Packs deltas, in order, into as few entries as hold them. No deltas: one entry, for the clock.
pub(crate) fn drafts(deltas: &[Delta]) -> Vec<Draft> {
    let size = deltas.iter().map(|delta| delta.fixed_bytes() + delta.hashes().len() * 8).sum::<usize>();
    let mut drafts = Vec::new();
    let mut draft = Draft::new(size.saturating_add(HEADER));
    for delta in deltas {
        let total = delta.hashes().len();
        let mut done = 0;
        loop {
            // A part of a chain names its parent: reckon with the longer form.
            let fixed = delta.fixed_bytes() + if done > 0 { 12 } else { 0 };
            let fits = draft.room().checked_sub(fixed).map(|room| (room / 8).min(total - done));
            match fits {
                Some(count) if count == total - done || count >= WORTH_SPLITTING => {
                    draft.push(delta, done, count);
                    done += count;
                    if done >= total {
                        break;
                    }
                }
                _ => {}
            }
            drafts.push(std::mem::replace(&mut draft, Draft::new(MAX_ENTRY)));
        }
    }
    drafts.push(draft);
    drafts
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
pub(crate) mod tests {
    use super::super::{PodRef, Slot};
    use super::*;
    use crate::pods::Job;
    use proptest::prelude::*;

    fn pod() -> impl Strategy<Value = PodRef> {
        (0u16..512, any::<u16>())
            .prop_map(|(slot, generation)| PodRef { slot: Slot::new(slot).unwrap(), generation })
    }

    pub(crate) fn delta(longest: usize) -> impl Strategy<Value = Delta> {
        let hashes = move || prop::collection::vec(any::<u64>(), 0..longest);
        prop_oneof![
            (pod(), hashes()).prop_map(|(pod, hashes)| Delta::Stored { pod, parent: None, depth: 0, hashes }),
            (pod(), any::<u64>(), 1u32..1 << 30, hashes())
                .prop_map(|(pod, p, depth, hashes)| Delta::Stored { pod, parent: Some(p), depth, hashes }),
            (pod(), hashes()).prop_map(|(pod, hashes)| Delta::Removed { pod, hashes }),
            (pod(), any::<u64>()).prop_map(|(pod, leaf)| Delta::Touched { pod, leaf }),
            (pod(), any::<[u32; 2]>())
                .prop_map(|(pod, [prefill, context])| Delta::Routed { pod, job: Job { prefill, context } }),
            pod().prop_map(|pod| Delta::Cleared { pod }),
            pod().prop_map(|pod| Delta::Left { pod }),
            pod().prop_map(|pod| Delta::Freed { pod }),
            "[a-zé]{1,100}".prop_map(|id| Delta::Joined { id: id.into() }),
            any::<u8>().prop_map(|shard| Delta::Lost { shard }),
        ]
    }

    /// Undoes splitting: parts of a delta that follow each other become one again.
    fn joined(parts: Vec<Delta>) -> Vec<Delta> {
        let mut whole: Vec<Delta> = Vec::new();
        for part in parts {
            match (whole.last_mut(), part) {
                (
                    Some(Delta::Stored { pod: a, hashes, depth: from, .. }),
                    Delta::Stored { pod: b, parent: Some(parent), depth, hashes: more },
                ) if *a == b
                    && hashes.last() == Some(&parent)
                    && from.checked_add(hashes.len() as u32) == Some(depth) =>
                {
                    hashes.extend(more);
                }
                (Some(Delta::Removed { pod: a, hashes }), Delta::Removed { pod: b, hashes: more })
                    if *a == b =>
                {
                    hashes.extend(more);
                }
                (_, part) => whole.push(part),
            }
        }
        whole
    }

    proptest! {
        #[test]
        fn entries_read_as_they_were_written(
            deltas in prop::collection::vec(delta(3000), 0..12),
            seq in 0..u64::MAX - 1000,
            writer: u64,
            time: u32,
        ) {
            let mut read_back = Vec::new();
            for (i, mut draft) in drafts(&deltas).into_iter().enumerate() {
                let seq = seq + i as u64;
                draft.stamp(0, 1, 2);
                let bytes = draft.stamp(seq, writer, time);
                prop_assert!(bytes.len() <= MAX_ENTRY);
                let Read::Entry(entry) = read(bytes) else { panic!("not an entry") };
                prop_assert_eq!((entry.seq, entry.writer, entry.time), (seq, writer, time));
                read_back.extend(entry.deltas);
            }
            prop_assert_eq!(joined(read_back), joined(deltas));
        }

        #[test]
        fn a_changed_byte_is_noticed(
            deltas in prop::collection::vec(delta(20), 0..4),
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            for mut draft in drafts(&deltas) {
                let mut bytes = draft.stamp(7, 8, 9).to_vec();
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
                prop_assert_eq!(read(&bytes), Read::Garbage);
                bytes.truncate(at);
                prop_assert_eq!(read(&bytes), Read::Garbage);
            }
        }

        /// Bytes with a right checksum, as a foreign build would write them: never a panic, always an answer.
        #[test]
        fn hostile_bytes_are_refused(
            deltas in prop::collection::vec(delta(20), 0..4),
            mut content in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            plain: bool,
        ) {
            if !plain {
                content = drafts(&deltas)[0].stamp(7, 8, 9)[wire::SEAL..].to_vec();
                for (at, byte) in changes {
                    let at = at.index(content.len());
                    content[at] = byte;
                }
            }
            let mut bytes = wire::begin(0);
            bytes.extend(&content);
            wire::seal(&mut bytes);
            match read(&bytes) {
                Read::Entry(entry) => {
                    // What reads as an entry is one: written again it has these very bytes, or ends a `None` parent early.
                    let again = drafts(&entry.deltas)[0].stamp(entry.seq, entry.writer, entry.time).to_vec();
                    prop_assert_eq!(read(&again), Read::Entry(entry));
                }
                Read::Malformed(seq) => prop_assert_eq!(&seq.to_le_bytes()[..], &content[1..9]),
                Read::Garbage => prop_assert!(content.len() < 9 || content[0] != FORMAT),
            }
        }
    }

    #[test]
    fn a_long_chain_fills_its_entries() {
        let pod = PodRef { slot: Slot::new(3).unwrap(), generation: 1 };
        let chain = Delta::Stored { pod, parent: None, depth: 0, hashes: (0..6250).collect() };
        assert_eq!(drafts(&[chain, Delta::Routed { pod, job: Job::default() }]).len(), 7);
    }
}
