//! What is common to the connectors of vLLM.

use super::{Body, Fields};
use crate::request::{Edit, Endpoint, Outline};

/// Where vLLM takes `kv_transfer_params`.
pub const ENDPOINTS: &[Endpoint] =
    &[Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages];

/// The field by which most connectors speak.
pub const PARAMS: &str = "kv_transfer_params";

/// Fields that only a router may set.
pub const OWN: &[&str] = &[PARAMS, "ec_transfer_params"];

/// Makes a prefill of a request: it ends with the first token, and comes in one piece.
///
/// An answer of no token at all would leave nothing to hand over (older NIXL connectors, Mooncake's), so one there must be.
pub fn one_token(body: &Body<'_>) -> Vec<Edit<'static>> {
    let one = |name| Edit::set(name, &b"1"[..]);
    let mut edits = vec![Edit::set("stream", &b"false"[..]), Edit::Remove("stream_options")];
    match body.endpoint {
        Endpoint::Chat => {
            edits.extend([one("max_tokens"), one("max_completion_tokens"), one("min_tokens")]);
        }
        Endpoint::Completions => edits.extend([one("max_tokens"), one("min_tokens")]),
        Endpoint::Responses => {
            edits.extend([one("max_output_tokens"), Edit::set("store", &b"false"[..])]);
        }
        _ => edits.push(one("max_tokens")),
    }
    // Whoever decodes samples the first token afresh: what is told of this one is of no use.
    edits.extend(["logprobs", "top_logprobs", "logprob_token_ids"].map(Edit::Remove));
    edits
}

/// Fields whose own fields become the engine's, and which of these only a router may set: an engine that is told in `vllm_xargs` of a
/// transfer crashes, and `extra_args` are where it keeps what it was told (`/inference/v1/generate` takes them as they are).
const WITHIN: [(&str, &[&str]); 2] = [("vllm_xargs", OWN), ("sampling_params", &["extra_args"])];

/// What takes out of a client's body what only a router may say.
pub fn strip(body: &Fields<'_>) -> Vec<Edit<'static>> {
    let mut edits = body.without(OWN);
    for (name, own) in WITHIN {
        // A list is for other engines.
        let fields = body.field(name).filter(|fields| !fields.starts_with(b"["));
        match fields.map(|fields| (fields, Outline::read(fields, own))) {
            Some((fields, Ok(outline))) if outline.has_any() => {
                let removed: Vec<_> = own.iter().copied().map(Edit::Remove).collect();
                edits.push(Edit::set(name, outline.edit(fields, &removed)));
            }
            None | Some((_, Ok(_))) => {}
            // What can't be looked through isn't passed on.
            Some((_, Err(_))) => edits.push(Edit::Remove(name)),
        }
    }
    edits
}

/// Why a request can't be split between two engines of vLLM, if it can't.
pub fn unfit(body: &Body<'_>) -> Option<&'static str> {
    // A tool that must be called is read as JSON, which one token isn't: the prefill would be answered with 400.
    let names_tool = || body.field("tool_choice").is_some_and(|choice| contains(choice, b"\"tool\""));
    (body.endpoint == Endpoint::Messages && names_tool()).then_some("it names a tool that must be called")
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

/// How an answer of one choice says that it ended.
pub fn finish_reason(answer: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(default)]
        choices: Vec<Choice>,
        stop_reason: Option<String>,
        status: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct Choice {
        finish_reason: Option<String>,
    }
    let Answer { choices, stop_reason, status } = serde_json::from_slice(answer).ok()?;
    let of_choice = choices.into_iter().next().and_then(|choice| choice.finish_reason);
    of_choice.or(stop_reason).or(status)
}
