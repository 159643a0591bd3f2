//! A sixth protocol that no engine speaks: that one file and one line are all that it takes, and that whatever it needs goes through
//! the same steps. In turn, with a question, headers and a ticket in the body.

use super::{Handoff, Leg, Order, Pair, Protocol, Question, Spoken};
use crate::config::Mistakes;
use crate::pods::Pod;
use crate::request::{Edit, Endpoint, Outline};
use schemars::JsonSchema;
use serde::Deserialize;

/// Spoken by nobody.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MadeUp {
    /// Both at once.
    #[serde(default)]
    at_once: bool,
    /// With a question.
    #[serde(default)]
    asks: bool,
}

impl Spoken for MadeUp {
    const NAME: &'static str = "made-up";

    fn build(self, _path: &str, _mistakes: &mut Mistakes) -> Box<dyn Protocol> {
        Box::new(self)
    }
}

impl Protocol for MadeUp {
    fn order(&self) -> Order {
        if self.at_once { Order::AtOnce } else { Order::InTurn }
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        &[Endpoint::Chat]
    }

    fn own_fields(&self) -> &'static [&'static str] {
        &["ticket"]
    }

    fn own_headers(&self) -> &'static [&'static str] {
        &["x-ticket"]
    }

    fn decodes_alone(&self) -> bool {
        true
    }

    fn is_transferable(&self) -> bool {
        true
    }

    fn question(&self, prefill: &Pod) -> Option<Question> {
        let address = prefill.target.clone();
        self.asks.then(|| Question { cluster: "desk".into(), address, path: "/name" })
    }

    fn learn(&self, answer: &[u8]) -> Result<String, String> {
        String::from_utf8(answer.to_vec()).map_err(|error| error.to_string())
    }

    fn prefill(&self, pair: &Pair<'_>) -> Leg {
        let ticket = format!("\"for {}\"", pair.decode.name);
        Leg {
            edits: vec![Edit::set("ticket", ticket.into_bytes()), Edit::set("stream", &b"false"[..])],
            headers: vec![("x-ticket", format!("prefill {}", pair.learnt))],
        }
    }

    fn decode(&self, pair: &Pair<'_>, answer: &[u8]) -> Result<Handoff, String> {
        let headers = vec![("x-ticket", format!("decode {}", pair.prefill.name))];
        if self.at_once {
            let edits = vec![Edit::set("ticket", pair.secret.to_string().into_bytes())];
            return Ok(Handoff::Decode(Leg { edits, headers }));
        }
        let outline = Outline::read(answer, &["ticket"]).map_err(|error| error.to_string())?;
        match outline.value(answer, "ticket") {
            Some(b"null") => Ok(Handoff::Nothing),
            Some(ticket) => {
                Ok(Handoff::Decode(Leg { edits: vec![Edit::set("ticket", ticket.to_vec())], headers }))
            }
            None => Err("it has no ticket".to_owned()),
        }
    }
}
