//! vLLM's NixlConnector: the prefill's answer carries `kv_transfer_params`, which the decode gets back as they are.
//!
//! As in `nixl/base_scheduler.py` and `nixl/pull_scheduler.py` of vLLM, where every engine can be either side: a request without
//! parameters is an ordinary one.

use serde_json::{Map, Value, json};

use super::{Asked, Claim, Leg, Offer, Protocol, Refusal, Role, Source, Transfer, bad};
use crate::endpoint::Endpoint;
use crate::fields::Fields;

/// The request's field, and the answer's.
pub(super) const PARAMS: &str = "kv_transfer_params";

#[derive(Debug)]
pub(super) struct Nixl;

/// Reads which leg parameters of vLLM's connectors ask for.
pub(super) fn leg(fields: &Fields) -> Leg {
    let Ok(Some(params)) = fields.get::<Map<String, Value>>(PARAMS) else { return Leg::Alone };
    let asks = |name: &str| params.get(name) == Some(&Value::Bool(true));
    match (asks("do_remote_decode"), asks("do_remote_prefill")) {
        (true, _) => Leg::Prefill,
        (_, true) => Leg::Decode,
        _ => Leg::Alone,
    }
}

/// The parameters, which must not ask for both.
pub(super) fn params(asked: &Asked) -> Result<Map<String, Value>, Refusal> {
    let params: Map<String, Value> = asked.fields.required(PARAMS)?;
    if params.get("do_remote_decode") == Some(&json!(true))
        && params.get("do_remote_prefill") == Some(&json!(true))
    {
        return Err(bad(format!("{PARAMS}: do_remote_decode and do_remote_prefill can't both be true")));
    }
    Ok(params)
}

impl Protocol for Nixl {
    fn leg(&self, _: Role, _: Endpoint, fields: &Fields) -> Leg {
        leg(fields)
    }

    fn prefill(&self, pod: &Transfer, asked: &Asked) -> Result<Offer, Refusal> {
        let params = params(asked)?;
        super::one_token_whole(asked)?;
        // The engine would take them for KV to fetch.
        for name in ["remote_engine_id", "remote_block_ids", "remote_host", "remote_port"] {
            if params.get(name).is_some_and(|value| !value.is_null()) {
                return Err(bad(format!("{PARAMS}.{name}: must be null where a prompt is to be computed")));
            }
        }
        let request = format!("{}-{:08x}", asked.id, super::random() as u32);
        let first = super::random() % 1_000_000;
        let blocks: Vec<u64> = (0..asked.blocks as u64).map(|index| first + index).collect();
        let terms = json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [blocks],
            "remote_engine_id": pod.engine_id(),
            "remote_request_id": request,
            "remote_host": pod.side().ip().to_string(),
            "remote_port": pod.side().port(),
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": asked.body.prompts[0].len(),
            "remote_blocks_expiry_time": null,
            "transfer_mode": "pull",
            // What some later version may add: nothing that a router may read, drop or round.
            "sim_lease": super::random_beyond_doubles(),
            "sim_layout": {"groups": [{"heads": 8, "scale": null}], "epoch": -(super::random_beyond_doubles() as i64)},
        });
        Ok(Offer { key: request, terms, until_fetched: false, finish: None })
    }

    fn decode(&self, _: &Transfer, asked: &Asked) -> Result<Claim, Refusal> {
        let terms = params(asked)?;
        let missing = |name: &str| bad(format!("{PARAMS}.{name}: missing, so there is no KV to fetch"));
        for name in ["remote_block_ids", "remote_engine_id"] {
            if terms.get(name).is_none_or(Value::is_null) {
                return Err(missing(name));
            }
        }
        let text = |name: &str| terms.get(name).and_then(Value::as_str).ok_or_else(|| missing(name));
        let port = terms.get("remote_port").and_then(Value::as_u64).ok_or_else(|| missing("remote_port"))?;
        let source = Source::At(format!("{}:{port}", text("remote_host")?));
        let key = text("remote_request_id")?.to_owned();
        Ok(Claim { source, key, terms: Value::Object(terms), wait: false })
    }

    fn tell(&self, terms: Value, _: Endpoint, _: &[u32], answer: &mut Value) {
        answer[PARAMS] = terms;
    }

    fn terms(&self, offer: &Offer, cached: usize) -> Value {
        let mut terms = offer.terms.clone();
        terms["remote_prefill_cached_tokens"] = json!(cached);
        terms
    }

    /// By the last of these parameters.
    fn tells_prefill(&self) -> bool {
        true
    }

    fn keys_of_routers(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chat, plan};
    use super::super::{Kind, Plan};
    use super::*;

    fn nixl(params: &Value) -> Result<Plan, String> {
        let body = chat(json!({"max_tokens": 1, PARAMS: params}));
        plan(Kind::Nixl, Role::Both, Endpoint::Chat, None, &body)
    }

    #[test]
    fn a_handoff_has_all_fields_and_leads_back() {
        let asked = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_host": null});
        let Ok(Plan::Prefill(offer, _)) = nixl(&asked) else { panic!("no prefill") };
        assert_eq!(offer.terms["remote_block_ids"][0].as_array().unwrap().len(), 3);
        assert_eq!(
            (&offer.terms["remote_host"], &offer.terms["remote_port"]),
            (&json!("127.0.0.1"), &json!(7))
        );
        assert!(offer.terms["sim_lease"].as_u64().unwrap() > 1 << 53);
        let Ok(Plan::Decode(claim, _)) = nixl(&offer.terms) else { panic!("no decode") };
        assert_eq!((claim.key, claim.terms), (offer.key, offer.terms));
        assert!(matches!(claim.source, Source::At(at) if at == "127.0.0.1:7"));
    }

    #[test]
    fn requests_without_a_leg_are_ordinary() {
        for params in [json!(null), json!({}), json!({"do_remote_decode": false, "do_remote_prefill": false})]
        {
            assert!(matches!(nixl(&params), Ok(Plan::Alone)), "{params}");
        }
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        for (params, named) in [
            (json!({"do_remote_decode": true, "do_remote_prefill": true}), "both"),
            (json!({"do_remote_decode": true, "remote_block_ids": [[1]]}), "remote_block_ids"),
            (json!({"do_remote_prefill": true}), "remote_block_ids"),
            (
                json!({"do_remote_prefill": true, "remote_block_ids": [[1]], "remote_engine_id": "e"}),
                "remote_port",
            ),
        ] {
            let why = nixl(&params).unwrap_err();
            assert!(why.starts_with("400") && why.contains(named), "{params}: {why}");
        }
    }
}
