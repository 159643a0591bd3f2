//! Anthropic's `/v1/messages`: one text, and no thoughts.

use serde_json::{Map, Value, json};

use super::{Events, Head, Piece, Usage, push_named};

/// A whole message.
pub(super) fn whole(head: &Head, piece: Piece, usage: Usage) -> Value {
    message(head, &[json!({"type": "text", "text": piece.text})], stop_reason(piece.finish), usage)
}

fn message(head: &Head, content: &[Value], stop_reason: Option<&str>, usage: Usage) -> Value {
    json!({"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": content,
        "stop_reason": stop_reason, "stop_sequence": null, "usage": usage_json(head, usage)})
}

/// `input_tokens` are those that no cache gave, so what is in the cache has to be told to make up the prompt; as in vLLM, it
/// is part of `input_tokens` where it isn't told.
fn usage_json(head: &Head, usage: Usage) -> Value {
    let cached = if head.details { usage.cached } else { 0 };
    let mut told = Map::new();
    told.insert("input_tokens".into(), json!(usage.prompt - cached));
    if head.details {
        told.insert("cache_read_input_tokens".into(), json!(cached));
    }
    told.insert("output_tokens".into(), json!(usage.completion));
    Value::Object(told)
}

fn stop_reason(finish: Option<&str>) -> Option<&'static str> {
    finish.map(|finish| if finish == "length" { "max_tokens" } else { "end_turn" })
}

/// The stream of a message.
pub(super) struct Stream<'a> {
    head: &'a Head,
    finish: Option<&'static str>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(head: &'a Head) -> Self {
        Self { head, finish: None }
    }
}

impl Events for Stream<'_> {
    fn open(&mut self, _: usize, usage: Usage, out: &mut String) {
        push_named("message_start", json!({"message": message(self.head, &[], None, usage)}), out);
        let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
        push_named("content_block_start", block, out);
    }

    fn piece(&mut self, piece: Piece, _: Usage, out: &mut String) {
        self.finish = piece.finish;
        let delta = json!({"index": 0, "delta": {"type": "text_delta", "text": piece.text}});
        push_named("content_block_delta", delta, out);
    }

    fn close(&mut self, usage: Usage, out: &mut String) {
        push_named("content_block_stop", json!({"index": 0}), out);
        let delta = json!({"stop_reason": stop_reason(self.finish), "stop_sequence": null});
        push_named("message_delta", json!({"delta": delta, "usage": usage_json(self.head, usage)}), out);
        push_named("message_stop", json!({}), out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{head, read};
    use super::*;
    use crate::endpoint::Endpoint;

    const USAGE: Usage = Usage { prompt: 9, cached: 4, completion: 0 };

    #[test]
    fn the_stream_tells_the_same_as_the_whole() {
        let head = head(Endpoint::Messages);
        let after = Usage { completion: 2, ..USAGE };
        let mut out = String::new();
        let mut stream = head.events(false);
        stream.open(0, USAGE, &mut out);
        stream.piece(Piece { index: 0, text: "a", finish: None }, USAGE, &mut out);
        stream.piece(Piece { index: 0, text: " b", finish: Some("stop") }, after, &mut out);
        stream.close(after, &mut out);
        let events = read(&out);
        let kinds: Vec<_> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(
            kinds,
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        assert!(events.iter().all(|(kind, event)| event["type"] == *kind));
        let start = &events[0].1["message"];
        assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
        assert_eq!(
            start["usage"],
            json!({"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 0})
        );
        assert_eq!(events[3].1["delta"], json!({"type": "text_delta", "text": " b"}));
        let whole = head.whole(&[Piece { index: 0, text: "a b", finish: Some("stop") }], after);
        assert_eq!(whole["content"], json!([{"type": "text", "text": "a b"}]));
        assert_eq!(events[5].1["usage"], whole["usage"]);
        assert_eq!(events[5].1["delta"]["stop_reason"], whole["stop_reason"]);
        assert_eq!(whole["stop_reason"], "end_turn");
    }

    #[test]
    fn what_was_cached_is_part_of_the_input_where_it_is_not_told() {
        let head = Head { details: false, ..head(Endpoint::Messages) };
        let whole = head.whole(&[Piece { index: 0, text: "a", finish: Some("length") }], USAGE);
        assert_eq!(whole["usage"], json!({"input_tokens": 9, "output_tokens": 0}));
        assert_eq!(whole["stop_reason"], "max_tokens");
    }
}
