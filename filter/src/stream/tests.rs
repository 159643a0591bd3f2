//! Streams on the fake host: what each phase does, and that no failing hostcall stops a request.

use super::*;
use crate::host::fake::{FakeHost, FakeShared};
use crate::plugin::Vm;
use std::time::Duration;

const PODS: &str = r#"[{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80"}]"#;
const ROUTING: &str = "x-gateway-destination-endpoint";

struct Stand {
    host: FakeHost,
    plugin: Rc<Plugin>,
}

/// A VM with two pods; `rest` is more of the configuration.
fn stand(rest: &str) -> Stand {
    let host = FakeHost::new(&FakeShared::default());
    host.state.borrow_mut().configuration = format!(r#"{{"pods": {PODS}{rest}}}"#).into_bytes();
    let plugin = Vm::default().configure(&host, 1).unwrap();
    Stand { host, plugin }
}

fn chat(text: &str) -> Vec<u8> {
    format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": "{text}"}}]}}"#).into_bytes()
}

impl Stand {
    fn stream(&self) -> Rc<RefCell<Stream>> {
        Rc::new(RefCell::new(Stream::new(7, self.plugin.clone())))
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) {
        let mut state = self.host.state.borrow_mut();
        let pseudo = [(":method", method), (":path", path)];
        let all = pseudo.iter().chain(headers);
        state.request = all.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    }

    /// Sends a chat up to its decision; returns the stream and the pods named.
    fn send(&self, body: &[u8]) -> (Rc<RefCell<Stream>>, String) {
        self.request("POST", "/v1/chat/completions", &[("content-type", "application/json")]);
        self.host.state.borrow_mut().body = body.to_vec();
        let stream = self.stream();
        assert_eq!(Stream::on_request_headers(&stream, &self.host, false), Flow::Pause);
        assert_eq!(stream.borrow_mut().on_request_body(&self.host, 10, false), Flow::Pause);
        assert_eq!(stream.borrow_mut().on_request_body(&self.host, body.len(), true), Flow::Continue);
        (stream, self.named())
    }

    fn named(&self) -> String {
        let state = self.host.state.borrow();
        String::from_utf8(state.request.get(ROUTING).cloned().unwrap_or_default()).unwrap()
    }

    fn answer(&self, stream: &Rc<RefCell<Stream>>, status: &str, from: &str, details: &str) {
        let mut state = self.host.state.borrow_mut();
        state.response = [(":status".to_owned(), status.as_bytes().to_vec())].into();
        state.properties.insert("upstream.address".into(), from.into());
        state.properties.insert("response.code_details".into(), details.into());
        drop(state);
        stream.borrow_mut().on_response_headers(&self.host, false);
    }

    fn count(&self, name: &str) -> i64 {
        self.host.metric(&format!("warmpath.{name}"))
    }

    fn in_flight(&self) -> u64 {
        self.plugin.fleet.borrow().index.load().own()
    }
}

#[test]
fn a_prompt_that_is_known_goes_where_it_was() {
    let stand = stand("");
    let body = chat(&"some text ".repeat(100));
    let (first, named) = stand.send(&body);
    let home = named.split(',').next().unwrap().to_owned();
    assert_eq!(named.split(',').count(), 2, "the pod and its fallback: {named}");
    stand.answer(&first, "200", &home, "via_upstream");
    for _ in 0..5 {
        let (stream, named) = stand.send(&body);
        assert!(named.starts_with(&home), "{named}");
        stream.borrow_mut().on_log(&stand.host);
    }
    assert_eq!(stand.in_flight(), 1);
    first.borrow_mut().on_log(&stand.host);
    first.borrow_mut().on_log(&stand.host);
    assert_eq!(stand.in_flight(), 0, "an end counts once");
    assert_eq!(stand.count("decided_by_prefix"), 6);
    assert!(stand.count("blocks_matched") > 0);
}

#[test]
fn a_failed_request_leaves_nothing_behind() {
    let stand = stand("");
    let body = chat(&"some text ".repeat(100));
    let blocks = |stand: &Stand| stand.plugin.fleet.borrow().index.replica().table().len();
    let (stream, named) = stand.send(&body);
    assert!(blocks(&stand) > 0, "recorded at once");
    stand.answer(&stream, "500", named.split(',').next().unwrap(), "via_upstream");
    assert_eq!(blocks(&stand), 0, "and withdrawn");
    stream.borrow_mut().on_log(&stand.host);
    let (stream, _) = stand.send(&body);
    assert!(blocks(&stand) > 0);
    stream.borrow_mut().on_log(&stand.host);
    assert_eq!(blocks(&stand), 0, "a client that left before the answer counts as a failure");
    assert_eq!(stand.count("withdrawn"), 2);
    assert_eq!(stand.in_flight(), 0);
}

#[test]
fn a_retry_moves_the_request_with_its_blocks_and_counts() {
    let stand = stand("");
    let body = chat(&"some text ".repeat(100));
    let (stream, named) = stand.send(&body);
    let (first, second) = named.split_once(',').unwrap();
    stand.answer(&stream, "200", second, "via_upstream");
    assert_eq!(stand.count("moved"), 1);
    assert_eq!(stand.in_flight(), 1);
    let (_, again) = stand.send(&body);
    assert!(again.starts_with(second), "it is warm where it was served, not at {first}: {again}");
    stream.borrow_mut().on_log(&stand.host);
    assert_eq!(stand.in_flight(), 1);
}

#[test]
fn a_retry_moves_the_session() {
    let stand = stand(r#", "profile": "sticky-session""#);
    let session = |stand: &Stand| {
        stand.request("GET", "/v1/models", &[("x-session-id", "s")]);
        let stream = stand.stream();
        assert_eq!(Stream::on_request_headers(&stream, &stand.host, true), Flow::Continue);
        (stream, stand.named())
    };
    let (stream, named) = session(&stand);
    let (first, second) = named.split_once(',').unwrap();
    stand.answer(&stream, "200", second, "via_upstream");
    for _ in 0..100 {
        stand.plugin.tick(&stand.host);
    }
    let (_, later) = session(&stand);
    assert!(later.starts_with(second), "not back to {first}, long after it failed: {later}");
}

#[test]
fn a_pod_that_is_reached_by_its_own_cluster_is_passed_over_when_it_fails() {
    let host = FakeHost::new(&FakeShared::default());
    host.state.borrow_mut().configuration = br#"{"pods": [{"cluster": "a"}, {"cluster": "b"}],
        "routing": {"by": "cluster"}, "profile": "least-requests"}"#
        .to_vec();
    let plugin = Vm::default().configure(&host, 1).unwrap();
    let header = plugin.settings.routing.header().to_owned();
    let stand = Stand { host, plugin };
    let named = || {
        stand.request("GET", "/v1/models", &[]);
        let stream = stand.stream();
        assert_eq!(Stream::on_request_headers(&stream, &stand.host, true), Flow::Continue);
        let named = stand.host.state.borrow().request.get(&header).cloned().unwrap();
        (stream, String::from_utf8(named).unwrap())
    };
    let (stream, failed) = named();
    stand.answer(&stream, "503", "10.0.0.9:80", "upstream_reset_before_response_started");
    stream.borrow_mut().on_log(&stand.host);
    for _ in 0..20 {
        let (stream, next) = named();
        assert_ne!(next, failed);
        stand.answer(&stream, "200", "10.0.0.8:80", "via_upstream");
        stream.borrow_mut().on_log(&stand.host);
    }
}

#[test]
fn what_is_no_inference_is_never_held() {
    let stand = stand("");
    for (method, path, headers) in [
        ("GET", "/v1/models", &[][..]),
        ("GET", "/v1/chat/completions", &[("upgrade", "websocket")]),
        ("POST", "/unknown", &[("content-type", "application/json")]),
        ("POST", "/v1/chat/completions", &[("content-encoding", "gzip")]),
        ("POST", "/v1/chat/completions", &[("content-type", "text/plain")]),
        ("POST", "/v1/chat/completions", &[("content-length", "999999999")]),
    ] {
        stand.request(method, path, headers);
        let stream = stand.stream();
        let flow = Stream::on_request_headers(&stream, &stand.host, false);
        assert_eq!(flow, Flow::Continue, "{method} {path} {headers:?}");
        assert!(!stand.named().is_empty());
        assert_eq!(stream.borrow_mut().on_request_body(&stand.host, 5, true), Flow::Continue);
        stream.borrow_mut().on_log(&stand.host);
    }
    assert_eq!(stand.count("decided_by_load"), 6);
    assert_eq!(stand.count("step_down_not_json"), 2);
    assert_eq!(stand.count("step_down_too_large"), 1);
}

#[test]
fn malformed_and_growing_bodies_go_on_by_load() {
    let stand = stand(r#", "limits": {"max_body_bytes": 4096}, "debug_header": "x-debug""#);
    stand.request("POST", "/v1/chat/completions", &[("x-debug", "1")]);
    stand.host.state.borrow_mut().body = b"{\"messages\": [".to_vec();
    let stream = stand.stream();
    assert_eq!(Stream::on_request_headers(&stream, &stand.host, false), Flow::Pause);
    assert_eq!(
        stream.borrow_mut().on_request_trailers(&stand.host),
        Flow::Continue,
        "trailers end a body too"
    );
    assert_eq!(stand.count("step_down_malformed"), 1);
    stand.answer(&stream, "400", "10.0.0.1:80", "via_upstream");
    let told = stand.host.state.borrow().response.get("x-warmpath-step-down").cloned().unwrap();
    assert!(String::from_utf8(told).unwrap().contains("byte 14"));

    stand.request("POST", "/v1/chat/completions", &[]);
    let stream = stand.stream();
    assert_eq!(Stream::on_request_headers(&stream, &stand.host, false), Flow::Pause);
    assert_eq!(stream.borrow_mut().on_request_body(&stand.host, 4096, false), Flow::Pause);
    assert_eq!(stream.borrow_mut().on_request_body(&stand.host, 4097, false), Flow::Continue);
    assert_eq!(stream.borrow_mut().on_request_body(&stand.host, 9000, true), Flow::Continue);
    assert_eq!(stand.count("step_down_too_large"), 1);
}

#[test]
fn a_request_that_gets_no_body_is_sent_on() {
    let stand = stand("");
    stand.request("POST", "/v1/chat/completions", &[]);
    let stream = stand.stream();
    assert_eq!(Stream::on_request_headers(&stream, &stand.host, false), Flow::Pause);
    for tick in 1..=9 {
        stand.plugin.tick(&stand.host);
        assert!(stand.host.state.borrow().resumed.is_empty(), "not at tick {tick}");
    }
    stand.plugin.tick(&stand.host);
    assert_eq!(stand.host.state.borrow().resumed, [Some(7)], "by its own context");
    assert!(!stand.named().is_empty());
    assert_eq!(stand.count("step_down_unheld"), 1);
    stream.borrow_mut().on_log(&stand.host);
    assert_eq!(stand.in_flight(), 0);
}

#[test]
fn a_strict_filter_that_leaves_nobody_refuses_in_openai_s_form() {
    let stand = stand(
        r#", "profile": "p", "profiles": {"p": {
            "filters": [{"type": "health", "strict": true}],
            "picker": {"type": "random"}}}"#,
    );
    stand.request("GET", "/v1/models", &[]);
    for _ in 0..2 {
        let stream = stand.stream();
        assert_eq!(Stream::on_request_headers(&stream, &stand.host, true), Flow::Continue);
        let pod = stand.named().split(',').next().unwrap().to_owned();
        stand.answer(&stream, "503", &pod, "upstream_reset_before_response_started{connection_failure}");
    }
    assert_eq!(Stream::on_request_headers(&stand.stream(), &stand.host, true), Flow::Pause);
    let (status, body) = stand.host.state.borrow().responses[0].clone();
    assert_eq!(status, 503);
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"]["type"], "service_unavailable");
    assert_eq!(stand.count("refused"), 1);
    assert_eq!(stand.count("pods_failed"), 2);
}

#[test]
fn who_is_one_too_many_is_told_to_come_again() {
    for (config, message) in [
        (
            r#", "profile": "p", "profiles": {"p": {"filters": [{"type": "concurrency-cap", "max_in_flight": 1, "strict": true}],
            "picker": {"type": "random"}}}"#,
            "concurrency-cap",
        ),
        (r#", "profile": "random", "admission": {"max_in_flight_per_pod": 1}"#, "max_in_flight"),
        (
            r#", "profile": "random", "admission": {"max_in_flight": 2}"#,
            "2 requests are in flight, which is the limit",
        ),
    ] {
        let stand = stand(config);
        stand.request("GET", "/v1/models", &[]);
        let full = [(); 2].map(|()| stand.stream());
        for stream in &full {
            assert_eq!(Stream::on_request_headers(stream, &stand.host, true), Flow::Continue, "{message}");
        }
        assert_eq!(Stream::on_request_headers(&stand.stream(), &stand.host, true), Flow::Pause, "{message}");
        let (status, body) = stand.host.state.borrow().responses[0].clone();
        assert_eq!(status, 429);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "rate_limit_exceeded");
        assert!(body["error"]["message"].as_str().unwrap().contains(message), "{body}");
        full[0].borrow_mut().on_log(&stand.host);
        assert_eq!(
            Stream::on_request_headers(&stand.stream(), &stand.host, true),
            Flow::Continue,
            "{message}"
        );
    }
}

#[test]
fn a_model_has_no_more_in_flight_than_it_may() {
    let stand = stand(r#", "admission": {"models": {"m": 1}, "retry_after_seconds": 7}"#);
    let (first, _) = stand.send(&chat("one"));
    let other = br#"{"model": "other", "messages": [{"role": "user", "content": "x"}]}"#;
    stand.send(other);
    stand.host.state.borrow_mut().body = chat("two");
    let second = stand.stream();
    assert_eq!(Stream::on_request_headers(&second, &stand.host, false), Flow::Pause);
    assert_eq!(second.borrow_mut().on_request_body(&stand.host, 10, true), Flow::Pause);
    let (status, body) = stand.host.state.borrow().responses[0].clone();
    assert_eq!((status, stand.count("shed")), (429, 1));
    assert!(String::from_utf8(body).unwrap().contains("Retry after 7 s"));
    first.borrow_mut().on_log(&stand.host);
    stand.send(&chat("three"));
}

#[test]
fn no_failing_hostcall_stops_a_request() {
    let calls = [
        "shared_get",
        "shared_set",
        "define_metric",
        "increment_metric",
        "record_metric",
        "property",
        "set_filter_state",
        "header",
        "set_header",
        "remove_header",
        "request_body",
    ];
    for call in calls {
        let stand = stand("");
        stand.host.state.borrow_mut().failing.push(call);
        stand.host.state.borrow_mut().body = chat("hello");
        stand.request("POST", "/v1/chat/completions", &[]);
        for _ in 0..3 {
            let stream = stand.stream();
            if Stream::on_request_headers(&stream, &stand.host, false) == Flow::Pause {
                assert_eq!(
                    stream.borrow_mut().on_request_body(&stand.host, 10, true),
                    Flow::Continue,
                    "{call}"
                );
            }
            stand.plugin.tick(&stand.host);
            stand.answer(&stream, "200", "10.0.0.2:80", "via_upstream");
            stream.borrow_mut().on_log(&stand.host);
            assert_eq!(stand.in_flight(), 0, "{call}");
        }
    }
}

/// What Envoy does with the headers of a request once they went on: none can be read or written any more.
fn headers_are_gone(stand: &Stand) {
    let mut state = stand.host.state.borrow_mut();
    state.request.clear();
    state.failing.extend(["set_header", "remove_header", "headers", "header"]);
}

#[test]
fn where_others_hold_the_headers_the_choice_is_left_in_filter_state() {
    let stand = stand(r#", "routing": {"via": "filter-state"}, "profile": "sticky-session""#);
    let mut homes = std::collections::BTreeSet::new();
    for _ in 0..8 {
        stand.request("GET", "/v1/models", &[(ROUTING, "10.0.0.9:80"), ("x-session-id", "s")]);
        stand.host.state.borrow_mut().filter_state.clear();
        let stream = stand.stream();
        assert_eq!(Stream::on_request_headers(&stream, &stand.host, true), Flow::Continue);
        let state = stand.host.state.borrow();
        homes.insert(String::from_utf8(state.filter_state["warmpath.destination"].clone()).unwrap());
        assert!(!state.request.contains_key(ROUTING), "what the client says is gone");
        drop(state);
        stream.borrow_mut().on_log(&stand.host);
    }
    assert_eq!(homes.len(), 1, "the session stays: {homes:?}");
}

#[test]
fn where_others_hold_the_headers_the_body_is_read_all_the_same() {
    let metrics = r#""metrics": {"engine": "vllm", "cluster": "c", "orca": true}"#;
    let stand = stand(&format!(r#", "routing": {{"via": "filter-state"}}, {metrics}"#));
    let body = chat(&"some text ".repeat(100));
    let mut homes = std::collections::BTreeSet::new();
    for _ in 0..6 {
        stand.host.state.borrow_mut().failing.clear();
        stand.request("POST", "/v1/chat/completions", &[("content-type", "application/json")]);
        stand.host.state.borrow_mut().body = body.clone();
        let stream = stand.stream();
        assert_eq!(Stream::on_request_headers(&stream, &stand.host, false), Flow::Continue);
        assert_eq!(stand.host.state.borrow().request["endpoint-load-metrics-format"], b"TEXT");
        headers_are_gone(&stand);
        assert_eq!(stream.borrow_mut().on_request_body(&stand.host, 10, false), Flow::Pause);
        assert_eq!(stream.borrow_mut().on_request_body(&stand.host, body.len(), true), Flow::Continue);
        let named = stand.host.state.borrow().filter_state["warmpath.destination"].clone();
        homes.insert(String::from_utf8(named).unwrap());
        stream.borrow_mut().on_log(&stand.host);
    }
    assert_eq!(stand.count("decided_by_prefix"), 6);
    assert_eq!(stand.count("step_down_host_error"), 0);
    for _ in 0..50 {
        stand.plugin.tick(&stand.host);
    }
    assert_eq!(stand.count("step_down_unheld"), 0, "nobody waits for the flag");
}

#[test]
fn a_body_becomes_another_only_where_no_header_tells_its_length() {
    let pods = r#""pods": [{"name": "a", "address": "10.0.0.1:80", "labels": {"role": "both"}}]"#;
    let workflow =
        r#""workflow": "w", "workflows": {"w": {"protocol": {"type": "nixl"}, "cluster": "pods"}}"#;
    let host = FakeHost::new(&FakeShared::default());
    host.state.borrow_mut().configuration =
        format!(r#"{{{pods}, {workflow}, "routing": {{"via": "filter-state"}}}}"#).into_bytes();
    let plugin = Vm::default().configure(&host, 1).unwrap();
    let stand = Stand { host, plugin };
    let mut own: serde_json::Value = serde_json::from_slice(&chat("hello")).unwrap();
    own["kv_transfer_params"] = serde_json::json!({"do_remote_prefill": true});
    let headers =
        [("content-type", "application/json"), ("content-length", "9"), ("x-envoy-retry-on", "5xx")];
    stand.request("POST", "/v1/chat/completions", &headers);
    stand.host.state.borrow_mut().body = own.to_string().into_bytes();
    let stream = stand.stream();
    assert_eq!(Stream::on_request_headers(&stream, &stand.host, false), Flow::Continue);
    let request = stand.host.state.borrow().request.clone();
    assert_eq!((request.get("content-length"), request.get("x-envoy-retry-on")), (None, None));
    assert_eq!(request["x-envoy-max-retries"], b"0", "a handoff is nobody else's");
    headers_are_gone(&stand);
    assert_eq!(stream.borrow_mut().on_request_body(&stand.host, 99, true), Flow::Continue);
    let body = stand.host.state.borrow().body.clone();
    assert!(!String::from_utf8(body).unwrap().contains("kv_transfer_params"));

    // Where its length can't be taken out of the headers, it goes nowhere.
    stand.host.state.borrow_mut().failing.clear();
    stand.request("POST", "/v1/chat/completions", &headers);
    stand.host.state.borrow_mut().failing.push("remove_header");
    let stream = stand.stream();
    assert_eq!(Stream::on_request_headers(&stream, &stand.host, false), Flow::Pause);
    assert_eq!(stand.host.state.borrow().responses.last().map(|(status, _)| *status), Some(503));
}

#[test]
fn a_pod_waits_no_longer_for_a_try_that_went_elsewhere() {
    let stand = stand(r#", "profile": "least-requests""#);
    let named = || {
        stand.request("GET", "/v1/models", &[]);
        let stream = stand.stream();
        assert_eq!(Stream::on_request_headers(&stream, &stand.host, true), Flow::Continue);
        let first = stand.named().split(',').next().unwrap().to_owned();
        (stream, first)
    };
    let (stream, failed) = named();
    stand.answer(
        &stream,
        "503",
        &failed,
        "upstream_reset_before_response_started{remote_connection_failure}",
    );
    stream.borrow_mut().on_log(&stand.host);
    let mut tries = Vec::new();
    for turn in 0..100 {
        // Nobody is sent there for three seconds, and then one, who never gets there, and the next.
        stand.host.state.borrow_mut().now += Duration::from_millis(100);
        stand.plugin.tick(&stand.host);
        let (stream, first) = named();
        if first == failed {
            tries.push(turn);
        }
        stand.answer(&stream, "200", "10.9.9.9:1", "via_upstream");
        stream.borrow_mut().on_log(&stand.host);
    }
    assert!(tries.first().is_some_and(|first| *first >= 25) && tries.len() > 5, "{tries:?}");
}

#[test]
fn a_pod_that_envoy_never_tried_is_not_blamed() {
    for (attempts, served, failed) in [(1u64, 2, 0), (1, 1, 1), (2, 2, 1)] {
        let pods = r#"[{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80"}, {"name": "c", "address": "10.0.0.3:80"}]"#;
        let host = FakeHost::new(&FakeShared::default());
        host.state.borrow_mut().configuration = format!(r#"{{"pods": {pods}}}"#).into_bytes();
        let plugin = Vm::default().configure(&host, 1).unwrap();
        let stand = Stand { host, plugin };
        let attempts = attempts.to_le_bytes().to_vec();
        stand
            .host
            .state
            .borrow_mut()
            .properties
            .insert("upstream.request_attempt_count".into(), attempts.clone());
        let body = chat(&"some text ".repeat(100));
        let (_, first) = stand.send(&body);
        let first: Vec<_> = first.split(',').map(str::to_owned).collect();
        // Twice in a row is what a pod is passed over for.
        for _ in 0..2 {
            let (stream, named) = stand.send(&body);
            let named: Vec<_> = named.split(',').collect();
            assert_eq!(named[0], first[0], "it is still chosen");
            stand.answer(&stream, "500", named[served], "via_upstream");
            stream.borrow_mut().on_log(&stand.host);
        }
        let astray = if attempts[0] == 1 { 2 } else { 0 };
        assert_eq!((stand.count("moved"), stand.count("astray")), (2, astray));
        assert_eq!(stand.count("pods_failed").min(1), failed, "{attempts:?} {served}");
    }
}

#[test]
fn where_others_hold_the_headers_the_rank_is_left_there_too() {
    let pods = r#""pods": [{"name": "a", "address": "10.0.0.1:80", "ranks": 2}]"#;
    let host = FakeHost::new(&FakeShared::default());
    host.state.borrow_mut().configuration =
        format!(r#"{{{pods}, "routing": {{"via": "filter-state"}}}}"#).into_bytes();
    let plugin = Vm::default().configure(&host, 1).unwrap();
    let stand = Stand { host, plugin };
    stand.request("GET", "/v1/models", &[("x-data-parallel-rank", "7")]);
    let stream = stand.stream();
    assert_eq!(Stream::on_request_headers(&stream, &stand.host, true), Flow::Continue);
    let state = stand.host.state.borrow();
    assert!(!state.request.contains_key("x-data-parallel-rank"), "neither the client's nor Warmpath's");
    let rank = String::from_utf8(state.filter_state["warmpath.rank"].clone()).unwrap();
    assert!(["0", "1"].contains(&rank.as_str()), "{rank}");
}
