//! vLLM's NIXL connector: the prefill pod answers where its blocks are, and the decode pod fetches them.
//!
//! `vllm/distributed/kv_transfer/kv_connector/v1/nixl/`, as of vLLM 0.32. What the prefill pod answers is passed on as it is,
//! whatever it holds.

use super::{Body, Fields, Handoff, Leg, Order, Pair, Protocol, Spoken, vllm};
use crate::config::Mistakes;
use crate::request::{Edit, Endpoint, Outline};
use schemars::JsonSchema;
use serde::Deserialize;

/// vLLM with its NIXL connector. The prefill pod answers with `kv_transfer_params`, which the decode pod gets as they are and
/// fetches the blocks by.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nixl {}

/// What the prefill pod is told.
const ASK: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

impl Spoken for Nixl {
    const NAME: &'static str = "nixl";

    fn build(self, _path: &str, _mistakes: &mut Mistakes) -> Box<dyn Protocol> {
        Box::new(self)
    }
}

impl Protocol for Nixl {
    fn order(&self) -> Order {
        Order::InTurn
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        vllm::ENDPOINTS
    }

    fn own_fields(&self) -> &'static [&'static str] {
        vllm::OWN
    }

    fn decodes_alone(&self) -> bool {
        true
    }

    fn is_transferable(&self) -> bool {
        true
    }

    fn unfit(&self, body: &Body<'_>) -> Option<&'static str> {
        vllm::unfit(body)
    }

    fn strip(&self, body: &Fields<'_>) -> Vec<Edit<'static>> {
        vllm::strip(body)
    }

    fn prefill(&self, pair: &Pair<'_>) -> Leg {
        let mut edits = vllm::one_token(&pair.body);
        edits.push(Edit::set(vllm::PARAMS, ASK));
        Leg { edits, headers: Vec::new() }
    }

    fn decode(&self, _pair: &Pair<'_>, answer: &[u8]) -> Result<Handoff, String> {
        let outline = Outline::read(answer, &[vllm::PARAMS]).map_err(|error| error.to_string())?;
        match outline.value(answer, vllm::PARAMS) {
            Some(params @ [b'{', ..]) => {
                whole(params)?;
                let edits = vec![Edit::set(vllm::PARAMS, params.to_vec())];
                Ok(Handoff::Decode(Leg { edits, headers: Vec::new() }))
            }
            // The prefill ended before it was done, or with nothing to fetch.
            Some(b"null") => Ok(Handoff::Nothing),
            _ => Err(format!(
                "the answer has no {}; start the prefill engine with --kv-transfer-config '{{\"kv_connector\":\"NixlConnector\",...}}'",
                vllm::PARAMS
            )),
        }
    }
}

/// An engine that is told to fetch, but not from where, crashes or waits for ever.
fn whole(params: &[u8]) -> Result<(), String> {
    const NEEDED: [&str; 5] =
        ["do_remote_prefill", "remote_block_ids", "remote_engine_id", "remote_host", "remote_port"];
    let outline = Outline::read(params, &NEEDED).map_err(|error| error.to_string())?;
    let is_there = |name: &&str| {
        let Some(value) = outline.value(params, name) else { return false };
        match *name {
            "do_remote_prefill" => value == b"true",
            // One list for each group of layers, or one list.
            "remote_block_ids" => value.first() == Some(&b'[') && value.iter().any(u8::is_ascii_digit),
            _ => !matches!(value, b"null" | b"\"\""),
        }
    };
    match NEEDED.iter().find(|name| !is_there(name)) {
        None => Ok(()),
        Some(missing) => Err(format!("its {} say nothing of {missing}", vllm::PARAMS)),
    }
}
