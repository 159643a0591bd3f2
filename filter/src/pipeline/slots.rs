//! What parts hand each other. Each slot has one typed field and one writer; who reads and writes what is declared by
//! the parts and checked when a profile is built, so that reading never needs a check again.

use super::positions::Positions;
use super::residency::Matches;
use crate::blocks::{BlockHash, Chain};
use crate::pods::Job;
use std::fmt;

/// Names of slots, for declarations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotId {
    /// The request's headers.
    Headers,
    /// The parsed body. A profile that reads it makes the request wait for its body.
    Body,
    /// Requests in flight on each pod.
    Load,
    /// Tokens that pods have to prefill and hold for requests in flight.
    Work,
    /// How fast each pod was.
    Pace,
    /// What engines say of their queue, batch and cache.
    Engine,
    /// Which pods answer.
    Health,
    /// Hashes of the prompt's blocks.
    Chain,
    /// How much of the chain each pod holds.
    Residency,
    /// Which session the request belongs to.
    Session,
    /// Which pods have served that session.
    SessionResidency,
    /// What requests must have in common to go to one pod by hashing.
    HashKey,
    /// The pod that an earlier step of a workflow chose.
    Peer,
    /// The sum of weighted scores, which is 0 for all without scorers.
    Scores,
}

impl SlotId {
    /// Slots that no part writes: they are always there.
    pub const GIVEN: [Self; 9] = [
        Self::Headers,
        Self::Body,
        Self::Load,
        Self::Work,
        Self::Pace,
        Self::Engine,
        Self::Health,
        Self::Peer,
        Self::Scores,
    ];

    /// Its name in messages and documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Headers => "Headers",
            Self::Body => "Body",
            Self::Load => "Load",
            Self::Work => "Work",
            Self::Pace => "Pace",
            Self::Engine => "Engine",
            Self::Health => "Health",
            Self::Chain => "Chain",
            Self::Residency => "Residency",
            Self::Session => "Session",
            Self::SessionResidency => "SessionResidency",
            Self::HashKey => "HashKey",
            Self::Peer => "Peer",
            Self::Scores => "Scores",
        }
    }

    /// Is it learnt from the index, anew for each decision?
    pub const fn is_located(self) -> bool {
        matches!(self, Self::Residency | Self::SessionResidency)
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The values of one request. They outlive its body: whatever decides later, or again, needs nothing else of it.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    /// Number of this request in its VM; every decision about one request bears the same.
    pub turn: u64,
    /// The model that the body asked for; filled before the first part, where the body is read.
    pub model: Option<String>,
    /// [`SlotId::Chain`]. Empty without a prompt of at least one block.
    pub chain: Chain,
    /// Tokens in each block of the chain, about.
    pub block_tokens: f32,
    /// [`SlotId::Residency`].
    pub residency: Matches,
    /// [`SlotId::Session`]: the block that stands for the session in the index. `None` where the request names none.
    pub session: Option<BlockHash>,
    /// [`SlotId::SessionResidency`].
    pub session_pods: Positions,
    /// [`SlotId::HashKey`]. `None` where the request has nothing to hash.
    pub hash_key: Option<u64>,
    /// [`SlotId::Peer`], by position. `None` in a first step.
    pub peer: Option<usize>,
}

impl Slots {
    /// Tokens of the prompt, about; 0 where no part reads it.
    pub fn prompt_tokens(&self) -> f32 {
        // The last block isn't full.
        (self.chain.blocks() as f32 + 0.5) * self.block_tokens
    }

    /// Of these, what a pod is not thought to hold.
    pub fn uncached_tokens(&self, pod: usize) -> f32 {
        let held = self.residency.depth(pod) as f32 * self.block_tokens;
        (self.prompt_tokens() - held).max(0.0)
    }

    /// What the request will make a pod do.
    pub fn job(&self, pod: usize) -> Job {
        Job { prefill: self.uncached_tokens(pod) as u32, context: self.prompt_tokens() as u32 }
    }

    /// Empties every slot for the next request, keeping buffers.
    pub fn clear(&mut self) {
        let Self { turn, model, chain, block_tokens, residency, session, session_pods, hash_key, peer } =
            self;
        *turn = 0;
        *model = None;
        chain.clear();
        *block_tokens = 0.0;
        residency.clear();
        *session = None;
        *session_pods = Positions::default();
        *hash_key = None;
        *peer = None;
    }
}
