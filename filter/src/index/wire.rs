//! Bytes of shared data: little-endian, sealed by a checksum, read as hostile input.
//!
//! Whatever one VM cannot read, none can, again and again: so nothing here trusts a length, and every read answers
//! `None` at the end of the bytes.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes that [`seal`] puts before the content.
pub(crate) const SEAL: usize = 8;

/// Begins a sealed value: room for the checksum, then whatever is pushed.
pub(crate) fn begin(capacity: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(capacity.saturating_add(SEAL));
    bytes.extend_from_slice(&[0; SEAL]);
    bytes
}

/// Writes the checksum of all that follows it.
pub(crate) fn seal(bytes: &mut [u8]) {
    if let Some((sum, content)) = bytes.split_at_mut_checked(SEAL) {
        sum.copy_from_slice(&xxh3_64(content).to_le_bytes());
    }
}

/// The content of a sealed value; `None` unless the checksum is right.
pub(crate) fn open(bytes: &[u8]) -> Option<Reader<'_>> {
    let (sum, content) = bytes.split_first_chunk::<SEAL>()?;
    (xxh3_64(content) == u64::from_le_bytes(*sum)).then_some(Reader(content))
}

/// What is left to read.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    /// A list of u64. Its length is held against the bytes that are there before anything is allocated.
    pub(crate) fn u64s(&mut self, count: usize) -> Option<Vec<u64>> {
        let bytes = self.bytes(count.checked_mul(8)?)?;
        let (chunks, _) = bytes.as_chunks::<8>();
        Some(chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect())
    }

    /// A text of at most 255 bytes, preceded by its length.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.u8()?;
        std::str::from_utf8(self.bytes(length.into())?).ok()
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// `Some` at the end of the bytes: a value with something behind it is not what we wrote.
    pub(crate) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends numbers to a value that is being built.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_u64s(&mut self, values: &[u64]);
    /// A text; what is beyond 255 bytes is cut, so bound it before.
    fn put_text(&mut self, text: &str);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64s(&mut self, values: &[u64]) {
        self.reserve(values.len().saturating_mul(8));
        for value in values {
            self.put_u64(*value);
        }
    }

    fn put_text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        self.put_u8(length);
        self.extend(bytes.iter().take(length.into()));
    }
}
