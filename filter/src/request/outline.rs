//! A body's fields as they stand, and edits of them that leave every other byte where it is.
//!
//! What a client wrote is its engine's to read: unknown fields, their order, the form of numbers and integers of any size
//! must survive a router. So a body is never written anew from what was understood of it. [`Outline::read`] notes where the
//! fields stand that may be edited, and [`Outline::edit`] copies what lies between.

use super::body::open;
use super::cursor::Cursor;
use super::error::{ParseError, Reason};
use std::borrow::Cow;
use std::ops::Range;

/// Most fields that are noted: each name may stand several times in a hostile body.
const MOST: usize = 256;

/// Where the fields of a body stand that may be edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    fields: Vec<Field>,
    /// All fields, noted or not.
    count: usize,
    /// Where the object's closing brace is.
    close: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: &'static str,
    /// From behind the brace or comma before it up to the comma or brace behind it.
    all: Range<usize>,
    value: Range<usize>,
}

/// A change to one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit<'a> {
    /// Gives the field this JSON text as its value, wherever it stands, or adds it.
    Set(&'static str, Cow<'a, [u8]>),
    /// Takes the field out.
    Remove(&'static str),
}

impl<'a> Edit<'a> {
    /// Gives a field a value.
    pub fn set(name: &'static str, json: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::Set(name, json.into())
    }

    /// The field's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Set(name, _) | Self::Remove(name) => name,
        }
    }
}

impl Outline {
    /// Notes where the fields of these names stand in a body, which must be a JSON object.
    pub fn read(body: &[u8], names: &[&'static str]) -> Result<Self, ParseError> {
        let mut cursor = Cursor::new(body);
        open(&mut cursor)?;
        let mut start = cursor.at() + 1;
        let (mut fields, mut count) = (Vec::new(), 0);
        cursor.object(|cursor, key| {
            let name = names.iter().copied().find(|name| name.as_bytes() == key);
            cursor.token()?;
            let from = cursor.at();
            cursor.value()?;
            let value = from..cursor.at();
            // The comma, or the brace that ends the object; `object` says so if it is neither.
            cursor.token()?;
            let end = cursor.at();
            if let Some(name) = name {
                if fields.len() == MOST {
                    return cursor.error(Reason::TooMany("fields of one name", MOST));
                }
                fields.push(Field { name, all: start..end, value });
            }
            (start, count) = (end + 1, count + 1);
            Ok(())
        })?;
        let close = cursor.at().saturating_sub(1);
        cursor.end()?;
        Ok(Self { fields, count, close })
    }

    /// Whether any field of those names stands there.
    pub fn has_any(&self) -> bool {
        !self.fields.is_empty()
    }

    /// The JSON text of a field; of several the last, as engines read it.
    pub fn value<'b>(&self, body: &'b [u8], name: &str) -> Option<&'b [u8]> {
        let field = self.fields.iter().rev().find(|field| field.name == name)?;
        body.get(field.value.clone())
    }

    /// The body with these edits, of which each name has one at most. `body` must be the one that was read.
    pub fn edit(&self, body: &[u8], edits: &[Edit<'_>]) -> Vec<u8> {
        let more = edits.iter().map(|edit| match edit {
            Edit::Set(name, value) => name.len() + value.len() + 4,
            Edit::Remove(_) => 0,
        });
        let mut out = Vec::with_capacity(body.len() + more.sum::<usize>());
        let mut copied = 0;
        let mut copy = |out: &mut Vec<u8>, to: usize, next: usize| {
            out.extend_from_slice(body.get(copied..to).unwrap_or_default());
            copied = next;
        };
        let mut left = self.count;
        for field in &self.fields {
            match edits.iter().find(|edit| edit.name() == field.name) {
                Some(Edit::Set(_, value)) => {
                    copy(&mut out, field.value.start, field.value.end);
                    out.extend_from_slice(value);
                }
                Some(Edit::Remove(_)) => {
                    left -= 1;
                    copy(&mut out, field.all.start, field.all.end);
                    // One of the commas around it goes, too: the one before, unless nothing is left before.
                    match out.last() {
                        Some(b',') => drop(out.pop()),
                        _ if body.get(field.all.end) == Some(&b',') => {
                            copy(&mut out, field.all.end, field.all.end + 1);
                        }
                        _ => {}
                    }
                }
                None => {}
            }
        }
        copy(&mut out, self.close, self.close);
        for edit in edits {
            let Edit::Set(name, value) = edit else { continue };
            if self.fields.iter().any(|field| field.name == *name) {
                continue;
            }
            if left > 0 {
                out.push(b',');
            }
            left += 1;
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            out.extend_from_slice(value);
        }
        copy(&mut out, body.len(), body.len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 4] = ["max_tokens", "stream", "kv", "n"];

    fn edited(body: &str, edits: &[Edit<'_>]) -> String {
        let outline = Outline::read(body.as_bytes(), &NAMES).unwrap();
        String::from_utf8(outline.edit(body.as_bytes(), edits)).unwrap()
    }

    #[test]
    fn what_is_not_edited_stays_byte_for_byte() {
        let body = " {\"a\" : 1e+00, \"stream\":true ,\"id\":18446744073709551615,\"max_tokens\" : 900 , \"z\":\"\\u00e9\"}\n";
        let edits = [Edit::set("max_tokens", &b"1"[..]), Edit::Remove("stream"), Edit::set("kv", &b"{}"[..])];
        assert_eq!(
            edited(body, &edits),
            " {\"a\" : 1e+00,\"id\":18446744073709551615,\"max_tokens\" : 1 , \"z\":\"\\u00e9\",\"kv\":{}}\n"
        );
        assert_eq!(edited(body, &[]), body);
    }

    #[test]
    fn commas_come_out_right_wherever_a_field_stood() {
        let remove = |names: &[&'static str]| names.iter().map(|name| Edit::Remove(name)).collect::<Vec<_>>();
        assert_eq!(edited(r#"{"n":1}"#, &remove(&["n"])), "{}");
        assert_eq!(edited(r#"{ "n":1 , "a":2}"#, &remove(&["n"])), r#"{ "a":2}"#);
        assert_eq!(edited(r#"{"a":2, "n":1}"#, &remove(&["n"])), r#"{"a":2}"#);
        assert_eq!(edited(r#"{"n":1,"kv":2,"a":3,"n":4}"#, &remove(&["n", "kv"])), r#"{"a":3}"#);
        assert_eq!(edited(r#"{"n":1,"kv":2}"#, &remove(&["n", "kv"])), "{}");
        let both = [Edit::Remove("n"), Edit::set("kv", &b"7"[..])];
        assert_eq!(edited(r#"{"n":1}"#, &both), r#"{"kv":7}"#);
        assert_eq!(edited("{ }", &both), r#"{ "kv":7}"#);
    }

    #[test]
    fn a_name_is_met_however_it_is_written_and_however_often() {
        let body = r#"{"stream":1,"\u0073tream":2,"a":{"stream":3}}"#;
        assert_eq!(
            edited(body, &[Edit::set("stream", &b"false"[..])]),
            r#"{"stream":false,"\u0073tream":false,"a":{"stream":3}}"#
        );
        let outline = Outline::read(body.as_bytes(), &NAMES).unwrap();
        assert_eq!(outline.value(body.as_bytes(), "stream"), Some(&b"2"[..]));
        assert_eq!(outline.value(body.as_bytes(), "n"), None);
    }

    #[test]
    fn what_is_no_object_is_refused_and_what_is_noted_is_bounded() {
        for body in ["", "[]", "{", r#"{"a":1}}"#, r#"{"a" 1}"#, r#"{"a":1,}"#, "\u{feff}{}"] {
            assert!(Outline::read(body.as_bytes(), &NAMES).is_err(), "{body}");
        }
        let many = |count: usize| format!("{{{}}}", vec![r#""n":1"#; count].join(","));
        assert!(Outline::read(many(MOST).as_bytes(), &NAMES).is_ok());
        assert!(Outline::read(many(MOST + 1).as_bytes(), &NAMES).is_err());
    }

    /// Fields in their order, their values as text.
    fn literal(body: &str) -> Vec<(String, String)> {
        struct Fields(Vec<(String, String)>);
        impl<'de> serde::Deserialize<'de> for Fields {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = Fields;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                        let mut fields = Vec::new();
                        while let Some((name, value)) =
                            map.next_entry::<String, Box<serde_json::value::RawValue>>()?
                        {
                            fields.push((name, value.get().to_owned()));
                        }
                        Ok(Fields(fields))
                    }
                }
                deserializer.deserialize_map(Visitor)
            }
        }
        serde_json::from_str::<Fields>(body).unwrap().0
    }

    fn value() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "1",
            "-0.10E+5",
            "18446744073709551617",
            r#""a,}\"{""#,
            r#"[1, {"n":2} ]"#,
            "{}",
            "null",
        ])
    }

    fn space() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["", " ", "\n\t"])
    }

    proptest! {
        #[test]
        fn edits_are_those_of_a_literal_reference(
            fields in prop::collection::vec((prop::sample::select(vec!["a", "b", "n", "kv", "stream"]), value(), space(), space()), 0..8),
            edits in prop::collection::btree_map(prop::sample::select(NAMES.to_vec()), prop::option::of(value()), 0..4),
        ) {
            let parts = fields.iter().map(|(name, value, a, b)| format!("{a}\"{name}\"{b}:{a}{value}{b}"));
            let body = format!("{{{}}}", parts.collect::<Vec<_>>().join(","));
            let changes: Vec<_> = edits.iter().map(|(name, value)| match value {
                Some(value) => Edit::set(name, value.as_bytes()),
                None => Edit::Remove(name),
            }).collect();
            let mut expected = literal(&body);
            for (name, value) in &edits {
                match value {
                    None => expected.retain(|(other, _)| other != name),
                    Some(value) => {
                        let mut met = false;
                        for (_, old) in expected.iter_mut().filter(|(other, _)| other == name) {
                            (*old, met) = ((*value).to_owned(), true);
                        }
                        if !met {
                            expected.push(((*name).to_owned(), (*value).to_owned()));
                        }
                    }
                }
            }
            prop_assert_eq!(literal(&edited(&body, &changes)), expected);
        }
    }
}
