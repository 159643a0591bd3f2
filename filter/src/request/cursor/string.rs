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

    /// The text of the string whose opening quote is here.
    pub(in super::super) fn text(&mut self) -> Result<String, ParseError> {
        let mut text = Vec::new();
        let mut filled = [0; WIDTH];
        let mut at = self.at + 1;
        loop {
            let bytes = window(self.bytes, at, &mut filled);
            let plain = special(bytes).trailing_zeros() as usize;
            at += plain;
            if text.is_empty() && self.bytes.get(at) == Some(&b'"') {
                // Most are short, and should take no more than they need.
                text = bytes.get(..plain).unwrap_or_default().to_vec();
                self.at = at;
                break;
            }
            // Whole windows are copied and the surplus is taken back: copies of a fixed size are the quickest.
            let end = text.len() + plain;
            text.extend_from_slice(bytes);
            text.truncate(end);
            if plain == WIDTH {
                continue;
            }
            self.at = at;
            match self.bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    let escape = self.bytes.get(at..).unwrap_or_default();
                    let Some((character, length)) = unescape(escape) else {
                        self.escape()?;
                        return self.error(Reason::NotUnicode);
                    };
                    match u8::try_from(character) {
                        Ok(ascii @ ..0x80) => text.push(ascii),
                        _ => text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                    at += length;
                }
                Some(_) => return self.error(Reason::ControlCharacter),
                None => return self.error(Reason::Truncated),
            }
        }
        self.at += 1;
        match simdutf8::basic::from_utf8(&text) {
            // SAFETY: it has just been checked, by what takes a fifth of the standard library's time on wasm32.
            Ok(_) => Ok(unsafe { String::from_utf8_unchecked(text) }),
            Err(_) => self.error(Reason::NotUnicode),
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
        return simdutf8::basic::from_utf8(string).ok().map(Cow::Borrowed);
    }
    let quoted = [b"\"", string, b"\""].concat();
    let mut cursor = Cursor::new(&quoted);
    let text = cursor.text().ok()?;
    cursor.peek().is_none().then_some(Cow::Owned(text))
}

/// The character that the escape at the start of `bytes` stands for, and how long the escape is.
fn unescape(bytes: &[u8]) -> Option<(char, usize)> {
    let character = match bytes.get(1)? {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        same @ (b'"' | b'\\' | b'/') => char::from(*same),
        b'u' => {
            let first = unit(bytes)?;
            if !(0xd800..0xdc00).contains(&first) {
                return char::from_u32(first).map(|character| (character, 6));
            }
            let second = unit(bytes.get(6..)?).filter(|unit| (0xdc00..0xe000).contains(unit))?;
            return char::from_u32(0x1_0000 + (first - 0xd800) * 0x400 + second - 0xdc00)
                .map(|character| (character, 12));
        }
        _ => return None,
    };
    Some((character, 2))
}

/// The four digits of a `\u` escape.
fn unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"\\u")?.first_chunk::<4>()?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
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
