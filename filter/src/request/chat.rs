//! The messages of a chat request.

use super::body::Limits;
use super::cursor::{Cursor, unescaped};
use super::error::{ParseError, Reason};

/// A conversation, borrowed from a body. Strings are as they are written there: escaped, without quotes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chat<'b> {
    /// The JSON text of `tools`.
    pub tools: Option<&'b [u8]>,
    /// The messages, oldest first.
    pub messages: Vec<Message<'b>>,
    /// The content parts of all messages; see [`Content::Parts`].
    pub(super) parts: Vec<Part<'b>>,
}

/// One message, in what engines put before a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'b> {
    /// Who speaks: `system`, `user`, `assistant`, `tool`...
    pub role: &'b [u8],
    /// The name of the speaker.
    pub name: Option<&'b [u8]>,
    /// In a tool's answer: the call that it answers.
    pub tool_call_id: Option<&'b [u8]>,
    /// What a model thought before this content; also under its newer name, `reasoning`.
    pub reasoning_content: Option<&'b [u8]>,
    /// What is said.
    pub content: Content,
    /// The JSON text of `tool_calls`.
    pub tool_calls: Option<&'b [u8]>,
}

/// The content of a message, as a range of its chat's parts. A string is one text part: engines make no difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    pub(super) first: usize,
    pub(super) count: usize,
}

/// A part of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'b> {
    /// Text.
    Text(&'b [u8]),
    /// The JSON text of anything else: an image, a sound...
    Other(&'b [u8]),
}

impl<'b> Chat<'b> {
    /// The parts of a message's content, in order.
    pub fn parts(&self, content: Content) -> impl Iterator<Item = Part<'b>> {
        self.parts.iter().skip(content.first).take(content.count).copied()
    }

    /// Reads the array of `messages` here.
    pub(super) fn read(cursor: &mut Cursor<'b>, limits: &Limits) -> Result<Self, ParseError> {
        if cursor.token()? != b'[' {
            return cursor.wrong_type("messages", "an array");
        }
        let mut chat = Self::default();
        cursor.array(|cursor| {
            if chat.messages.len() >= limits.max_messages {
                return cursor.error(Reason::TooMany("messages", limits.max_messages));
            }
            let message = chat.read_message(cursor, limits)?;
            chat.messages.push(message);
            Ok(())
        })?;
        Ok(chat)
    }

    fn read_message(&mut self, cursor: &mut Cursor<'b>, limits: &Limits) -> Result<Message<'b>, ParseError> {
        if cursor.token()? != b'{' {
            return cursor.wrong_type("messages[]", "an object");
        }
        let mut role = None;
        let mut message = Message {
            role: &[],
            name: None,
            tool_call_id: None,
            reasoning_content: None,
            content: Content::default(),
            tool_calls: None,
        };
        cursor.object(|cursor, key| {
            match key {
                b"role" => role = cursor.nullable_string("messages[].role")?,
                b"content" => message.content = self.read_content(cursor, limits)?,
                b"name" => message.name = cursor.nullable_string("messages[].name")?,
                b"tool_call_id" => {
                    message.tool_call_id = cursor.nullable_string("messages[].tool_call_id")?
                }
                b"reasoning_content" | b"reasoning" => {
                    message.reasoning_content = cursor.nullable_string("messages[].reasoning_content")?;
                }
                b"tool_calls" => message.tool_calls = cursor.nullable(Cursor::value)?,
                _ => {
                    cursor.value()?;
                }
            }
            Ok(())
        })?;
        match role {
            Some(role) => Ok(Message { role, ..message }),
            None => cursor.error(Reason::Missing("messages[].role")),
        }
    }

    fn read_content(&mut self, cursor: &mut Cursor<'b>, limits: &Limits) -> Result<Content, ParseError> {
        let first = self.parts.len();
        match cursor.token()? {
            b'n' => cursor.word(b"null")?,
            b'"' => {
                let text = cursor.string()?;
                self.push(Part::Text(text), cursor, limits)?;
            }
            b'[' => cursor.array(|cursor| {
                let part = read_part(cursor)?;
                self.push(part, cursor, limits)
            })?,
            _ => return cursor.wrong_type("messages[].content", "a string, an array of parts, or null"),
        }
        Ok(Content { first, count: self.parts.len() - first })
    }

    fn push(&mut self, part: Part<'b>, cursor: &Cursor<'b>, limits: &Limits) -> Result<(), ParseError> {
        if self.parts.len() >= limits.max_parts {
            return cursor.error(Reason::TooMany("content parts", limits.max_parts));
        }
        self.parts.push(part);
        Ok(())
    }
}

/// A string, or an object: text if it says so or says nothing else. What else stands beside a text, such as a marker of where to
/// cache, is no part of the prompt.
fn read_part<'b>(cursor: &mut Cursor<'b>) -> Result<Part<'b>, ParseError> {
    match cursor.token()? {
        b'"' => return cursor.string().map(Part::Text),
        b'{' => {}
        _ => return cursor.wrong_type("messages[].content[]", "a string or an object"),
    }
    let start = cursor.at();
    let (mut kind, mut text) = (None, None);
    cursor.object(|cursor, key| {
        match key {
            b"type" => kind = cursor.nullable_string("messages[].content[].type")?,
            b"text" => text = cursor.nullable_string("messages[].content[].text")?,
            _ => {
                cursor.value()?;
            }
        }
        Ok(())
    })?;
    let is_text = kind.is_none_or(|kind| unescaped(kind).as_deref() == Some("text"));
    Ok(match text {
        Some(text) if is_text => Part::Text(text),
        _ => Part::Other(cursor.since(start)),
    })
}
