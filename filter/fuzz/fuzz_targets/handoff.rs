//! Any bytes as a client's body and as a prefill pod's answer, before a NUL and after it: by each protocol the legs are what the body
//! was, but for the fields that the protocol edits, and no field that only a router may set is a client's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use warmpath::config::Mistakes;
use warmpath::pods::Pod;
use warmpath::request::{Edit, Endpoint, Outline};
use warmpath::workflow::protocol::{Body, FIELDS, Fields, Handoff, PROTOCOLS, Pair, Protocol};

/// Fields of an object by their last value, as engines read it.
fn fields(body: &[u8]) -> Option<BTreeMap<String, &str>> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).ok()?;
    Some(fields.into_iter().map(|(name, value)| (name, value.get())).collect())
}

fn pod(name: &str, address: &str) -> Pod {
    Pod {
        name: name.to_owned(),
        target: address.to_owned(),
        models: Vec::new(),
        labels: BTreeMap::new(),
        weight: 1.0,
        max_in_flight: None,
        ranks: 1,
        found: false,
    }
}

fn check(protocol: &dyn Protocol, body: &Body<'_>, before: &BTreeMap<String, &str>, leg: Vec<Edit<'static>>) {
    let edited: Vec<_> = leg.iter().map(|edit| edit.name()).collect();
    let stripped: Vec<_> = protocol.strip(body).iter().map(|edit| edit.name()).collect();
    let after = body.edited(protocol.strip(body), leg);
    let after = fields(&after).expect("it is JSON as it was");
    for (name, value) in &after {
        let ours = edited.contains(&name.as_str()) || stripped.contains(&name.as_str());
        assert!(ours || before.get(name) == Some(value), "{name} was changed");
        assert!(edited.contains(&name.as_str()) || !protocol.own_fields().contains(&name.as_str()), "{name} is a client's");
    }
    for name in before.keys() {
        let ours = edited.contains(&name.as_str()) || stripped.contains(&name.as_str());
        assert!(ours || after.contains_key(name), "{name} is gone");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, answer) = bytes.split_at(cut);
    let answer = answer.get(1..).unwrap_or_default();
    let (prefill, decode) = (pod("p", "10.0.0.1:80"), pod("d", "10.0.0.2:80"));
    for entry in PROTOCOLS {
        let fields_of = serde_json::json!({"bootstrap_cluster": "b"});
        let none = serde_json::json!({});
        let mut mistakes = Mistakes::default();
        let protocol = entry.make(none, "p", &mut mistakes).or_else(|| entry.make(fields_of, "p", &mut mistakes));
        let protocol = protocol.expect("it can be built");
        let _ = protocol.learn(answer);
        let names: Vec<_> = FIELDS.iter().chain(protocol.own_fields()).copied().collect();
        let Ok(outline) = Outline::read(text, &names) else { continue };
        assert_eq!(outline.edit(text, &[]), text);
        // Texts that aren't Unicode pass us, and no engine.
        let Some(before) = fields(text) else { continue };
        for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages, Endpoint::Generate] {
            let body = Body { endpoint, fields: Fields { bytes: text, outline: &outline } };
            let _ = (body.unfit(), protocol.unfit(&body));
            check(&*protocol, &body, &before, Vec::new());
            let pair = Pair { body, prefill: &prefill, decode: &decode, secret: 7, learnt: "e" };
            check(&*protocol, &body, &before, protocol.prefill(&pair).edits);
            // What an engine says goes on as it is: what isn't Unicode there isn't after it.
            if let (Ok(Handoff::Decode(leg)), Ok(_)) = (protocol.decode(&pair, answer), str::from_utf8(answer)) {
                check(&*protocol, &body, &before, leg.edits);
            }
        }
    }
});
