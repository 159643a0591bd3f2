//! Strings: as they are written, and what they stand for.

use super::Cursor;
use crate::request::error::{ParseError, Reason};
use crate::request::special::{WIDTH, special, special_in_lane, window};
use std::borrow::Cow;

/// A longer key, escapes included, is none of those that we look for.
const MAX_ESCAPED_KEY: usize = 128;

impl<'b> Cursor<'b> {
    /// The string whose opening quote is here, as it is written, without its quotes.
    #[inline]
    pub(in super::super) fn string(&mut self) -> Result<&'b [u8], ParseError> {
        let start = self.at + 1;
        // Most strings are keys and the like: they end within one lane.
        if let Some(lane) = self.bytes.get(start..).and_then(<[u8]>::first_chunk) {
            let end = start + special_in_lane(lane).trailing_zeros() as usize;
            if self.bytes.get(end) == Some(&b'"') {
                return Ok(self.close(start, end));
            }
        }
        self.long_string(start)
    }

    /// The string from `start` to the closing quote at `end`. Moves behind that.
    #[inline]
    fn close(&mut self, start: usize, end: usize) -> &'b [u8] {
        self.at = end + 1;
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// The string that begins at `start`, by whole windows.
    fn long_string(&mut self, start: usize) -> Result<&'b [u8], ParseError> {
        let mut filled = [0; WIDTH];
        let mut base = start;
        // Whether the window's first byte belongs to an escape that began in the window before.
        let mut escaped = false;
        loop {
            let mut stops = special(window(self.bytes, base, &mut filled)) & !u64::from(escaped);
            escaped = false;
            while stops != 0 {
                let bit = stops.trailing_zeros();
                self.at = base + bit as usize;
                match self.bytes.get(self.at) {
                    Some(b'"') => return Ok(self.close(start, self.at)),
                    Some(b'\\') => {
                        self.escape()?;
                        stops &= !(0b11 << bit);
                        escaped = bit == u64::BITS - 1;
                    }
                    Some(_) => return self.error(Reason::ControlCharacter),
                    None => return self.error(Reason::Truncated),
                }
            }
            base += WIDTH;
        }
    }

    /// Checks the escape that begins here, without moving.
    fn escape(&self) -> Result<(), ParseError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => match self.bytes.get(self.at + 2..self.at + 6) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(()),
                Some(_) => self.error(Reason::BadEscape),
                None => self.error(Reason::Truncated),
            },
            Some(_) => self.error(Reason::BadEscape),
            None => self.error(Reason::Truncated),
        }
    }
}

/// The text that the inside of a JSON string stands for; none if that isn't valid Unicode.
pub fn unescaped(string: &[u8]) -> Option<Cow<'_, str>> {
    if !string.contains(&b'\\') {
        return std::str::from_utf8(string).ok().map(Cow::Borrowed);
    }
    let quoted = [b"\"", string, b"\""].concat();
    serde_json::from_slice(&quoted).ok().map(Cow::Owned)
}

/// A key as bytes to compare with the keys that we look for. One that can't be any of them may stay escaped.
pub(super) fn unescaped_key(key: &[u8]) -> Cow<'_, [u8]> {
    if key.len() <= MAX_ESCAPED_KEY
        && key.contains(&b'\\')
        && let Some(Cow::Owned(text)) = unescaped(key)
    {
        return Cow::Owned(text.into_bytes());
    }
    Cow::Borrowed(key)
}
