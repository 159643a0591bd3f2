//! Chats, completions and embeddings, in the form that vLLM gives them.

use serde::Serialize;
use serde_json::{Value, json};

use super::{DONE, Events, Head, Piece, Usage, push_event};
use crate::endpoint::Endpoint;

/// The numbers of floats in an embedding.
const DIMENSIONS: u64 = 16;

/// `cached_tokens` is told unless it is 0, as vLLM does.
fn usage_json(head: &Head, usage: Usage) -> Value {
    let cached = (head.details && usage.cached > 0).then(|| json!({"cached_tokens": usage.cached}));
    json!({"prompt_tokens": usage.prompt, "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion, "prompt_tokens_details": cached})
}

/// A whole answer to a chat or completion.
pub(super) fn whole(head: &Head, choices: &[Piece], usage: Usage) -> Value {
    let choices: Vec<Value> = choices
        .iter()
        .map(|Piece { index, text, finish }| match head.endpoint {
            Endpoint::Chat => json!({"index": index, "logprobs": null, "finish_reason": finish,
                "message": {"role": "assistant", "content": text, "tool_calls": []}}),
            _ => json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish}),
        })
        .collect();
    let object = if head.endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
    json!({"id": head.id, "object": object, "created": head.created, "model": head.model,
        "choices": choices, "usage": usage_json(head, usage)})
}

/// See [`Head::embeddings`].
pub(super) fn embeddings(head: &Head, seeds: &[u64], usage: Usage) -> Value {
    let vector = |seed: u64| -> Vec<f64> {
        (0..DIMENSIONS).map(|axis| crate::tokens::mix(seed ^ axis) as f64 / u64::MAX as f64 - 0.5).collect()
    };
    let data: Vec<Value> = seeds
        .iter()
        .enumerate()
        .map(|(index, seed)| json!({"index": index, "object": "embedding", "embedding": vector(*seed)}))
        .collect();
    json!({"id": head.id, "object": "list", "created": head.created, "model": head.model,
        "data": data, "usage": usage_json(head, usage)})
}

/// The stream of a chat or completion.
pub(super) struct Stream<'a> {
    pub(super) head: &'a Head,
    pub(super) include_usage: bool,
}

impl Stream<'_> {
    fn push(&self, choices: &[Choice], usage: Option<Value>, out: &mut String) {
        let Head { endpoint, id, created, model, .. } = self.head;
        let object = if *endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" };
        push_event(&Chunk { id, object, created: *created, model, choices, usage }, out);
    }
}

impl Events for Stream<'_> {
    /// Completions have no such event.
    fn open(&mut self, index: usize, _: Usage, out: &mut String) {
        if self.head.endpoint == Endpoint::Chat {
            let delta = Some(Delta { role: Some("assistant"), content: "" });
            self.push(&[Choice { index, delta, text: None, logprobs: (), finish_reason: None }], None, out);
        }
    }

    fn piece(&mut self, piece: Piece, _: Usage, out: &mut String) {
        let Piece { index, text, finish: finish_reason } = piece;
        let chat = self.head.endpoint == Endpoint::Chat;
        let delta = chat.then_some(Delta { role: None, content: text });
        let text = (!chat).then_some(text);
        self.push(&[Choice { index, delta, text, logprobs: (), finish_reason }], None, out);
    }

    fn close(&mut self, usage: Usage, out: &mut String) {
        if self.include_usage {
            self.push(&[], Some(usage_json(self.head, usage)), out);
        }
        out.push_str(DONE);
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: (),
    finish_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    content: &'a str,
}

#[cfg(test)]
mod tests {
    use super::super::tests::head;
    use super::*;

    #[test]
    fn events_are_data_lines_of_json_with_a_blank_line_after_each() {
        let head = head(Endpoint::Chat);
        let mut out = String::new();
        let usage = Usage { prompt: 4, cached: 0, completion: 2 };
        let mut stream = head.events(true);
        stream.open(0, usage, &mut out);
        stream.piece(Piece { index: 0, text: "a\n\nb", finish: Some("stop") }, usage, &mut out);
        stream.close(usage, &mut out);
        let events: Vec<&str> = out.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 4, "{out}");
        let json =
            |event: &str| -> Value { serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap() };
        assert_eq!(json(events[0])["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(json(events[1])["choices"][0]["delta"], json!({"content": "a\n\nb"}));
        assert_eq!(json(events[1])["choices"][0]["finish_reason"], "stop");
        assert_eq!(json(events[1]).get("usage"), None);
        assert_eq!(json(events[2])["choices"], json!([]));
        assert_eq!(json(events[2])["usage"]["total_tokens"], 6);
        assert_eq!(json(events[2])["model"], "m\"1");
        assert_eq!(events[3], "data: [DONE]");
    }

    #[test]
    fn completions_carry_text_and_have_no_opening() {
        let mut out = String::new();
        let head = head(Endpoint::Completions);
        let mut stream = head.events(false);
        stream.open(0, Usage::default(), &mut out);
        assert_eq!(out, "");
        stream.piece(Piece { index: 1, text: "x", finish: None }, Usage::default(), &mut out);
        let json: Value = serde_json::from_str(out.trim().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            json["choices"],
            json!([{"index": 1, "text": "x", "logprobs": null, "finish_reason": null}])
        );
        out.clear();
        stream.close(Usage::default(), &mut out);
        assert_eq!(out, DONE, "nobody asked for the usage");
    }

    #[test]
    fn cached_tokens_are_told_only_when_asked_for_and_not_zero() {
        let usage = Usage { prompt: 9, cached: 4, completion: 1 };
        let told = |usage, details| {
            let head = Head { details, ..head(Endpoint::Chat) };
            head.whole(&[], usage)["usage"]["prompt_tokens_details"].clone()
        };
        assert_eq!(told(usage, true), json!({"cached_tokens": 4}));
        assert_eq!(told(usage, false), Value::Null);
        assert_eq!(told(Usage { cached: 0, ..usage }, true), Value::Null);
    }
}
