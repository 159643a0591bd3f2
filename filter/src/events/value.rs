//! Any value of msgpack or JSON, as far as events are made of it.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The rest of a visitor that takes one kind of value: for every other kind, what there is instead.
macro_rules! otherwise {
    ($instead:expr) => {
        otherwise!($instead, but str);
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($instead)
        }
    };
    ($instead:expr, but str) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($instead)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($instead)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($instead)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($instead)
        }
        fn visit_bytes<E>(self, _: &[u8]) -> Result<Self::Value, E> {
            Ok($instead)
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($instead)
        }
        fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
            from.deserialize_any(serde::de::IgnoredAny).map(|_| $instead)
        }
        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            while from.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
            Ok($instead)
        }
    };
}
pub(super) use otherwise;

/// A value that isn't made of others.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar<'de> {
    /// Not negative.
    Unsigned(u64),
    /// Negative.
    Signed(i64),
    /// A number with a point, or larger than 64 bits.
    Float(f64),
    /// Text.
    Text(Cow<'de, str>),
    /// Bytes.
    Bytes(Cow<'de, [u8]>),
    /// Nothing.
    Nil,
    /// A boolean, a list, a map or an extension, which was passed.
    Other,
}

/// What lists are of: token ids, and names of blocks.
pub trait Item: Sized {
    /// That which a number is, if it is one.
    fn of_unsigned(number: u64) -> Option<Self>;
    /// That which a negative number is.
    fn of_signed(number: i64) -> Option<Self>;
    /// That which bytes, or the bytes of a text, are.
    fn of_bytes(bytes: &[u8]) -> Option<Self>;
}

impl Item for u32 {
    fn of_unsigned(number: u64) -> Option<Self> {
        Self::try_from(number).ok()
    }
    fn of_signed(_: i64) -> Option<Self> {
        None
    }
    fn of_bytes(_: &[u8]) -> Option<Self> {
        None
    }
}

impl Item for u64 {
    fn of_unsigned(number: u64) -> Option<Self> {
        Some(number)
    }
    fn of_signed(number: i64) -> Option<Self> {
        Some(number.cast_unsigned())
    }
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        Some(xxh3_64(bytes))
    }
}

/// Reads one item, without the detour of a [`Scalar`]: there are hundreds in an event.
pub struct One<T>(PhantomData<T>);

impl<T> One<T> {
    /// Reads one.
    pub const SEED: Self = Self(PhantomData);
}

impl<'de, T: Item> DeserializeSeed<'de> for One<T> {
    type Value = Option<T>;
    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Item> Visitor<'de> for One<T> {
    type Value = Option<T>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, bytes or a text")
    }
    #[inline]
    fn visit_u64<E>(self, number: u64) -> Result<Option<T>, E> {
        Ok(T::of_unsigned(number))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Option<T>, E> {
        Ok(u64::try_from(number).map_or_else(|_| T::of_signed(number), T::of_unsigned))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Option<T>, E> {
        Ok(None)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Option<T>, E> {
        Ok(None)
    }
    fn visit_str<E>(self, text: &str) -> Result<Option<T>, E> {
        Ok(T::of_bytes(text.as_bytes()))
    }
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Option<T>, E> {
        Ok(T::of_bytes(bytes))
    }
    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
        from.deserialize_any(IgnoredAny).map(|_| None)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Option<T>, A::Error> {
        while from.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Option<T>, A::Error> {
        while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// Reads a [`Scalar`]; never fails on a value of another type.
pub struct AnyScalar;

impl Scalar<'_> {
    /// Reads one.
    pub const SEED: AnyScalar = AnyScalar;

    /// The number that it is, or that its text says.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Unsigned(number) => Some(*number as f64),
            Self::Signed(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// What it is as an item of a list.
    pub fn item<T: Item>(&self) -> Option<T> {
        match self {
            Self::Unsigned(number) => T::of_unsigned(*number),
            Self::Signed(number) => T::of_signed(*number),
            Self::Text(text) => T::of_bytes(text.as_bytes()),
            Self::Bytes(bytes) => T::of_bytes(bytes),
            Self::Float(_) | Self::Nil | Self::Other => None,
        }
    }

    /// A number of at most 32 bits, not negative.
    pub fn small(&self) -> Option<u32> {
        match self {
            Self::Unsigned(number) => u32::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A whole number of at most 64 bits with its sign.
    pub fn signed(&self) -> Option<i64> {
        match self {
            Self::Unsigned(number) => i64::try_from(*number).ok(),
            Self::Signed(number) => Some(*number),
            _ => None,
        }
    }

    /// Its text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> DeserializeSeed<'de> for AnyScalar {
    type Value = Scalar<'de>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Scalar<'de>, D::Error> {
        struct Walk<'de>(PhantomData<&'de ()>);
        impl<'de> Visitor<'de> for Walk<'de> {
            type Value = Scalar<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Scalar::Unsigned(number))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(u64::try_from(number).map_or(Scalar::Signed(number), Scalar::Unsigned))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Scalar::Float(number))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Scalar::Other)
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(Scalar::Bytes(Cow::Borrowed(bytes)))
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Scalar::Bytes(Cow::Owned(bytes.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Scalar::Nil)
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
                from.deserialize_any(IgnoredAny).map(|_| Scalar::Other)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                while from.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
        }
        from.deserialize_any(Walk(PhantomData))
    }
}

/// A value of any shape, by its digest.
pub struct Digest {
    /// Equal values have equal ones.
    pub digest: u64,
    /// Whether it is a text.
    pub is_text: bool,
}

/// Reads a [`Digest`].
pub struct AnyDigest;

impl Digest {
    /// Reads one.
    pub const SEED: AnyDigest = AnyDigest;

    fn of(kind: u64, bytes: &[u8]) -> Self {
        Self { digest: xxh3_64_with_seed(bytes, kind), is_text: false }
    }

    /// The digest of a text, as [`crate::blocks::Apart`] takes it.
    pub fn of_text(text: &str) -> Self {
        Self { digest: xxh3_64(text.as_bytes()), is_text: true }
    }
}

impl<'de> DeserializeSeed<'de> for AnyDigest {
    type Value = Digest;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Digest, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyDigest {
    type Value = Digest;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_u64<E>(self, number: u64) -> Result<Digest, E> {
        Ok(Digest::of(1, &number.to_le_bytes()))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Digest, E> {
        Ok(Digest::of(1, &number.to_le_bytes()))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Digest, E> {
        Ok(Digest::of(2, &number.to_bits().to_le_bytes()))
    }
    fn visit_bool<E>(self, value: bool) -> Result<Digest, E> {
        Ok(Digest::of(3, &[u8::from(value)]))
    }
    fn visit_str<E>(self, text: &str) -> Result<Digest, E> {
        Ok(Digest::of_text(text))
    }
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Digest, E> {
        Ok(Digest::of(4, bytes))
    }
    fn visit_unit<E>(self) -> Result<Digest, E> {
        Ok(Digest::of(5, &[]))
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Digest, D::Error> {
        from.deserialize_any(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Digest, A::Error> {
        let mut all = Digest::of(6, &[]);
        while let Some(next) = from.next_element_seed(AnyDigest)? {
            all.digest = xxh3_64_with_seed(&next.digest.to_le_bytes(), all.digest);
        }
        Ok(all)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Digest, A::Error> {
        let mut all = Digest::of(7, &[]);
        while let Some(key) = from.next_key_seed(AnyDigest)? {
            let value = from.next_value_seed(AnyDigest)?;
            for next in [key.digest, value.digest] {
                all.digest = xxh3_64_with_seed(&next.to_le_bytes(), all.digest);
            }
        }
        Ok(all)
    }
}
