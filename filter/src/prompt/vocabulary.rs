//! Words to tokens, by byte-pair merging on the tables of an [`Image`].

use super::image::{EMPTY, Image};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Words of at most so many bytes are merged by looking at all pairs again after each merge. With a handful of symbols that
/// is quicker than a heap.
const SHORT: usize = 24;
/// Words of at most so many bytes are remembered.
const MEMORABLE: usize = 48;
/// Tokens that a remembered word may have.
const MOST_TOKENS: usize = 7;
/// Words that are remembered, each in one place: 400 KB.
const REMEMBERED: usize = 8192;

/// A pair that doesn't merge.
const NEVER: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;

/// The vocabulary of a tokenizer, with a memory for words that were merged before.
#[derive(Debug)]
pub struct Vocabulary {
    image: Image,
    seed: u64,
    memory: Vec<Remembered>,
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

/// A word and its tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Remembered {
    word: Name,
    count: u32,
    tokens: [u32; MOST_TOKENS],
}

/// What a word is told apart by: its length and, up to 16 bytes, all of them; further on a hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Name {
    length: u32,
    a: u64,
    b: u64,
}

impl Name {
    fn of(word: &[u8], seed: u64) -> Self {
        let (a, b) = match word {
            _ if word.len() > 16 => (xxh3_64_with_seed(word, seed), 0),
            // The first and the last bytes, which overlap, leave none out.
            _ if word.len() >= 8 => {
                let ends = word.first_chunk().zip(word.last_chunk());
                ends.map_or((0, 0), |(a, b)| (u64::from_le_bytes(*a), u64::from_le_bytes(*b)))
            }
            _ if word.len() >= 4 => {
                let ends = word.first_chunk().zip(word.last_chunk());
                ends.map_or((0, 0), |(a, b)| (u32::from_le_bytes(*a).into(), u32::from_le_bytes(*b).into()))
            }
            _ => (word.iter().fold(0, |a, byte| a << 8 | u64::from(*byte)), 0),
        };
        Self { length: word.len() as u32, a, b }
    }

    /// Where a word is remembered. Words that get in each other's way cost time only.
    fn place(self) -> usize {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let mixed = (self.a ^ self.b.rotate_left(23) ^ u64::from(self.length)).wrapping_mul(ODD);
        ((mixed ^ mixed >> 32).wrapping_mul(ODD) >> 51) as usize % REMEMBERED
    }
}

/// A token of a word that is being merged, and the pair that it forms with the one after it.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    token: u32,
    rank: u32,
    product: u32,
    before: u32,
    after: u32,
}

impl Vocabulary {
    /// A vocabulary that remembers nothing yet. `seed` should be a secret of this VM: long words that are remembered are told
    /// apart by a hash of 64 bits, which nobody should be able to make equal on purpose.
    pub fn new(image: Image, seed: u64) -> Self {
        Self {
            image,
            seed,
            memory: vec![Remembered::default(); REMEMBERED],
            symbols: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// Bytes allocated.
    pub fn memory_bytes(&self) -> usize {
        self.image.memory_bytes()
            + self.memory.capacity() * size_of::<Remembered>()
            + self.symbols.capacity() * size_of::<Symbol>()
            + self.heap.capacity() * size_of::<(u32, u32)>()
    }

    /// Appends the tokens of a word, one piece of the cut that the tokenizer makes before merging.
    pub fn encode(&mut self, word: &[u8], out: &mut Vec<u32>) {
        if word.len() > MEMORABLE {
            return self.merge(word, out);
        }
        let name = Name::of(word, self.seed);
        let place = name.place();
        if let Some(known) = self.memory.get(place).filter(|known| known.word == name) {
            // All of them, and off with what is too much: a copy of fixed size.
            let end = out.len() + known.count as usize;
            out.extend_from_slice(&known.tokens);
            return out.truncate(end);
        }
        let start = out.len();
        self.merge(word, out);
        let new = out.get(start..).unwrap_or_default();
        if let (Some(place), 1..=MOST_TOKENS) = (self.memory.get_mut(place), new.len()) {
            let mut tokens = [0; MOST_TOKENS];
            tokens.iter_mut().zip(new).for_each(|(to, token)| *to = *token);
            *place = Remembered { word: name, count: new.len() as u32, tokens };
        }
    }

    fn merge(&mut self, word: &[u8], out: &mut Vec<u32>) {
        if let Some(token) = self.image.whole_word(word) {
            return out.push(token);
        }
        self.symbols.clear();
        let tokens = word.iter().map(|byte| self.image.byte(*byte)).filter(|token| *token != EMPTY);
        self.symbols.extend((0..).zip(tokens).map(|(at, token): (u32, u32)| Symbol {
            token,
            rank: NEVER,
            product: 0,
            before: at.checked_sub(1).unwrap_or(NOWHERE),
            after: at + 1,
        }));
        if let Some(last) = self.symbols.last_mut() {
            last.after = NOWHERE;
        }
        match self.symbols.len() {
            0..2 => {}
            2..=SHORT => self.merge_short(),
            _ => self.merge_long(),
        }
        // Merged symbols were taken out of the chain, which begins with the first.
        let mut at = if self.symbols.is_empty() { NOWHERE } else { 0 };
        while let Some(symbol) = self.symbols.get(at as usize) {
            out.push(symbol.token);
            at = symbol.after;
        }
    }

    /// Merges the pair of lowest rank, the leftmost among equals, until none is left.
    fn merge_short(&mut self) {
        let count = self.symbols.len() as u32;
        (0..count).for_each(|at| self.look(at));
        loop {
            let mut best = (NEVER, NOWHERE);
            for (symbol, at) in self.symbols.iter().zip(0..) {
                if symbol.rank < best.0 {
                    best = (symbol.rank, at);
                }
            }
            if best.0 == NEVER {
                return;
            }
            self.apply(best.1);
        }
    }

    /// The same with a heap of pairs. A record that comes up is stale where its pair has another rank by now.
    fn merge_long(&mut self) {
        self.heap.clear();
        for at in 0..self.symbols.len() as u32 {
            self.look(at);
            self.note(at);
        }
        while let Some(Reverse((rank, at))) = self.heap.pop() {
            if self.symbols.get(at as usize).is_some_and(|symbol| symbol.rank == rank) {
                let before = self.apply(at);
                self.note(at);
                self.note(before);
            }
        }
    }

    fn note(&mut self, at: u32) {
        if let Some(symbol) = self.symbols.get(at as usize).filter(|symbol| symbol.rank != NEVER) {
            self.heap.push(Reverse((symbol.rank, at)));
        }
    }

    /// Merges a symbol with the one after it. Returns where the one before it is.
    fn apply(&mut self, at: u32) -> u32 {
        let Some(symbol) = self.symbols.get(at as usize).copied() else { return NOWHERE };
        let Some(gone) = self.symbols.get_mut(symbol.after as usize) else { return NOWHERE };
        gone.rank = NEVER;
        let after = gone.after;
        if let Some(merged) = self.symbols.get_mut(at as usize) {
            merged.token = symbol.product;
            merged.after = after;
        }
        if let Some(next) = self.symbols.get_mut(after as usize) {
            next.before = at;
        }
        self.look(at);
        self.look(symbol.before);
        symbol.before
    }

    /// Looks up the pair that begins with a symbol.
    fn look(&mut self, at: u32) {
        let Some(symbol) = self.symbols.get(at as usize) else { return };
        let next = self.symbols.get(symbol.after as usize);
        let pair = next.and_then(|next| self.image.merge(symbol.token, next.token));
        if let Some(symbol) = self.symbols.get_mut(at as usize) {
            (symbol.rank, symbol.product) = pair.unwrap_or((NEVER, 0));
        }
    }
}
