//! The answers of an OpenAI-compatible server, whole and in pieces, in the form that vLLM gives them.

use serde::Serialize;
use serde_json::{Value, json};

use crate::endpoint::Endpoint;

/// The last event of every stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// The numbers of floats in an embedding.
const DIMENSIONS: u64 = 16;

/// What all pieces of one answer share.
#[derive(Clone, Debug)]
pub struct Head {
    /// Which kind of request is answered.
    pub endpoint: Endpoint,
    /// The answer's own id.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answers.
    pub model: String,
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt: usize,
    /// Those of them found in the cache.
    pub cached: usize,
    /// Tokens generated.
    pub completion: usize,
}

impl Usage {
    /// As JSON; with `details`, `cached_tokens` is told unless it is 0, as vLLM does.
    pub fn json(self, details: bool) -> Value {
        let cached = (details && self.cached > 0).then(|| json!({"cached_tokens": self.cached}));
        json!({"prompt_tokens": self.prompt, "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion, "prompt_tokens_details": cached})
    }
}

/// Text of one choice of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Which choice.
    pub index: usize,
    /// The new text.
    pub text: &'a str,
    /// Why it ends here, if it does: `stop` or `length`.
    pub finish: Option<&'static str>,
}

impl Head {
    /// A whole answer to a chat or completion.
    pub fn whole(&self, choices: &[Piece], usage: Value) -> Value {
        let choices: Vec<Value> = choices
            .iter()
            .map(|Piece { index, text, finish }| match self.endpoint {
                Endpoint::Chat => json!({"index": index, "logprobs": null, "finish_reason": finish,
                    "message": {"role": "assistant", "content": text, "tool_calls": []}}),
                _ => json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish}),
            })
            .collect();
        let object = if self.endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices, "usage": usage})
    }

    /// Embeddings, one for each seed: equal seeds, equal vectors.
    pub fn embeddings(&self, seeds: &[u64], usage: Value) -> Value {
        let vector = |seed: u64| -> Vec<f64> {
            (0..DIMENSIONS)
                .map(|axis| crate::tokens::mix(seed ^ axis) as f64 / u64::MAX as f64 - 0.5)
                .collect()
        };
        let data: Vec<Value> = seeds
            .iter()
            .enumerate()
            .map(|(index, seed)| json!({"index": index, "object": "embedding", "embedding": vector(*seed)}))
            .collect();
        json!({"id": self.id, "object": "list", "created": self.created, "model": self.model,
            "data": data, "usage": usage})
    }

    /// Appends the event that opens a choice of a chat; completions have none.
    pub fn push_opening(&self, index: usize, out: &mut String) {
        if self.endpoint == Endpoint::Chat {
            let delta = Some(Delta { role: Some("assistant"), content: "" });
            self.push_event(
                &[Choice { index, delta, text: None, logprobs: (), finish_reason: None }],
                None,
                out,
            );
        }
    }

    /// Appends the event that carries a piece.
    pub fn push_piece(&self, piece: Piece, out: &mut String) {
        let Piece { index, text, finish: finish_reason } = piece;
        let chat = self.endpoint == Endpoint::Chat;
        let delta = chat.then_some(Delta { role: None, content: text });
        let text = (!chat).then_some(text);
        self.push_event(&[Choice { index, delta, text, logprobs: (), finish_reason }], None, out);
    }

    /// Appends the event that tells the usage.
    pub fn push_usage(&self, usage: Value, out: &mut String) {
        self.push_event(&[], Some(usage), out);
    }

    fn push_event(&self, choices: &[Choice], usage: Option<Value>, out: &mut String) {
        let object =
            if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" };
        let chunk = Chunk { id: &self.id, object, created: self.created, model: &self.model, choices, usage };
        out.push_str("data: ");
        out.push_str(
            &serde_json::to_string(&chunk).expect("a chunk has string keys and finite numbers only"),
        );
        out.push_str("\n\n");
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

/// An error in OpenAI's form.
pub fn error(status: u16, kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(endpoint: Endpoint) -> Head {
        Head { endpoint, id: "id-1".into(), created: 5, model: "m\"1".into() }
    }

    #[test]
    fn events_are_data_lines_of_json_with_a_blank_line_after_each() {
        let head = head(Endpoint::Chat);
        let mut out = String::new();
        head.push_opening(0, &mut out);
        head.push_piece(Piece { index: 0, text: "a\n\nb", finish: Some("stop") }, &mut out);
        head.push_usage(Usage { prompt: 4, cached: 0, completion: 2 }.json(true), &mut out);
        out.push_str(DONE);
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
        head(Endpoint::Completions).push_opening(0, &mut out);
        assert_eq!(out, "");
        head(Endpoint::Completions).push_piece(Piece { index: 1, text: "x", finish: None }, &mut out);
        let json: Value = serde_json::from_str(out.trim().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            json["choices"],
            json!([{"index": 1, "text": "x", "logprobs": null, "finish_reason": null}])
        );
    }

    #[test]
    fn cached_tokens_are_told_only_when_asked_for_and_not_zero() {
        let usage = Usage { prompt: 9, cached: 4, completion: 1 };
        assert_eq!(usage.json(true)["prompt_tokens_details"], json!({"cached_tokens": 4}));
        assert_eq!(usage.json(false)["prompt_tokens_details"], Value::Null);
        assert_eq!(Usage { cached: 0, ..usage }.json(true)["prompt_tokens_details"], Value::Null);
    }
}
