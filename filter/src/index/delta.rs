//! What an entry of the log says: one change of the index, or one fact about a pod.

use super::wire::{Put, Reader};
use super::{BlockHash, Generation, Slot};
use crate::blocks::Kind;
use crate::pods::Job;

/// A change, as the log carries it.
///
/// A delta about a pod bears its slot and that slot's generation; replicas ignore one whose generation has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// The pod holds these blocks, each the parent of the next.
    Stored {
        /// The pod.
        pod: PodRef,
        /// The block before the first; `None` where the first begins a chain.
        parent: Option<BlockHash>,
        /// How many blocks are before the first.
        depth: u32,
        /// The blocks, in the order of the chain.
        hashes: Vec<BlockHash>,
    },
    /// The pod no longer holds these blocks.
    Removed {
        /// The pod.
        pod: PodRef,
        /// The blocks, in any order.
        hashes: Vec<BlockHash>,
    },
    /// The chain that ends in this block was used again.
    Touched {
        /// The pod that was sent the request.
        pod: PodRef,
        /// The deepest block that it holds.
        leaf: BlockHash,
    },
    /// A request was sent to the pod: others count it until the writer's next ledger does.
    Routed {
        /// The pod.
        pod: PodRef,
        /// What the pod has to do for it.
        job: Job,
    },
    /// The pod lost all its blocks, but stays.
    Cleared {
        /// The pod.
        pod: PodRef,
    },
    /// A pod takes a slot, unless it has one.
    Joined {
        /// Its identity, from 1 to [`MAX_POD_ID`] bytes.
        id: Box<str>,
    },
    /// The pod leaves: it is out of answers at once, and its blocks are wiped with the entries that follow.
    Left {
        /// The pod.
        pod: PodRef,
    },
    /// Nobody speaks of the pod any more: its slot may be taken again, under the next generation.
    Freed {
        /// The pod.
        pod: PodRef,
    },
    /// A shard of the checkpoint could not be read: everybody drops it, so that all replicas are equal again.
    Lost {
        /// The checkpoint's shard.
        shard: u8,
    },
}

/// Longest identity of a pod, in bytes.
pub const MAX_POD_ID: usize = 255;

/// A pod as entries, streams and ledgers name it: a slot, and how often that slot was freed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// The slot.
    pub slot: Slot,
    /// Its generation.
    pub generation: Generation,
}

impl PodRef {
    pub(crate) const BYTES: usize = 4;

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.put_u16(self.slot.number());
        out.put_u16(self.generation);
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { slot: Slot::new(from.u16()?)?, generation: from.u16()? })
    }
}

/// Tags of deltas. A number is never used again for something else.
mod tag {
    pub const STORED: u8 = 1;
    pub const STORED_AFTER: u8 = 2;
    pub const REMOVED: u8 = 3;
    pub const TOUCHED: u8 = 4;
    pub const ROUTED: u8 = 5;
    pub const CLEARED: u8 = 6;
    pub const JOINED: u8 = 7;
    pub const LEFT: u8 = 8;
    pub const FREED: u8 = 9;
    pub const LOST: u8 = 10;
}

impl Delta {
    /// Bytes that everything but the hashes takes.
    pub(crate) fn fixed_bytes(&self) -> usize {
        const TAG: usize = 1;
        const COUNT: usize = 2;
        TAG + match self {
            Self::Stored { parent, .. } => PodRef::BYTES + parent.map_or(0, |_| 12) + COUNT,
            Self::Removed { .. } => PodRef::BYTES + COUNT,
            Self::Touched { .. } => PodRef::BYTES + 8,
            Self::Routed { .. } => PodRef::BYTES + 8,
            Self::Cleared { .. } | Self::Left { .. } | Self::Freed { .. } => PodRef::BYTES,
            Self::Joined { id } => 1 + id.len(),
            Self::Lost { .. } => 1,
        }
    }

    /// The pod that it is about.
    pub(crate) fn pod(&self) -> Option<PodRef> {
        match self {
            Self::Stored { pod, .. }
            | Self::Removed { pod, .. }
            | Self::Touched { pod, .. }
            | Self::Routed { pod, .. }
            | Self::Cleared { pod }
            | Self::Left { pod }
            | Self::Freed { pod } => Some(*pod),
            Self::Joined { .. } | Self::Lost { .. } => None,
        }
    }

    /// Whether it takes from the index what engines said that they hold.
    pub(crate) fn disturbs(&self) -> bool {
        match self {
            Self::Removed { hashes, .. } => {
                hashes.first().is_some_and(|hash| Kind::of(*hash) == Kind::Cached)
            }
            Self::Cleared { .. } | Self::Lost { .. } => true,
            _ => false,
        }
    }

    /// The hashes that a delta carries: where it can be split.
    pub(crate) fn hashes(&self) -> &[BlockHash] {
        match self {
            Self::Stored { hashes, .. } | Self::Removed { hashes, .. } => hashes,
            _ => &[],
        }
    }

    /// Appends the delta, with `count` of its hashes from `first` on. A part of a chain names the block before it.
    pub(crate) fn put(&self, first: usize, count: usize, out: &mut Vec<u8>) {
        let part = self.hashes().get(first..first.saturating_add(count)).unwrap_or_default();
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        let simple = |out: &mut Vec<u8>, tag: u8, pod: &PodRef| {
            out.put_u8(tag);
            pod.put(out);
        };
        match self {
            Self::Stored { pod, parent, depth, hashes } => {
                match first.checked_sub(1).map_or(*parent, |before| hashes.get(before).copied()) {
                    None => simple(out, tag::STORED, pod),
                    Some(parent) => {
                        simple(out, tag::STORED_AFTER, pod);
                        out.put_u64(parent);
                        out.put_u32(depth.saturating_add(u32::try_from(first).unwrap_or(u32::MAX)));
                    }
                }
                out.put_u16(length);
                out.put_u64s(part);
            }
            Self::Removed { pod, .. } => {
                simple(out, tag::REMOVED, pod);
                out.put_u16(length);
                out.put_u64s(part);
            }
            Self::Touched { pod, leaf } => {
                simple(out, tag::TOUCHED, pod);
                out.put_u64(*leaf);
            }
            Self::Routed { pod, job } => {
                simple(out, tag::ROUTED, pod);
                out.put_u32(job.prefill);
                out.put_u32(job.context);
            }
            Self::Cleared { pod } => simple(out, tag::CLEARED, pod),
            Self::Left { pod } => simple(out, tag::LEFT, pod),
            Self::Freed { pod } => simple(out, tag::FREED, pod),
            Self::Joined { id } => {
                out.put_u8(tag::JOINED);
                out.put_text(id);
            }
            Self::Lost { shard } => {
                out.put_u8(tag::LOST);
                out.put_u8(*shard);
            }
        }
    }

    /// Reads one delta. `None` where the bytes are none that [`Delta::put`] writes.
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        let hashes = |from: &mut Reader<'_>| {
            let count = from.u16()?;
            from.u64s(count.into())
        };
        Some(match from.u8()? {
            tag::STORED => {
                Self::Stored { pod: PodRef::read(from)?, parent: None, depth: 0, hashes: hashes(from)? }
            }
            tag::STORED_AFTER => {
                let (pod, parent, depth) = (PodRef::read(from)?, Some(from.u64()?), from.u32()?);
                let hashes = hashes(from)?;
                // A block with a parent has a depth, and no depth of the chain wraps around.
                depth.checked_sub(1)?;
                depth.checked_add(u32::try_from(hashes.len()).ok()?)?;
                Self::Stored { pod, parent, depth, hashes }
            }
            tag::REMOVED => Self::Removed { pod: PodRef::read(from)?, hashes: hashes(from)? },
            tag::TOUCHED => Self::Touched { pod: PodRef::read(from)?, leaf: from.u64()? },
            tag::ROUTED => Self::Routed {
                pod: PodRef::read(from)?,
                job: Job { prefill: from.u32()?, context: from.u32()? },
            },
            tag::CLEARED => Self::Cleared { pod: PodRef::read(from)? },
            tag::LEFT => Self::Left { pod: PodRef::read(from)? },
            tag::FREED => Self::Freed { pod: PodRef::read(from)? },
            tag::JOINED => {
                let id = from.text()?;
                (!id.is_empty()).then_some(Self::Joined { id: id.into() })?
            }
            tag::LOST => Self::Lost { shard: from.u8()? },
            _ => return None,
        })
    }
}
