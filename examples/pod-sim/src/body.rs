//! Request bodies: what an engine reads of them.

use serde::Deserialize;

use crate::chat;
use crate::endpoint::Endpoint;
use crate::fields::{Fields, Invalid};
use crate::prompt;

/// The most answers to one prompt.
const MAX_CHOICES: usize = 16;

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
    /// Fewest tokens to generate.
    pub min_tokens: usize,
    /// Generate exactly `max_tokens`.
    pub ignore_eos: bool,
    /// Answers to each prompt.
    pub choices: usize,
}

impl Body {
    /// Reads the body of a request to `endpoint`. Unknown fields are ignored; of a repeated field the last counts.
    pub fn parse(endpoint: Endpoint, bytes: &[u8]) -> Result<Self, Invalid> {
        let fields = Fields::parse(bytes)?;
        let prompts = match endpoint {
            Endpoint::Chat => vec![chat::chat(&fields, None, "messages")?],
            Endpoint::Responses => vec![chat::chat(&fields, Some("instructions"), "input")?],
            Endpoint::Messages => vec![chat::chat(&fields, Some("system"), "messages")?],
            Endpoint::Generate => vec![prompt::generate(&fields)?],
            Endpoint::Completions => prompt::prompts(fields.required("prompt")?, "prompt")?,
            Endpoint::Embeddings => prompt::prompts(fields.required("input")?, "input")?,
        };
        if endpoint == Endpoint::Responses {
            for history in ["conversation", "previous_response_id", "prompt"] {
                if fields.raw(history).is_some() {
                    return Err(Invalid(format!("{history}: pod-sim keeps no history; send all of it")));
                }
            }
        }
        let own;
        let sampling = match endpoint {
            Endpoint::Generate => {
                own = fields.get::<Fields>("sampling_params")?.unwrap_or_default();
                &own
            }
            _ => &fields,
        };
        let max_tokens = limit(sampling, endpoint.limits())?;
        if endpoint == Endpoint::Messages && max_tokens.is_none() {
            return Err(Invalid("max_tokens: field required".into()));
        }
        let min_tokens = fields.get("min_tokens")?.unwrap_or(0);
        if let Some(most) = max_tokens.filter(|most| min_tokens > *most) {
            return Err(Invalid(format!(
                "min_tokens: must be less than or equal to max_tokens={most}, got {min_tokens}"
            )));
        }
        let choices = sampling.get("n")?.unwrap_or(1);
        let most = if matches!(endpoint, Endpoint::Chat | Endpoint::Completions) { MAX_CHOICES } else { 1 };
        if !(1..=most).contains(&choices) {
            return Err(Invalid(format!("n: at least 1 and at most {most}, got {choices}")));
        }
        let options = fields.get::<StreamOptions>("stream_options")?.unwrap_or_default();
        Ok(Self {
            model: fields.get("model")?,
            cache_salt: fields.get(if endpoint == Endpoint::Generate {
                "extra_key"
            } else {
                "cache_salt"
            })?,
            prompts,
            stream: fields.get("stream")?.unwrap_or(false),
            include_usage: options.include_usage.unwrap_or(false),
            max_tokens,
            min_tokens,
            ignore_eos: sampling.get("ignore_eos")?.unwrap_or(false),
            choices,
        })
    }
}

/// The first of these limits that is there.
fn limit(fields: &Fields, names: &[&str]) -> Result<Option<usize>, Invalid> {
    for name in names {
        match fields.get(name)? {
            Some(0) => return Err(Invalid(format!("{name}: must be at least 1, got 0"))),
            Some(most) => return Ok(Some(most)),
            None => {}
        }
    }
    Ok(None)
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
        let least = r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"min_tokens":2}"#;
        assert!(refused(least).starts_with("min_tokens: must be less"));
        assert!(refused("{}").starts_with("messages: field required"));
        assert!(
            refused(r#"{"messages":[{"role":"user","content":"a"},{"content":"b"}]}"#)
                .starts_with("messages[1]: role")
        );
        assert!(refused(r#"{"messages":[{"role":"user","content":7}]}"#).starts_with("messages[0]: content"));
        assert!(refused(r#"{"messages":[{"role":"user"}],"stream":"yes"}"#).starts_with("stream: "));
        for (endpoint, body, field) in [
            (Endpoint::Messages, r#"{"messages":[{"role":"user"}]}"#, "max_tokens: field required"),
            (Endpoint::Messages, r#"{"messages":[{"role":"user"}],"max_tokens":0}"#, "max_tokens: must"),
            (Endpoint::Messages, r#"{"messages":[],"max_tokens":1}"#, "messages: at least one"),
            (Endpoint::Responses, r#"{"instructions":"a"}"#, "input: field required"),
            (Endpoint::Responses, r#"{"input":"a","max_output_tokens":0}"#, "max_output_tokens: "),
            (Endpoint::Responses, r#"{"input":"a","previous_response_id":"r"}"#, "previous_response_id: "),
            (Endpoint::Responses, r#"{"input":[{"type":"message","content":"a"}]}"#, "input[0]: role"),
            (Endpoint::Generate, "{}", "text: field required"),
            (Endpoint::Generate, r#"{"text":["a","b"]}"#, "text: "),
            (
                Endpoint::Generate,
                r#"{"text":"a","sampling_params":{"max_new_tokens":0}}"#,
                "max_new_tokens: ",
            ),
            (Endpoint::Generate, r#"{"text":"a","sampling_params":{"n":2}}"#, "n: "),
        ] {
            let why = Body::parse(endpoint, body.as_bytes()).unwrap_err().0;
            assert!(why.starts_with(field), "{body}: {why}");
        }
    }

    #[test]
    fn options_are_read_and_the_last_of_a_repeated_field_counts() {
        let body = r#"{"model":"x","model":"y","messages":[{"role":"user","content":"a"}],"stream":true,"cache_salt":"s",
            "stream_options":{"include_usage":true},"max_tokens":3,"max_completion_tokens":5,"unknown":{}}"#;
        let body = Body::parse(Endpoint::Chat, body.as_bytes()).unwrap();
        assert_eq!((body.model.as_deref(), body.cache_salt.as_deref()), (Some("y"), Some("s")));
        assert_eq!((body.stream, body.include_usage, body.max_tokens), (true, true, Some(5)));
        let body = r#"{"text":"a","stream":true,"extra_key":"s","cache_salt":"t","max_new_tokens":1,
            "sampling_params":{"max_new_tokens":3,"ignore_eos":true}}"#;
        let body = Body::parse(Endpoint::Generate, body.as_bytes()).unwrap();
        assert_eq!((body.cache_salt.as_deref(), body.max_tokens), (Some("s"), Some(3)));
        assert!(body.stream && body.ignore_eos);
        let body = br#"{"input":"a","max_output_tokens":7,"max_tokens":1,"cache_salt":"s"}"#;
        let body = Body::parse(Endpoint::Responses, body).unwrap();
        assert_eq!((body.cache_salt.as_deref(), body.max_tokens), (Some("s"), Some(7)));
    }
}
