//! A tokenizer's files in shared data, where one VM puts them and every other finds them.
//!
//! Shared data never frees a key, so each source has a fixed set: one that says what is there, and the chunks. The chunks
//! are written before what tells of them. Each bears the number of the whole, so that chunks of two writers don't mix
//! unseen; whoever finds a mixture waits for the next writer.

use crate::host::{Expect, HostResult, SharedData, Write};
use crate::index::wire::{self, Put};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of one value: read in about 0.2 ms.
const CHUNK: usize = 1 << 20;
/// Of all files of a source together.
pub const MAX_BYTES: usize = 96 << 20;
/// Raise it with any change to the layout.
const VERSION: u32 = 1;

/// Where a source's files are in shared data.
#[derive(Debug, Clone)]
pub struct Shelf(Box<str>);

/// What is on a shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Names exactly these bytes.
    id: u64,
    length: usize,
}

impl Shelf {
    /// The shelf of a source. Different sources must have different numbers.
    pub fn new(source: u64) -> Self {
        Self(format!("wp/tokenizer/{VERSION}/{source:016x}/").into())
    }

    fn label_key(&self) -> String {
        format!("{}label", self.0)
    }

    fn chunk_key(&self, n: usize) -> String {
        format!("{}{n}", self.0)
    }

    /// Puts files on the shelf in place of what was there.
    pub fn put(&self, host: &impl SharedData, files: &[&[u8]]) -> HostResult<Label> {
        let mut content = Vec::new();
        content.put_u32(u32::try_from(files.len()).unwrap_or(u32::MAX));
        for file in files {
            content.put_u32(u32::try_from(file.len()).unwrap_or(u32::MAX));
        }
        content.extend(files.iter().copied().flatten());
        let label = Label { id: xxh3_64(&content), length: content.len() };
        for (n, chunk) in content.chunks(CHUNK).enumerate() {
            let mut value = wire::begin(8 + chunk.len());
            value.put_u64(label.id);
            value.extend_from_slice(chunk);
            wire::seal(&mut value);
            overwrite(host, &self.chunk_key(n), &value)?;
        }
        let mut value = wire::begin(16);
        value.put_u64(label.id);
        value.put_u64(label.length as u64);
        wire::seal(&mut value);
        overwrite(host, &self.label_key(), &value)?;
        Ok(label)
    }

    /// What is on the shelf; `None` where it is empty, or nothing that this version understands.
    pub fn label(&self, host: &impl SharedData) -> HostResult<Option<Label>> {
        let Some(there) = host.shared_get(&self.label_key())? else { return Ok(None) };
        Ok(wire::open(&there.value).and_then(|mut from| {
            let label = Label { id: from.u64()?, length: usize::try_from(from.u64()?).ok()? };
            from.end()?;
            (1..=MAX_BYTES).contains(&label.length).then_some(label)
        }))
    }
}

fn overwrite(host: &impl SharedData, key: &str, value: &[u8]) -> HostResult<()> {
    host.shared_set(key, value, Expect::Anything).map(|_: Write| ())
}

/// Files that are being taken from a shelf, a few chunks at a time.
#[derive(Debug)]
pub struct Taking {
    label: Label,
    content: Vec<u8>,
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// There is more.
    More,
    /// All files, in the order in which they were put.
    Files(Vec<Vec<u8>>),
    /// What is there is not what the label says.
    Broken,
}

impl Taking {
    /// Begins to take what a label says.
    pub fn begin(label: Label) -> Self {
        Self { label, content: Vec::with_capacity(label.length) }
    }

    /// What is being taken.
    pub fn label(&self) -> Label {
        self.label
    }

    /// Takes at most `chunks` more.
    pub fn step(&mut self, host: &impl SharedData, shelf: &Shelf, chunks: usize) -> HostResult<Taken> {
        for _ in 0..chunks {
            let key = shelf.chunk_key(self.content.len() / CHUNK);
            let Some(there) = host.shared_get(&key)? else { return Ok(Taken::Broken) };
            let left = self.label.length - self.content.len();
            let chunk = wire::open(&there.value)
                .and_then(|mut from| (from.u64()? == self.label.id).then(|| from.bytes(left.min(CHUNK)))?);
            let Some(chunk) = chunk else { return Ok(Taken::Broken) };
            self.content.extend_from_slice(chunk);
            if self.content.len() == self.label.length {
                return Ok(self.files().map_or(Taken::Broken, Taken::Files));
            }
        }
        Ok(Taken::More)
    }

    fn files(&self) -> Option<Vec<Vec<u8>>> {
        if xxh3_64(&self.content) != self.label.id {
            return None;
        }
        let word = |at: usize| {
            let bytes = self.content.get(at * 4..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        let count = word(0)?;
        let mut at = count.checked_add(1)?.checked_mul(4)?;
        let mut files = Vec::new();
        for n in 1..=count {
            let end = at.checked_add(word(n)?)?;
            files.push(self.content.get(at..end)?.to_vec());
            at = end;
        }
        (at == self.content.len()).then_some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeHost, FakeShared};
    use proptest::prelude::*;

    fn take(host: &FakeHost, shelf: &Shelf, label: Label) -> Taken {
        let mut taking = Taking::begin(label);
        loop {
            match taking.step(host, shelf, 1).unwrap() {
                Taken::More => {}
                taken => return taken,
            }
        }
    }

    #[test]
    fn files_come_back_whole() {
        let host = FakeHost::new(&FakeShared::default());
        let shelf = Shelf::new(7);
        assert_eq!(shelf.label(&host).unwrap(), None);
        for sizes in [&[0usize, 0][..], &[1], &[CHUNK - 12, 0], &[CHUNK, CHUNK / 2, 3], &[3 * CHUNK + 5, 9]] {
            let files: Vec<Vec<u8>> =
                sizes.iter().map(|size| (0..*size).map(|n| (n % 251) as u8).collect()).collect();
            let label = shelf.put(&host, &files.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
            assert_eq!(shelf.label(&host).unwrap(), Some(label));
            assert_eq!(take(&host, &shelf, label), Taken::Files(files));
        }
        assert_eq!(Shelf::new(8).label(&host).unwrap(), None);
    }

    #[test]
    fn a_mixture_is_noticed() {
        let host = FakeHost::new(&FakeShared::default());
        let shelf = Shelf::new(7);
        let (one, two) = (vec![1; 2 * CHUNK], vec![2; 2 * CHUNK]);
        let first = shelf.put(&host, &[&one]).unwrap();
        let mut taking = Taking::begin(first);
        assert_eq!(taking.step(&host, &shelf, 1).unwrap(), Taken::More);
        let second = shelf.put(&host, &[&two]).unwrap();
        assert_eq!(taking.step(&host, &shelf, 1).unwrap(), Taken::Broken);
        assert_eq!(take(&host, &shelf, second), Taken::Files(vec![two]));
    }

    proptest! {
        #[test]
        fn damage_is_never_taken_for_files(at: prop::sample::Index, flip in 1u8.., key in 0..2usize) {
            let host = FakeHost::new(&FakeShared::default());
            let shelf = Shelf::new(7);
            let label = shelf.put(&host, &[b"some file", b"another"]).unwrap();
            let key = [shelf.label_key(), shelf.chunk_key(0)][key].clone();
            let mut value = host.shared_get(&key).unwrap().unwrap().value;
            let i = at.index(value.len());
            value[i] ^= flip;
            overwrite(&host, &key, &value).unwrap();
            match shelf.label(&host).unwrap() {
                None => {}
                Some(there) => {
                    prop_assert_eq!(there, label);
                    prop_assert_eq!(take(&host, &shelf, there), Taken::Broken);
                }
            }
        }
    }
}
