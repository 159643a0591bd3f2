//! Answers, whole and in pieces, each in the form of its API.

mod generate;
mod messages;
mod openai;
mod responses;

use serde::Serialize;
use serde_json::{Value, json};

use crate::endpoint::Endpoint;

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
    /// Whether usage tells the tokens that were cached, where that is the operator's choice.
    pub details: bool,
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

/// The server-sent events of one answer. Each call appends what there is to send; the usage is that of now.
pub trait Events: Send {
    /// Opens a choice, whose prompt has been read.
    fn open(&mut self, index: usize, usage: Usage, out: &mut String);

    /// Goes on with a choice.
    fn piece(&mut self, piece: Piece, usage: Usage, out: &mut String);

    /// Ends the stream.
    fn close(&mut self, usage: Usage, out: &mut String);
}

impl Head {
    /// A whole answer with all its choices. Of most kinds of answer there is one.
    pub fn whole(&self, choices: &[Piece], usage: Usage) -> Value {
        match (self.endpoint, choices) {
            (Endpoint::Responses, [piece]) => responses::whole(self, *piece, usage),
            (Endpoint::Messages, [piece]) => messages::whole(self, *piece, usage),
            (Endpoint::Generate, [piece]) => generate::whole(self, *piece, usage),
            _ => openai::whole(self, choices, usage),
        }
    }

    /// Embeddings, one for each seed: equal seeds, equal vectors.
    pub fn embeddings(&self, seeds: &[u64], usage: Usage) -> Value {
        openai::embeddings(self, seeds, usage)
    }

    /// A stream; `include_usage` is whether its end tells the usage, where that is the client's choice.
    pub fn events(&self, include_usage: bool) -> Box<dyn Events + '_> {
        match self.endpoint {
            Endpoint::Responses => Box::new(responses::Stream::new(self)),
            Endpoint::Messages => Box::new(messages::Stream::new(self)),
            Endpoint::Generate => Box::new(generate::Stream::new(self)),
            _ => Box::new(openai::Stream { head: self, include_usage }),
        }
    }
}

/// The last event of a stream, where an API has one that is no JSON.
const DONE: &str = "data: [DONE]\n\n";

/// Appends an event.
fn push_event(data: &impl Serialize, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&serde_json::to_string(data).expect("an event has string keys and finite numbers only"));
    out.push_str("\n\n");
}

/// Appends an event with a name, which it repeats as its type.
fn push_named(name: &str, mut data: Value, out: &mut String) {
    data["type"] = json!(name);
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    push_event(&data, out);
}

/// An error in OpenAI's form.
pub fn error(status: u16, kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn head(endpoint: Endpoint) -> Head {
        Head { endpoint, id: "id-1".into(), created: 5, model: "m\"1".into(), details: true }
    }

    /// Named events, as name and JSON.
    pub fn read(events: &str) -> Vec<(String, Value)> {
        let lines = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            (name.strip_prefix("event: ").unwrap().to_owned(), data)
        };
        events.split_terminator("\n\n").map(lines).collect()
    }
}
