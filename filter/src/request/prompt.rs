//! The prompt of a request, in each of its shapes.

use super::chat::Chat;
use super::cursor::Cursor;
use super::error::{ParseError, Reason};

/// A prompt, borrowed from a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt<'b> {
    /// A conversation.
    Chat(Chat<'b>),
    /// One text, as it is written in the body: escaped, without quotes.
    Text(&'b [u8]),
    /// The ids of tokens.
    Tokens(Vec<u32>),
}

/// A string, a list of strings, a list of token ids, or a list of lists of token ids. The first prompt is the one that counts:
/// the others are checked for grammar only.
pub(super) fn prompt<'b>(cursor: &mut Cursor<'b>, field: &'static str) -> Result<Prompt<'b>, ParseError> {
    match cursor.token()? {
        b'"' => return cursor.string().map(Prompt::Text),
        b'[' => {}
        _ => return cursor.wrong_type(field, "a string, token ids, or a list of either"),
    }
    match cursor.peek_inside()? {
        b'"' => first(cursor, |cursor| cursor.string().map(Prompt::Text)),
        b'[' => first(cursor, |cursor| tokens(cursor, field)),
        b']' => cursor.error(Reason::Missing(field)),
        _ => tokens(cursor, field),
    }
}

fn first<'b>(
    cursor: &mut Cursor<'b>,
    walk: impl Fn(&mut Cursor<'b>) -> Result<Prompt<'b>, ParseError>,
) -> Result<Prompt<'b>, ParseError> {
    let mut first = None;
    cursor.array(|cursor| {
        if first.is_none() {
            first = Some(walk(cursor)?);
            return Ok(());
        }
        cursor.value().map(|_| ())
    })?;
    Ok(first.unwrap_or(Prompt::Text(&[])))
}

fn tokens<'b>(cursor: &mut Cursor<'b>, field: &'static str) -> Result<Prompt<'b>, ParseError> {
    let mut ids = Vec::new();
    cursor.array(|cursor| {
        ids.push(cursor.id(field)?);
        Ok(())
    })?;
    Ok(Prompt::Tokens(ids))
}
