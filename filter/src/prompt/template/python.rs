//! Values as Python writes them: chat templates are written for Jinja2, whose output engines tokenize.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write as _;

/// How `json.dumps` was asked to write.
struct Style {
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

/// The filter `tojson` as `apply_chat_template` defines it: `json.dumps` with `ensure_ascii=False`.
pub fn tojson(value: &Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = args.get("indent")?;
    let separators: Option<Vec<String>> = args.get("separators")?;
    let ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut out = String::new();
    Style { indent, item, key, ascii, sorted }.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let name = match key.kind() {
                        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                        ValueKind::Number => number(&key),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                        ValueKind::None => "null".to_owned(),
                        kind => return Err(not_json(kind)),
                    };
                    entries.push((name, value.get_item(&key)?));
                }
                if self.sorted {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container(['{', '}'], &entries, depth, out, |(key, item), out| {
                    self.string(key, out);
                    out.push_str(&self.key);
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => return Err(not_json(kind)),
        }
        Ok(())
    }

    fn container<T>(
        &self,
        brackets: [char; 2],
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let [open, close] = brackets;
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..' ' => escape(c, out),
                '\u{7f}'.. if self.ascii => escape(c, out),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `\u` and four digits, for each half of a pair.
fn escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

fn not_json(kind: ValueKind) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("a value of type {kind} is not JSON"))
}

/// What `{{ value }}` writes: Python's `str()`. Fails where a list or an object holds text of which that isn't sure.
pub fn text(value: &Value, out: &mut impl std::fmt::Write) -> std::fmt::Result {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        _ => repr(value, out),
    }
}

/// The filter `trim`: Python's `str(value).strip(chars)`.
pub fn trim(value: &Value, chars: Option<String>) -> Result<String, Error> {
    let mut written = String::new();
    text(value, &mut written).map_err(|_| unsure())?;
    Ok(match chars {
        Some(chars) => written.trim_matches(|c| chars.contains(c)).to_owned(),
        None => written.trim_matches(is_space).to_owned(),
    })
}

/// Methods of Python's values. `strip` and its kin differ from Rust's in what is white space.
pub fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name, args) {
        (Some(text), "strip", []) => Ok(text.trim_matches(is_space).into()),
        (Some(text), "lstrip", []) => Ok(text.trim_start_matches(is_space).into()),
        (Some(text), "rstrip", []) => Ok(text.trim_end_matches(is_space).into()),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Python's `str.isspace()`.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// What is printed is a list or an object with text that Python may write in another way.
pub fn unsure() -> Error {
    Error::new(ErrorKind::WriteFailure, "a list is printed that Python may print in another way")
}

/// Python's `repr()`.
fn repr(value: &Value, out: &mut impl std::fmt::Write) -> std::fmt::Result {
    match value.kind() {
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.write_str(&number(value)),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.write_char('[')?;
            for (n, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if n > 0 { ", " } else { "" })?;
                repr(&item, out)?;
            }
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (n, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.write_str(if n > 0 { ", " } else { "" })?;
                repr(&key, out)?;
                out.write_str(": ")?;
                repr(&value.get_item(&key).unwrap_or_default(), out)?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

fn quoted(text: &str, out: &mut impl std::fmt::Write) -> std::fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            '\0'..' ' | '\u{7f}'..='\u{a0}' | '\u{ad}' => write!(out, "\\x{:02x}", u32::from(c))?,
            c if c.is_ascii() || c.is_alphanumeric() => out.write_char(c)?,
            // Python escapes what its tables say is not printable. We have no such tables.
            _ => return Err(std::fmt::Error),
        }
    }
    out.write_char(quote)
}

/// A number as Python writes it: floats always with a point or an exponent.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => python_float(float),
        _ => value.to_string(),
    }
}

fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // The shortest digits that read back as the same number, as in Python.
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -4..16 => {
            let plain = format!("{float}");
            if exponent < 0 || plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (float, text) in [
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123_456.789, "123456.789"),
            (1.25e-7, "1.25e-07"),
        ] {
            assert_eq!(python_float(float), text);
        }
    }

    #[test]
    fn values_are_written_as_python_does() {
        let value = Value::from(minijinja::value::Serde(
            serde_json::json!({"a": [null, true, 1, 1.0, "it's", "\"'\n"], "b": {}}),
        ));
        let mut out = String::new();
        text(&value, &mut out).unwrap();
        assert_eq!(out, r#"{'a': [None, True, 1, 1.0, "it's", '"\'\n'], 'b': {}}"#);
    }
}
