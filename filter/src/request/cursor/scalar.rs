//! Numbers and words.

use super::Cursor;
use crate::request::error::{ParseError, Reason};

const TOKEN_IDS: &str = "token ids, integers below 2^32";

/// Decimal digits of 2^32 - 1.
const MAX_DIGITS: usize = 10;

impl Cursor<'_> {
    /// Walks over a number, `true`, `false` or `null`.
    pub(super) fn scalar(&mut self) -> Result<(), ParseError> {
        match self.token()? {
            b'n' => self.word(b"null"),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.error(Reason::Expected("a value")),
        }
    }

    /// Walks over `word`.
    pub(in super::super) fn word(&mut self, word: &[u8]) -> Result<(), ParseError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        let cut_off = word.starts_with(rest);
        self.error(if cut_off { Reason::Truncated } else { Reason::Expected("a value") })
    }

    fn number(&mut self) -> Result<(), ParseError> {
        self.take(b"-");
        if !self.take(b"0") {
            self.digits()?;
        }
        if self.take(b".") {
            self.digits()?;
        }
        if self.take(b"eE") {
            self.take(b"+-");
            self.digits()?;
        }
        Ok(())
    }

    /// Walks over a byte if it is one of `these`.
    #[inline]
    fn take(&mut self, these: &[u8]) -> bool {
        let found = self.bytes.get(self.at).is_some_and(|byte| these.contains(byte));
        self.at += usize::from(found);
        found
    }

    /// Walks over at least one digit.
    fn digits(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at > start {
            return Ok(());
        }
        self.error(if start < self.bytes.len() { Reason::BadNumber } else { Reason::Truncated })
    }

    /// Walks over a token id: an integer below 2^32.
    pub(in super::super) fn id(&mut self, field: &'static str) -> Result<u32, ParseError> {
        self.token()?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        // Wraps only behind more digits than are taken.
        let mut id = 0_u64;
        let mut digits = 0;
        for byte in rest {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            id = id.wrapping_mul(10).wrapping_add(u64::from(digit));
            digits += 1;
        }
        let zeros = digits > 1 && rest.first() == Some(&b'0');
        let goes_on = matches!(rest.get(digits), Some(b'.' | b'e' | b'E'));
        let Ok(id) = u32::try_from(id) else { return self.wrong_type(field, TOKEN_IDS) };
        if zeros || goes_on || !(1..=MAX_DIGITS).contains(&digits) {
            return self.wrong_type(field, TOKEN_IDS);
        }
        self.at += digits;
        Ok(id)
    }
}
