//! TensorRT-LLM: the context server's answer carries `disaggregated_params` and the prompt's tokens, which the generation
//! server gets back with another `request_type`.
//!
//! As in `serve/openai_disagg_service.py` and `openai_protocol.py` of TensorRT-LLM, context first. A request without parameters is
//! an ordinary one.

use serde_json::{Map, Value, json};

use super::{Asked, Claim, Leg, Offer, Protocol, Refusal, Role, Source, Transfer, bad, base64};
use crate::endpoint::Endpoint;
use crate::fields::{Fields, Invalid};

const PARAMS: &str = "disaggregated_params";

/// All that the parameters may have, over the versions; more is refused.
const KNOWN: [&str; 15] = [
    "request_type",
    "first_gen_tokens",
    "first_gen_log_probs",
    "first_gen_logits",
    "ctx_request_id",
    "encoded_opaque_state",
    "draft_tokens",
    "disagg_request_id",
    "ctx_dp_rank",
    "ctx_info_endpoint",
    "schedule_style",
    "conversation_id",
    "ctx_usage",
    "return_prompt_token_ids_b64",
    "resolved_thinking",
];

/// Fields of chats and completions.
const FIELDS: [&str; 46] = [
    "model",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "user",
    "thinking_token_budget",
    "prompt_ignore_length",
    "best_of",
    "use_beam_search",
    "top_k",
    "top_p_min",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "early_stopping",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "lora_request",
    "add_special_tokens",
    "disaggregated_params",
    "priority",
    "conversation_params",
    "cache_salt",
    "echo",
    "suffix",
    "return_context_logits",
    "detokenize",
    "add_generation_prompt",
    "documents",
    "chat_template",
    "chat_template_kwargs",
];

/// Fields of chats alone.
const CHAT: [&str; 12] = [
    "messages",
    "prompt_token_ids",
    "prompt_token_ids_b64",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "thinking",
    "mm_processor_kwargs",
    "media_io_kwargs",
];

/// Fields of completions alone.
const COMPLETIONS: [&str; 1] = ["prompt"];

/// What routers write; all else must come back as it was.
const WRITTEN_BY_ROUTERS: [&str; 5] =
    ["request_type", "schedule_style", "conversation_id", "ctx_usage", "return_prompt_token_ids_b64"];

/// Ids below are an engine's own.
const MIN_GLOBAL_ID: u64 = 1 << 42;

#[derive(Debug)]
pub(super) struct Trtllm;

fn params(fields: &Fields) -> Result<Map<String, Value>, Refusal> {
    let params: Map<String, Value> = fields.required(PARAMS)?;
    match params.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        Some(name) => Err(bad(format!("{PARAMS}.{name}: Extra inputs are not permitted"))),
        None => Ok(params),
    }
}

fn global_id(params: &Map<String, Value>) -> Result<u64, Refusal> {
    let id = params.get("disagg_request_id").and_then(Value::as_u64);
    let id = id.filter(|id| (MIN_GLOBAL_ID..1 << 63).contains(id));
    id.ok_or_else(|| bad(format!("{PARAMS}.disagg_request_id: an integer in 2^42..2^63 is needed")))
}

/// What must come back: without what routers write, and without nulls, which are as good as absent.
fn terms(params: &Map<String, Value>) -> Value {
    let kept =
        |(name, value): &(&String, &Value)| !WRITTEN_BY_ROUTERS.contains(&name.as_str()) && !value.is_null();
    Value::Object(params.iter().filter(kept).map(|(name, value)| (name.clone(), value.clone())).collect())
}

impl Protocol for Trtllm {
    fn leg(&self, _: Role, endpoint: Endpoint, fields: &Fields) -> Leg {
        if !matches!(endpoint, Endpoint::Chat | Endpoint::Completions) {
            return Leg::Alone;
        }
        let Ok(Some(params)) = fields.get::<Map<String, Value>>(PARAMS) else { return Leg::Alone };
        match params.get("request_type").and_then(Value::as_str) {
            Some("context_only") => Leg::Prefill,
            // Whatever else it says is no ordinary request, and `decode` refuses it.
            _ => Leg::Decode,
        }
    }

    /// TensorRT-LLM takes no field that it doesn't know, and one name of a limit.
    fn check(&self, asked: &Asked) -> Result<(), Refusal> {
        let own: &[&str] = match asked.endpoint {
            Endpoint::Chat => &CHAT,
            Endpoint::Completions => &COMPLETIONS,
            _ => return Ok(()),
        };
        if let Some(name) = asked.fields.names().find(|name| !FIELDS.contains(name) && !own.contains(name)) {
            return Err(bad(format!("{name}: Extra inputs are not permitted")));
        }
        let limits = ["max_tokens", "max_completion_tokens"];
        if limits.iter().all(|name| asked.fields.raw(name).is_some()) {
            return Err(bad("max_completion_tokens: Extra inputs are not permitted beside max_tokens"));
        }
        Ok(())
    }

    fn prefill(&self, pod: &Transfer, asked: &Asked) -> Result<Offer, Refusal> {
        let given = params(asked.fields)?;
        let id = global_id(&given)?;
        if asked.body.stream {
            return Err(bad("stream: must be false where only the context is computed"));
        }
        if asked.fields.raw("stream_options").is_some() {
            return Err(bad("stream_options: only when stream is true"));
        }
        let key = super::uuid();
        let state = json!({"at": pod.side().to_string(), "key": key}).to_string();
        let told = json!({
            "ctx_request_id": super::random_beyond_doubles(),
            "disagg_request_id": id,
            "first_gen_tokens": [asked.answer.token(0)],
            "encoded_opaque_state": base64::encode(state.as_bytes()),
            "ctx_dp_rank": 0,
            "ctx_info_endpoint": format!("tcp://{}", pod.side()),
        });
        // A context that one token satisfies ends so; else it is told that there is more to come.
        let finish = if asked.body.max_tokens == Some(1) { "length" } else { "not_finished" };
        Ok(Offer { key, terms: told, until_fetched: false, finish: Some(finish) })
    }

    fn decode(&self, _: &Transfer, asked: &Asked) -> Result<Claim, Refusal> {
        let given = params(asked.fields)?;
        if given.get("request_type") != Some(&json!("generation_only")) {
            return Err(bad(format!("{PARAMS}.request_type: neither context_only nor generation_only")));
        }
        global_id(&given)?;
        for name in ["ctx_request_id", "first_gen_tokens"] {
            if given.get(name).is_none_or(Value::is_null) {
                return Err(bad(format!("{PARAMS}.{name}: missing in a request for generation only")));
            }
        }
        let opaque = given.get("encoded_opaque_state").and_then(Value::as_str).and_then(base64::decode);
        let state: Value = opaque.and_then(|state| serde_json::from_slice(&state).ok()).unwrap_or_default();
        let (Some(at), Some(key)) = (state["at"].as_str(), state["key"].as_str()) else {
            return Err(bad(format!(
                "{PARAMS}.encoded_opaque_state: missing, or not what a context server gave"
            )));
        };
        Ok(Claim {
            source: Source::At(at.to_owned()),
            key: key.to_owned(),
            terms: terms(&given),
            wait: false,
        })
    }

    fn tell(&self, terms: Value, endpoint: Endpoint, prompt: &[u32], answer: &mut Value) {
        let mut told = terms;
        told["request_type"] = json!("context_only");
        told["draft_tokens"] = Value::Null;
        told["schedule_style"] = json!(0);
        answer["choices"][0][PARAMS] = told;
        answer["prompt_token_ids"] = if endpoint == Endpoint::Chat { json!(prompt) } else { json!([prompt]) };
    }

    /// The answer of a context server that has nothing to go on with is the client's.
    fn hands_over_ends(&self) -> bool {
        false
    }

    /// A chat whose prompt has been rendered before.
    fn prompt(&self, endpoint: Endpoint, fields: &Fields) -> Result<Option<Vec<u32>>, Invalid> {
        if endpoint == Endpoint::Chat { fields.get("prompt_token_ids") } else { Ok(None) }
    }

    fn keys_of_routers(&self) -> bool {
        false
    }

    fn tells_prefill(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chat, plan};
    use super::super::{Kind, Plan};
    use super::*;

    const ID: u64 = (1 << 62) + 1;

    fn trtllm(params: Value, extra: Value) -> Result<Plan, String> {
        let mut body = chat(extra);
        body[PARAMS] = params;
        plan(Kind::Trtllm, Role::Both, Endpoint::Chat, None, &body)
    }

    fn handoff() -> (Offer, Value) {
        let context = json!({"request_type": "context_only", "disagg_request_id": ID, "schedule_style": 0});
        let Ok(Plan::Prefill(offer, _)) = trtllm(context, json!({})) else { panic!("no context") };
        let mut params = offer.terms.clone();
        params["request_type"] = json!("generation_only");
        params["ctx_usage"] = json!({"prompt_tokens": 1});
        (offer, params)
    }

    #[test]
    fn a_handoff_leads_back() {
        let (offer, params) = handoff();
        assert_eq!(offer.finish, Some("not_finished"));
        let Ok(Plan::Decode(claim, _)) = trtllm(params, json!({})) else { panic!("no generation") };
        assert_eq!((claim.key, claim.terms), (offer.key, offer.terms));
        assert!(matches!(claim.source, Source::At(at) if at == "127.0.0.1:7"));
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        let context = |id: Value| json!({"request_type": "context_only", "disagg_request_id": id});
        for (params, extra, why) in [
            (context(json!((1_u64 << 42) - 1)), json!({}), "disagg_request_id"),
            (context(json!(1_u64 << 63)), json!({}), "disagg_request_id"),
            (context(json!(9e15)), json!({}), "disagg_request_id"),
            (context(Value::Null), json!({}), "disagg_request_id"),
            (context(json!(ID)), json!({"stream": true}), "stream"),
            (context(json!(ID)), json!({"kv_transfer_params": null}), "kv_transfer_params: Extra inputs"),
            (context(json!(ID)), json!({"max_tokens": 1, "max_completion_tokens": 1}), "Extra inputs"),
            (json!({"request_type": "context_only", "disagg_id": ID}), json!({}), "Extra inputs"),
            (json!({"request_type": "context", "disagg_request_id": ID}), json!({}), "request_type"),
        ] {
            let told = trtllm(params, extra).unwrap_err();
            assert!(told.starts_with("400") && told.contains(why), "{told}");
        }
        for name in ["disagg_request_id", "ctx_request_id", "first_gen_tokens", "encoded_opaque_state"] {
            let (_, mut params) = handoff();
            params[name] = Value::Null;
            assert!(trtllm(params, json!({})).unwrap_err().contains(name));
        }
    }

    #[test]
    fn requests_without_parameters_are_ordinary() {
        assert!(matches!(trtllm(Value::Null, json!({})), Ok(Plan::Alone)));
    }
}
