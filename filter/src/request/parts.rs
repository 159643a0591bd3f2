//! What messages consist of: texts, and the JSON of all else.
//!
//! Clients of Anthropic's API mark up to where to cache, and move the mark from turn to turn. It is no part of the prompt, so
//! JSON is kept as it would be written without: in pieces, where a mark stands in it.

use super::body::Limits;
use super::cursor::{Cursor, unescaped};
use super::error::{ParseError, Reason};
use std::ops::Range;

/// The key of a mark.
const MARK: &[u8] = b"cache_control";

/// Containers into which marks are looked for: a part, its `content`, and the parts in that.
const PART_LEVELS: u32 = 3;

/// The list of tools and each tool.
const TOOLS_LEVELS: u32 = 2;

/// A part of what a message or a list of tools consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'b> {
    /// Text.
    Text(&'b [u8]),
    /// The JSON text of anything else: an image, a sound, a call...
    Other(&'b [u8]),
    /// The JSON text of the part before goes on, after a mark that was left out.
    Rest(&'b [u8]),
}

/// Some of a chat's parts that follow on each other. A string is one text part: engines make no difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    first: usize,
    count: usize,
}

/// The parts of a whole chat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Parts<'b> {
    list: Vec<Part<'b>>,
    /// Where marks stand in the part that is being read.
    holes: Vec<Range<usize>>,
}

impl<'b> Parts<'b> {
    pub(super) fn of(&self, content: Content) -> impl Iterator<Item = Part<'b>> {
        self.list.iter().skip(content.first).take(content.count).copied()
    }

    /// What was read since there were `first` parts.
    fn since(&self, first: usize) -> Content {
        Content { first, count: self.list.len() - first }
    }

    /// Reads the content of a message.
    pub(super) fn content(
        &mut self,
        cursor: &mut Cursor<'b>,
        limits: &Limits,
    ) -> Result<Content, ParseError> {
        let first = self.list.len();
        match cursor.token()? {
            b'n' => cursor.word(b"null")?,
            b'"' => {
                let text = cursor.string()?;
                self.push(Part::Text(text), cursor, limits)?;
            }
            b'[' => cursor.array(|cursor| self.part(cursor, limits))?,
            _ => return cursor.wrong_type("content", "a string, an array of parts, or null"),
        }
        Ok(self.since(first))
    }

    /// Reads the JSON of tools.
    pub(super) fn tools(&mut self, cursor: &mut Cursor<'b>, limits: &Limits) -> Result<Content, ParseError> {
        cursor.token()?;
        let (first, start) = (self.list.len(), cursor.at());
        self.walk(cursor, TOOLS_LEVELS, limits)?;
        self.cut(start, cursor, limits)?;
        Ok(self.since(first))
    }

    /// Takes `json` in the place of `content`, which was the last that was read.
    pub(super) fn instead(
        &mut self,
        content: Content,
        json: &'b [u8],
        cursor: &Cursor<'b>,
        limits: &Limits,
    ) -> Result<Content, ParseError> {
        let first = self.list.len() - content.count;
        self.list.truncate(first);
        self.push(Part::Other(json), cursor, limits)?;
        Ok(self.since(first))
    }

    /// Drops the texts that begin with `start` from `content`, which was the last that was read.
    pub(super) fn without(&mut self, content: Content, start: &[u8]) -> Content {
        let kept = self.list.split_off(self.list.len() - content.count);
        let first = self.list.len();
        self.list.extend(
            kept.into_iter().filter(|part| !matches!(part, Part::Text(text) if text.starts_with(start))),
        );
        self.since(first)
    }

    /// A string, or an object: text if it says so or says nothing else. What else stands beside a text, such as a mark or
    /// annotations, is no part of the prompt.
    fn part(&mut self, cursor: &mut Cursor<'b>, limits: &Limits) -> Result<(), ParseError> {
        match cursor.token()? {
            b'"' => {
                let text = cursor.string()?;
                return self.push(Part::Text(text), cursor, limits);
            }
            b'{' => {}
            _ => return cursor.wrong_type("content[]", "a string or an object"),
        }
        let start = cursor.at();
        let (mut kind, mut text) = (None, None);
        self.members(cursor, PART_LEVELS, limits, |cursor, key| {
            match key {
                b"type" => kind = cursor.nullable_string("content[].type")?,
                b"text" => text = cursor.nullable_string("content[].text")?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let is_text = kind.is_none_or(|kind| {
            unescaped(kind).is_some_and(|kind| matches!(&*kind, "text" | "input_text" | "output_text"))
        });
        match text {
            Some(text) if is_text => {
                self.holes.clear();
                self.push(Part::Text(text), cursor, limits)
            }
            _ => self.cut(start, cursor, limits),
        }
    }

    /// Walks over a value, and notes the marks in it and in `levels - 1` containers within.
    fn walk(&mut self, cursor: &mut Cursor<'b>, levels: u32, limits: &Limits) -> Result<(), ParseError> {
        match cursor.token()? {
            b'[' if levels > 0 => cursor.array(|cursor| self.walk(cursor, levels - 1, limits)),
            b'{' if levels > 0 => self.members(cursor, levels, limits, |_, _| Ok(false)),
            _ => cursor.value().map(|_| ()),
        }
    }

    /// Walks over the object here, and notes its marks. `known` says whether it walked over the value of a key.
    fn members(
        &mut self,
        cursor: &mut Cursor<'b>,
        levels: u32,
        limits: &Limits,
        mut known: impl FnMut(&mut Cursor<'b>, &[u8]) -> Result<bool, ParseError>,
    ) -> Result<(), ParseError> {
        // Where a mark is cut out from: the end of the member before it, or the start of its own key where it is the first.
        let mut from = cursor.token_from(cursor.at() + 1);
        let mut first = true;
        cursor.object(|cursor, key| {
            if key == MARK {
                cursor.value()?;
                let mut to = cursor.at();
                if first && cursor.token()? == b',' {
                    to = cursor.token_from(cursor.at() + 1);
                }
                if self.list.len() + self.holes.len() >= limits.max_parts {
                    return cursor.error(Reason::TooMany("content parts", limits.max_parts));
                }
                self.holes.push(from..to);
                from = to;
                return Ok(());
            }
            if !known(cursor, key)? {
                match key {
                    b"content" => self.walk(cursor, levels - 1, limits)?,
                    _ => {
                        cursor.value()?;
                    }
                }
            }
            (first, from) = (false, cursor.at());
            Ok(())
        })
    }

    /// Takes the JSON from `start` to the cursor, without the marks that were noted in it.
    fn cut(&mut self, start: usize, cursor: &Cursor<'b>, limits: &Limits) -> Result<(), ParseError> {
        let mut from = start;
        let mut part: fn(&'b [u8]) -> Part<'b> = Part::Other;
        for hole in std::mem::take(&mut self.holes) {
            self.push(part(cursor.between(from, hole.start)), cursor, limits)?;
            (from, part) = (hole.end, Part::Rest);
        }
        self.push(part(cursor.since(from)), cursor, limits)
    }

    fn push(&mut self, part: Part<'b>, cursor: &Cursor<'b>, limits: &Limits) -> Result<(), ParseError> {
        if self.list.len() >= limits.max_parts {
            return cursor.error(Reason::TooMany("content parts", limits.max_parts));
        }
        self.list.push(part);
        Ok(())
    }
}
