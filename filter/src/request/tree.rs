//! A whole body as a tree of values, for what has to look at all of it: chat templates.
//!
//! Equal to what serde_json makes of it, in a third of the time: long texts are walked over, checked and copied 16 bytes at a
//! time, also on wasm32.

use super::cursor::{Cursor, unescaped};
use super::error::{ParseError, Reason};
use serde_json::{Map, Value};

/// How deep arrays and objects may be nested: each level takes stack.
const MAX_NESTING: usize = 64;
/// Values that a tree may have: each takes some 50 bytes, however short it is written. A chat of 10,000 messages has 30,000.
const MAX_VALUES: usize = 1 << 17;

/// The value of a JSON text.
///
/// # Errors
/// Where it is no JSON, is nested deeper than 64 levels, has more than 131,072 values, or a text that is no Unicode.
pub fn tree(bytes: &[u8]) -> Result<Value, ParseError> {
    let mut cursor = Cursor::new(bytes);
    let mut left = MAX_VALUES;
    let value = value(&mut cursor, MAX_NESTING, &mut left)?;
    cursor.end()?;
    Ok(value)
}

fn value(cursor: &mut Cursor<'_>, levels: usize, values: &mut usize) -> Result<Value, ParseError> {
    *values = match values.checked_sub(1) {
        Some(left) => left,
        None => return cursor.error(Reason::TooMany("values", MAX_VALUES)),
    };
    match cursor.token()? {
        b'"' => cursor.text().map(Value::String),
        b'{' | b'[' if levels == 0 => cursor.error(Reason::TooDeep),
        b'{' => {
            let mut fields = Map::new();
            cursor.object_as_written(|cursor, key| {
                let key = text(cursor, key)?;
                fields.insert(key, value(cursor, levels - 1, values)?);
                Ok(())
            })?;
            Ok(Value::Object(fields))
        }
        b'[' => {
            let mut items = Vec::new();
            cursor.array(|cursor| {
                items.push(value(cursor, levels - 1, values)?);
                Ok(())
            })?;
            Ok(Value::Array(items))
        }
        _ => {
            let scalar = cursor.value()?;
            // A number that no float holds.
            serde_json::from_slice(scalar).or_else(|_| cursor.error(Reason::BadNumber))
        }
    }
}

fn text(cursor: &Cursor<'_>, string: &[u8]) -> Result<String, ParseError> {
    match unescaped(string) {
        Some(text) => Ok(text.into_owned()),
        None => cursor.error(Reason::NotUnicode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC*|[\\x00-\\x7f]{0,90}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec(("\\PC{0,9}|[\\x00-\\x7f]{0,9}", inner), 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn same(bytes: &[u8]) {
        let (ours, reference) = (tree(bytes), serde_json::from_slice::<Value>(bytes));
        let shown = String::from_utf8_lossy(bytes);
        match (ours, reference) {
            // Rust's comparison of maps takes no notice of order, which templates can see.
            (Ok(ours), Ok(reference)) => assert_eq!(ours.to_string(), reference.to_string(), "{shown}"),
            (Err(_), Err(_)) => {}
            (ours, reference) => panic!("{shown}: {ours:?}, serde_json: {reference:?}"),
        }
    }

    proptest! {
        #[test]
        fn is_what_serde_json_makes(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            same(text.unwrap().as_bytes());
        }

        // A call's arguments are printed by templates, as Python does: a digit less is another token.
        #[test]
        fn numbers_are_what_was_written(number in prop_oneof![any::<f64>(), 0.0..1.0]) {
            let text = serde_json::to_string(&number).unwrap();
            prop_assert_eq!(tree(text.as_bytes()).unwrap().to_string(), text);
        }

        #[test]
        fn is_refused_as_serde_json_refuses(value in json(), at: prop::sample::Index, byte: u8, insert: bool) {
            let mut text = serde_json::to_vec(&value).unwrap();
            let at = at.index(text.len());
            if insert { text.insert(at, byte) } else { text[at] = byte }
            same(&text);
        }

        #[test]
        fn escapes_of_all_kinds(pieces in prop::collection::vec(prop_oneof![
            "\\\\u[0-9a-fA-F]{4}", "\\\\u[dD][89a-fA-F][0-9]{2}", "\\\\ud83d\\\\ude[0-9a-f]{2}", r#"\\["\\/bfnrtux]"#, "[a-z é東]{0,70}",
        ], 0..9)) {
            same(format!("\"{}\"", pieces.concat()).as_bytes());
            same(format!("{{\"{}\": 1}}", pieces.concat()).as_bytes());
        }
    }

    #[test]
    fn odd_ones() {
        let long_key = format!(r#"{{"{}\n": 1}}"#, "k".repeat(300));
        for text in [
            r#"{"a": 1, "b": 2, "a": 3}"#,
            &long_key,
            "1e999",
            "-0",
            "18446744073709551616",
            "123456789012345678901234567890",
            "1.0",
            "\"\\ud800\"",
            "\"\u{7f}\"",
            " [ ] ",
            "",
            "nul",
            "[1,]",
            "[1] 2",
            "{\"a\"}",
        ] {
            same(text.as_bytes());
        }
        for (levels, fine) in [(64, true), (65, false)] {
            let text = "[".repeat(levels) + &"]".repeat(levels);
            assert_eq!(tree(text.as_bytes()).is_ok(), fine);
        }
        same(b"\"\xff\"");
        for (values, fine) in [(MAX_VALUES - 1, true), (MAX_VALUES, false)] {
            let text = format!("[{}]", vec!["\"\""; values].join(","));
            assert_eq!(tree(text.as_bytes()).is_ok(), fine);
        }
    }
}
