//! Batches in any order and of any content, into one feed.
//!
//! Input: options (how the rest is read; tokens in a block), most blocks, and the rest: what engines sent, as in tests/data, or
//! whatever `arbitrary` makes of it.
#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use warmpath::blocks::{Apart, BlockHash, Kind, digest, link};
use warmpath::events::batch::{Batch, Event, Extra, Place, Removed, Stored, msgpack};
use warmpath::events::feed::{Feed, Model, Passed, Sequence};
use warmpath::index::{Delta, PodRef, Slot};
use warmpath_fuzz::{live, within};

const MODEL: &str = "m";

/// What happens to a feed.
#[derive(Debug, Arbitrary)]
enum Op {
    Batch {
        number: Number,
        anew: bool,
        how: Option<How>,
        is_other_pod: bool,
        events: Vec<Told>,
    },
    /// The last batch again, so many times.
    Again(u8),
    Skip(Number),
    Lose,
    Doubt,
}

#[derive(Debug, Arbitrary)]
enum Number {
    Following,
    None,
    First,
    Any(u64),
}

/// A sequence that the feed itself would not have found.
#[derive(Debug, Arbitrary)]
enum How {
    Next,
    Start,
    Gap,
    Repeated,
}

/// An event of few names and contents, so that they meet.
#[derive(Debug, Arbitrary)]
enum Told {
    Stored { parent: Option<u8>, blocks: Vec<(u8, u8)>, rare: Option<Rare> },
    Removed { names: Vec<u8>, place: Option<(bool, Option<u8>)> },
    Cleared,
    Unknown,
    Unusable,
}

/// What most events don't have.
#[derive(Debug, Arbitrary)]
struct Rare {
    is_other_size: bool,
    is_other_kind: bool,
    place: (bool, Option<u8>),
    lora: Option<bool>,
    lora_id: Option<i64>,
    has_salt: bool,
    extra: Vec<(u8, [Option<u8>; 2], u8)>,
}

fn place((is_offloaded, group): (bool, Option<u8>)) -> Place {
    Place { is_offloaded, group: group.map(|group| (group % 4).into()) }
}

/// One of 32 names.
fn name(of: u8) -> u64 {
    u64::from(of % 32)
}

impl Told {
    fn event(self, block: usize) -> Event {
        match self {
            Self::Stored { parent, blocks, rare } => {
                let other = rare.as_ref().is_some_and(|rare| rare.is_other_size);
                let size = block + usize::from(other);
                let tokens = blocks.iter().flat_map(|(_, content)| std::iter::repeat_n(content % 4, size));
                let mut stored = Stored {
                    names: blocks.iter().map(|(of, _)| name(*of)).collect(),
                    parent: parent.map(name),
                    tokens: tokens.map(u32::from).collect(),
                    block_size: size as u32,
                    is_main: true,
                    ..Stored::default()
                };
                if let Some(rare) = rare {
                    stored.is_main = !rare.is_other_kind;
                    stored.place = place(rare.place);
                    stored.lora = rare.lora.map(|which| if which { "a" } else { "b" }.to_owned());
                    stored.lora_id = rare.lora_id;
                    stored.salt = rare.has_salt.then(|| "s".to_owned());
                    stored.extra = rare
                        .extra
                        .into_iter()
                        .map(|(block, texts, other)| Extra {
                            block: block.into(),
                            texts: texts.map(|text| text.map(u64::from)),
                            other: other.into(),
                        })
                        .collect();
                }
                Event::Stored(stored)
            }
            Self::Removed { names, place: at } => Event::Removed(Removed {
                names: names.into_iter().map(name).collect(),
                place: at.map(place).unwrap_or_default(),
            }),
            Self::Cleared => Event::Cleared,
            Self::Unknown => Event::Unknown,
            Self::Unusable => Event::Unusable("it is so"),
        }
    }
}

/// The names of a cache as they are described, without bounds: copies of each, and where it is.
#[derive(Default)]
struct Plain(BTreeMap<u64, (u32, At)>);

#[derive(Clone, Copy)]
enum At {
    Linked(u64),
    Waiting { parent: u64, digest: u64 },
}

impl Plain {
    fn link_of(&self, name: u64) -> Option<u64> {
        match self.0.get(&name)?.1 {
            At::Linked(link) => Some(link),
            At::Waiting { .. } => None,
        }
    }

    fn store(&mut self, stored: &Stored, block: usize, parents: &mut BTreeMap<BlockHash, Option<BlockHash>>) {
        let hash = |link| Kind::Cached.name(link);
        let seed = Apart { model: Some(MODEL), ..Apart::default() }.seed(block);
        let mut before = stored.parent;
        for (name, tokens) in stored.names.iter().zip(stored.tokens.chunks(block)) {
            let digest = digest(tokens, &mut Vec::new());
            let end = before.map_or(Some(seed), |before| self.link_of(before));
            let parent = before.replace(*name);
            let waiting = At::Waiting { parent: parent.unwrap_or_default(), digest };
            let (copies, at) = self.0.entry(*name).or_insert((0, waiting));
            *copies += 1;
            let (At::Waiting { .. }, Some(end)) = (&at, end) else { continue };
            *at = At::Linked(link(end, digest));
            parents.insert(hash(link(end, digest)), parent.map(|_| hash(end)));
            // Who waits for one that has a link has one, too.
            while let Some((name, end, digest)) = self.0.iter().find_map(|(name, (_, at))| match *at {
                At::Linked(_) => None,
                At::Waiting { parent, digest } => Some((*name, self.link_of(parent)?, digest)),
            }) {
                self.0.entry(name).and_modify(|(_, at)| *at = At::Linked(link(end, digest)));
                parents.insert(hash(link(end, digest)), Some(hash(end)));
            }
        }
    }

    fn remove(&mut self, removed: &Removed) {
        for name in &removed.names {
            let copies = self.0.get_mut(name).map(|(copies, _)| {
                *copies = copies.saturating_sub(1);
                *copies
            });
            if copies == Some(0) {
                self.0.remove(name);
            }
        }
    }

    /// How often each block is held.
    fn held(&self) -> BTreeMap<BlockHash, usize> {
        let mut held = BTreeMap::new();
        for link in self.0.keys().filter_map(|name| self.link_of(*name)) {
            *held.entry(Kind::Cached.name(link)).or_default() += 1;
        }
        held
    }
}

/// A feed, and what is to be true of it.
struct Checked {
    feed: Feed,
    most: usize,
    model: Model<'static>,
    pod: Option<PodRef>,
    /// Blocks that it told of since it last knew nothing: how many are before each, and how often it is held. An engine may give
    /// one block several names.
    told: BTreeMap<BlockHash, (u32, usize)>,
    /// Whether it knew all of its cache once, and nothing happened since that ends this.
    was_told_all: bool,
    /// What it should know, as long as that follows from plain events without anything left out.
    plain: Option<Plain>,
    /// The block before each, of all that were in there.
    parents: BTreeMap<BlockHash, Option<BlockHash>>,
    last: Batch,
}

impl Checked {
    fn new(most: usize, block_tokens: usize) -> Self {
        let model = Model { name: MODEL, block_tokens };
        let (told, parents) = (BTreeMap::new(), BTreeMap::new());
        let (feed, plain, last) = (Feed::new(most), Some(Plain::default()), Batch::default());
        Self { feed, most, model, pod: None, told, was_told_all: false, plain, parents, last }
    }

    fn lost(&mut self) {
        self.told.clear();
        self.was_told_all = false;
        self.plain = Some(Plain::default());
    }

    /// Whatever is known may be gone with the next removal.
    fn doubted(&mut self) {
        self.was_told_all = false;
        let known = self.plain.iter_mut().flat_map(|plain| plain.0.values_mut());
        known.for_each(|(copies, _)| *copies = 0);
    }

    fn apply(&mut self, batch: &Batch, number: Option<u64>, (sequence, anew): (Sequence, bool), pod: PodRef) {
        let before = (self.feed.next(), self.feed.blocks(), self.feed.waiting(), self.feed.is_exact());
        let (mut stored, mut removed) = (0, 0);
        for event in &batch.events {
            match event {
                Event::Stored(event) => stored += event.names.len(),
                Event::Removed(event) => removed += event.names.len(),
                Event::Cleared | Event::Unknown | Event::Unusable(_) => {}
            }
        }
        // Whatever is known may be told of, and each block may be a change of its own.
        let enough = 4096 + 512 * (stored + removed + batch.events.len() + self.most);
        let (feed, model, mut deltas) = (&mut self.feed, self.model, Vec::new());
        let passed = within(enough, || feed.apply(batch, number, (sequence, anew), pod, model, &mut deltas));

        let after = (self.feed.next(), self.feed.blocks(), self.feed.waiting(), self.feed.is_exact());
        if sequence == Sequence::Repeated {
            assert_eq!((after, passed, deltas), (before, Passed::default(), Vec::new()));
            return;
        }
        assert_eq!(after.0, number.or(before.0).map(|number| number.saturating_add(1)));
        self.check_passed(batch, stored, removed, before.2, &passed);
        if self.pod.replace(pod) != Some(pod) || anew {
            self.lost();
        } else if sequence == Sequence::Gap {
            self.doubted();
        }
        if sequence == Sequence::Start {
            self.cleared();
        }
        batch.events.iter().for_each(|event| self.check_event(event));
        let is_all = (passed.stored, passed.removed) == (stored as u64, removed as u64);
        self.plain = self.plain.take().filter(|_| is_all && passed.refused + passed.forgotten == 0);
        deltas.iter().for_each(|delta| self.check_delta(delta, pod));
        self.check();
    }

    fn cleared(&mut self) {
        self.was_told_all = true;
        self.plain = Some(Plain::default());
    }

    fn check_event(&mut self, event: &Event) {
        match (event, &mut self.plain) {
            (Event::Cleared, _) => self.cleared(),
            (Event::Unusable(_), _) => self.was_told_all = false,
            (Event::Stored(stored), Some(plain)) if is_plain(stored) => {
                plain.store(stored, self.model.block_tokens, &mut self.parents);
            }
            (Event::Stored(_), _) => self.plain = None,
            (Event::Removed(removed), Some(plain)) => plain.remove(removed),
            (Event::Removed(_), None) | (Event::Unknown, _) => {}
        }
    }

    fn check_passed(&self, batch: &Batch, stored: usize, removed: usize, waited: usize, passed: &Passed) {
        let count = |is: fn(&Event) -> bool| batch.events.iter().filter(|event| is(event)).count() as u64;
        assert_eq!(passed.unknown, count(|event| *event == Event::Unknown));
        assert_eq!(passed.unusable, count(|event| matches!(event, Event::Unusable(_))));
        let of = passed.stored + passed.offloaded + passed.other_groups + passed.other_size;
        assert_eq!(of, stored as u64);
        assert!(passed.removed <= removed as u64);
        assert!(passed.refused + passed.forgotten <= passed.stored + waited as u64);
    }

    fn check_delta(&mut self, delta: &Delta, pod: PodRef) {
        let is_cached = |hash: &BlockHash| Kind::of(*hash) == Kind::Cached;
        match delta {
            Delta::Stored { pod: of, parent, depth, hashes } => {
                assert!(*of == pod && !hashes.is_empty() && hashes.iter().all(is_cached));
                // It begins a chain, or follows a block that is there.
                let before = parent.map(|parent| {
                    let (depth, copies) = self.told[&parent];
                    assert!(copies > 0 && is_cached(&parent));
                    depth
                });
                assert_eq!(*depth, before.map_or(0, |depth| depth + 1));
                let before = std::iter::once(*parent).chain(hashes.iter().copied().map(Some));
                for (hash, before) in hashes.iter().zip(before) {
                    assert_eq!(*self.parents.get(hash).unwrap_or(&before), before);
                }
                for (hash, depth) in hashes.iter().zip(*depth..) {
                    let told = self.told.entry(*hash).or_insert((depth, 0));
                    assert_eq!(told.0, depth);
                    told.1 += 1;
                }
            }
            Delta::Removed { pod: of, hashes } => {
                assert!(*of == pod && !hashes.is_empty() && hashes.iter().all(is_cached));
                for hash in hashes {
                    let told = self.told.get_mut(hash).expect("nobody told of it");
                    told.1 = told.1.checked_sub(1).expect("it is gone already");
                }
            }
            Delta::Cleared { pod: of } => {
                assert_eq!(*of, pod);
                self.told.clear();
            }
            other => panic!("{other:?}"),
        }
    }

    fn check(&self) {
        let (linked, waiting) = (self.feed.blocks(), self.feed.waiting());
        assert!(linked + waiting <= self.most);
        assert!(waiting <= (self.most / 4).max(1));
        assert_eq!(linked, self.told.values().map(|(_, copies)| copies).sum::<usize>());
        assert!(self.was_told_all || !self.feed.is_exact());
        if let Some(plain) = &self.plain {
            let told = self.told.iter().filter(|(_, (_, copies))| *copies > 0);
            assert_eq!(plain.held(), told.map(|(hash, (_, copies))| (*hash, *copies)).collect());
        }
    }

    fn op(&mut self, op: Op) {
        match op {
            Op::Batch { number, anew, how, is_other_pod, events } => {
                let (number, pod) = (self.number(&number), pod(is_other_pod));
                let sequence = match how {
                    None => self.feed.sequence(number, anew, Some(pod)),
                    Some(How::Next) => Sequence::Next,
                    Some(How::Start) => Sequence::Start,
                    Some(How::Gap) => Sequence::Gap,
                    Some(How::Repeated) => Sequence::Repeated,
                };
                let events = events.into_iter().map(|told| told.event(self.model.block_tokens)).collect();
                self.last = Batch { events, ..Batch::default() };
                self.apply(&self.last.clone(), number, (sequence, anew), pod);
            }
            Op::Again(times) => {
                let (last, of) = (self.last.clone(), self.pod.unwrap_or(pod(false)));
                (0..times % 16).for_each(|_| self.apply(&last, None, (Sequence::Next, false), of));
            }
            Op::Skip(number) => self.skip(self.number(&number)),
            Op::Doubt => {
                self.feed.doubt();
                self.doubted();
                self.check();
            }
            Op::Lose => {
                self.feed.lose();
                self.lost();
                self.check();
            }
        }
    }

    fn skip(&mut self, number: Option<u64>) {
        self.feed.skip(number);
        self.doubted();
        self.check();
    }

    fn number(&self, number: &Number) -> Option<u64> {
        match number {
            Number::Following => self.feed.next().or(Some(0)),
            Number::None => None,
            Number::First => Some(0),
            Number::Any(number) => Some(*number),
        }
    }

    /// The memory that it held must follow from what it may hold, whatever it was told.
    fn end(self) {
        let before = live();
        drop(self.feed);
        let held = before - live();
        assert!(held <= 1024 + 400 * self.most, "{held} bytes are held for {} blocks", self.most);
    }
}

/// Whether a block's digest is that of its tokens, and a chain's seed that of its model.
fn is_plain(stored: &Stored) -> bool {
    let Stored { lora, lora_id, extra, salt, .. } = stored;
    lora.is_none() && lora_id.is_none() && extra.is_empty() && salt.is_none()
}

fn pod(is_other: bool) -> PodRef {
    PodRef { slot: Slot::new(3).expect("a slot"), generation: is_other.into() }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[options, most], mut rest)) = data.split_first_chunk() else { return };
    let mut checked = Checked::new(most.into(), [1, 4, 32][usize::from(options >> 1) % 3]);
    if options & 1 == 0 {
        while let Some((length, after)) = rest.split_first_chunk() {
            let payload = after.get(..u32::from_le_bytes(*length) as usize).unwrap_or(after);
            rest = &after[payload.len()..];
            let number = checked.number(&Number::Following);
            match msgpack(payload) {
                Ok(batch) => {
                    let sequence = checked.feed.sequence(number, false, Some(pod(false)));
                    checked.apply(&batch, number, (sequence, false), pod(false));
                }
                Err(_) => checked.skip(number),
            }
        }
    } else {
        let mut rest = Unstructured::new(rest);
        while !rest.is_empty() {
            let Ok(op) = Op::arbitrary(&mut rest) else { break };
            checked.op(op);
        }
    }
    checked.end();
});
