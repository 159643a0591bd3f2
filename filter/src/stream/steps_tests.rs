//! Requests of two steps on the fake host, by a protocol that no engine speaks: each way that they can go, and that none leaves a
//! request waiting, or anything behind.

use super::*;
use crate::host::fake::{Call, FakeHost, FakeShared};
use crate::plugin::Vm;
use proptest::prelude::*;

const ROUTING: &str = "x-gateway-destination-endpoint";
const PODS: &str = r#"[
    {"name": "p1", "address": "10.0.0.1:80", "labels": {"role": "prefill", "rack": "a"}},
    {"name": "p2", "address": "10.0.0.2:80", "labels": {"role": "prefill", "rack": "b"}},
    {"name": "d1", "address": "10.0.1.1:80", "labels": {"role": "decode", "rack": "a"}},
    {"name": "d2", "address": "10.0.1.2:80", "labels": {"role": "decode", "rack": "b"}}
]"#;

struct Stand {
    host: FakeHost,
    plugin: Rc<Plugin>,
    stream: Rc<RefCell<Stream>>,
    body: Vec<u8>,
}

/// A request that was sent up to its first call, or as far as it came.
fn stand(protocol: &str, more: &str) -> Stand {
    let host = FakeHost::new(&FakeShared::default());
    let config = format!(
        r#"{{"pods": {PODS}, "workflow": "pd", "workflows": {{"pd": {{"protocol": {{"type": "made-up"{protocol}}},
            "cluster": "pods", "remote_prefill": {{"min_tokens": 0, "min_share": 0}}{more}}}}}}}"#
    );
    host.state.borrow_mut().configuration = config.into_bytes();
    let plugin = Vm::default().configure(&host, 1).unwrap();
    plugin.tick(&host);
    let stream = Rc::new(RefCell::new(Stream::new(7, plugin.clone())));
    let words = "some text ".repeat(200);
    let body = format!(
        r#"{{"model": "m", "ticket": "stolen", "messages": [{{"role": "user", "content": "{words}"}}], "stream": true}}"#
    );
    Stand { host, plugin, stream, body: body.into_bytes() }
}

impl Stand {
    fn send(&self) -> Flow {
        let mut state = self.host.state.borrow_mut();
        let headers = [
            (":method", "POST"),
            (":path", "/v1/chat/completions?a=b"),
            ("content-type", "application/json"),
            ("content-length", "77"),
            ("authorization", "Bearer k"),
            ("x-ticket", "stolen"),
            ("x-warmpath-handoff", "stolen"),
        ];
        let headers = headers.into_iter();
        state.request = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect();
        state.body = self.body.clone();
        drop(state);
        if Stream::on_request_headers(&self.stream, &self.host, false) == Flow::Continue {
            return Flow::Continue;
        }
        self.stream.borrow_mut().on_request_body(&self.host, self.body.len(), true)
    }

    fn calls(&self) -> Vec<Call> {
        self.host.state.borrow().calls.clone()
    }

    /// Answers the last call.
    fn answer(&self, status: &str, body: &str) {
        let mut state = self.host.state.borrow_mut();
        state.answer = match status {
            "" => [].into(),
            status => [(":status".to_owned(), status.as_bytes().to_vec())].into(),
        };
        state.answer_body = body.as_bytes().to_vec();
        let call = state.calls.len() as u32 - 1;
        drop(state);
        self.stream.borrow_mut().on_answer(&self.host, call);
    }

    /// The decode pod's answer begins.
    fn decoded(&self, status: &str, from: &str) -> Flow {
        let mut state = self.host.state.borrow_mut();
        state.response = [(":status".to_owned(), status.as_bytes().to_vec())].into();
        state.properties.insert("upstream.address".into(), from.into());
        state.properties.insert("response.code_details".into(), "via_upstream".into());
        drop(state);
        self.stream.borrow_mut().on_response_headers(&self.host, false)
    }

    fn end(&self) {
        self.stream.borrow_mut().on_log(&self.host);
        // What nobody will hear of counts for as long as it is likely to take.
        (0..100).for_each(|_| self.plugin.tick(&self.host));
        assert_eq!(self.plugin.fleet.borrow().index.load().own(), 0);
        assert_eq!(self.plugin.kept.get(), 0, "bytes of bodies");
    }

    fn request(&self, name: &str) -> String {
        let state = self.host.state.borrow();
        String::from_utf8(state.request.get(name).cloned().unwrap_or_default()).unwrap()
    }

    fn now_body(&self) -> String {
        String::from_utf8(self.host.state.borrow().body.clone()).unwrap()
    }

    fn count(&self, name: &str) -> i64 {
        self.host.metric(&format!("warmpath.{name}"))
    }

    fn resumed(&self) -> usize {
        self.host.state.borrow().resumed.len()
    }

    fn responses(&self) -> Vec<(u32, String)> {
        let state = self.host.state.borrow();
        let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
        state.responses.iter().map(|(status, body)| (*status, text(body))).collect()
    }

    fn blocks(&self) -> usize {
        self.plugin.fleet.borrow().index.replica().table().len()
    }
}

#[test]
fn a_protocol_that_is_one_file_has_everything_that_the_others_have() {
    let stand = stand(r#", "asks": true"#, "");
    assert_eq!(stand.send(), Flow::Pause);
    let asked = stand.calls()[0].clone();
    assert_eq!((asked.cluster.as_str(), asked.path()), ("desk", "/name"));
    let prefill = asked.headers[ROUTING].clone();
    assert!(prefill.starts_with("10.0.0."), "{prefill}");
    stand.answer("200", "E1");
    let called = stand.calls()[1].clone();
    assert_eq!((called.cluster.as_str(), called.path()), ("pods", "/v1/chat/completions?a=b"));
    assert_eq!(
        (called.headers[ROUTING].as_str(), called.headers["x-ticket"].as_str()),
        (&*prefill, "prefill E1")
    );
    assert_eq!(called.headers["authorization"], "Bearer k");
    assert!(!called.headers.contains_key("content-length"), "Envoy makes its own");
    let rack = if prefill == "10.0.0.1:80" { "a" } else { "b" };
    let decode = if rack == "a" { "d1" } else { "d2" };
    let sent = String::from_utf8(called.body).unwrap();
    assert!(sent.contains(&format!(r#""ticket": "for {decode}""#)), "near the prefill pod: {sent}");
    assert!(sent.contains(r#""stream": false"#));
    assert_eq!(stand.resumed(), 0);
    assert_eq!(stand.stream.borrow_mut().on_request_trailers(&stand.host), Flow::Pause);
    stand.answer("200", r#"{"ticket": {"n": 18446744073709551615}, "usage": {}}"#);
    assert_eq!(stand.resumed(), 1);
    let body = stand.now_body();
    assert!(body.contains(r#""ticket": {"n": 18446744073709551615}"#) && body.contains(r#""stream": true"#));
    assert_eq!(stand.request("content-length"), body.len().to_string());
    assert_eq!(stand.request(ROUTING), if rack == "a" { "10.0.1.1:80" } else { "10.0.1.2:80" });
    assert_eq!(stand.request("x-envoy-max-retries"), "0", "nobody else can use it");
    assert_eq!(stand.request("x-warmpath-handoff"), "1");
    assert_eq!(stand.request("x-ticket"), format!("decode p{}", if rack == "a" { 1 } else { 2 }));
    assert_eq!(stand.decoded("200", &stand.request(ROUTING)), Flow::Continue);
    stand.stream.borrow_mut().on_response_body(&stand.host, 9, true);
    stand.stream.borrow_mut().on_log(&stand.host);
    assert_eq!((stand.count("prefills_remote"), stand.count("handoffs_lost")), (1, 0));
    assert!(stand.blocks() > 0, "both pods hold it now");
    // What was learnt is known.
    let next = Stand { stream: Rc::new(RefCell::new(Stream::new(8, stand.plugin.clone()))), ..stand };
    assert_eq!(next.send(), Flow::Pause);
    assert_eq!(next.calls().last().unwrap().path(), "/v1/chat/completions?a=b");
}

#[test]
fn at_once_both_get_it_and_a_failed_prefill_ends_it() {
    for begun in [false, true] {
        // With nobody to take its place.
        let stand = stand(r#", "at_once": true"#, r#", "prefill": {"on_failure": "refuse"}"#);
        assert_eq!(stand.send(), Flow::Continue);
        assert_eq!(stand.calls().len(), 1);
        assert!(stand.request(ROUTING).starts_with("10.0.1."));
        assert!(!stand.now_body().contains("stolen"));
        if begun {
            stand.decoded("200", &stand.request(ROUTING));
        }
        stand.answer("500", "");
        let ended = (stand.responses().len(), stand.host.state.borrow().reset.len());
        assert_eq!(ended, if begun { (0, 1) } else { (1, 0) });
        stand.end();
        assert_eq!(stand.count("workflows_unserved"), 1);
    }
    // One that does all of it takes the place of both.
    let again = stand(r#", "at_once": true"#, "");
    again.send();
    again.answer("500", "");
    assert_eq!((again.calls().len(), again.responses().len()), (2, 0));
    assert!(!String::from_utf8_lossy(&again.calls()[1].body).contains("ticket"));
    assert_eq!(again.decoded("500", &again.request(ROUTING)), Flow::Pause, "whatever decode says by then");
    again.answer("200", "all of it");
    assert_eq!(again.responses(), [(200, "all of it".to_owned())]);
    again.end();
    let stand = stand(r#", "at_once": true"#, "");
    stand.send();
    stand.decoded("200", &stand.request(ROUTING));
    stand.stream.borrow_mut().on_response_body(&stand.host, 9, false);
    stand.answer("500", "");
    assert!(stand.host.state.borrow().reset.is_empty(), "it has its first token: the prefill was done");
    stand.end();
}

#[test]
fn a_prefill_that_fails_goes_to_the_next_pod_and_then_to_one_that_does_all() {
    let stand = stand("", "");
    stand.send();
    let first = stand.calls()[0].headers[ROUTING].clone();
    stand.answer("500", "");
    let second = stand.calls()[1].headers[ROUTING].clone();
    assert_ne!(first, second);
    stand.answer("", "");
    assert_eq!(stand.calls().len(), 2, "two attempts");
    assert_eq!(stand.resumed(), 1);
    assert!(stand.request(ROUTING).starts_with("10.0.1."));
    assert!(!stand.now_body().contains("ticket"), "{}", stand.now_body());
    assert_eq!(stand.request("x-warmpath-handoff"), "");
    assert_eq!((stand.count("prefills_failed"), stand.count("aggregated_failed")), (2, 1));
    assert_eq!(stand.count("requests"), 1);
    stand.decoded("200", "10.0.1.1:80");
    stand.end();
}

#[test]
fn what_leaves_nothing_to_hand_over_is_decoded_alone_and_what_is_no_answer_is_said() {
    for (answer, metric) in [(r#"{"ticket": null}"#, "aggregated_nothing"), ("{}", "prefills_unusable")] {
        let stand = stand("", "");
        stand.send();
        stand.answer("200", answer);
        assert_eq!((stand.resumed(), stand.count(metric)), (1, 1), "{answer}");
        assert!(stand.request(ROUTING).starts_with("10.0.1."));
        stand.decoded("200", "10.0.1.1:80");
        stand.end();
    }
    let refusing = stand("", r#", "prefill": {"on_failure": "refuse", "attempts": 1}"#);
    refusing.send();
    refusing.answer("503", "");
    assert_eq!(refusing.responses()[0].0, 503);
    assert_eq!(refusing.resumed(), 0);
    refusing.end();
    assert_eq!(refusing.blocks(), 0, "nothing is left of it");
}

#[test]
fn a_client_error_is_the_client_s() {
    let stand = stand("", "");
    stand.send();
    stand.answer("422", r#"{"error": "no"}"#);
    assert_eq!(stand.responses(), [(422, r#"{"error": "no"}"#.to_owned())]);
    assert_eq!((stand.calls().len(), stand.count("prefills_refused"), stand.count("pods_failed")), (1, 1, 0));
    assert_eq!(stand.decoded("422", ""), Flow::Continue, "Envoy shows what was answered here");
    stand.end();
    assert_eq!((stand.blocks(), stand.count("handoffs_lost")), (0, 0));
}

#[test]
fn a_refused_handoff_is_started_again_once() {
    for second in ["200", "500"] {
        let stand = stand("", "");
        stand.send();
        stand.answer("200", r#"{"ticket": 1}"#);
        assert_eq!(stand.decoded("503", &stand.request(ROUTING)), Flow::Pause, "held back");
        assert_eq!(stand.stream.borrow_mut().on_response_body(&stand.host, 5, true), Flow::Pause);
        let whole = stand.calls().last().cloned().unwrap();
        assert!(whole.headers[ROUTING].starts_with("10.0.1."));
        let body = String::from_utf8(whole.body).unwrap();
        assert!(!body.contains("ticket") && body.contains(r#""stream": true"#), "{body}");
        stand.answer(second, "all of it");
        match second {
            "200" => assert_eq!(stand.responses(), [(200, "all of it".to_owned())]),
            _ => {
                assert!(stand.responses().is_empty());
                assert_eq!(stand.host.state.borrow().responses_resumed, 1, "the first answer goes on");
            }
        }
        assert_eq!((stand.count("handoffs_lost"), stand.count("workflows_started_again")), (1, 1));
        stand.end();
    }
    // A refusal of which a part was held and more is to come goes on with that: see Answer::may_go_on.
    let parted = stand("", "");
    parted.send();
    parted.answer("200", r#"{"ticket": 1}"#);
    assert_eq!(parted.decoded("503", &parted.request(ROUTING)), Flow::Pause);
    assert_eq!(parted.stream.borrow_mut().on_response_body(&parted.host, 5, false), Flow::Pause);
    parted.answer("500", "neither");
    assert_eq!(parted.host.state.borrow().responses_resumed, 0);
    assert_eq!(parted.stream.borrow_mut().on_response_body(&parted.host, 9, false), Flow::Continue);
    parted.end();
    // What is wrong with the request is so everywhere.
    let stand = stand("", "");
    stand.send();
    stand.answer("200", r#"{"ticket": 1}"#);
    assert_eq!(stand.decoded("400", &stand.request(ROUTING)), Flow::Continue);
    assert_eq!(stand.calls().len(), 1);
    stand.end();
}

#[test]
fn who_leaves_during_prefill_is_counted_and_forgotten_in_time() {
    let stand = stand("", "");
    stand.send();
    assert_eq!(stand.plugin.fleet.borrow().index.load().own(), 2, "both pods have it before them");
    stand.stream.borrow_mut().on_log(&stand.host);
    assert_eq!(stand.plugin.fleet.borrow().index.load().own(), 1, "the call goes on");
    assert_eq!(stand.count("prefills_abandoned"), 1);
    assert!(stand.count("prefill_tokens_abandoned") > 100);
    stand.answer("200", r#"{"ticket": 1}"#);
    assert_eq!(stand.resumed(), 0);
    stand.end();
}

#[test]
fn what_is_no_call_is_looked_through_and_what_has_no_body_isn_t_held() {
    let send = |method: &str, path: &str, kind: &str, body: &str| {
        let stand = stand("", "");
        let headers = [(":method", method), (":path", path), ("content-type", kind), ("x-ticket", "stolen")];
        let headers = headers.into_iter();
        let mut state = stand.host.state.borrow_mut();
        state.request = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect();
        state.body = body.as_bytes().to_vec();
        drop(state);
        let mut flow = Stream::on_request_headers(&stand.stream, &stand.host, false);
        let held = flow == Flow::Pause && stand.responses().is_empty();
        if held {
            flow = stand.stream.borrow_mut().on_request_body(&stand.host, body.len(), true);
        }
        let refused = stand.responses().first().map(|(status, _)| *status);
        assert_eq!((flow == Flow::Pause, stand.request("x-ticket")), (refused.is_some(), String::new()));
        (held, refused, stand.now_body())
    };
    let json = "application/json";
    let hostile = r#"{"ticket": "stolen", "a": 1}"#;
    for path in ["/v1/chat/completion%73", "/invocations", "/v1/embeddings", "/"] {
        assert_eq!(send("POST", path, json, hostile), (true, None, r#"{ "a": 1}"#.to_owned()), "{path}");
    }
    for (method, kind) in [("GET", json), ("CONNECT", ""), ("POST", "multipart/form-data; boundary=x")] {
        assert_eq!(
            send(method, "/v1/audio", kind, hostile),
            (false, None, hostile.to_owned()),
            "{method} {kind}"
        );
    }
    for body in ["", "[]", r#"{"a": NaN}"#, "\u{feff}{}"] {
        assert_eq!(send("POST", "/v1/other", json, body), (true, Some(400), body.to_owned()), "{body}");
    }
    assert_eq!(send("PUT", "/v1/other", "text/plain", hostile).1, Some(415));
}

#[test]
fn an_answer_to_another_call_is_none_of_its_business() {
    let stand = stand("", "");
    stand.send();
    stand.stream.borrow_mut().on_answer(&stand.host, 99);
    assert_eq!((stand.resumed(), stand.calls().len()), (0, 1));
    stand.stream.borrow_mut().on_log(&stand.host);
}

/// What may happen to a request.
#[derive(Debug, Clone)]
enum Event {
    Answer(&'static str, &'static str),
    Decoded(&'static str),
    Body,
    Ticks(u8),
    Fails(&'static str),
}

fn event() -> impl Strategy<Value = Event> {
    let statuses = prop::sample::select(vec!["200", "200", "", "400", "429", "500", "503", "504"]);
    let bodies = prop::sample::select(vec![r#"{"ticket": 1}"#, r#"{"ticket": null}"#, "{}", "", "E1"]);
    let calls = prop::sample::select(vec![
        "call",
        "request_body",
        "replace_request_body",
        "set_header",
        "headers",
        "answer_body",
        "respond",
        "shared_set",
    ]);
    prop_oneof![
        4 => (statuses.clone(), bodies).prop_map(|(status, body)| Event::Answer(status, body)),
        2 => statuses.prop_map(Event::Decoded),
        1 => Just(Event::Body),
        1 => (0..30_u8).prop_map(Event::Ticks),
        1 => calls.prop_map(Event::Fails),
    ]
}

proptest! {
    /// Whatever happens, in whatever order and with whatever hostcall failing: no request waits for nothing, none goes on with what a
    /// client may not say, and nothing is counted that isn't there.
    #[test]
    fn no_request_is_left_waiting_and_nothing_is_left_behind(
        at_once: bool,
        asks: bool,
        events in prop::collection::vec(event(), 0..12),
        fails_first in prop::option::of(prop::sample::select(vec!["call", "request_body", "replace_request_body", "set_header"])),
    ) {
        let stand = stand(&format!(r#", "at_once": {at_once}, "asks": {asks}"#), "");
        stand.host.state.borrow_mut().failing.extend(fails_first);
        let mut goes_on = stand.send() == Flow::Continue;
        let mut answered = 0;
        let (mut has_begun, mut held) = (false, false);
        for event in events {
            let calls = stand.calls().len();
            match event {
                Event::Answer(status, body) if answered < calls => {
                    let before = stand.resumed();
                    stand.answer(status, body);
                    answered = calls;
                    goes_on |= stand.resumed() > before;
                }
                Event::Decoded(status @ ("200" | "400" | "500" | "503"))
                    if goes_on && !has_begun && stand.responses().is_empty() =>
                {
                    has_begun = true;
                    held = stand.decoded(status, &stand.request(ROUTING)) == Flow::Pause;
                }
                Event::Body if has_begun && !held => {
                    stand.stream.borrow_mut().on_response_body(&stand.host, 9, false);
                }
                Event::Ticks(ticks) => (0..ticks).for_each(|_| stand.plugin.tick(&stand.host)),
                Event::Fails(call) => stand.host.state.borrow_mut().failing = vec![call],
                _ => {}
            }
            stand.host.state.borrow_mut().failing.retain(|call| *call != "answer_body");
            let state = stand.host.state.borrow();
            let ended = !state.responses.is_empty() || !state.reset.is_empty() || state.responses_resumed > 0;
            drop(state);
            let waits = stand.stream.borrow().pending.is_some();
            let state = stand.host.state.borrow();
            let answers = state.responses.len() + state.responses_resumed + usize::from(has_begun && !held);
            prop_assert!(answers <= 1, "answered {} times", answers);
            drop(state);
            prop_assert!(goes_on || ended || waits, "nobody will end it");
            prop_assert!(!held || ended || waits, "the answer is held back for nothing");
            if goes_on && !stand.host.state.borrow().failing.contains(&"headers") {
                prop_assert!(!stand.now_body().contains("stolen"), "{}", stand.now_body());
            }
        }
        stand.host.state.borrow_mut().failing.clear();
        stand.end();
    }
}
