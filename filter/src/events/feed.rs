//! What one cache says of itself: batches in their sequence -> changes of the index.
//!
//! A feed is *exact* from a moment at which the cache was empty (its engine started, or said that all blocks are gone) for as
//! long as no batch is missed. Before that, and after a gap, its cache holds blocks that nobody told of, or no longer holds
//! some that it told of: the pod is then *uncertain*, and answers as one that tells nothing, by what was routed to it.

use crate::blocks::{Apart, Kind, digest};
use crate::index::{BlockHash, Delta, PodRef};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::batch::{Batch, Event, Extra, Removed, Stored};
use super::names::{Before, Names, Run};

/// What is known of the blocks' model.
#[derive(Debug, Clone, Copy)]
pub struct Model<'a> {
    /// As requests name it.
    pub name: &'a str,
    /// Tokens in a block, as prompts are hashed.
    pub block_tokens: usize,
}

/// How a batch follows those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// As the next.
    Next,
    /// As the first of an engine that just started.
    Start,
    /// After a gap.
    Gap,
    /// Not at all: it was there before.
    Repeated,
}

/// What was left out of a batch, or passed, in blocks unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// Blocks that were stored.
    pub stored: u64,
    /// Blocks that were removed.
    pub removed: u64,
    /// On another medium than the GPU, or on another machine.
    pub offloaded: u64,
    /// Of layers that don't attend to the whole prompt, or of a second group of those that do.
    pub other_groups: u64,
    /// In blocks of another size.
    pub other_size: u64,
    /// No room.
    pub refused: u64,
    /// Waited too long for the block before them.
    pub forgotten: u64,
    /// Events of an unknown type.
    pub unknown: u64,
    /// Events that lack what they need.
    pub unusable: u64,
}

/// The feed of one cache.
#[derive(Debug)]
pub struct Feed {
    names: Names,
    next: Option<u64>,
    is_exact: bool,
    /// The group whose blocks are followed, once one was met.
    group: Option<u32>,
    /// The pod that the names are of.
    pod: Option<PodRef>,
    /// The engine's block size, where it is another than prompts are hashed in.
    mismatch: Option<u32>,
    /// What was unusable last.
    complaint: Option<&'static str>,
    bytes: Vec<u8>,
}

impl Feed {
    /// Nothing was heard yet. At most `most` blocks are known by name.
    pub fn new(most: usize) -> Self {
        Self {
            names: Names::new(most),
            next: None,
            is_exact: false,
            group: None,
            pod: None,
            mismatch: None,
            complaint: None,
            bytes: Vec::new(),
        }
    }

    /// Whether the index holds what the cache holds.
    pub fn is_exact(&self) -> bool {
        self.is_exact && self.mismatch.is_none()
    }

    /// The sequence that the next batch must have; `None` where nothing was heard.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Blocks of the cache that have a place in the index.
    pub fn blocks(&self) -> usize {
        self.names.linked()
    }

    /// Blocks that wait for one before them.
    pub fn waiting(&self) -> usize {
        self.names.waiting()
    }

    /// The engine's block size, where it is another than prompts are hashed in.
    pub fn mismatch(&self) -> Option<u32> {
        self.mismatch
    }

    /// What was unusable since this was asked last.
    pub fn complaint(&mut self) -> Option<&'static str> {
        self.complaint.take()
    }

    /// How a batch of this number would follow. One without a number follows the last. `anew`: it is the first on a
    /// connection, which may be that of another engine in the same place whose first batches were missed.
    ///
    /// `pod` is whom the index knows by now: one that left and came back holds nothing that was told before.
    pub fn sequence(&self, number: Option<u64>, anew: bool, pod: Option<PodRef>) -> Sequence {
        let is_other = self.pod.is_some() && self.pod != pod;
        match (number, self.next) {
            (Some(0), _) => Sequence::Start,
            _ if anew || is_other => Sequence::Gap,
            (None, _) => Sequence::Next,
            (Some(number), Some(next)) if number == next => Sequence::Next,
            // Who got no answer asks again. Whoever counts from further back is another engine.
            (Some(number), Some(next)) if number.checked_add(1) == Some(next) => Sequence::Repeated,
            _ => Sequence::Gap,
        }
    }

    /// Nothing that is known of the cache is to be relied on any more. What the index holds of it becomes a guess.
    pub fn lose(&mut self) {
        self.names.clear();
        self.is_exact = false;
    }

    /// Something was missed, or the index no longer holds what was told: it is a guess, which what is told from now on mends.
    pub fn doubt(&mut self) {
        self.names.doubt();
        self.is_exact = false;
    }

    /// Whoever can repeat what was told is to do so from the beginning.
    pub fn begin_again(&mut self) {
        self.next = None;
    }

    /// The pod that the names are of.
    pub fn pod(&self) -> Option<PodRef> {
        self.pod
    }

    /// A batch that can't be read, or that nobody could take: what it said is lost.
    pub fn skip(&mut self, number: Option<u64>) {
        self.doubt();
        self.next = number.or(self.next).map(|number| number.saturating_add(1));
    }

    /// Takes a batch, and appends what it changes to `deltas`, which has nothing but this feed's. Nothing of one that is
    /// repeated. `anew`: it is the first on a connection.
    pub fn apply(
        &mut self,
        batch: &Batch,
        number: Option<u64>,
        (sequence, anew): (Sequence, bool),
        pod: PodRef,
        model: Model<'_>,
        deltas: &mut Vec<Delta>,
    ) -> Passed {
        let mut passed = Passed::default();
        if sequence == Sequence::Repeated {
            return passed;
        }
        self.next = number.or(self.next).map(|number| number.saturating_add(1));
        if self.pod.replace(pod) != Some(pod) || anew {
            self.lose();
        } else if sequence == Sequence::Gap {
            self.doubt();
        }
        if sequence == Sequence::Start {
            self.clear(pod, deltas);
        }
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.stored(stored, pod, model, deltas, &mut passed),
                Event::Removed(removed) => self.removed(removed, pod, deltas, &mut passed),
                Event::Cleared => self.clear(pod, deltas),
                Event::Unknown => passed.unknown += 1,
                Event::Unusable(why) => {
                    self.complaint = Some(why);
                    passed.unusable += 1;
                    // It may have removed what is still thought to be there.
                    self.is_exact = false;
                }
            }
        }
        passed
    }

    fn clear(&mut self, pod: PodRef, deltas: &mut Vec<Delta>) {
        self.names.clear();
        self.is_exact = true;
        self.mismatch = None;
        self.group = None;
        // Whatever was stored before is gone again.
        deltas.clear();
        deltas.push(Delta::Cleared { pod });
    }

    fn stored(
        &mut self,
        stored: &Stored,
        pod: PodRef,
        model: Model<'_>,
        deltas: &mut Vec<Delta>,
        passed: &mut Passed,
    ) {
        let count = stored.names.len() as u64;
        if stored.place.is_offloaded {
            passed.offloaded += count;
            return;
        }
        if stored.is_main && self.group.is_none() {
            self.group = stored.place.group;
        }
        if !stored.is_main || stored.place.group != self.group {
            passed.other_groups += count;
            return;
        }
        if stored.block_size as usize != model.block_tokens {
            self.mismatch = Some(stored.block_size);
            passed.other_size += count;
            return;
        }
        let lora = stored.lora.as_deref().map(|name| xxh3_64(name.as_bytes()));
        let mut extra = stored.extra.iter().copied().peekable();
        let before = match stored.parent {
            Some(parent) => Before::Block(parent),
            None => {
                let first = extra.peek_mut().filter(|extra| extra.block == 0);
                let salt = first.and_then(|extra| take_salt(extra, lora));
                let own = stored.salt.as_deref().map(|salt| xxh3_64(salt.as_bytes()));
                Before::Seed(seed(stored, own.or(salt), model))
            }
        };
        let bytes = &mut self.bytes;
        let tokens = stored.tokens.chunks_exact(model.block_tokens.max(1));
        let blocks = stored.names.iter().zip(tokens).zip(0u32..).map(|((name, tokens), number)| {
            let extra = extra.next_if(|extra| extra.block == number);
            let own = digest(tokens, bytes);
            (*name, extra.map_or(own, |extra| apart(own, &extra, lora)))
        });
        let mut runs = Vec::new();
        let left = self.names.store(before, blocks, &mut runs);
        passed.refused += left.refused;
        passed.forgotten += left.forgotten;
        passed.stored += count;
        deltas.extend(runs.into_iter().map(|run| to_delta(run, pod)));
    }

    fn removed(&mut self, removed: &Removed, pod: PodRef, deltas: &mut Vec<Delta>, passed: &mut Passed) {
        let count = removed.names.len() as u64;
        if removed.place.is_offloaded {
            return;
        }
        if removed.place.group != self.group && removed.place.group.is_some() {
            return;
        }
        passed.removed += count;
        let gone = removed.names.iter().filter_map(|name| self.names.remove(*name));
        let gone: Vec<BlockHash> = gone.map(|link| Kind::Cached.name(link)).collect();
        if gone.is_empty() {
            return;
        }
        match deltas.last_mut() {
            Some(Delta::Removed { pod: of, hashes }) if *of == pod => hashes.extend(gone),
            _ => deltas.push(Delta::Removed { pod, hashes: gone }),
        }
    }
}

/// The seed of a chain: of the adapter's cache where it has one, and of the tenant's.
fn seed(stored: &Stored, salt: Option<u64>, model: Model<'_>) -> u64 {
    // An adapter without a name is one that no request can name: nobody will look for this chain.
    let id = stored.lora_id.filter(|id| *id != 0 && stored.lora.is_none()).map(i64::to_le_bytes);
    let apart = Apart {
        model: Some(stored.lora.as_deref().unwrap_or(model.name)),
        lora: id.as_ref().map(<[u8; 8]>::as_slice),
        salt,
        extra_key: None,
    };
    apart.seed(model.block_tokens)
}

/// Takes the salt out of what keeps a chain's first block apart: the one text that isn't the adapter's name.
fn take_salt(extra: &mut Extra, lora: Option<u64>) -> Option<u64> {
    let is_salt = |text: &&mut Option<u64>| text.is_some() && **text != lora;
    if extra.texts.iter_mut().filter(is_salt).count() != 1 {
        return None;
    }
    extra.texts.iter_mut().find(is_salt)?.take()
}

/// The digest of a block that is kept apart by something.
fn apart(digest: u64, extra: &Extra, lora: Option<u64>) -> u64 {
    let texts = extra.texts.iter().flatten().filter(|text| Some(**text) != lora).copied();
    let other = Some(extra.other).filter(|other| *other != 0);
    texts.chain(other).fold(digest, |digest, value| xxh3_64_with_seed(&value.to_le_bytes(), digest))
}

fn to_delta(run: Run, pod: PodRef) -> Delta {
    let name = |link: u64| Kind::Cached.name(link);
    let hashes = run.links.into_iter().map(name).collect();
    Delta::Stored { pod, parent: run.parent.map(name), depth: run.depth, hashes }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Place;
    use super::*;
    use crate::blocks::ChainBuilder;
    use crate::index::Slot;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const BLOCK: usize = 4;
    const MODEL: Model<'static> = Model { name: "m", block_tokens: BLOCK };

    fn pod() -> PodRef {
        PodRef { slot: Slot::new(3).unwrap(), generation: 1 }
    }

    /// Blocks that the index thinks the pod holds.
    #[derive(Debug, Default)]
    struct Held(BTreeSet<BlockHash>);

    impl Held {
        fn apply(&mut self, deltas: &[Delta]) {
            for delta in deltas {
                match delta {
                    Delta::Stored { hashes, depth, parent, .. } => {
                        assert_eq!(parent.is_none(), *depth == 0);
                        self.0.extend(hashes);
                    }
                    Delta::Removed { hashes, .. } => hashes.iter().for_each(|hash| {
                        self.0.remove(hash);
                    }),
                    Delta::Cleared { .. } => self.0.clear(),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn send(feed: &mut Feed, held: &mut Held, number: u64, events: Vec<Event>) -> Passed {
        send_on(feed, held, number, false, events)
    }

    fn send_on(feed: &mut Feed, held: &mut Held, number: u64, anew: bool, events: Vec<Event>) -> Passed {
        let sequence = feed.sequence(Some(number), anew, Some(pod()));
        let mut deltas = Vec::new();
        let batch = Batch { events, ..Batch::default() };
        let passed = feed.apply(&batch, Some(number), (sequence, anew), pod(), MODEL, &mut deltas);
        held.apply(&deltas);
        passed
    }

    fn stored(names: &[u64], parent: Option<u64>, tokens: std::ops::Range<u32>) -> Stored {
        Stored {
            names: names.to_vec(),
            parent,
            tokens: tokens.collect(),
            block_size: BLOCK as u32,
            is_main: true,
            ..Stored::default()
        }
    }

    fn removed(names: &[u64]) -> Event {
        Event::Removed(Removed { names: names.to_vec(), place: Place::default() })
    }

    fn chain(apart: Apart<'_>, tokens: std::ops::Range<u32>) -> BTreeSet<BlockHash> {
        let mut chain = ChainBuilder::tokens(apart.seed(BLOCK), BLOCK, 0);
        chain.push_tokens(&tokens.collect::<Vec<_>>());
        chain.finish().cached.into_iter().collect()
    }

    const PLAIN: Apart<'static> = Apart { model: Some("m"), lora: None, salt: None, extra_key: None };

    #[test]
    fn blocks_are_those_that_requests_ask_for() {
        let (mut feed, mut held) = (Feed::new(100), Held::default());
        send(&mut feed, &mut held, 0, vec![Event::Stored(stored(&[1, 2], None, 0..8))]);
        send(&mut feed, &mut held, 1, vec![Event::Stored(stored(&[3], Some(2), 8..12))]);
        assert_eq!(held.0, chain(PLAIN, 0..12));
        assert!(feed.is_exact());
        send(&mut feed, &mut held, 2, vec![removed(&[3])]);
        assert_eq!(held.0, chain(PLAIN, 0..8));
        assert_eq!((feed.blocks(), feed.next()), (2, Some(3)));
    }

    #[test]
    fn adapters_and_tenants_have_chains_of_their_own() {
        let text = |text: &str| Some(xxh3_64(text.as_bytes()));
        let extra = |block, texts, other| Extra { block, texts, other };
        let of = |change: &dyn Fn(&mut Stored)| {
            let (mut feed, mut held) = (Feed::new(100), Held::default());
            let mut event = stored(&[1, 2], None, 0..8);
            change(&mut event);
            send(&mut feed, &mut held, 0, vec![Event::Stored(event)]);
            held.0
        };
        let lora = Apart { model: Some("adapter"), ..PLAIN };
        let both = extra(0, [text("adapter"), text("tenant")], 0);
        let second = extra(1, [text("adapter"), None], 0);
        let with = |lora: Option<&str>, extra: &[Extra]| {
            of(&|event| {
                event.lora = lora.map(str::to_owned);
                event.extra = extra.to_vec();
            })
        };
        let adapter = extra(0, [text("adapter"), None], 0);
        assert_eq!(with(Some("adapter"), &[adapter, second]), chain(lora, 0..8));
        assert_eq!(
            with(Some("adapter"), &[both, second]),
            chain(Apart { salt: text("tenant"), ..lora }, 0..8)
        );
        let tenant = extra(0, [text("tenant"), None], 0);
        assert_eq!(with(None, &[tenant]), chain(Apart { salt: text("tenant"), ..PLAIN }, 0..8));
        let salt = of(&|event| event.salt = Some("tenant".into()));
        assert_eq!(salt, chain(Apart { salt: text("tenant"), ..PLAIN }, 0..8));
        // An image in the second block: the first is everybody's, the second nobody's.
        let image = with(None, &[extra(1, [None, None], 77)]);
        let shared: Vec<_> = image.intersection(&chain(PLAIN, 0..8)).copied().collect();
        assert_eq!((shared.len(), image.len()), (1, 2));
        assert!(chain(PLAIN, 0..4).contains(&shared[0]));
        // An adapter that has only a number, and texts of which nobody knows what they are.
        for unknown in [of(&|event| event.lora_id = Some(3)), with(None, &[both])] {
            assert!(unknown.is_disjoint(&chain(PLAIN, 0..8)) && unknown.len() == 2);
        }
        assert_eq!(of(&|event| event.lora_id = Some(0)), chain(PLAIN, 0..8));
    }

    #[test]
    fn only_the_group_that_attends_to_all_counts() {
        let (mut feed, mut held) = (Feed::new(100), Held::default());
        let of_group = |names: &[u64], group, is_main| {
            let place = Place { group: Some(group), ..Place::default() };
            Event::Stored(Stored { place, is_main, ..stored(names, None, 0..4) })
        };
        let gone = |group| {
            let place = Place { group: Some(group), ..Place::default() };
            Event::Removed(Removed { names: vec![1], place })
        };
        let passed = send(
            &mut feed,
            &mut held,
            0,
            vec![
                of_group(&[1], 0, false),
                of_group(&[1], 1, true),
                of_group(&[1], 2, true),
                gone(0),
                gone(2),
            ],
        );
        assert_eq!((passed.stored, passed.other_groups), (1, 2));
        assert_eq!(held.0, chain(PLAIN, 0..4));
        send(&mut feed, &mut held, 1, vec![gone(1)]);
        assert!(held.0.is_empty() && feed.is_exact());
    }

    #[test]
    fn what_is_only_offloaded_is_not_held() {
        let (mut feed, mut held) = (Feed::new(100), Held::default());
        let place = Place { is_offloaded: true, group: None };
        let passed = send(
            &mut feed,
            &mut held,
            0,
            vec![
                Event::Stored(Stored { place, ..stored(&[1], None, 0..4) }),
                Event::Stored(stored(&[2], None, 4..8)),
                Event::Removed(Removed { names: vec![2], place }),
            ],
        );
        assert_eq!((passed.offloaded, passed.stored), (1, 1));
        assert_eq!(held.0, chain(PLAIN, 4..8));
    }

    #[test]
    fn blocks_of_another_size_make_no_cache_exact() {
        let (mut feed, mut held) = (Feed::new(100), Held::default());
        let event = Stored { block_size: 8, ..stored(&[1], None, 0..8) };
        let passed = send(&mut feed, &mut held, 0, vec![Event::Stored(event)]);
        assert_eq!((passed.other_size, feed.mismatch(), feed.is_exact()), (1, Some(8), false));
        assert!(held.0.is_empty());
    }

    #[test]
    fn gaps_and_starts_are_told_apart() {
        let mut feed = Feed::new(100);
        let mut held = Held::default();
        assert_eq!(feed.sequence(Some(500), true, None), Sequence::Gap, "joined late");
        send(&mut feed, &mut held, 500, vec![Event::Stored(stored(&[1], None, 0..4))]);
        assert!(!feed.is_exact());
        assert_eq!(held.0.len(), 1, "what is stored from now on is known");
        for (number, anew, expected) in [
            (Some(501), false, Sequence::Next),
            (Some(501), true, Sequence::Gap),
            (None, true, Sequence::Gap),
            (None, false, Sequence::Next),
            (Some(500), false, Sequence::Repeated),
            (Some(499), false, Sequence::Gap),
            // Another engine, of which the first batch was missed.
            (Some(500), true, Sequence::Gap),
            (Some(502), false, Sequence::Gap),
            (Some(0), false, Sequence::Start),
        ] {
            assert_eq!(feed.sequence(number, anew, Some(pod())), expected, "{number:?} {anew}");
        }
        send(&mut feed, &mut held, 500, vec![removed(&[1])]);
        assert_eq!(held.0.len(), 1, "repeated");
        send(&mut feed, &mut held, 501, vec![Event::Cleared]);
        assert!(feed.is_exact() && held.0.is_empty());
        send(&mut feed, &mut held, 503, Vec::new());
        assert!(!feed.is_exact());
        send(&mut feed, &mut held, 0, Vec::new());
        assert!(feed.is_exact());
        send(&mut feed, &mut held, 1, vec![Event::Unusable("x")]);
        assert!(!feed.is_exact());
        assert_eq!((feed.complaint(), feed.complaint()), (Some("x"), None));
        feed.skip(Some(2));
        assert_eq!(feed.next(), Some(3));
        feed.begin_again();
        assert_eq!(feed.sequence(Some(3), false, Some(pod())), Sequence::Gap);
    }

    #[test]
    fn a_pod_that_left_and_came_back_is_another() {
        let (mut feed, mut held) = (Feed::new(100), Held::default());
        send(&mut feed, &mut held, 0, vec![Event::Stored(stored(&[1], None, 0..4))]);
        let back = PodRef { generation: 2, ..pod() };
        let mut deltas = Vec::new();
        let batch = Batch { events: vec![removed(&[1])], ..Batch::default() };
        assert_eq!(feed.sequence(Some(1), false, Some(back)), Sequence::Gap);
        feed.apply(&batch, Some(1), (Sequence::Gap, false), back, MODEL, &mut deltas);
        assert_eq!((deltas, feed.is_exact()), (Vec::new(), false));
    }

    /// An engine's cache: prompts are paths in a tree of four-token blocks, told of as engines do.
    #[derive(Debug, Default)]
    struct Engine {
        /// Copies by block.
        blocks: BTreeMap<Vec<u8>, u32>,
        number: u64,
    }

    impl Engine {
        fn name(path: &[u8]) -> u64 {
            xxh3_64(path)
        }

        fn tokens(path: &[u8]) -> Vec<u32> {
            path.iter().flat_map(|block| [u32::from(*block); BLOCK]).collect()
        }

        /// A prompt is computed: what is missing of it is stored, and of what is there sometimes a second copy.
        fn prompt(&mut self, path: &[u8], again: bool) -> Vec<Event> {
            let held = (1..=path.len()).take_while(|n| self.blocks.contains_key(&path[..*n])).count();
            let first = if again { held.saturating_sub(1) } else { held };
            let new: Vec<&[u8]> = (first + 1..=path.len()).map(|n| &path[..n]).collect();
            new.iter().for_each(|path| *self.blocks.entry(path.to_vec()).or_default() += 1);
            let event = Stored {
                names: new.iter().map(|path| Self::name(path)).collect(),
                parent: (first > 0).then(|| Self::name(&path[..first])),
                tokens: Self::tokens(&path[first..]),
                block_size: BLOCK as u32,
                is_main: true,
                ..Stored::default()
            };
            if new.is_empty() { Vec::new() } else { vec![Event::Stored(event)] }
        }

        /// Any block may go, in the middle of a chain too.
        fn evict(&mut self, pick: prop::sample::Index) -> Vec<Event> {
            let Some(path) = self.blocks.keys().nth(pick.index(self.blocks.len().max(1))).cloned() else {
                return Vec::new();
            };
            let copies = self.blocks.get_mut(&path).unwrap();
            *copies -= 1;
            if *copies == 0 {
                self.blocks.remove(&path);
            }
            vec![removed(&[Self::name(&path)])]
        }

        fn held(&self) -> BTreeSet<BlockHash> {
            let name = |path: &Vec<u8>| {
                let mut chain = ChainBuilder::tokens(PLAIN.seed(BLOCK), BLOCK, 0);
                chain.push_tokens(&Self::tokens(path));
                *chain.finish().cached.last().unwrap()
            };
            self.blocks.keys().map(name).collect()
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Prompt(Vec<u8>, bool),
        Evict(prop::sample::Index),
        Clear,
        Restart,
        /// The next batch is lost.
        Lose,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            20 => (prop::collection::vec(0..3u8, 1..6), prop::bool::weighted(0.2)).prop_map(|(path, again)| Op::Prompt(path, again)),
            14 => any::<prop::sample::Index>().prop_map(Op::Evict),
            1 => Just(Op::Clear),
            1 => Just(Op::Restart),
            1 => Just(Op::Lose),
        ]
    }

    proptest! {
        #[test]
        fn what_an_engine_holds_is_what_the_index_says(ops in prop::collection::vec(op(), 0..120), from in 0..20usize) {
            let (mut feed, mut held, mut engine) = (Feed::new(1000), Held::default(), Engine::default());
            let (mut lost, mut gaps, mut anew) = (false, 0, true);
            for (turn, op) in ops.into_iter().enumerate() {
                let events = match op {
                    Op::Prompt(path, again) => engine.prompt(&path, again),
                    Op::Evict(pick) => engine.evict(pick),
                    Op::Clear => {
                        engine.blocks.clear();
                        vec![Event::Cleared]
                    }
                    Op::Restart => {
                        engine = Engine::default();
                        anew = true;
                        Vec::new()
                    }
                    Op::Lose => {
                        lost = true;
                        continue;
                    }
                };
                let number = engine.number;
                engine.number += 1;
                // Nobody listens yet, or a batch gets lost.
                if turn < from || std::mem::take(&mut lost) {
                    gaps += usize::from(turn >= from);
                    continue;
                }
                send_on(&mut feed, &mut held, number, std::mem::take(&mut anew), events);
                let truth = engine.held();
                if feed.is_exact() {
                    // Whose parents are there, or were when it was stored: holes are the table's to see.
                    prop_assert_eq!(&held.0, &truth);
                }
                if gaps == 0 {
                    prop_assert!(held.0.is_subset(&truth), "claims what isn't there");
                }
            }
        }
    }
}
