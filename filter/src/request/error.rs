//! Why a body couldn't be read.

use std::fmt;

/// A body that routing can't read. The request goes on unchanged, by load alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError {
    /// Byte of the body, from 0, at which reading stopped.
    pub at: usize,
    /// What was wrong there.
    pub reason: Reason,
}

/// What was wrong with a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There is no body, or nothing but white space.
    Empty,
    /// The body starts with a byte order mark.
    ByteOrderMark,
    /// The body ends within a JSON value.
    Truncated,
    /// The JSON grammar demands something else here.
    Expected(&'static str),
    /// A control character stands unescaped in a string.
    ControlCharacter,
    /// A backslash isn't followed by an escape that JSON knows.
    BadEscape,
    /// A number isn't one of JSON's.
    BadNumber,
    /// Arrays and objects are nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH), or within a [tree](super::tree) than 64 levels.
    TooDeep,
    /// There are more messages, or more content parts, than the [`Limits`](super::Limits) allow.
    TooMany(&'static str, usize),
    /// A field has a type that no engine takes there.
    WrongType {
        /// The field.
        field: &'static str,
        /// The type it should have.
        expected: &'static str,
    },
    /// A field that routing can't do without is absent or null.
    Missing(&'static str),
    /// A name is longer than [`MAX_NAME_BYTES`](super::MAX_NAME_BYTES).
    NameTooLong(&'static str),
    /// A name isn't valid UTF-8, or has a lone surrogate among its escapes.
    NameNotText(&'static str),
    /// A text isn't valid UTF-8, or has a lone surrogate among its escapes.
    NotUnicode,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request body, byte {}: ", self.at)?;
        match self.reason {
            Reason::Empty => f.write_str("nothing there, send a JSON object"),
            Reason::ByteOrderMark => f.write_str("a byte order mark, send UTF-8 without one"),
            Reason::Truncated => f.write_str("the JSON ends too early, send it whole"),
            Reason::Expected(what) => write!(f, "not JSON, expected {what}"),
            Reason::ControlCharacter => f.write_str("a control character in a string, escape it"),
            Reason::BadEscape => f.write_str("an escape that JSON doesn't know, escape the backslash"),
            Reason::BadNumber => f.write_str("a number that JSON doesn't know"),
            Reason::TooDeep => f.write_str("nested too deep"),
            Reason::TooMany(what, limit) => write!(f, "more than {limit} {what}, raise the limit"),
            Reason::WrongType { field, expected } => write!(f, "`{field}` must be {expected}"),
            Reason::Missing(field) => write!(f, "`{field}` is absent or null before here, send it"),
            Reason::NameTooLong(field) => {
                write!(f, "`{field}` is longer than {} bytes, shorten it", super::MAX_NAME_BYTES)
            }
            Reason::NameNotText(field) => write!(f, "`{field}` isn't valid Unicode"),
            Reason::NotUnicode => f.write_str("a text that ends before here isn't valid Unicode"),
        }
    }
}

impl std::error::Error for ParseError {}
