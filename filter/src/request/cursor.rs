//! A walk through JSON text in one pass, without recursion and without copies.
//!
//! Every method starts at the cursor, checks the grammar of what it walks over, and leaves the cursor behind it.

mod scalar;
mod string;

use super::error::{ParseError, Reason};
use string::unescaped_key;

pub use string::unescaped;

/// How deep arrays and objects may be nested within a value that is skipped: a bit each of a `u128`.
pub const MAX_DEPTH: u32 = u128::BITS;

#[derive(Debug)]
pub(super) struct Cursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Cursor<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[cold]
    pub(super) fn error<T>(&self, reason: Reason) -> Result<T, ParseError> {
        Err(ParseError { at: self.at, reason })
    }

    #[cold]
    pub(super) fn wrong_type<T>(&self, field: &'static str, expected: &'static str) -> Result<T, ParseError> {
        self.error(Reason::WrongType { field, expected })
    }

    /// Byte of the text at which the cursor stands.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The text from the cursor on.
    pub(super) fn rest(&self) -> &'b [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The text from byte `start` to the cursor.
    pub(super) fn since(&self, start: usize) -> &'b [u8] {
        self.between(start, self.at)
    }

    /// The text from byte `start` to byte `end`.
    pub(super) fn between(&self, start: usize, end: usize) -> &'b [u8] {
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Where the first token at or behind byte `at` begins, without moving.
    pub(super) fn token_from(&self, at: usize) -> usize {
        let mut ahead = Self { bytes: self.bytes, at };
        ahead.peek();
        ahead.at
    }

    /// Skips white space; none at the end of the text.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Skips white space and shows the next byte, which is the first of a token.
    #[inline]
    pub(super) fn token(&mut self) -> Result<u8, ParseError> {
        match self.peek() {
            Some(byte) => Ok(byte),
            None => self.error(Reason::Truncated),
        }
    }

    /// The first byte of the first token within the container here, without moving.
    pub(super) fn peek_inside(&self) -> Result<u8, ParseError> {
        Self { bytes: self.bytes, at: self.at + 1 }.token()
    }

    /// Calls `field` with each key of the object here and the cursor before the value. It must walk over the value.
    pub(super) fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, &[u8]) -> Result<(), ParseError>,
    ) -> Result<(), ParseError> {
        self.object_as_written(|cursor, key| field(cursor, &unescaped_key(key)))
    }

    /// The same with keys as they are written, without their quotes.
    pub(super) fn object_as_written(
        &mut self,
        mut field: impl FnMut(&mut Self, &'b [u8]) -> Result<(), ParseError>,
    ) -> Result<(), ParseError> {
        self.at += 1;
        if self.token()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.key()?;
            field(self, key)?;
            if self.ends(b'}')? {
                return Ok(());
            }
        }
    }

    /// Calls `element` with the cursor before each element of the array here. It must walk over the element.
    pub(super) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), ParseError>,
    ) -> Result<(), ParseError> {
        self.at += 1;
        if self.token()? == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            element(self)?;
            if self.ends(b']')? {
                return Ok(());
            }
        }
    }

    /// Walks over the comma or the closing `bracket` after an element; says whether it was the bracket.
    #[inline]
    fn ends(&mut self, bracket: u8) -> Result<bool, ParseError> {
        let byte = self.token()?;
        if byte != b',' && byte != bracket {
            return self.error(Reason::Expected(if bracket == b'}' { "`,` or `}`" } else { "`,` or `]`" }));
        }
        self.at += 1;
        Ok(byte == bracket)
    }

    /// A key and its colon. Returns the key as it is written, without its quotes.
    fn key(&mut self) -> Result<&'b [u8], ParseError> {
        if self.token()? != b'"' {
            return self.error(Reason::Expected("a key in quotes"));
        }
        let key = self.string()?;
        if self.token()? != b':' {
            return self.error(Reason::Expected("`:` after a key"));
        }
        self.at += 1;
        Ok(key)
    }

    /// Walks over any value and returns its text.
    pub(super) fn value(&mut self) -> Result<&'b [u8], ParseError> {
        self.token()?;
        let start = self.at;
        // The open containers, innermost in the lowest bit: set for an object.
        let mut open = 0_u128;
        let mut depth = 0;
        loop {
            match self.token()? {
                bracket @ (b'{' | b'[') => {
                    if depth == MAX_DEPTH {
                        return self.error(Reason::TooDeep);
                    }
                    let object = bracket == b'{';
                    depth += 1;
                    open = open << 1 | u128::from(object);
                    self.at += 1;
                    // An empty container is closed below.
                    if self.token()? != if object { b'}' } else { b']' } {
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'"' => {
                    self.string()?;
                }
                _ => self.scalar()?,
            }
            // A value has ended, and with it perhaps the containers around it.
            loop {
                if depth == 0 {
                    return Ok(self.since(start));
                }
                let object = open & 1 == 1;
                if self.ends(if object { b'}' } else { b']' })? {
                    open >>= 1;
                    depth -= 1;
                    continue;
                }
                if object {
                    self.key()?;
                }
                break;
            }
        }
    }

    /// Walks over `null` or a value that `walk` knows.
    pub(super) fn nullable<T>(
        &mut self,
        walk: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Option<T>, ParseError> {
        if self.token()? == b'n' { self.word(b"null").map(|()| None) } else { walk(self).map(Some) }
    }

    /// A string or null.
    pub(super) fn nullable_string(&mut self, field: &'static str) -> Result<Option<&'b [u8]>, ParseError> {
        self.nullable(|cursor| match cursor.token()? {
            b'"' => cursor.string(),
            _ => cursor.wrong_type(field, "a string"),
        })
    }

    /// Demands that nothing but white space follows.
    pub(super) fn end(&mut self) -> Result<(), ParseError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.error(Reason::Expected("nothing after the object")),
        }
    }
}
