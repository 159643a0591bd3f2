//! Deliveries over several VMs of one simulated Envoy.

use super::*;
use crate::host::fake::{FakeHost, FakeShared};
use serde_json::json;
use std::time::Duration;

const TEMPLATE: &[u8] = br#"{"chat_template": "{{ messages[0].content }}"}"#;

fn tokenizer() -> Vec<u8> {
    let vocab: serde_json::Map<String, serde_json::Value> =
        convert::names_of_bytes().zip(0..).map(|(name, id)| (name, json!(id))).collect();
    json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    .to_string()
    .into_bytes()
}

struct Machine {
    host: FakeHost,
    delivery: Delivery,
    now: u64,
    keeps_house: bool,
}

impl Machine {
    fn new(shared: &FakeShared, keeps_house: bool) -> Self {
        let source = Source::Fetched(Remote {
            cluster: "files".into(),
            path: "/qwen3/".into(),
            timeout: Duration::from_secs(10),
        });
        Self { host: FakeHost::new(shared), delivery: Delivery::new(source, 0), now: 0, keeps_house }
    }

    fn tick(&mut self) {
        self.now += 1;
        self.delivery.tick(&self.host, self.now, self.keeps_house, 1);
    }

    fn ticks(&mut self, count: u64) {
        (0..count).for_each(|_| self.tick());
    }

    fn calls(&self) -> Vec<String> {
        self.host.state.borrow().calls.iter().map(|call| format!("{}{}", call.cluster, call.path())).collect()
    }

    /// Answers the last call; a status of 0 is a reset.
    fn answer(&mut self, status: u32, body: &[u8]) {
        let mut state = self.host.state.borrow_mut();
        state.answer = match status {
            0 => [].into(),
            status => [(":status".to_owned(), status.to_string().into_bytes())].into(),
        };
        state.answer_body = body.to_vec();
        let call = state.calls.len() as u32 - 1;
        drop(state);
        assert!(!self.delivery.on_answer(&self.host, self.now, call + 1), "not its call");
        assert!(self.delivery.on_answer(&self.host, self.now, call));
        assert!(!self.delivery.on_answer(&self.host, self.now, call), "an answer comes once");
    }

    fn said(&self) -> String {
        self.host.state.borrow().logs.last().map(|(_, line)| line.clone()).unwrap_or_default()
    }

    fn ids(&mut self, text: &str) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        self.delivery.loaded()?.tokenizer.encode(text, &mut out).unwrap();
        Some(out)
    }
}

#[test]
fn one_fetches_and_all_load() {
    let shared = FakeShared::default();
    let mut keeper = Machine::new(&shared, true);
    let mut worker = Machine::new(&shared, false);
    worker.ticks(5);
    keeper.tick();
    assert_eq!(keeper.calls(), ["files/qwen3/tokenizer.json"]);
    keeper.answer(200, &tokenizer());
    assert_eq!(keeper.calls()[1..], ["files/qwen3/tokenizer_config.json"]);
    worker.tick();
    assert_eq!(worker.ids("ab"), None);
    keeper.answer(200, TEMPLATE);
    for machine in [&mut keeper, &mut worker] {
        machine.ticks(2);
        assert_eq!(machine.ids("ab").unwrap().len(), 2);
        let template = machine.delivery.loaded().unwrap().template.as_ref().unwrap();
        let chat =
            crate::prompt::template::Chat { messages: vec![json!({"content": "x"})], ..Default::default() };
        assert_eq!(template.render(chat).unwrap(), "x");
        assert!(machine.said().contains("is loaded"));
        assert_eq!(machine.delivery.failures(), 0);
    }
    // A VM that comes later, and one that takes over, need no call.
    let mut late = Machine::new(&shared, true);
    late.ticks(3);
    assert!(late.ids("ab").is_some() && late.calls().is_empty() && worker.calls().is_empty());
}

#[test]
fn what_fails_is_said_and_tried_again_more_and_more_rarely() {
    let shared = FakeShared::default();
    let mut keeper = Machine::new(&shared, true);
    let causes: [(u32, &[u8], &str); 5] = [
        (503, b"", "answered 503"),
        (0, b"", "no answer"),
        (200, b"{", "cannot be read"),
        (200, br#"{"model": {"type": "Unigram", "vocab": []}}"#, "the model type Unigram"),
        (404, b"", "answered 404"),
    ];
    let mut pause = FIRST_PAUSE;
    for (tries, (status, body, cause)) in causes.into_iter().enumerate() {
        keeper.tick();
        assert_eq!(keeper.calls().len(), tries + 1);
        keeper.answer(status, body);
        assert!(keeper.said().contains(cause), "{}", keeper.said());
        keeper.ticks(pause - 1);
        assert_eq!(keeper.calls().len(), tries + 1, "too early");
        pause *= 2;
    }
    assert_eq!(keeper.delivery.failures(), 5);
    keeper.tick();
    keeper.answer(200, &tokenizer());
    // A model without a template has none.
    keeper.answer(404, b"");
    keeper.ticks(2);
    assert!(keeper.delivery.loaded().unwrap().template.is_none());
}

#[test]
fn a_bad_template_and_a_lost_answer_are_failures() {
    let shared = FakeShared::default();
    let mut keeper = Machine::new(&shared, true);
    keeper.tick();
    keeper.answer(200, &tokenizer());
    keeper.answer(200, br#"{"chat_template": "{% for %}"}"#);
    assert!(keeper.said().contains("chat template"), "{}", keeper.said());
    keeper.ticks(FIRST_PAUSE);
    assert_eq!(keeper.calls().len(), 3);
    keeper.ticks(LOST - 1);
    assert_eq!(keeper.delivery.failures(), 1);
    keeper.tick();
    assert!(keeper.said().contains("no answer for tokenizer.json"), "{}", keeper.said());
    let mut refused = Machine::new(&shared, true);
    refused.host.state.borrow_mut().failing = vec!["call"];
    refused.tick();
    assert!(refused.said().contains("cluster \"files\" cannot be called"), "{}", refused.said());
}

#[test]
fn what_cannot_be_loaded_is_fetched_anew() {
    let shared = FakeShared::default();
    let mut keeper = Machine::new(&shared, true);
    let mut worker = Machine::new(&shared, false);
    let shelf = keeper.delivery.shelf.clone();
    shelf.put(&keeper.host, &[b"an image of another version", TEMPLATE]).unwrap();
    for machine in [&mut keeper, &mut worker] {
        machine.ticks(2);
        assert!(machine.said().contains("not a tokenizer image"), "{}", machine.said());
    }
    // The keeper doesn't read it again. The worker does, once in a while.
    keeper.ticks(FIRST_PAUSE * 3);
    worker.ticks(FIRST_PAUSE * 3);
    assert_eq!((keeper.delivery.failures(), worker.delivery.failures()), (1, 2));
    assert!(worker.calls().is_empty());
    keeper.answer(200, &tokenizer());
    keeper.answer(200, TEMPLATE);
    keeper.ticks(3);
    worker.ticks(FIRST_PAUSE * 4);
    assert!(keeper.ids("a").is_some() && worker.ids("a").is_some());
}

#[test]
fn a_worker_recovers_from_what_was_not_whole_for_a_moment() {
    let shared = FakeShared::default();
    let mut keeper = Machine::new(&shared, true);
    keeper.tick();
    keeper.answer(200, &tokenizer());
    keeper.answer(200, TEMPLATE);
    let mut worker = Machine::new(&shared, false);
    worker.tick();
    worker.host.state.borrow_mut().failing = vec!["shared_get"];
    worker.tick();
    assert_eq!(worker.delivery.failures(), 1);
    worker.host.state.borrow_mut().failing.clear();
    // Somebody overwrites a chunk, and the same files are put there again, under the same label.
    let shelf = worker.delivery.shelf.clone();
    let label = shelf.label(&worker.host).unwrap();
    let files = convert(&tokenizer()).unwrap();
    shelf.put(&worker.host, &[b"other", b"files"]).unwrap();
    worker.ticks(FIRST_PAUSE + 2);
    assert_eq!(worker.delivery.failures(), 2);
    shelf.put(&worker.host, &[&files, TEMPLATE]).unwrap();
    assert_eq!(shelf.label(&worker.host).unwrap(), label);
    worker.ticks(FIRST_PAUSE * 4);
    assert!(worker.ids("a").is_some(), "{}", worker.said());
}
