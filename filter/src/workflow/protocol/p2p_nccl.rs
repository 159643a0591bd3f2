//! vLLM's P2P NCCL connector: the name of the request says which pods send and receive.
//!
//! `vllm/distributed/kv_transfer/kv_connector/v1/p2p/` up to June 2026; newer vLLM has no such connector, and from 0.14 on it
//! wants `VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1`. The prefill pod pushes to the decode pod that the name has, so no other can
//! take its place, and an engine whose request names no address crashes or waits for ever: neither serves anything alone.

use super::{
    Body, Fields, Handoff, Leg, Order, Pair, Protocol, Spoken, kv_address, vllm, without_kv_address,
    without_ranks,
};
use crate::config::Mistakes;
use crate::pods::Pod;
use crate::request::{Edit, Endpoint};
use schemars::JsonSchema;
use serde::Deserialize;

/// vLLM with its P2P NCCL connector, as it was up to mid-2026. `x-request-id` names both pods, and with it the `id` of the
/// answer. A pod that decodes serves nothing alone, and nobody can take its place.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct P2pNccl {
    /// Port at which pods hand over KV, if their labels `kv_port` and `kv_host` name no other port and host. The default is
    /// vLLM's own `kv_port`.
    #[serde(default = "port")]
    port: u16,
}

fn port() -> u16 {
    14_579
}

const REQUEST_ID: &str = "x-request-id";
/// The field that vLLM takes for the request's name, too.
const NAME: &str = "request_id";

impl Spoken for P2pNccl {
    const NAME: &'static str = "p2p-nccl";

    fn build(self, _path: &str, _mistakes: &mut Mistakes) -> Box<dyn Protocol> {
        Box::new(self)
    }
}

impl P2pNccl {
    fn headers(&self, pair: &Pair<'_>) -> Vec<(&'static str, String)> {
        let address = |pod| {
            let (host, port) = kv_address(pod, self.port).unwrap_or_default();
            format!("{host}:{port}")
        };
        let (prefill, decode) = (address(pair.prefill), address(pair.decode));
        let uuid = pair.uuid().replace('-', "");
        vec![(REQUEST_ID, format!("___prefill_addr_{prefill}___decode_addr_{decode}_{uuid}"))]
    }
}

impl Protocol for P2pNccl {
    fn order(&self) -> Order {
        Order::InTurn
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        &[Endpoint::Chat, Endpoint::Completions]
    }

    fn own_fields(&self) -> &'static [&'static str] {
        &[NAME, vllm::PARAMS, "ec_transfer_params"]
    }

    fn own_headers(&self) -> &'static [&'static str] {
        &[REQUEST_ID]
    }

    fn sets_headers(&self) -> bool {
        true
    }

    fn decodes_alone(&self) -> bool {
        false
    }

    fn is_transferable(&self) -> bool {
        false
    }

    fn unfit_pod(&self, pod: &Pod) -> Option<String> {
        without_ranks(pod).or_else(|| without_kv_address(pod, self.port))
    }

    fn unfit(&self, body: &Body<'_>) -> Option<&'static str> {
        vllm::unfit(body)
    }

    fn strip(&self, body: &Fields<'_>) -> Vec<Edit<'static>> {
        let mut edits = vllm::strip(body);
        edits.extend(body.without(&[NAME]));
        edits
    }

    fn prefill(&self, pair: &Pair<'_>) -> Leg {
        Leg { edits: vllm::one_token(&pair.body), headers: self.headers(pair) }
    }

    fn decode(&self, pair: &Pair<'_>, _answer: &[u8]) -> Result<Handoff, String> {
        Ok(Handoff::Decode(Leg { edits: Vec::new(), headers: self.headers(pair) }))
    }
}
