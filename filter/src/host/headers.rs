//! All headers of a message, as one hostcall gives them: with each header that has a value asked for by name, Envoy would
//! call into the VM once more to allocate it.

use std::borrow::Cow;

/// The headers of a message, in their wire form: count, the sizes of all names and values, then each of them ended by a
/// zero byte. Reading what is not of that form ends early, and finds what came before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderMap {
    wire: Vec<u8>,
}

impl HeaderMap {
    /// Headers as the host gave them.
    pub fn from_wire(wire: Vec<u8>) -> Self {
        Self { wire }
    }

    /// The wire form of these headers.
    pub fn to_wire<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone) -> Vec<u8> {
        let size = |text: &[u8]| (text.len() as u32).to_le_bytes();
        let mut wire = (pairs.clone().count() as u32).to_le_bytes().to_vec();
        for (name, value) in pairs.clone() {
            wire.extend(size(name));
            wire.extend(size(value));
        }
        for text in pairs.flat_map(|(name, value)| [name, value]) {
            wire.extend(text);
            wire.push(0);
        }
        wire
    }

    /// Names, in lower case, with their values, which need not be UTF-8.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        const WORD: usize = size_of::<u32>();
        let (count, rest) = self.wire.split_first_chunk().unwrap_or((&[0; WORD], &[]));
        let count = u32::from_le_bytes(*count) as usize;
        let sizes = count.checked_mul(2 * WORD).and_then(|len| rest.split_at_checked(len));
        let (sizes, mut texts) = sizes.unwrap_or((&[], &[]));
        let mut take = move |size: [u8; WORD]| {
            let (text, rest) = texts.split_at_checked(u32::from_le_bytes(size) as usize)?;
            texts = rest.get(1..)?;
            Some(text)
        };
        let (sizes, _) = sizes.as_chunks::<WORD>();
        let (sizes, _) = sizes.as_chunks::<2>();
        sizes.iter().map_while(move |[name, value]| Some((take(*name)?, take(*value)?)))
    }

    /// The value of a header, by its name in lower case; several are joined by commas.
    pub fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut values = self.iter().filter(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value);
        let mut all = Cow::Borrowed(values.next()?);
        for value in values {
            let all = all.to_mut();
            all.push(b',');
            all.extend(value);
        }
        Some(all)
    }

    /// The same, where it is text.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.get(name)? {
            Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wire(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        HeaderMap::to_wire(pairs.iter().map(|(name, value)| (name.as_slice(), value.as_slice())))
    }

    #[test]
    fn several_values_are_joined() {
        let pairs: [(&[u8], &[u8]); 4] = [(b":path", b"/"), (b"a", b"1"), (b"b", b"\xff"), (b"a", b"")];
        let headers = HeaderMap::from_wire(HeaderMap::to_wire(pairs.into_iter()));
        assert_eq!(headers.text(":path").as_deref(), Some("/"));
        assert_eq!(headers.get("a").as_deref(), Some(&b"1,"[..]));
        assert_eq!(headers.get("b").as_deref(), Some(&b"\xff"[..]));
        assert_eq!(headers.text("b"), None);
        assert_eq!(headers.get("c"), None);
        assert_eq!(HeaderMap::default().get("a"), None);
    }

    proptest! {
        #[test]
        fn reads_what_was_written(pairs in prop::collection::vec(any::<(Vec<u8>, Vec<u8>)>(), 0..8)) {
            let headers = HeaderMap::from_wire(wire(&pairs));
            let read: Vec<_> = headers.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(read, pairs);
        }

        #[test]
        fn what_is_cut_off_or_changed_is_survived(
            pairs in prop::collection::vec(any::<(Vec<u8>, Vec<u8>)>(), 0..8),
            cut: prop::sample::Index,
            at: prop::sample::Index,
            byte: u8,
        ) {
            let mut wire = wire(&pairs);
            let i = at.index(wire.len());
            wire[i] = byte;
            wire.truncate(cut.index(wire.len()));
            prop_assert!(HeaderMap::from_wire(wire).iter().count() <= 64);
        }
    }
}
