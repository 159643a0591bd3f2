//! Where in a request a key is found: shared by the parts that group requests by something the client says.

use crate::blocks;
use crate::config::Bounds;
use crate::pipeline::part::{Input, Site};
use crate::pipeline::slots::{SlotId, Slots};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most places that one part may look at.
pub const MAX_SOURCES: usize = 8;
/// Most characters of a header's or cookie's name.
const MAX_NAME: usize = 128;

/// One place to look for a key.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A request header.
    Header(String),
    /// A cookie.
    Cookie(String),
    /// The body's `user`, which makes the request wait for its body.
    User,
    /// The body's `model`, likewise.
    Model,
    /// So many of the prompt's first blocks; from 65 on, the nearest fewer that have a hash. Needs the preparation `prefix` before.
    Prefix(#[schemars(transform = PREFIX.schema())] usize),
}

/// Blocks of a prompt that can be a key.
const PREFIX: Bounds<usize> = Bounds::new(1, 4096);

impl Source {
    /// Whether requests that have it in common are of one session.
    pub fn names_sessions(&self) -> bool {
        !matches!(self, Self::Model | Self::Prefix(_))
    }
}

/// The schema of a list of those that name sessions, from that of a list of all.
pub fn of_sessions(list: &mut Schema) {
    let kinds = list.get_mut("items").and_then(|items| items.get_mut("oneOf")?.as_array_mut());
    let of_sessions = |kind: &Value| {
        kind.get("const") != Some(&"model".into()) && kind.pointer("/properties/prefix").is_none()
    };
    if let Some(kinds) = kinds {
        kinds.retain(of_sessions);
    }
}

/// Reports what is wrong with a list of sources, and lowers the case of header names, as Envoy does.
pub fn check(sources: &mut [Source], site: &mut Site<'_>) {
    if sources.is_empty() || sources.len() > MAX_SOURCES {
        site.refuse("from", format!("has {} entries; give 1 to {MAX_SOURCES}", sources.len()));
    }
    for (i, source) in sources.iter_mut().enumerate() {
        match source {
            Source::Header(name) => {
                name.make_ascii_lowercase();
                if !is_token(name) {
                    site.refuse(&format!("from[{i}].header"), bad_name(name));
                }
            }
            Source::Cookie(name) if !is_token(name) => {
                site.refuse(&format!("from[{i}].cookie"), bad_name(name));
            }
            Source::Prefix(blocks) => site.within(&format!("from[{i}].prefix"), *blocks, PREFIX),
            Source::Cookie(_) | Source::User | Source::Model => {}
        }
    }
}

fn bad_name(name: &str) -> String {
    format!("{name:?} is not a name; give 1 to {MAX_NAME} of the characters that HTTP allows in tokens")
}

/// Is this a token of RFC 9110, and of decent length?
pub fn is_token(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// The slots that these sources read.
pub fn reads(sources: &[Source]) -> Vec<SlotId> {
    let mut reads: Vec<_> = sources
        .iter()
        .map(|source| match source {
            Source::Header(_) | Source::Cookie(_) => SlotId::Headers,
            Source::User | Source::Model => SlotId::Body,
            Source::Prefix(_) => SlotId::Chain,
        })
        .collect();
    reads.sort_unstable();
    reads.dedup();
    reads
}

/// The hash of the first source that has a value. The kind of source takes part: a user is never taken for a header.
pub fn key(sources: &[Source], input: &Input<'_>, slots: &Slots) -> Option<u64> {
    sources.iter().find_map(|source| match source {
        Source::Header(name) => hash(1, &(input.header)(name)?),
        Source::Cookie(name) => hash(2, cookie(&(input.header)("cookie")?, name)?),
        Source::User => hash(3, input.body?.user()?.as_bytes()),
        Source::Model => hash(4, slots.model.as_ref()?.as_bytes()),
        Source::Prefix(blocks) => {
            let depth = blocks::depth_within(*blocks).min(slots.chain.hashes.len());
            slots.chain.hashes.get(..depth)?.last().copied()
        }
    })
}

fn hash(kind: u64, value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    (!value.is_empty()).then(|| xxh3_64_with_seed(value, kind))
}

/// The value of a cookie in a `cookie` header. Several such headers arrive joined, by semicolons or by commas.
fn cookie<'a>(header: &'a [u8], name: &str) -> Option<&'a [u8]> {
    header.split(|b| matches!(b, b';' | b',')).find_map(|pair| {
        let equals = pair.iter().position(|b| *b == b'=')?;
        let (key, value) = pair.split_at_checked(equals)?;
        (key.trim_ascii() == name.as_bytes()).then(|| value.get(1..).unwrap_or(&[]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let header = b"a=1; session=abc=d; b=2";
        assert_eq!(cookie(header, "session"), Some(&b"abc=d"[..]));
        assert_eq!(cookie(header, "b"), Some(&b"2"[..]));
        assert_eq!(cookie(header, "sess"), None);
        assert_eq!(cookie(b"flag; session=x", "session"), Some(&b"x"[..]));
        assert_eq!(cookie(b"session=", "session"), Some(&b""[..]));
    }

    #[test]
    fn the_first_source_with_a_value_gives_the_key() {
        let sources = [Source::Header("x-session".into()), Source::Cookie("s".into()), Source::Prefix(2)];
        let key_of = |headers: &[(&str, &str)], chain: &[u64]| {
            let header = |name: &str| {
                headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes().to_vec())
            };
            let chain = blocks::Chain { hashes: chain.to_vec(), cached: Vec::new() };
            let slots = Slots { chain, ..Slots::default() };
            key(&sources, &Input { header: &header, body: None }, &slots)
        };
        let by_header = key_of(&[("x-session", "1"), ("cookie", "s=2")], &[10]);
        assert_eq!(by_header, key_of(&[("x-session", " 1 ")], &[]));
        assert_ne!(by_header, key_of(&[("cookie", "s=1")], &[]), "a cookie is not a header");
        assert_eq!(
            key_of(&[("x-session", "  "), ("cookie", "s=2")], &[10]),
            key_of(&[("cookie", "s=2")], &[])
        );
        assert_eq!(key_of(&[], &[10, 11, 12]), Some(11));
        assert_eq!(key_of(&[], &[10]), Some(10));
        assert_eq!(key_of(&[], &[]), None);
    }
}
