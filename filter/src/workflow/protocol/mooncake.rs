//! vLLM's Mooncake connector: the request bears the name of a transfer, and the decode pod asks for it at the engine that the
//! prefill pod's bootstrap server named.
//!
//! `vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py`, as of vLLM 0.32. The two may get it at once; in
//! turn is the same to them, and only so it is known whether there will be a transfer: an engine that prefilled and then ended for
//! another reason than its length, or failed, leaves the decode pod waiting for 480 s.

use super::{
    Body, Fields, Handoff, Leg, Order, Pair, Protocol, Question, Spoken, kv_address, vllm,
    without_kv_address, without_ranks,
};
use crate::config::Mistakes;
use crate::pods::Pod;
use crate::request::{Edit, Endpoint};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// vLLM with its Mooncake connector. The prefill pod's bootstrap server is asked for the name of its engine first; the decode
/// pod asks it for the transfer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mooncake {
    /// Port at which pods hand over KV, if their labels `kv_port` and `kv_host` name no other port and host. The default is
    /// that of `VLLM_MOONCAKE_BOOTSTRAP_PORT`.
    #[serde(default = "port")]
    port: u16,
    /// Envoy cluster with `override_host` that has the prefill pods' bootstrap servers as endpoints.
    bootstrap_cluster: String,
}

fn port() -> u16 {
    8998
}

/// Longest name of an engine.
const MAX_ENGINE_ID: usize = 256;

impl Spoken for Mooncake {
    const NAME: &'static str = "mooncake";

    fn build(self, path: &str, mistakes: &mut Mistakes) -> Box<dyn Protocol> {
        if self.bootstrap_cluster.is_empty() {
            mistakes.add(format!("{path}.bootstrap_cluster"), "is empty; name an Envoy cluster");
        }
        Box::new(self)
    }
}

/// What a bootstrap server says of each data-parallel rank.
#[derive(Deserialize)]
struct Rank {
    engine_id: String,
}

impl Mooncake {
    fn address(&self, pod: &Pod) -> String {
        let (host, port) = kv_address(pod, self.port).unwrap_or_default();
        format!("{host}:{port}")
    }

    fn transfer(pair: &Pair<'_>) -> String {
        format!("xfer-{}", pair.uuid())
    }
}

impl Protocol for Mooncake {
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

    fn unfit_pod(&self, pod: &Pod) -> Option<String> {
        without_ranks(pod).or_else(|| without_kv_address(pod, self.port))
    }

    fn clusters(&self) -> Vec<&str> {
        vec![&self.bootstrap_cluster]
    }

    fn question(&self, prefill: &Pod) -> Option<Question> {
        let (cluster, address) = (self.bootstrap_cluster.clone(), self.address(prefill));
        Some(Question { cluster, address, path: "/query" })
    }

    fn learn(&self, answer: &[u8]) -> Result<String, String> {
        let ranks: BTreeMap<String, Rank> =
            serde_json::from_slice(answer).map_err(|error| error.to_string())?;
        let engine = ranks.into_values().next().map(|rank| rank.engine_id);
        engine
            .filter(|id| (1..=MAX_ENGINE_ID).contains(&id.len()))
            .ok_or_else(|| "no engine has registered there, or one without a name".to_owned())
    }

    fn unfit(&self, body: &Body<'_>) -> Option<&'static str> {
        vllm::unfit(body)
    }

    fn strip(&self, body: &Fields<'_>) -> Vec<Edit<'static>> {
        vllm::strip(body)
    }

    fn prefill(&self, pair: &Pair<'_>) -> Leg {
        let params = serde_json::json!({
            "do_remote_decode": true, "do_remote_prefill": false, "transfer_id": Self::transfer(pair),
        });
        let mut edits = vllm::one_token(&pair.body);
        edits.push(Edit::set(vllm::PARAMS, params.to_string().into_bytes()));
        Leg { edits, headers: Vec::new() }
    }

    fn decode(&self, pair: &Pair<'_>, answer: &[u8]) -> Result<Handoff, String> {
        // By its length, as each of vLLM's endpoints says it.
        match vllm::finish_reason(answer).as_deref() {
            Some("length" | "max_tokens" | "incomplete") => {}
            Some(_) => return Ok(Handoff::Nothing),
            None => return Err("it doesn't say how it ended".to_owned()),
        }
        let params = serde_json::json!({
            "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": Self::transfer(pair),
            "remote_bootstrap_addr": format!("http://{}", self.address(pair.prefill)),
            "remote_engine_id": pair.learnt,
        });
        let edits = vec![Edit::set(vllm::PARAMS, params.to_string().into_bytes())];
        Ok(Handoff::Decode(Leg { edits, headers: Vec::new() }))
    }
}
