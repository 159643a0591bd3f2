//! vLLM's MooncakeConnector: both pods get their leg at once, under a `transfer_id` that the router makes.
//!
//! As in `mooncake/mooncake_connector.py` and `mooncake_utils.py` of vLLM: routers ask the prefill pod's bootstrap server for its
//! engine's id, and so does the decode pod, which finds there the worker to fetch from.

use serde_json::{Map, Value, json};

use super::nixl::{PARAMS, leg, params};
use super::{Asked, Claim, Leg, Offer, Protocol, Refusal, Role, Source, Transfer, bad, wire};
use crate::endpoint::Endpoint;
use crate::fields::Fields;

/// Where the bootstrap server tells which engines it knows.
const QUERY: &str = "/query";

#[derive(Debug)]
pub(super) struct Mooncake;

fn text<'a>(params: &'a Map<String, Value>, name: &str) -> Result<&'a str, Refusal> {
    let text = params.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.ok_or_else(|| bad(format!("{PARAMS}.{name}: missing, so KV can't be transferred")))
}

fn terms(transfer: &str, engine: &str) -> Value {
    json!({"transfer_id": transfer, "remote_engine_id": engine})
}

impl Protocol for Mooncake {
    fn leg(&self, _: Role, _: Endpoint, fields: &Fields) -> Leg {
        leg(fields)
    }

    fn prefill(&self, pod: &Transfer, asked: &Asked) -> Result<Offer, Refusal> {
        let params = params(asked)?;
        super::one_token_whole(asked)?;
        let transfer = text(&params, "transfer_id")?;
        let terms = terms(transfer, &pod.engine_id());
        Ok(Offer { key: transfer.to_owned(), terms, until_fetched: false, finish: None })
    }

    fn decode(&self, _: &Transfer, asked: &Asked) -> Result<Claim, Refusal> {
        let params = params(asked)?;
        let engine = text(&params, "remote_engine_id")?;
        let transfer = text(&params, "transfer_id")?;
        let address = text(&params, "remote_bootstrap_addr")?;
        let Some(bootstrap) = address.strip_prefix("http://").filter(|rest| !rest.contains('/')) else {
            return Err(bad(format!("{PARAMS}.remote_bootstrap_addr: {address} is not http://HOST:PORT")));
        };
        let source = Source::Engine { bootstrap: bootstrap.to_owned(), id: engine.to_owned() };
        Ok(Claim { source, key: transfer.to_owned(), terms: terms(transfer, engine), wait: true })
    }

    /// Only what ended by its length is handed over.
    fn hands_over_ends(&self) -> bool {
        false
    }

    /// By rank of data, then of tensor and pipeline parallelism; there is one of each.
    fn lookup(&self, pod: &Transfer, path: &str) -> Option<Value> {
        let worker = format!("tcp://{}", pod.side());
        (path == QUERY && pod.settings().role != Role::Decode)
            .then(|| json!({"0": {"engine_id": pod.engine_id(), "worker_addr": {"0": {"0": worker}}}}))
    }
}

/// Asks a bootstrap server where an engine's worker is.
pub(super) async fn find(bootstrap: &str, engine: &str) -> Result<String, String> {
    let known = wire::get(bootstrap, QUERY).await?;
    let entries = known.as_object().into_iter().flat_map(Map::values);
    let entry = entries.into_iter().find(|entry| entry["engine_id"] == engine);
    let worker = entry.and_then(|entry| entry["worker_addr"]["0"]["0"].as_str()?.strip_prefix("tcp://"));
    worker
        .map(str::to_owned)
        .ok_or_else(|| format!("remote engine_id {engine} not found from bootstrap server {bootstrap}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chat, plan, plan_at, transfer};
    use super::super::{Kind, Plan};
    use super::*;

    fn mooncake(role: Role, params: Value) -> Result<Plan, String> {
        plan(Kind::Mooncake, role, Endpoint::Chat, None, &chat(json!({"max_tokens": 1, PARAMS: params})))
    }

    #[test]
    fn the_legs_meet_under_the_transfer_s_id() {
        let pod = transfer(Kind::Mooncake, Role::Prefill);
        let known = pod.lookup(QUERY).unwrap();
        assert_eq!(known["0"]["worker_addr"]["0"]["0"], "tcp://127.0.0.1:7");
        assert_eq!(transfer(Kind::Mooncake, Role::Decode).lookup(QUERY), None);
        let prefill = json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "xfer-1"});
        let body = chat(json!({"max_tokens": 1, PARAMS: prefill}));
        let Ok(Plan::Prefill(offer, _)) = plan_at(&pod, Endpoint::Chat, None, &body) else {
            panic!("no prefill")
        };
        let decode = json!({"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": "xfer-1",
            "remote_engine_id": known["0"]["engine_id"], "remote_bootstrap_addr": "http://h:8998"});
        let Ok(Plan::Decode(claim, _)) = mooncake(Role::Decode, decode) else { panic!("no decode") };
        assert_eq!((claim.key, claim.terms), (offer.key, offer.terms));
        assert!(claim.wait && !offer.until_fetched);
        assert!(matches!(claim.source, Source::Engine { bootstrap, .. } if bootstrap == "h:8998"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let why = mooncake(Role::Both, json!({"do_remote_decode": true})).unwrap_err();
        assert!(why.starts_with("400") && why.contains("transfer_id"), "{why}");
        let whole = json!({"do_remote_prefill": true, "transfer_id": "x", "remote_engine_id": "e",
            "remote_bootstrap_addr": "http://h:1"});
        for name in ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"] {
            let mut params = whole.clone();
            params.as_object_mut().unwrap().remove(name);
            let why = mooncake(Role::Both, params).unwrap_err();
            assert!(why.starts_with("400") && why.contains(name), "{why}");
        }
        for address in ["h:1", "https://h:1", "http://h:1/query"] {
            let mut params = whole.clone();
            params["remote_bootstrap_addr"] = json!(address);
            assert!(mooncake(Role::Both, params).unwrap_err().contains("http://HOST:PORT"));
        }
    }
}
