//! SGLang's `/generate`. Each event repeats all that was said before.

use serde_json::{Value, json};

use super::{DONE, Events, Head, Piece, Usage, push_event};
use crate::tokens;

/// A whole answer.
pub(super) fn whole(head: &Head, piece: Piece, usage: Usage) -> Value {
    let mut ids = Vec::new();
    tokens::push_text(piece.text, &mut ids);
    let finish = piece.finish.map(|finish| match finish {
        "length" => json!({"type": "length", "length": usage.completion}),
        _ => json!({"type": "stop", "matched": tokens::MESSAGE_END}),
    });
    json!({"text": piece.text, "output_ids": ids, "meta_info": {
        "id": head.id, "finish_reason": finish, "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion, "cached_tokens": usage.cached}})
}

/// The stream of an answer.
pub(super) struct Stream<'a> {
    head: &'a Head,
    text: String,
}

impl<'a> Stream<'a> {
    pub(super) fn new(head: &'a Head) -> Self {
        Self { head, text: String::new() }
    }
}

impl Events for Stream<'_> {
    fn open(&mut self, _: usize, _: Usage, _: &mut String) {}

    fn piece(&mut self, piece: Piece, usage: Usage, out: &mut String) {
        self.text.push_str(piece.text);
        push_event(&whole(self.head, Piece { text: &self.text, ..piece }, usage), out);
    }

    fn close(&mut self, _: Usage, out: &mut String) {
        out.push_str(DONE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::head;
    use super::*;
    use crate::endpoint::Endpoint;

    #[test]
    fn each_event_has_all_that_was_said_and_the_last_is_the_whole() {
        let head = Head { details: false, ..head(Endpoint::Generate) };
        let usage = |completion| Usage { prompt: 9, cached: 4, completion };
        let mut out = String::new();
        let mut stream = head.events(false);
        stream.open(0, usage(0), &mut out);
        assert_eq!(out, "");
        stream.piece(Piece { index: 0, text: "able", finish: None }, usage(1), &mut out);
        stream.piece(Piece { index: 0, text: " air", finish: Some("length") }, usage(2), &mut out);
        stream.close(usage(2), &mut out);
        let events: Vec<&str> = out.split_terminator("\n\n").map(|event| &event["data: ".len()..]).collect();
        let json = |event: &str| -> Value { serde_json::from_str(event).unwrap() };
        assert_eq!(events.len(), 3, "{out}");
        assert_eq!(json(events[0])["text"], "able");
        assert_eq!(json(events[0])["meta_info"]["finish_reason"], Value::Null);
        assert_eq!(json(events[0])["meta_info"]["completion_tokens"], 1);
        let whole = head.whole(&[Piece { index: 0, text: "able air", finish: Some("length") }], usage(2));
        assert_eq!(json(events[1]), whole);
        assert_eq!(events[2], "[DONE]");
        assert_eq!(whole["output_ids"], json!([tokens::id(b"able"), tokens::id(b" air")]));
        assert_eq!(whole["meta_info"]["finish_reason"], json!({"type": "length", "length": 2}));
        assert_eq!(whole["meta_info"]["cached_tokens"], 4);
    }
}
