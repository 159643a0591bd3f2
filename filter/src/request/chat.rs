//! The messages of a chat, in each of its shapes.

use super::body::Limits;
use super::cursor::{Cursor, unescaped};
use super::error::{ParseError, Reason};
use super::parts::{Content, Part, Parts};

/// How Claude Code begins a block of its system prompt that differs from request to request. vLLM leaves such blocks out.
pub const BILLING: &str = "x-anthropic-billing-header";

/// A conversation, borrowed from a body. Strings are as they are written there: escaped, without quotes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chat<'b> {
    /// The JSON text of `tools`.
    pub tools: Content,
    /// What stands outside of the messages and before them: Anthropic's `system`, and `instructions`.
    pub instructions: Option<Message<'b>>,
    /// The messages, oldest first.
    pub messages: Vec<Message<'b>>,
    parts: Parts<'b>,
}

/// One message, in what engines put before a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Message<'b> {
    /// Who speaks: `system`, `user`, `assistant`, `tool`... Nobody, where it is an item of `/v1/responses` that is no message:
    /// its content is then its JSON text.
    pub role: Option<&'b [u8]>,
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

impl<'b> Chat<'b> {
    /// The parts of a message's content or of the tools, in order.
    pub fn parts(&self, content: Content) -> impl Iterator<Item = Part<'b>> {
        self.parts.of(content)
    }

    /// Reads the `tools` here.
    pub(super) fn read_tools(&mut self, cursor: &mut Cursor<'b>, limits: &Limits) -> Result<(), ParseError> {
        self.tools = cursor.nullable(|cursor| self.parts.tools(cursor, limits))?.unwrap_or_default();
        Ok(())
    }

    /// Reads the system prompt here.
    pub(super) fn read_instructions(
        &mut self,
        cursor: &mut Cursor<'b>,
        limits: &Limits,
    ) -> Result<(), ParseError> {
        let blocks = cursor.token()? == b'[';
        let content = cursor.nullable(|cursor| self.parts.content(cursor, limits))?;
        let content = content.map(|content| match blocks {
            true => self.parts.without(content, BILLING.as_bytes()),
            false => content,
        });
        self.instructions =
            content.map(|content| Message { role: Some(b"system"), content, ..Message::default() });
        Ok(())
    }

    /// Reads the array of `messages` here.
    pub(super) fn read_messages(
        &mut self,
        cursor: &mut Cursor<'b>,
        limits: &Limits,
    ) -> Result<(), ParseError> {
        self.read_list(cursor, "messages", limits, |chat, cursor| {
            let (message, _) = chat.read_message(cursor, limits)?;
            match message.role {
                Some(_) => Ok(message),
                None => cursor.error(Reason::Missing("role")),
            }
        })
    }

    /// Reads the `input` of `/v1/responses` here: a string is what a user says, and a list has messages and other items.
    pub(super) fn read_input(&mut self, cursor: &mut Cursor<'b>, limits: &Limits) -> Result<(), ParseError> {
        if cursor.token()? == b'"' {
            let content = self.parts.content(cursor, limits)?;
            self.messages = vec![Message { role: Some(b"user"), content, ..Message::default() }];
            return Ok(());
        }
        self.read_list(cursor, "input", limits, |chat, cursor| {
            cursor.token()?;
            let start = cursor.at();
            let (message, kind) = chat.read_message(cursor, limits)?;
            let says_message = kind.is_none_or(|kind| unescaped(kind).as_deref() == Some("message"));
            if message.role.is_some() && says_message {
                return Ok(message);
            }
            let content = chat.parts.instead(message.content, cursor.since(start), cursor, limits)?;
            Ok(Message { content, ..Message::default() })
        })
    }

    fn read_list(
        &mut self,
        cursor: &mut Cursor<'b>,
        field: &'static str,
        limits: &Limits,
        read: impl Fn(&mut Self, &mut Cursor<'b>) -> Result<Message<'b>, ParseError>,
    ) -> Result<(), ParseError> {
        if cursor.token()? != b'[' {
            return cursor.wrong_type(field, "an array");
        }
        self.messages.clear();
        cursor.array(|cursor| {
            if self.messages.len() >= limits.max_messages {
                return cursor.error(Reason::TooMany(field, limits.max_messages));
            }
            let message = read(self, cursor)?;
            self.messages.push(message);
            Ok(())
        })
    }

    /// A message, and its `type`.
    fn read_message(
        &mut self,
        cursor: &mut Cursor<'b>,
        limits: &Limits,
    ) -> Result<(Message<'b>, Option<&'b [u8]>), ParseError> {
        if cursor.token()? != b'{' {
            return cursor.wrong_type("a message", "an object");
        }
        let mut kind = None;
        let mut message = Message::default();
        cursor.object(|cursor, key| {
            match key {
                b"role" => message.role = cursor.nullable_string("role")?,
                b"content" => message.content = self.parts.content(cursor, limits)?,
                b"name" => message.name = cursor.nullable_string("name")?,
                b"tool_call_id" => message.tool_call_id = cursor.nullable_string("tool_call_id")?,
                b"reasoning_content" | b"reasoning" => {
                    message.reasoning_content = cursor.nullable_string("reasoning_content")?;
                }
                b"tool_calls" => message.tool_calls = cursor.nullable(Cursor::value)?,
                b"type" => kind = cursor.nullable_string("type")?,
                _ => {
                    cursor.value()?;
                }
            }
            Ok(())
        })?;
        Ok((message, kind))
    }
}
