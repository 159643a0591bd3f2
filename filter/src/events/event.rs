//! One event of a batch, and the walk that reads it in each of its forms.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::batch::{Element, Entry, Next};
use super::lists::{ExtraKeys, List};
use super::value::{Digest, Scalar};

/// What became of blocks.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Blocks were stored, each the parent of the next.
    Stored(Stored),
    /// Blocks were removed.
    Removed(Removed),
    /// All blocks are gone.
    Cleared,
    /// An event of another type, which is passed.
    Unknown,
    /// An event that lacks what it needs; says what.
    Unusable(&'static str),
}

/// An engine's name of a block: opaque.
pub type Name = u64;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Not in the memory that attention reads, or on another machine.
    pub is_offloaded: bool,
    /// The group of layers that it serves; engines without groups don't say.
    pub group: Option<u32>,
}

/// Blocks that were stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stored {
    /// Their names.
    pub names: Vec<Name>,
    /// The name of the block before the first.
    pub parent: Option<Name>,
    /// The tokens of all of them.
    pub tokens: Vec<u32>,
    /// Tokens in each.
    pub block_size: u32,
    /// Where they are.
    pub place: Place,
    /// Whether they serve layers that attend to the whole prompt.
    pub is_main: bool,
    /// The LoRA adapter, as requests name it.
    pub lora: Option<String>,
    /// An adapter of which only the engine's number is known.
    pub lora_id: Option<i64>,
    /// What keeps blocks apart beside their tokens, for those that have it, in their order.
    pub extra: Vec<Extra>,
    /// The salt, where the event says it.
    pub salt: Option<String>,
}

/// Blocks that were removed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Removed {
    /// Their names.
    pub names: Vec<Name>,
    /// Where they were.
    pub place: Place,
}

/// What keeps a block apart beside its tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extra {
    /// The block's number in its event.
    pub block: u32,
    /// Digests of its first two texts: the adapter's name, a salt, in older versions the hash of an image.
    pub texts: [Option<u64>; 2],
    /// Digest of everything else; 0 where there is nothing.
    pub other: u64,
}

impl Extra {
    /// Takes one of the values that keep a block apart.
    pub(super) fn push(&mut self, value: Digest) {
        let place = self.texts.iter_mut().find(|text| text.is_none()).filter(|_| value.is_text);
        match place {
            Some(place) => *place = Some(value.digest),
            None => self.other = xxh3_64_with_seed(&value.digest.to_le_bytes(), self.other) | 1,
        }
    }
}

/// The fields of an event of any type, as far as they were met.
#[derive(Debug, Default)]
pub(super) struct Fields<'de> {
    tag: Option<Scalar<'de>>,
    names: Option<Vec<Name>>,
    parent: Option<Scalar<'de>>,
    tokens: Option<Vec<u32>>,
    block_size: Option<u32>,
    medium: Option<Scalar<'de>>,
    locality: Option<Scalar<'de>>,
    lora: Option<Scalar<'de>>,
    lora_id: Option<Scalar<'de>>,
    extra: Vec<Extra>,
    salt: Option<Scalar<'de>>,
    group: Option<u32>,
    attention: Option<Scalar<'de>>,
}

/// The order of fields in tagged arrays, by tag.
const STORED: [&str; 14] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
];
const REMOVED: [&str; 5] = ["block_hashes", "medium", "group_idx", "locality", "ownership"];

impl<'de> Fields<'de> {
    /// Reads a field by its name. Says whether there was a value.
    fn read<N: Next<'de>>(&mut self, field: &str, mut from: N) -> Result<bool, N::Error> {
        let mut scalar = |place: &mut Option<Scalar<'de>>| {
            let value = from.next(Scalar::SEED)?;
            let was = value.is_some();
            *place = value.filter(|value| !matches!(value, Scalar::Nil));
            Ok(was)
        };
        match field {
            "type" => return scalar(&mut self.tag),
            "parent_block_hash" => return scalar(&mut self.parent),
            "medium" => return scalar(&mut self.medium),
            "locality" => return scalar(&mut self.locality),
            "lora_name" => return scalar(&mut self.lora),
            "lora_id" => return scalar(&mut self.lora_id),
            "cache_salt" => return scalar(&mut self.salt),
            "kv_cache_spec_kind" => return scalar(&mut self.attention),
            _ => {}
        }
        let mut number = |place: &mut Option<u32>| {
            let value = from.next(Scalar::SEED)?;
            let was = value.is_some();
            *place = value.and_then(|value| value.small());
            Ok(was)
        };
        match field {
            "block_size" => return number(&mut self.block_size),
            "group_idx" => return number(&mut self.group),
            _ => {}
        }
        Ok(match field {
            "block_hashes" => from.next(List::SEED)?.map(|names| self.names = names),
            "token_ids" => from.next(List::SEED)?.map(|tokens| self.tokens = tokens),
            "extra_keys" => from.next(ExtraKeys)?.map(|extra| self.extra = extra),
            _ => from.next(Scalar::SEED)?.map(|_| ()),
        }
        .is_some())
    }

    /// The event that they make.
    pub fn event(self) -> Event {
        match self.tag.as_ref().and_then(Scalar::text) {
            Some("BlockStored") => self.stored().map_or_else(Event::Unusable, Event::Stored),
            Some("BlockRemoved") => match self.names {
                Some(_) => {
                    let place = self.place();
                    Event::Removed(Removed { names: self.names.unwrap_or_default(), place })
                }
                None => Event::Unusable("block_hashes is missing, or has what is no hash"),
            },
            Some("AllBlocksCleared") => Event::Cleared,
            Some(_) => Event::Unknown,
            None => Event::Unusable("it has no type"),
        }
    }

    fn place(&self) -> Place {
        let is = |value: &Option<Scalar<'de>>, names: &[&str]| {
            let text = value.as_ref().and_then(Scalar::text);
            text.is_none_or(|text| names.iter().any(|name| name.eq_ignore_ascii_case(text)))
        };
        let is_here = is(&self.medium, &["GPU", "HBM", "DEVICE"]) && is(&self.locality, &["LOCAL"]);
        Place { is_offloaded: !is_here, group: self.group }
    }

    fn stored(self) -> Result<Stored, &'static str> {
        let place = self.place();
        let names = self.names.ok_or("block_hashes is missing, or has what is no hash")?;
        let tokens = self.tokens.ok_or("token_ids is missing, or has what is no token id")?;
        let block_size = self.block_size.filter(|size| *size > 0).ok_or("block_size is missing")?;
        let parent = self.parent.map(|parent| parent.item().ok_or("parent_block_hash is no hash"));
        if Some(tokens.len()) != names.len().checked_mul(block_size as usize) {
            return Err("token_ids are not as many as the blocks have");
        }
        let attention = self.attention.as_ref().and_then(Scalar::text);
        let text = |value: Option<Scalar<'de>>| value.and_then(|value| value.text().map(str::to_owned));
        Ok(Stored {
            names,
            parent: parent.transpose()?,
            tokens,
            block_size,
            place,
            is_main: attention.is_none_or(|kind| {
                matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention")
            }),
            lora_id: self.lora_id.and_then(|id| id.signed()),
            lora: text(self.lora),
            extra: self.extra,
            salt: text(self.salt),
        })
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a KV event: a tagged array, or a map with a type")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                fields.read("type", Element(&mut from))?;
                let order: &[&str] = match fields.tag.as_ref().and_then(Scalar::text) {
                    Some("BlockStored") => &STORED,
                    Some("BlockRemoved") => &REMOVED,
                    _ => &[],
                };
                for field in order {
                    if !fields.read(field, Element(&mut from))? {
                        return Ok(fields);
                    }
                }
                while fields.read("", Element(&mut from))? {}
                Ok(fields)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                while let Some(key) = from.next_key_seed(Scalar::SEED)? {
                    fields.read(key.text().unwrap_or_default(), Entry(&mut from))?;
                }
                Ok(fields)
            }
        }
        from.deserialize_any(Walk)
    }
}
