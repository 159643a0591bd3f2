//! Request bodies: what an engine reads of an OpenAI chat, completion or embedding request.

use serde::Deserialize;

use crate::chat;
use crate::endpoint::Endpoint;
use crate::fields::{Fields, Invalid};
use crate::prompt;

/// A request as the engine sees it.
#[derive(Debug)]
pub struct Body {
    /// The model's name; `None` means the first of the pod's.
    pub model: Option<String>,
    /// Keeps this request's blocks apart from those of other salts.
    pub cache_salt: Option<String>,
    /// The tokens of each prompt; a chat has one.
    pub prompts: Vec<Vec<u32>>,
    /// Answer as server-sent events.
    pub stream: bool,
    /// End the stream with a chunk of usage.
    pub include_usage: bool,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Generate exactly `max_tokens`.
    pub ignore_eos: bool,
}

impl Body {
    /// Reads the body of a request to `endpoint`. Unknown fields are ignored; of a repeated field the last counts.
    pub fn parse(endpoint: Endpoint, bytes: &[u8]) -> Result<Self, Invalid> {
        let fields = Fields::parse(bytes)?;
        let prompts = match endpoint {
            Endpoint::Chat => vec![chat::chat(&fields)?],
            Endpoint::Completions => prompt::prompts(fields.required("prompt")?, "prompt")?,
            Endpoint::Embeddings => prompt::prompts(fields.required("input")?, "input")?,
        };
        if fields.get::<u64>("n")?.is_some_and(|n| n != 1) {
            return Err(Invalid("n: pod-sim gives one choice for each prompt; leave n out".into()));
        }
        let options = fields.get::<StreamOptions>("stream_options")?.unwrap_or_default();
        Ok(Self {
            model: fields.get("model")?,
            cache_salt: fields.get("cache_salt")?,
            prompts,
            stream: fields.get("stream")?.unwrap_or(false),
            include_usage: options.include_usage.unwrap_or(false),
            max_tokens: match fields.get("max_completion_tokens")? {
                Some(most) => Some(most),
                None => fields.get("max_tokens")?,
            },
            ignore_eos: fields.get("ignore_eos")?.unwrap_or(false),
        })
    }
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_field() {
        let refused = |body: &str| Body::parse(Endpoint::Chat, body.as_bytes()).unwrap_err().0;
        assert!(refused("{").starts_with("body is not a JSON object"));
        assert!(refused("{}").starts_with("messages: field required"));
        assert!(
            refused(r#"{"messages":[{"role":"user","content":"a"},{"content":"b"}]}"#)
                .starts_with("messages[1]: role")
        );
        assert!(refused(r#"{"messages":[{"role":"user","content":7}]}"#).starts_with("messages[0]: content"));
        assert!(refused(r#"{"messages":[{"role":"user"}],"stream":"yes"}"#).starts_with("stream: "));
    }

    #[test]
    fn options_are_read_and_the_last_of_a_repeated_field_counts() {
        let body = r#"{"model":"x","model":"y","messages":[{"role":"user","content":"a"}],"stream":true,"cache_salt":"s",
            "stream_options":{"include_usage":true},"max_tokens":3,"max_completion_tokens":5,"unknown":{}}"#;
        let body = Body::parse(Endpoint::Chat, body.as_bytes()).unwrap();
        assert_eq!((body.model.as_deref(), body.cache_salt.as_deref()), (Some("y"), Some("s")));
        assert_eq!((body.stream, body.include_usage, body.max_tokens), (true, true, Some(5)));
    }
}
