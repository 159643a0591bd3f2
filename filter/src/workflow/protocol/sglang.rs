//! SGLang's bootstrap: both pods get the same request at once, with the prefill pod's bootstrap server and a room in which
//! they meet.
//!
//! `python/sglang/srt/disaggregation/`, as of 0.5.23. The room is a number of 63 bits. Engines that were started with
//! `--disaggregation-mode` serve nothing without one. The prefill pod samples the first token, which is the client's, so both get
//! all of the request; it answers when the decode pod has the KV.

use super::{Handoff, Leg, Order, Pair, Protocol, Spoken, kv_address, without_kv_address, without_ranks};
use crate::config::Mistakes;
use crate::pods::Pod;
use crate::request::{Edit, Endpoint};
use schemars::JsonSchema;
use serde::Deserialize;

/// SGLang. Both pods get the request at once, with the address of the prefill pod's bootstrap server and a room. Pods with
/// `--disaggregation-mode` serve nothing alone: for requests in one step name a profile of ordinary pods in `aggregated`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sglang {
    /// Port at which pods hand over KV, if their labels `kv_port` and `kv_host` name no other port and host. The default is
    /// that of `--disaggregation-bootstrap-port`.
    #[serde(default = "port")]
    port: u16,
}

fn port() -> u16 {
    8998
}

const OWN: &[&str] = &[
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "decode_tp_size",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "kv_hints",
    "routed_dp_rank",
];
/// What takes the place of these fields where an engine allows it.
const OWN_HEADERS: &[&str] = &[
    "x-override-bootstrap-host",
    "x-override-bootstrap-port",
    "x-override-bootstrap-room",
    "x-override-disagg-prefill-dp-rank",
    "x-override-routed-dp-rank",
];

impl Spoken for Sglang {
    const NAME: &'static str = "sglang";

    fn build(self, _path: &str, _mistakes: &mut Mistakes) -> Box<dyn Protocol> {
        Box::new(self)
    }
}

impl Sglang {
    fn leg(&self, pair: &Pair<'_>) -> Leg {
        let (host, port) = kv_address(pair.prefill, self.port).unwrap_or_default();
        // Neither 0, which never comes to an end, nor near the bound, which batches count up to.
        let room = ((pair.secret as u64) >> 2) + 1;
        let edits = vec![
            Edit::set("bootstrap_host", serde_json::Value::from(host).to_string().into_bytes()),
            Edit::set("bootstrap_port", port.to_string().into_bytes()),
            Edit::set("bootstrap_room", room.to_string().into_bytes()),
        ];
        Leg { edits, headers: Vec::new() }
    }
}

impl Protocol for Sglang {
    fn order(&self) -> Order {
        Order::AtOnce
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        &[Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages, Endpoint::Generate]
    }

    fn own_fields(&self) -> &'static [&'static str] {
        OWN
    }

    fn own_headers(&self) -> &'static [&'static str] {
        OWN_HEADERS
    }

    fn decodes_alone(&self) -> bool {
        false
    }

    fn is_transferable(&self) -> bool {
        true // It meets in the room whoever comes there first.
    }

    fn unfit_pod(&self, pod: &Pod) -> Option<String> {
        without_ranks(pod).or_else(|| without_kv_address(pod, self.port))
    }

    fn stays_at_decode(&self) -> bool {
        false // A decode server has no prefix cache unless it is told to.
    }

    fn prefill(&self, pair: &Pair<'_>) -> Leg {
        let mut leg = self.leg(pair);
        // Its answer is nobody's; but what goes wrong is told by its status only where it isn't streamed.
        leg.edits.extend([Edit::set("stream", &b"false"[..]), Edit::Remove("stream_options")]);
        leg
    }

    fn decode(&self, pair: &Pair<'_>, _answer: &[u8]) -> Result<Handoff, String> {
        Ok(Handoff::Decode(self.leg(pair)))
    }
}
