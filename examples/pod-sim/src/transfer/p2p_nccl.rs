//! vLLM's P2pNcclConnector: the request's id names both pods, and is all that there is.
//!
//! As in `p2p/p2p_nccl_connector.py` of vLLM and its example proxy. The ids name the pods' KV ports, not those of HTTP; an id
//! that can't be read ends the engine. The real prefill sends KV, here the decode fetches it.

use std::net::SocketAddr;

use serde_json::json;

use super::{Asked, Claim, Leg, Offer, Protocol, Refusal, Role, Source, Transfer, broken};
use crate::endpoint::Endpoint;
use crate::fields::Fields;

#[derive(Debug)]
pub(super) struct P2pNccl;

struct Id {
    text: String,
    prefill: SocketAddr,
    decode: SocketAddr,
}

impl Id {
    fn read(asked: &Asked) -> Result<Self, Refusal> {
        let text = asked.request_id.unwrap_or_default();
        let parse = || {
            let (prefill, rest) = text.strip_prefix("___prefill_addr_")?.split_once("___decode_addr_")?;
            let (decode, uuid) = rest.split_once('_')?;
            let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let parts: Vec<&str> = uuid.split('-').collect();
            let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            let form = lengths == [32] || lengths == [8, 4, 4, 4, 12];
            if !form || !parts.into_iter().all(hex) {
                return None;
            }
            Some(Self { text: text.to_owned(), prefill: prefill.parse().ok()?, decode: decode.parse().ok()? })
        };
        parse().ok_or_else(|| {
            broken(format!(
                "Request id {text} does not contain hostname and port: it is not of the form \
                 ___prefill_addr_{{ip:port}}___decode_addr_{{ip:port}}_{{uuid}}"
            ))
        })
    }

    /// vLLM puts a prefix of the endpoint before it, so that the legs must be of one.
    fn key(&self, endpoint: Endpoint) -> String {
        format!("{}{}", endpoint.id_prefix(), self.text)
    }
}

fn is_this_pod(pod: &Transfer, role: &str, named: SocketAddr) -> Result<(), Refusal> {
    if named == pod.side() {
        return Ok(());
    }
    Err(broken(format!("the request id names {named} for {role}, and this pod's KV port is {}", pod.side())))
}

impl Protocol for P2pNccl {
    fn leg(&self, role: Role, _: Endpoint, _: &Fields) -> Leg {
        match role {
            Role::Prefill => Leg::Prefill,
            Role::Decode => Leg::Decode,
            Role::Both => Leg::Alone,
        }
    }

    fn prefill(&self, pod: &Transfer, asked: &Asked) -> Result<Offer, Refusal> {
        let id = Id::read(asked)?;
        is_this_pod(pod, "prefill", id.prefill)?;
        super::one_token(asked)?;
        Ok(Offer { key: id.key(asked.endpoint), terms: json!({}), until_fetched: false, finish: None })
    }

    fn decode(&self, pod: &Transfer, asked: &Asked) -> Result<Claim, Refusal> {
        let id = Id::read(asked)?;
        is_this_pod(pod, "decode", id.decode)?;
        // The prefill has been answered before; who waited here would wait for ever.
        let source = Source::At(id.prefill.to_string());
        Ok(Claim { source, key: id.key(asked.endpoint), terms: json!({}), wait: false })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chat, plan};
    use super::super::{Kind, Plan};
    use super::*;

    const UUID: &str = "0123456789abcdef0123456789ABCDEF";

    fn p2p(role: Role, id: &str) -> Result<Plan, String> {
        plan(Kind::P2pNccl, role, Endpoint::Chat, Some(id), &chat(json!({"max_tokens": 1})))
    }

    #[test]
    fn the_id_names_both_pods() {
        let id = format!("___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8_{UUID}");
        let Ok(Plan::Prefill(offer, _)) = p2p(Role::Prefill, &id) else { panic!("no prefill") };
        assert_eq!(offer.key, format!("chatcmpl-{id}"));
        let why = p2p(Role::Decode, &id).unwrap_err();
        assert!(why.starts_with("500") && why.contains("names 127.0.0.1:8 for decode"), "{why}");
        let id = format!("___prefill_addr_127.0.0.1:8___decode_addr_127.0.0.1:7_{UUID}");
        let Ok(Plan::Decode(claim, _)) = p2p(Role::Decode, &id) else { panic!("no decode") };
        assert!(matches!(claim.source, Source::At(at) if at == "127.0.0.1:8"));
        assert!(p2p(Role::Prefill, &id).unwrap_err().contains("for prefill"));
    }

    #[test]
    fn another_id_ends_the_engine() {
        for id in [
            "",
            UUID,
            "___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8",
            "___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8_",
            "___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8_1",
            "x___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8_0123456789abcdef0123456789abcdef",
            "___prefill_addr_127.0.0.1___decode_addr_127.0.0.1:8_0123456789abcdef0123456789abcdef",
            "___prefill_addr_127.0.0.1:7__decode_addr_127.0.0.1:8_0123456789abcdef0123456789abcdef",
        ] {
            for role in [Role::Prefill, Role::Decode] {
                let why = p2p(role, id).unwrap_err();
                assert!(why.starts_with("500 Request id"), "{id}: {why}");
            }
        }
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        assert!(
            p2p(Role::Prefill, &format!("___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8_{uuid}"))
                .is_ok()
        );
    }

    #[test]
    fn a_prefill_is_of_one_token_and_may_be_a_stream() {
        let id = format!("___prefill_addr_127.0.0.1:7___decode_addr_127.0.0.1:8_{UUID}");
        let ask = |extra| plan(Kind::P2pNccl, Role::Prefill, Endpoint::Chat, Some(&id), &chat(extra));
        assert!(ask(json!({"max_tokens": 1, "stream": true})).is_ok());
        assert!(ask(json!({"max_tokens": 5})).unwrap_err().starts_with("400 max_tokens"));
    }
}
