//! The lists that events have.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

use super::event::Extra;
use super::value::{Digest, Item, One, otherwise};

/// Numbers for which memory is taken before they arrive.
const MOST_BELIEVED: usize = 4096;

/// A list of numbers or names. `None` where it is no list, or where one of them is something else.
pub struct List<T>(PhantomData<T>);

impl<T> List<T> {
    /// Reads one.
    pub const SEED: Self = Self(PhantomData);
}

impl<'de, T: Item> DeserializeSeed<'de> for List<T> {
    type Value = Option<Vec<T>>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Item> Visitor<'de> for List<T> {
    type Value = Option<Vec<T>>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        // An announced length is believed as far as it costs little.
        let mut list = Some(Vec::with_capacity(from.size_hint().unwrap_or(0).min(MOST_BELIEVED)));
        while let Some(value) = from.next_element_seed(One::SEED)? {
            match (value, &mut list) {
                (Some(value), Some(list)) => list.push(value),
                _ => list = None,
            }
        }
        Ok(list)
    }
    otherwise!(None);
}

/// `extra_keys`: nil, or for each block nil or a list.
pub struct ExtraKeys;

impl<'de> DeserializeSeed<'de> for ExtraKeys {
    type Value = Vec<Extra>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ExtraKeys {
    type Value = Vec<Extra>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of what keeps blocks apart")
    }
    otherwise!(Vec::new());
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut blocks = Vec::new();
        let mut block = 0u32;
        while let Some(extra) = from.next_element::<Extra>()? {
            // Most have nothing.
            if extra != Extra::default() {
                blocks.push(Extra { block, ..extra });
            }
            block = block.saturating_add(1);
        }
        Ok(blocks)
    }
}

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Extra;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of what keeps a block apart")
            }
            otherwise!(Extra::default(), but str);
            fn visit_str<E>(self, text: &str) -> Result<Extra, E> {
                let mut extra = Extra::default();
                extra.push(Digest::of_text(text));
                Ok(extra)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Extra, A::Error> {
                let mut extra = Extra::default();
                while let Some(value) = from.next_element_seed(Digest::SEED)? {
                    extra.push(value);
                }
                Ok(extra)
            }
        }
        from.deserialize_any(Walk)
    }
}
