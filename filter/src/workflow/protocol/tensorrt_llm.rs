//! TensorRT-LLM: a context server answers with `disaggregated_params`, and a generation server goes on from them.
//!
//! `tensorrt_llm/serve/openai_disagg_service.py` and `openai_protocol.py`, as of mid-2026. Its schemas refuse fields that they
//! don't know, so nothing is added that isn't needed. Workers with an `internal_request_auth_key` want a signature that isn't made
//! here.

use super::{Handoff, Leg, Order, Pair, Protocol, Spoken};
use crate::config::Mistakes;
use crate::request::{Edit, Endpoint, Outline};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

/// TensorRT-LLM. The context server answers with `disaggregated_params` and the tokens of the prompt, which the generation
/// server gets.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorRtLlm {}

const PARAMS: &str = "disaggregated_params";
const TOKENS: &str = "prompt_token_ids";
const TOKENS_BASE64: &str = "prompt_token_ids_b64";
const KIND: &str = "request_type";
const USAGE: &str = "ctx_usage";
/// Ids below are the servers' own.
const LEAST_ID: u64 = 1 << 42;

/// A context server's answer, as far as it is looked at.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(borrow)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    disaggregated_params: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    finish_reason: Option<String>,
    #[serde(borrow)]
    disaggregated_params: Option<&'a RawValue>,
}

impl Spoken for TensorRtLlm {
    const NAME: &'static str = "tensorrt-llm";

    fn build(self, _path: &str, _mistakes: &mut Mistakes) -> Box<dyn Protocol> {
        Box::new(self)
    }
}

impl Protocol for TensorRtLlm {
    fn order(&self) -> Order {
        Order::InTurn
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        &[Endpoint::Chat, Endpoint::Completions]
    }

    fn own_fields(&self) -> &'static [&'static str] {
        &[PARAMS, TOKENS_BASE64, TOKENS, "conversation_params"]
    }

    fn own_headers(&self) -> &'static [&'static str] {
        &["x-trtllm-disagg-auth"]
    }

    fn decodes_alone(&self) -> bool {
        true
    }

    fn is_transferable(&self) -> bool {
        true
    }

    fn prefill(&self, pair: &Pair<'_>) -> Leg {
        let id = ((pair.secret as u64) >> 1).max(LEAST_ID);
        let params = format!(r#"{{"request_type":"context_only","disagg_request_id":{id}}}"#);
        let edits = vec![
            Edit::set("stream", &b"false"[..]),
            Edit::Remove("stream_options"),
            Edit::set(PARAMS, params.into_bytes()),
        ];
        Leg { edits, headers: Vec::new() }
    }

    fn decode(&self, pair: &Pair<'_>, answer: &[u8]) -> Result<Handoff, String> {
        let answer: Answer<'_> = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
        let choice = answer.choices.first().ok_or("it has no choices")?;
        match choice.finish_reason.as_deref() {
            None | Some("length" | "not_finished") => {}
            Some(_) => return Ok(Handoff::Nothing),
        }
        let params = choice.disaggregated_params.or(answer.disaggregated_params);
        let params = params.ok_or_else(|| format!("it has no {PARAMS}"))?.get().as_bytes();
        let outline = Outline::read(params, &[KIND, USAGE]).map_err(|error| error.to_string())?;
        let mut changes = vec![Edit::set(KIND, &b"\"generation_only\""[..])];
        // Servers that have no such field refuse it.
        if let (Some(_), Some(usage)) = (outline.value(params, USAGE), answer.usage) {
            changes.push(Edit::set(USAGE, usage.get().as_bytes()));
        }
        let mut edits = vec![Edit::set(PARAMS, outline.edit(params, &changes))];
        if let Some(tokens) = answer.prompt_token_ids.and_then(one_prompt) {
            let name = if pair.body.endpoint == Endpoint::Completions { "prompt" } else { TOKENS };
            edits.push(Edit::set(name, tokens.as_bytes().to_vec()));
        }
        Ok(Handoff::Decode(Leg { edits, headers: Vec::new() }))
    }
}

/// A list of tokens, or the only list of a list of such, as completions have it.
fn one_prompt(tokens: &RawValue) -> Option<&str> {
    let list: Vec<&RawValue> = serde_json::from_str(tokens.get()).ok()?;
    let first = list.first()?.get();
    Some(if first.starts_with('[') { first } else { tokens.get() })
}
