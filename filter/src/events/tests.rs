//! Connections and requests that bring events, on the fake host.

use super::feeds::{Cache, Speaker};
use super::zmtp::tests::{hello, put_message};
use super::*;
use crate::blocks::{Apart, ChainBuilder};
use crate::host::Level;
use crate::host::fake::{FakeHost, FakeShared};
use crate::plugin::{Plugin, Vm};
use crate::pods::Job;
use crate::stream::Flow;
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// A VM with two pods and a tokenizer.
struct Stand {
    host: FakeHost,
    plugin: Rc<Plugin>,
    next: u64,
}

fn stand_on(shared: &FakeShared, rest: &str) -> Stand {
    let host = FakeHost::new(shared);
    let pods =
        r#"[{"name": "a", "address": "10.0.0.1:80"}, {"name": "b", "address": "10.0.0.2:80", "ranks": 2}]"#;
    let tokenizers = r#"[{"models": ["m"], "cluster": "c", "path": "/m/", "block_tokens": 4}]"#;
    let configuration = format!(r#"{{"pods": {pods}, "tokenizers": {tokenizers}{rest}}}"#);
    host.state.borrow_mut().configuration = configuration.into_bytes();
    host.state.borrow_mut().now = Duration::from_secs(1_700_000_000);
    let plugin = Vm::default().configure(&host, 1).unwrap();
    Stand { host, plugin, next: 0 }
}

fn stand(rest: &str) -> Stand {
    stand_on(&FakeShared::default(), rest)
}

fn stored(from: u32, to: u32) -> Value {
    let names: Vec<_> = (from..to).step_by(4).collect();
    let tokens: Vec<_> = (from..to).collect();
    json!(["BlockStored", names, (!from.is_multiple_of(100)).then(|| from - 4), tokens, 4])
}

fn batch_of(events: &Value) -> Vec<u8> {
    rmp_serde::to_vec(&json!([1_700_000_000.0, events])).unwrap()
}

impl Stand {
    fn connection(&self, id: u32) -> Connection {
        let mut connection = Connection::new(id, self.plugin.clone());
        assert_eq!(connection.on_data(&self.host, &hello()).len(), 64 + 27 + 3);
        connection
    }

    fn message(&mut self, topic: &str, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_message(&mut bytes, &[topic.as_bytes(), &self.next.to_be_bytes(), payload]);
        self.next += 1;
        bytes
    }

    fn send(&mut self, connection: &mut Connection, events: &Value) {
        let bytes = self.message("kv@a@m", &batch_of(events));
        assert_eq!(connection.on_data(&self.host, &bytes), b"");
    }

    /// Blocks of these tokens that a pod's cache is thought to hold.
    fn depth(&self, cache: &str, tokens: std::ops::Range<u32>) -> u32 {
        let apart = Apart { model: Some("m"), ..Apart::default() };
        let mut chain = ChainBuilder::tokens(apart.seed(4), 4, 0);
        chain.push_tokens(&tokens.collect::<Vec<_>>());
        let fleet = self.plugin.fleet.borrow();
        let pod = fleet.index.find(cache).unwrap();
        fleet.index.depth_of(pod.slot, &chain.finish())
    }

    fn mode(&self, cache: &str) -> Mode {
        let fleet = self.plugin.fleet.borrow();
        fleet.feeds.mode(cache, fleet.ticks())
    }

    fn tick(&self, times: u32) {
        for _ in 0..times {
            self.host.state.borrow_mut().now += Duration::from_millis(100);
            self.plugin.tick(&self.host);
        }
    }

    fn count(&self, name: &str) -> i64 {
        self.host.metric(&format!("warmpath.{name}"))
    }

    fn logged(&self, what: &str) -> usize {
        self.host.state.borrow().logs.iter().filter(|(_, line)| line.contains(what)).count()
    }

    fn fail(&self, call: &'static str, fails: bool) {
        let failing = &mut self.host.state.borrow_mut().failing;
        failing.retain(|other| *other != call);
        failing.extend(fails.then_some(call));
    }
}

const A: &str = "a@10.0.0.1:80";

#[test]
fn what_a_connection_brings_is_in_the_index_and_known_to_all() {
    let shared = FakeShared::default();
    let mut one = stand_on(&shared, "");
    let two = stand_on(&shared, "");
    let mut connection = one.connection(7);
    one.send(&mut connection, &json!([stored(0, 40)]));
    assert_eq!((one.depth(A, 0..44), one.mode(A)), (10, Mode::Exact));
    one.send(&mut connection, &json!([["BlockRemoved", [36, 32]], stored(100, 108)]));
    two.tick(1);
    one.tick(1);
    two.tick(1);
    assert_eq!((two.depth(A, 0..44), two.depth(A, 100..108)), (8, 2));
    let known = |stand: &Stand| stand.plugin.fleet.borrow().index.exact().len();
    assert_eq!((known(&one), known(&two)), (1, 1));
    assert_eq!(one.count("kv_events.a.mode"), 2);
    one.tick(10);
    assert_eq!((one.count("kv_events.a.blocks"), one.count("kv_events.a.lag_milliseconds")), (10, 0));
    connection.on_close(&one.host);
    assert_eq!((one.mode(A), one.count("kv_events.a.mode")), (Mode::Approximate, 0));
    one.tick(1);
    two.tick(1);
    assert_eq!((known(&one), known(&two)), (0, 0));
    assert_eq!(two.depth(A, 0..44), 8, "what it held is worth a guess");
}

#[test]
fn changes_wait_while_the_log_takes_nothing_and_are_dropped_beyond_a_bound() {
    let mut stand = stand("");
    let mut connection = stand.connection(7);
    stand.send(&mut connection, &json!([stored(0, 40)]));
    stand.fail("shared_set", true);
    stand.send(&mut connection, &json!([stored(100, 140), ["BlockRemoved", [36]]]));
    assert_eq!((stand.depth(A, 0..40), stand.depth(A, 100..140)), (10, 0));
    assert_eq!(stand.mode(A), Mode::Exact);
    stand.fail("shared_set", false);
    stand.tick(1);
    assert_eq!((stand.depth(A, 0..40), stand.depth(A, 100..140)), (9, 10));
    // For longer than can be kept.
    stand.fail("shared_set", true);
    for turn in 0..30 {
        let names: Vec<_> = (0..10_000u64).map(|n| 1_000_000 + turn * 10_000 + n).collect();
        let tokens: Vec<_> = (0..40_000u64).map(|n| turn * 40_000 + n).collect();
        stand.send(&mut connection, &json!([["BlockStored", names, null, tokens, 4]]));
    }
    assert!(stand.count("kv_events_dropped") > 262_144);
    assert_eq!(stand.mode(A), Mode::Uncertain);
    stand.fail("shared_set", false);
    stand.send(&mut connection, &json!([["AllBlocksCleared"], stored(200, 208)]));
    assert_eq!((stand.mode(A), stand.depth(A, 200..208), stand.depth(A, 0..40)), (Mode::Exact, 2, 0));
    // What a clearing makes needless waits no more: for as long as that goes on, nothing is dropped.
    stand.fail("shared_set", true);
    let dropped = stand.count("kv_events_dropped");
    for turn in 0..60 {
        let names: Vec<_> = (0..10_000u64).map(|n| 1_000_000 + turn * 10_000 + n).collect();
        let tokens: Vec<_> = (0..40_000u64).map(|n| turn * 40_000 + n).collect();
        stand.send(&mut connection, &json!([["AllBlocksCleared"], ["BlockStored", names, null, tokens, 4]]));
    }
    assert_eq!((stand.count("kv_events_dropped"), stand.mode(A)), (dropped, Mode::Exact));
    assert!(!stand.plugin.fleet.borrow().feeds.is_busy());
}

#[test]
fn a_stranger_s_connection_is_closed_with_the_next_tick() {
    let mut stand = stand("");
    for (topic, why) in [
        ("kv@c@m", "names a pod that isn't configured"),
        ("events", "names no pod"),
        ("kv@10.0.0.3@m", "names a pod that isn't configured"),
    ] {
        let mut connection = stand.connection(9);
        let bytes = stand.message(topic, &batch_of(&json!([])));
        connection.on_data(&stand.host, &bytes);
        assert!(stand.host.state.borrow().closed.is_empty(), "not from within its own callback");
        stand.tick(1);
        assert_eq!(std::mem::take(&mut stand.host.state.borrow_mut().closed), [Some(9)]);
        assert_eq!(connection.on_data(&stand.host, &bytes), b"", "nothing is read any more");
        assert_eq!(stand.logged(&format!("the topic {topic:?} {why}")), 1, "{topic}");
        connection.on_close(&stand.host);
        stand.tick(600);
    }
    assert_eq!(stand.count("kv_events_strangers"), 3);
    for topic in ["kv@a@m", "kv@10.0.0.1:80@m", "kv@10.0.0.1", "kv@b@m", "kv@a@m@x"] {
        let mut connection = stand.connection(9);
        let bytes = stand.message(topic, &batch_of(&json!([])));
        connection.on_data(&stand.host, &bytes);
        connection.on_close(&stand.host);
    }
    assert_eq!((stand.count("kv_events_strangers"), stand.count("kv_events_batches")), (3, 4));
    assert_eq!(stand.logged(r#""m@x" has no tokenizer"#), 1);
}

#[test]
fn complaints_are_made_once_a_minute() {
    let mut stand = stand("");
    let mut connection = stand.connection(7);
    stand.send(&mut connection, &json!([]));
    for _ in 0..5 {
        let bytes = stand.message("kv@a@m", b"\xc1");
        connection.on_data(&stand.host, &bytes);
        stand.send(&mut connection, &json!([["BlockStored", [1], null, [1, 2, 3], 4]]));
        stand.send(&mut connection, &json!([["BlockStored", [1], null, [1, 2, 3, 4, 5, 6, 7, 8], 8]]));
    }
    for what in ["a: a batch can't be read", "token_ids are not as many", "caches blocks of 8 tokens"] {
        assert_eq!(stand.logged(what), 1, "{what}");
    }
    assert_eq!((stand.count("kv_events_unreadable"), stand.count("kv_events_unusable")), (5, 5));
    assert_eq!(stand.mode(A), Mode::Uncertain);
    stand.tick(601);
    let bytes = stand.message("kv@a@m", b"\xc1");
    connection.on_data(&stand.host, &bytes);
    assert_eq!(stand.logged("a: a batch can't be read"), 2);
    let mut bytes = Vec::new();
    put_message(&mut bytes, &[b"kv@a@m", b"1234567", &batch_of(&json!([]))]);
    connection.on_data(&stand.host, &bytes);
    assert_eq!(stand.count("kv_events_unreadable"), 7, "a sequence that is none");
    let errors = stand.host.state.borrow().logs.iter().filter(|(level, _)| *level == Level::Error).count();
    assert_eq!(errors, 1, "the block size is for a person to mend");
}

#[test]
fn two_publishers_of_one_pod_are_two_beginnings() {
    let mut stand = stand("");
    let (mut old, mut new) = (stand.connection(7), stand.connection(8));
    stand.send(&mut old, &json!([stored(0, 40)]));
    // The pod's engine restarted, and its first batch is missed. The old connection ends later.
    stand.next = 1;
    stand.send(&mut new, &json!([stored(100, 140)]));
    assert_eq!((stand.mode(A), stand.count("kv_events_gaps")), (Mode::Uncertain, 1));
    old.on_close(&stand.host);
    assert_eq!(stand.mode(A), Mode::Uncertain, "it is still heard");
    new.on_close(&stand.host);
    assert_eq!(stand.mode(A), Mode::Approximate);
}

#[test]
fn no_failing_hostcall_stops_a_connection() {
    for call in ["property", "increment_metric", "record_metric", "define_metric", "shared_get", "shared_set"]
    {
        let mut stand = stand(r#", "kv_events": {"pod_by": "address"}"#);
        stand.host.state.borrow_mut().properties.insert("source.address".into(), b"10.0.0.1:555".to_vec());
        stand.fail(call, true);
        let mut connection = stand.connection(7);
        let bytes = stand.message("kv@whatever@m", &batch_of(&json!([stored(0, 40)])));
        connection.on_data(&stand.host, &bytes);
        stand.tick(3);
        stand.fail(call, false);
        let mut again = stand.connection(8);
        stand.next = 0;
        let bytes = stand.message("", &batch_of(&json!([stored(0, 40)])));
        again.on_data(&stand.host, &bytes);
        stand.tick(3);
        assert_eq!(stand.depth(A, 0..40), 10, "{call}");
    }
}

impl Stand {
    /// Brings a batch, or nothing, by a request.
    fn post(&self, number: u64, body: &[u8], more: &[(&str, &str)]) -> (u32, Value) {
        let number = number.to_string();
        let mut state = self.host.state.borrow_mut();
        state.body = body.to_vec();
        state.responses.clear();
        let path = "/warmpath/v1/kv-events/a";
        let headers = [(":method", "POST"), (":path", path), ("x-warmpath-sequence", &number)];
        let all = headers.iter().chain(more);
        state.request = all.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
        drop(state);
        let mut ingest = Ingest::new(self.plugin.clone());
        assert_eq!(ingest.on_headers(&self.host, body.is_empty()), Flow::Pause);
        if !body.is_empty() {
            assert_eq!(ingest.on_body(&self.host, 3, false), Flow::Pause);
            assert_eq!(ingest.on_body(&self.host, body.len(), true), Flow::Pause);
        }
        let answers = self.host.state.borrow().responses.clone();
        assert_eq!(answers.len(), 1, "one answer");
        (answers[0].0, serde_json::from_slice(&answers[0].1).unwrap())
    }
}

#[test]
fn requests_stand_for_a_publisher_as_long_as_they_come() {
    let stand = stand("");
    let post = |number, body: &[u8]| stand.post(number, body, &[]);
    assert_eq!(post(3, &batch_of(&json!([]))).0, 409);
    assert_eq!(post(0, b"").0, 409, "nothing was said yet");
    assert_eq!(post(0, &batch_of(&json!([stored(0, 40)]))), (202, json!({"next": 1, "mode": "exact"})));
    assert_eq!(stand.depth(A, 0..40), 10);
    stand.tick(290);
    assert_eq!(post(1, b"").0, 202);
    stand.tick(290);
    assert_eq!(stand.mode(A), Mode::Exact);
    stand.tick(20);
    assert_eq!((stand.mode(A), stand.count("kv_events.a.mode")), (Mode::Approximate, 0));
    assert_eq!(post(1, b""), (202, json!({"next": 1, "mode": "exact"})), "it is back, and missed nothing");
    stand.tick(310);
    let (status, said) = post(1, &batch_of(&json!([["BlockRemoved", [36]]])));
    assert_eq!((status, said), (202, json!({"next": 2, "mode": "exact"})));
    assert_eq!(stand.depth(A, 0..40), 9);
    // An engine that counts from further back started anew: from its beginning, please.
    assert_eq!(post(3, &batch_of(&json!([]))).1["next"], 2);
    assert_eq!(post(1, &batch_of(&json!([]))).0, 202, "who got no answer asks again");
    assert_eq!(post(2, &batch_of(&json!([]))).0, 202);
    assert_eq!(post(1, &batch_of(&json!([]))).1["next"], 0);
    // So may one be whose number is the next by chance.
    let (status, said) = stand.post(3, &batch_of(&json!([])), &[("x-warmpath-publisher", "new")]);
    assert_eq!((status, &said["next"]), (409, &json!(0)));
    // While the log takes nothing, whoever can wait should.
    stand.fail("shared_set", true);
    let names: Vec<_> = (0..140_000u64).collect();
    let tokens: Vec<_> = (0..560_000u64).collect();
    assert_eq!(post(3, &batch_of(&json!([["BlockStored", names, null, tokens, 4]]))).0, 202);
    assert_eq!(post(4, &batch_of(&json!([]))).0, 503);
}

#[test]
fn what_the_index_lost_is_told_again() {
    let mut stand = stand(r#", "index": {"pod_blocks": 4}"#);
    assert_eq!(stand.post(0, &batch_of(&json!([stored(0, 40)])), &[]).1["mode"], "exact");
    stand.tick(290);
    assert_eq!(stand.depth(A, 0..40), 10, "an exact pod's blocks are its own to count");
    // Not heard for a while, it is trimmed as a guess is.
    stand.tick(40);
    assert_eq!(stand.depth(A, 0..40), 4);
    let (status, said) = stand.post(1, &batch_of(&json!([])), &[]);
    assert_eq!((status, &said["next"]), (409, &json!(0)), "from the beginning");
    assert_eq!(stand.post(0, &batch_of(&json!([stored(0, 40)])), &[]).1["mode"], "exact");
    assert_eq!(stand.depth(A, 0..40), 10);
    // A connection can't be asked.
    let mut connection = stand.connection(7);
    stand.send(&mut connection, &json!([stored(0, 40)]));
    assert_eq!(stand.mode(A), Mode::Exact);
    let pod = stand.plugin.fleet.borrow().index.find(A).unwrap();
    let other = stand_on(&stand.host.shared, r#", "index": {"pod_blocks": 4}"#);
    other.tick(1);
    let gone = crate::index::Delta::Cleared { pod };
    let appended =
        other.plugin.fleet.borrow_mut().index.append(&other.host, &[gone], crate::index::OnUnseen::Go);
    assert_eq!(appended, crate::index::Appended::Done);
    // What was taken before the pod was cleared, and is seen only after, makes no difference.
    stand.next = 0;
    stand.send(&mut connection, &json!([stored(100, 140)]));
    stand.tick(1);
    assert_eq!((stand.mode(A), stand.depth(A, 0..40), stand.depth(A, 100..140)), (Mode::Exact, 0, 10));
    other.tick(1);
    let gone = crate::index::Delta::Cleared { pod };
    let appended =
        other.plugin.fleet.borrow_mut().index.append(&other.host, &[gone], crate::index::OnUnseen::Go);
    assert_eq!(appended, crate::index::Appended::Done);
    stand.tick(1);
    assert_eq!((stand.mode(A), stand.depth(A, 100..140)), (Mode::Uncertain, 0));
}

#[test]
fn clearing_again_and_again_clears_once() {
    let mut stand = stand("");
    let mut connection = stand.connection(7);
    let events: Vec<_> = (0..2000).flat_map(|_| [stored(0, 40), json!(["AllBlocksCleared"])]).collect();
    let position = |stand: &Stand| stand.plugin.fleet.borrow().index.replica().position();
    stand.send(&mut connection, &json!([]));
    let before = position(&stand);
    stand.send(&mut connection, &Value::Array(events));
    assert_eq!((position(&stand) - before, stand.mode(A), stand.depth(A, 0..40)), (1, Mode::Exact, 0));
}

#[test]
fn a_rank_is_chosen_for_what_it_holds_unless_it_has_too_much_to_do() {
    let mut stand = stand("");
    let mut connection = stand.connection(7);
    let payload = rmp_serde::to_vec(&json!([0.0, [stored(0, 40)], 1])).unwrap();
    let bytes = stand.message("kv@b@m", &payload);
    connection.on_data(&stand.host, &bytes);
    let apart = Apart { model: Some("m"), ..Apart::default() };
    let mut chain = ChainBuilder::tokens(apart.seed(4), 4, 0);
    chain.push_tokens(&(0..40).collect::<Vec<_>>());
    let chain = chain.finish();
    let mut states = Vec::new();
    let mut rank = |more: usize| {
        let mut fleet = stand.plugin.fleet.borrow_mut();
        let pod = fleet.index.find("b@10.0.0.2:80#1").unwrap();
        (0..more).for_each(|_| _ = fleet.index.started(pod, Job::default()));
        stand.plugin.states(&fleet, &mut states);
        stand.plugin.with_current(|current| current.places.rank_of(&fleet.index, 1, &chain)).unwrap()
    };
    assert_eq!([rank(0), rank(4), rank(1)], [1, 1, 0]);
}

#[test]
fn a_long_message_of_a_stranger_is_not_waited_for() {
    let stand = stand("");
    let long = |topic: &[u8]| {
        let mut bytes = Vec::new();
        put_message(&mut bytes, &[topic, &[0; 8], &vec![0; 1 << 20]]);
        bytes.truncate(100_000);
        let mut connection = stand.connection(7);
        connection.on_data(&stand.host, &bytes);
        connection.on_close(&stand.host);
    };
    long(b"kv@a@m");
    assert_eq!(stand.count("kv_events_strangers") + stand.count("kv_events_protocol_errors"), 0);
    long(b"kv@nobody@m");
    assert_eq!(stand.count("kv_events_strangers"), 1);
    long(&[b'x'; 90_000]);
    assert_eq!(stand.count("kv_events_strangers"), 2);
    let mut bytes = vec![3, 0, 0, 0, 0, 0, 2, 0, 0];
    bytes.resize(70_000, b'x');
    stand.connection(8).on_data(&stand.host, &bytes);
    assert_eq!(stand.count("kv_events_protocol_errors"), 1, "a topic that doesn't end");
}

#[test]
fn feeds_are_as_many_as_caches() {
    let stand = stand("");
    let mut fleet = stand.plugin.fleet.borrow_mut();
    let fleet = &mut *fleet;
    fleet.catch_up(&stand.host);
    let batch = batch::Batch::default();
    let model = feed::Model { name: "m", block_tokens: 4 };
    for id in [A, "gone"] {
        let speaker = Speaker::Connection(1);
        let arrival = feeds::Arrival { batch: &batch, number: Some(0), anew: false, speaker, model };
        let cache = Cache { id, name: id };
        fleet.feeds.take(&stand.host, &fleet.index, cache, 10, arrival, 0);
    }
    assert_eq!((fleet.feeds.mode(A, 0), fleet.feeds.mode("gone", 0)), (Mode::Exact, Mode::Uncertain));
    fleet.feeds.closed(&stand.host, &mut fleet.index, 1, 0);
    fleet.feeds.tick(&stand.host, &mut fleet.index, &fleet.metrics, 10);
    assert_eq!((fleet.feeds.next(A), fleet.feeds.next("gone")), (Some(1), None), "who left is forgotten");
}
