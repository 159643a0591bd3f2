//! SGLang: both servers get the same body at once, with `bootstrap_host`, `bootstrap_port` and `bootstrap_room` in it.
//!
//! As in `disaggregation/prefill.py` and `decode.py` of SGLang: each server has one role and serves nothing without a room; the
//! prefill server generates one token, whatever is asked for, and answers when its KV has been fetched.

use serde_json::json;

use super::{Asked, Claim, Leg, Offer, Protocol, Refusal, Role, Source, Transfer, bad};
use crate::endpoint::Endpoint;
use crate::fields::Fields;

/// The port that SGLang takes for bootstrapping unless told otherwise.
const PORT: u16 = 8998;

#[derive(Debug)]
pub(super) struct Sglang;

struct Room {
    host: String,
    port: u16,
    room: u64,
}

impl Room {
    fn read(asked: &Asked) -> Result<Self, Refusal> {
        if asked.fields.raw("bootstrap_room").is_none() {
            return Err(bad("Invalid request: Disaggregated request received without bootstrap room id."));
        }
        let room: u64 = asked.fields.required("bootstrap_room")?;
        // To the decode server, 0 is a room whose KV has not come yet.
        if room == 0 || room >= 1 << 63 {
            return Err(bad(format!("bootstrap_room: {room} is not in 1..2^63")));
        }
        let port = asked.fields.get("bootstrap_port")?.unwrap_or(PORT);
        Ok(Self { host: asked.fields.required("bootstrap_host")?, port, room })
    }

    fn terms(&self) -> serde_json::Value {
        json!({"bootstrap_host": self.host, "bootstrap_port": self.port, "bootstrap_room": self.room})
    }

    fn key(&self) -> String {
        format!("bootstrap_room {}", self.room)
    }
}

impl Protocol for Sglang {
    fn leg(&self, role: Role, _: Endpoint, _: &Fields) -> Leg {
        match role {
            Role::Prefill => Leg::Prefill,
            Role::Decode => Leg::Decode,
            Role::Both => Leg::Alone,
        }
    }

    fn prefill(&self, _: &Transfer, asked: &Asked) -> Result<Offer, Refusal> {
        let room = Room::read(asked)?;
        Ok(Offer { key: room.key(), terms: room.terms(), until_fetched: true, finish: Some("length") })
    }

    fn decode(&self, _: &Transfer, asked: &Asked) -> Result<Claim, Refusal> {
        let room = Room::read(asked)?;
        let source = Source::At(format!("{}:{}", room.host, room.port));
        Ok(Claim { source, key: room.key(), terms: room.terms(), wait: true })
    }

    fn tells_prefill(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chat, plan, plan_at, transfer};
    use super::super::{Kind, Plan};
    use super::*;
    use serde_json::Value;

    fn sglang(role: Role, extra: Value) -> Result<Plan, String> {
        plan(Kind::Sglang, role, Endpoint::Chat, None, &chat(extra))
    }

    #[test]
    fn one_body_serves_both() {
        let body =
            json!({"bootstrap_host": "h", "bootstrap_port": 9, "bootstrap_room": i64::MAX, "stream": true});
        let Ok(Plan::Prefill(offer, _)) = sglang(Role::Prefill, body.clone()) else { panic!("no prefill") };
        let Ok(Plan::Decode(claim, _)) = sglang(Role::Decode, body) else { panic!("no decode") };
        assert_eq!((claim.key, claim.terms), (offer.key, offer.terms));
        assert!(offer.until_fetched && claim.wait);
        assert!(matches!(claim.source, Source::At(at) if at == "h:9"));
    }

    #[test]
    fn without_a_whole_room_nothing_is_served() {
        for role in [Role::Prefill, Role::Decode] {
            for (extra, why) in [
                (json!({}), "without bootstrap room id"),
                (json!({"bootstrap_room": 1}), "bootstrap_host"),
                (json!({"bootstrap_room": "1", "bootstrap_host": "h"}), "bootstrap_room"),
                (json!({"bootstrap_room": 1.0, "bootstrap_host": "h"}), "bootstrap_room"),
                (json!({"bootstrap_room": -1, "bootstrap_host": "h"}), "bootstrap_room"),
                (json!({"bootstrap_room": 1_u64 << 63, "bootstrap_host": "h"}), "2^63"),
                (json!({"bootstrap_room": 0, "bootstrap_host": "h"}), "2^63"),
                (
                    json!({"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": "9"}),
                    "bootstrap_port",
                ),
            ] {
                let told = sglang(role, extra).unwrap_err();
                assert!(told.starts_with("400") && told.contains(why), "{told}");
            }
        }
    }

    #[test]
    fn a_room_serves_one_request_at_once() {
        let pod = transfer(Kind::Sglang, Role::Prefill);
        let body = chat(json!({"bootstrap_host": "h", "bootstrap_port": 9, "bootstrap_room": 4}));
        let first = plan_at(&pod, Endpoint::Chat, None, &body).unwrap();
        assert!(plan_at(&pod, Endpoint::Chat, None, &body).unwrap_err().contains("in use"));
        drop(first);
        assert!(plan_at(&pod, Endpoint::Chat, None, &body).is_ok());
    }
}
