//! OpenAI's `/v1/responses`, as vLLM serves it: one message of one text, and no reasoning.

use serde_json::{Value, json};

use super::{Events, Head, Piece, Usage, push_named};

/// A whole response.
pub(super) fn whole(head: &Head, piece: Piece, usage: Usage) -> Value {
    let status = status(piece.finish);
    let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
    let mut response = response(head, status);
    response["incomplete_details"] = json!(incomplete);
    response["output"] = json!([item(head, status, &[part(piece.text)])]);
    response["usage"] = json!({
        "input_tokens": usage.prompt,
        // No flag hides them here.
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    });
    response
}

/// A response without an answer yet.
fn response(head: &Head, status: &str) -> Value {
    json!({"id": head.id, "object": "response", "created_at": head.created, "model": head.model,
        "status": status, "incomplete_details": null, "output": [], "usage": null})
}

fn status(finish: Option<&str>) -> &'static str {
    if finish == Some("length") { "incomplete" } else { "completed" }
}

fn item(head: &Head, status: &str, content: &[Value]) -> Value {
    json!({"id": item_id(head), "type": "message", "role": "assistant", "status": status, "content": content})
}

fn item_id(head: &Head) -> String {
    format!("msg_{}", head.id)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": null})
}

/// The stream of a response. Its last events repeat all that was said.
pub(super) struct Stream<'a> {
    head: &'a Head,
    sequence: usize,
    text: String,
    finish: Option<&'static str>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(head: &'a Head) -> Self {
        Self { head, sequence: 0, text: String::new(), finish: None }
    }

    fn push(&mut self, kind: &str, mut event: Value, out: &mut String) {
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        push_named(kind, event, out);
    }

    /// An event of the only part of the only item.
    fn push_inner(&mut self, kind: &str, mut event: Value, out: &mut String) {
        event["item_id"] = json!(item_id(self.head));
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        self.push(kind, event, out);
    }
}

impl Events for Stream<'_> {
    fn open(&mut self, _: usize, _: Usage, out: &mut String) {
        let begun = json!({"response": response(self.head, "in_progress")});
        self.push("response.created", begun.clone(), out);
        self.push("response.in_progress", begun, out);
        let item = item(self.head, "in_progress", &[]);
        self.push("response.output_item.added", json!({"output_index": 0, "item": item}), out);
        self.push_inner("response.content_part.added", json!({"part": part("")}), out);
    }

    fn piece(&mut self, piece: Piece, _: Usage, out: &mut String) {
        self.text.push_str(piece.text);
        self.finish = piece.finish;
        self.push_inner("response.output_text.delta", json!({"delta": piece.text, "logprobs": []}), out);
    }

    fn close(&mut self, usage: Usage, out: &mut String) {
        let text = std::mem::take(&mut self.text);
        let whole = whole(self.head, Piece { index: 0, text: &text, finish: self.finish }, usage);
        self.push_inner("response.output_text.done", json!({"text": text, "logprobs": []}), out);
        self.push_inner("response.content_part.done", json!({"part": part(&text)}), out);
        let item = json!({"output_index": 0, "item": whole["output"][0]});
        self.push("response.output_item.done", item, out);
        // So called even where the status is `incomplete`; OpenAI itself has an event of its own for that.
        self.push("response.completed", json!({"response": whole}), out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{head, read};
    use super::*;
    use crate::endpoint::Endpoint;

    const USAGE: Usage = Usage { prompt: 9, cached: 4, completion: 2 };

    #[test]
    fn the_stream_tells_the_same_as_the_whole() {
        let head = head(Endpoint::Responses);
        let mut out = String::new();
        let mut stream = head.events(false);
        stream.open(0, USAGE, &mut out);
        stream.piece(Piece { index: 0, text: "a", finish: None }, USAGE, &mut out);
        stream.piece(Piece { index: 0, text: " b\n\n", finish: Some("length") }, USAGE, &mut out);
        stream.close(USAGE, &mut out);
        let events = read(&out);
        let kinds: Vec<_> = events.iter().map(|(kind, _)| kind.trim_start_matches("response.")).collect();
        assert_eq!(
            kinds,
            [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "completed"
            ]
        );
        for (number, (kind, event)) in events.iter().enumerate() {
            assert_eq!((&event["type"], &event["sequence_number"]), (&json!(kind), &json!(number)));
        }
        assert_eq!(events[0].1["response"]["usage"], Value::Null);
        assert_eq!(events[5].1["delta"], " b\n\n");
        assert_eq!(events[6].1["text"], "a b\n\n");
        let whole = head.whole(&[Piece { index: 0, text: "a b\n\n", finish: Some("length") }], USAGE);
        assert_eq!(events[9].1["response"], whole);
        assert_eq!(events[8].1["item"], whole["output"][0]);
        assert_eq!(events[7].1["part"], whole["output"][0]["content"][0]);
    }

    #[test]
    fn cached_tokens_are_always_told_and_a_length_is_incomplete() {
        let head = Head { details: false, ..head(Endpoint::Responses) };
        let of = |finish| head.whole(&[Piece { index: 0, text: "a", finish: Some(finish) }], USAGE);
        assert_eq!(of("stop")["usage"]["input_tokens_details"]["cached_tokens"], 4);
        assert_eq!(of("stop")["usage"]["total_tokens"], 11);
        assert_eq!(
            (&of("stop")["status"], &of("stop")["incomplete_details"]),
            (&json!("completed"), &Value::Null)
        );
        assert_eq!(of("length")["status"], "incomplete");
        assert_eq!(of("length")["incomplete_details"]["reason"], "max_output_tokens");
    }
}
