//! Engines say what their caches hold, by libzmq's PUB or by HTTP, and requests go by it.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use warmpath_tests::{
    Builder, Envoy, Pods, Process, Publisher, Request, Response, batch, python, root, temporary_dir,
    wait_until,
};

const DEBUG: &str = "x-warmpath-debug";
/// Tokens in a block.
const BLOCK: usize = 16;

/// A folder that ends with its test.
struct Folder(PathBuf);

impl Folder {
    /// With a tokenizer of bytes.
    fn new() -> Self {
        let folder = temporary_dir("events").expect("a temporary directory can be made");
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let from = root().join("tests/data/bytes").join(name);
            std::fs::copy(from, folder.join(name)).expect("a file can be copied");
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pods, Envoy as `examples/kv-events` has it, and the folder of the model's tokenizer.
struct Fleet {
    envoy: Envoy,
    pods: Pods,
    folder: Folder,
}

impl Fleet {
    fn start(count: usize, change: impl FnOnce(Builder) -> Builder) -> Self {
        Self::start_in(Folder::new(), Pods::start(count, &[]), change)
    }

    fn start_in(folder: Folder, pods: Pods, change: impl FnOnce(Builder) -> Builder) -> Self {
        let socket = folder.0.join("files");
        let _ = std::fs::remove_file(&socket);
        let envoy = change(Envoy::with_kv_events(&folder.0, &socket, "sim").pods(&pods)).start();
        let fleet = Self { envoy, pods, folder };
        let mut in_a_row = 0;
        wait_until("all workers to have the tokenizer", || {
            let tokens = fleet.ask(0..40).header("x-warmpath-prompt") == Some("tokens");
            in_a_row = if tokens { in_a_row + 1 } else { 0 };
            in_a_row == 30
        });
        fleet
    }

    fn zmq(&self) -> SocketAddr {
        self.envoy.listener("kv-events")
    }

    fn publisher(&self, pod: usize) -> Publisher {
        Publisher::open(self.zmq(), &format!("kv@pod-{}@sim", pod + 1))
    }

    /// Asks with the ids of these tokens as the prompt.
    fn ask(&self, tokens: Range<u32>) -> Response {
        let body = json!({"model": "sim", "prompt": tokens.collect::<Vec<_>>(), "max_tokens": 1});
        let answer = Request::json("/v1/completions", &body).header(DEBUG, "1").send(&self.envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    }

    /// The pod that serves a prompt, and how many of its blocks it was thought to hold.
    fn served(&self, tokens: Range<u32>) -> (String, String) {
        let answer = self.ask(tokens);
        let header = |name| answer.header(name).expect("it is explained").to_owned();
        (header("x-warmpath-pod"), header("x-warmpath-matched"))
    }

    fn stat(&self, name: &str) -> u64 {
        self.envoy.stat(&format!("wasmcustom.warmpath.{name}"))
    }

    fn wait_for_stat(&self, name: &str, value: u64) {
        wait_until(&format!("{name} to be {value}"), || self.stat(name) == value);
    }
}

/// Blocks of these tokens, named by their last token. Multiples of 1000 begin a chain; others follow the block before.
fn stored(tokens: Range<u32>) -> Value {
    let ends = (tokens.start..tokens.end).step_by(BLOCK).map(|start| u64::from(start) + BLOCK as u64 - 1);
    json!({
        "type": "BlockStored",
        "block_hashes": ends.collect::<Vec<_>>(),
        "parent_block_hash": (!tokens.start.is_multiple_of(1000)).then(|| tokens.start - 1),
        "token_ids": tokens.collect::<Vec<_>>(),
        "block_size": BLOCK,
        "medium": "GPU",
    })
}

/// The names of the blocks of these tokens.
fn removed(tokens: Range<u32>) -> Value {
    let names: Vec<_> = tokens.step_by(BLOCK).map(|start| start + BLOCK as u32 - 1).collect();
    json!({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"})
}

#[test]
fn what_a_pod_says_decides() {
    let fleet = Fleet::start(4, |envoy| envoy);
    let mut engine = fleet.publisher(2);
    // The engine is warm with a prompt that never came through Envoy.
    engine.send(&json!([stored(2000..2320)]));
    fleet.wait_for_stat("kv_events_blocks_stored", 20);
    for _ in 0..8 {
        assert_eq!(fleet.served(2000..2320), ("pod-3".into(), "20/20".into()));
    }
    wait_until("the cache to be known", || fleet.stat("kv_events_exact_caches") == 1);
    assert_eq!(fleet.stat("kv_events.pod-3.mode"), 2);
    wait_until("its gauge", || fleet.stat("kv_events.pod-3.blocks") == 20);
    assert_eq!(fleet.stat("kv_events_starts"), 1);
    // The end of the chain is evicted: nor is it guessed any more that it is there.
    engine.send(&json!([removed(2128..2320)]));
    fleet.wait_for_stat("kv_events_blocks_removed", 12);
    assert_eq!(fleet.served(2000..2320), ("pod-3".into(), "8/20".into()));
    engine.send(&json!([{"type": "AllBlocksCleared"}]));
    wait_until("all to be gone", || fleet.stat("kv_events.pod-3.blocks") == 0);
    assert_eq!(fleet.served(2000..2320).1, "0/20");
    fleet.envoy.assert_no_trap();
}

#[test]
fn a_request_is_guessed_to_be_cached_until_its_pod_says_so() {
    let fleet = Fleet::start(3, |envoy| envoy);
    let mut engines: Vec<_> = (0..3).map(|pod| fleet.publisher(pod)).collect();
    engines.iter_mut().for_each(|engine| engine.send(&json!([])));
    wait_until("all caches to be known", || fleet.stat("kv_events_exact_caches") == 3);
    let (first, matched) = fleet.served(1000..1320);
    assert_eq!(matched, "0/20");
    // No pod has said anything of it yet.
    assert_eq!(fleet.served(1000..1320), (first.clone(), "20/20".into()));
    // A guess that no event confirms passes.
    wait_until("the guess to pass", || {
        std::thread::sleep(Duration::from_secs(1));
        fleet.stat("index_blocks") == 0
    });
    assert_eq!(fleet.served(1000..1320).1, "0/20");
    fleet.envoy.assert_no_trap();
}

#[test]
fn gaps_restarts_and_reconnections_are_told_apart() {
    let fleet = Fleet::start(2, |envoy| envoy);
    let mode = || fleet.stat("kv_events.pod-1.mode");
    let mut engine = fleet.publisher(0);
    engine.next = 700;
    // Envoy started under a warm engine.
    engine.send(&json!([stored(1000..1160)]));
    fleet.wait_for_stat("kv_events_blocks_stored", 10);
    assert_eq!((mode(), fleet.stat("kv_events_gaps")), (1, 1));
    assert_eq!(fleet.served(1000..1160), ("pod-1".into(), "10/10".into()));
    engine.send(&json!([{"type": "AllBlocksCleared"}, stored(2000..2160)]));
    wait_until("it to be known", || mode() == 2);
    assert_eq!(fleet.served(2000..2160), ("pod-1".into(), "10/10".into()));
    // A batch is lost.
    engine.next += 1;
    engine.send(&json!([]));
    wait_until("the gap to be seen", || mode() == 1);
    assert_eq!(fleet.stat("kv_events.pod-1.gaps"), 2);
    assert_eq!(fleet.served(2000..2160), ("pod-1".into(), "10/10".into()), "what it held is worth a guess");
    // The engine's process ends, and another takes its place.
    drop(engine);
    wait_until("its end to be seen", || mode() == 0);
    let mut engine = fleet.publisher(0);
    engine.send(&json!([stored(3000..3032)]));
    wait_until("the new one to be known", || mode() == 2);
    assert_eq!(fleet.served(2000..2160).1, "0/10");
    assert_eq!(fleet.served(3000..3032), ("pod-1".into(), "2/2".into()));
    assert_eq!(fleet.stat("kv_events_starts"), 1);
    fleet.envoy.assert_no_trap();
}

#[test]
fn strangers_are_refused_and_nobody_else_minds() {
    let fleet = Fleet::start(2, |envoy| envoy);
    let mut engine = fleet.publisher(1);
    engine.send(&json!([stored(1000..1032)]));
    fleet.wait_for_stat("kv_events_blocks_stored", 2);
    let mut stranger = Publisher::open(fleet.zmq(), "kv@pod-9@sim");
    stranger.send(&json!([stored(2000..2032)]));
    stranger.wait_for("closed", 1);
    assert!(fleet.stat("kv_events_strangers") >= 1);
    let log = fleet.envoy.log();
    assert!(log.contains(r#"the topic "kv@pod-9@sim" names a pod that isn't configured"#), "{log}");
    drop(stranger);
    // Somebody who doesn't speak ZeroMQ.
    let answer = Request::get("/").try_send(fleet.zmq());
    assert!(answer.is_err());
    fleet.wait_for_stat("kv_events_protocol_errors", 1);
    assert!(fleet.envoy.log().contains("it doesn't speak ZeroMQ"));
    // A model that nobody tokenizes, frames that are no event, and bytes that are no batch.
    let mut other = Publisher::open(fleet.zmq(), "kv@pod-1@other");
    other.send(&json!([stored(2000..2032)]));
    fleet.wait_for_stat("kv_events_no_tokenizer", 1);
    assert!(fleet.envoy.log().contains(r#""other" has no tokenizer"#));
    other.send_frames(&[b"kv@pod-1@other"]);
    other.send_payload(b"\xc1");
    fleet.wait_for_stat("kv_events_unreadable", 2);
    assert_eq!(fleet.served(1000..1032), ("pod-2".into(), "2/2".into()));
    engine.send(&json!([stored(1032..1064)]));
    fleet.wait_for_stat("kv_events_blocks_stored", 4);
    assert_eq!(fleet.served(1000..1064), ("pod-2".into(), "4/4".into()));
    fleet.envoy.assert_no_trap();
}

#[test]
fn another_block_size_is_named_and_the_pod_stays_approximate() {
    let fleet = Fleet::start(2, |envoy| envoy.plugin("/tokenizers/0/block_tokens", json!(32)));
    let mut engine = fleet.publisher(0);
    engine.send(&json!([stored(1000..1320)]));
    fleet.wait_for_stat("kv_events_blocks_other_size", 20);
    let log = fleet.envoy.log();
    assert!(log.contains("pod-1 caches blocks of 16 tokens") && log.contains("in blocks of 32"), "{log}");
    assert_eq!(fleet.stat("kv_events.pod-1.mode"), 1);
    let (first, _) = fleet.served(1000..1320);
    assert_eq!(fleet.served(1000..1320), (first, "10/10".into()), "it goes by what was routed");
}

#[test]
fn heartbeats_are_answered_and_long_messages_arrive_whole() {
    let fleet = Fleet::start(1, |envoy| envoy.concurrency(2));
    let options = ["HEARTBEAT_IVL=100", "HEARTBEAT_TIMEOUT=400", "HEARTBEAT_TTL=1000"];
    let mut engine = Publisher::connect(fleet.zmq(), "kv@pod-1@sim", &options);
    engine.wait_for("open", 1);
    // 2 MB, far more than Envoy reads at once.
    let tokens: Vec<u32> = (0..320_000).map(|n| 70_000 + n).collect();
    let names: Vec<u64> = (0..20_000).collect();
    engine.send(&json!([{
        "type": "BlockStored", "block_hashes": names, "parent_block_hash": null, "token_ids": tokens, "block_size": 16
    }]));
    fleet.wait_for_stat("kv_events_blocks_stored", 20_000);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(engine.said("closed"), 0, "it was not thought to be dead");
    assert_eq!(fleet.served(70_000..71_600).1, "100/100");
    // More than is taken.
    engine.send_payload(&vec![0; 5 << 20]);
    engine.wait_for("closed", 1);
    assert!(fleet.envoy.log().contains("kv_events.max_message_bytes is 4194304"));
    fleet.envoy.assert_no_trap();
}

#[test]
fn events_come_by_http_too() {
    let token = "a-token-of-some-length";
    let fleet = Fleet::start(2, |envoy| envoy.plugin("/kv_events/token", json!(token)).concurrency(1));
    let http = fleet.envoy.listener("kv-events-http");
    let post = |path: &str, number: Option<u64>, body: Vec<u8>, headers: &[(&str, &str)]| {
        let mut request = Request::post(&format!("/warmpath/v1/kv-events/{path}"), body);
        request = request.header("authorization", format!("Bearer {token}"));
        if let Some(number) = number {
            request = request.header("x-warmpath-sequence", number.to_string());
        }
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let answer = request.send(http);
        (answer.status, answer.json())
    };
    let plain: &[(&str, &str)] = &[];
    let events = batch(&json!([stored(1000..1160)]), 0);
    // Joined late; nothing can be replayed.
    assert_eq!(post("pod-2", Some(5), events.clone(), plain).0, 409);
    let (status, body) = post("pod-2", Some(5), events.clone(), &[("x-warmpath-gap", "accept")]);
    assert_eq!((status, &body["mode"], &body["next"]), (202, &json!("uncertain"), &json!(6)));
    // From the beginning.
    let (status, body) = post("pod-2", Some(0), events.clone(), plain);
    assert_eq!((status, &body["mode"], &body["next"]), (202, &json!("exact"), &json!(1)));
    assert_eq!(fleet.served(1000..1160), ("pod-2".into(), "10/10".into()));
    // JSON, by the pod's address, in another form.
    let more =
        json!([0.0, [["BlockStored", [1175], 1159, (1160..1176).collect::<Vec<_>>(), 16]]]).to_string();
    let address = fleet.pods.addresses()[1].to_string();
    let (status, body) = post(&address, Some(1), more.into_bytes(), &[("content-type", "application/json")]);
    assert_eq!((status, &body["next"]), (202, &json!(2)), "{body}");
    assert_eq!(fleet.served(1000..1176), ("pod-2".into(), "11/11".into()));
    // What is wrong is said.
    let (status, body) = post("pod-2", Some(4), events.clone(), plain);
    assert_eq!((status, &body["next"]), (409, &json!(2)));
    assert_eq!(post("pod-2", Some(1), events.clone(), plain).0, 202, "it was there before");
    assert_eq!(post("pod-2", Some(2), Vec::new(), plain).0, 202, "it is still there");
    assert_eq!(post("pod-2", Some(3), Vec::new(), plain).0, 409);
    for (path, body, status, what) in [
        ("pod-7", events.clone(), 404, "no pod is called"),
        ("", events.clone(), 404, "there is nothing at"),
        ("pod-2", b"\xc1".to_vec(), 400, "can't be read"),
        ("pod-2?model=other%2Fone", events.clone(), 422, "\"other/one\" has no tokenizer"),
        ("pod-2", batch(&json!([]), 3), 422, "rank 3"),
        ("pod-2", vec![0; 5 << 20], 413, "max_message_bytes"),
    ] {
        let (got, said) = post(path, None, body, plain);
        assert_eq!(got, status, "{said}");
        assert!(said["error"]["message"].as_str().expect("a message").contains(what), "{said}");
    }
    // Where clients are served it is a path like any other, and goes on to a pod.
    let batches = fleet.stat("kv_events_batches");
    let elsewhere = Request::post("/warmpath/v1/kv-events/pod-2", events.clone())
        .header("authorization", format!("Bearer {token}"))
        .send(&fleet.envoy);
    assert!(elsewhere.status == 404 && elsewhere.header("x-pod").is_some(), "{}", elsewhere.text());
    assert_eq!(fleet.stat("kv_events_batches"), batches);
    let without = Request::post("/warmpath/v1/kv-events/pod-2", events).send(http);
    assert_eq!(without.status, 401);
    assert!(without.text().contains("authorization: Bearer TOKEN"));
    let known =
        Request::get("/warmpath/v1/kv-events/pod-2").header("authorization", format!("Bearer {token}"));
    assert_eq!(known.send(http).json(), json!({"mode": "exact", "next": 2}));
    fleet.envoy.assert_no_trap();
}

#[test]
fn ranks_have_caches_of_their_own_and_requests_ask_for_theirs() {
    let fleet =
        Fleet::start(2, |envoy| envoy.plugin("/pods/0/ranks", json!(3)).plugin("/pods/1/ranks", json!(3)));
    let mut ranks: Vec<_> = (0..3).map(|_| fleet.publisher(1)).collect();
    for (rank, publisher) in (0..).zip(&mut ranks) {
        let start = 1000 + 1000 * rank;
        publisher.send_payload(&batch(&json!([stored(start..start + 160)]), rank));
    }
    fleet.wait_for_stat("kv_events_blocks_stored", 30);
    for rank in [2, 0, 1u32] {
        let start = 1000 + 1000 * rank;
        assert_eq!(fleet.served(start..start + 160), ("pod-2".into(), "10/10".into()));
        let seen = fleet.pods.seen_with("x-data-parallel-rank", &rank.to_string());
        assert!(seen.iter().any(|seen| seen.pod == 1), "rank {rank}");
    }
    assert_eq!(fleet.stat("kv_events.pod-2_2.blocks"), 10);
    let forged = json!({"model": "sim", "prompt": (1000..1160).collect::<Vec<_>>(), "max_tokens": 1});
    let forged = Request::json("/v1/completions", &forged).header("x-data-parallel-rank", "7");
    assert_eq!(forged.send(&fleet.envoy).status, 200);
    assert!(fleet.pods.seen_with("x-data-parallel-rank", "7").is_empty(), "a client asks for no rank");
}

#[test]
fn who_speaks_is_known_by_address_where_that_is_configured() {
    let fleet = Fleet::start(1, |envoy| envoy.plugin("/kv_events/pod_by", json!("address")));
    let mut engine = Publisher::open(fleet.zmq(), "");
    engine.send(&json!([stored(1000..1160)]));
    fleet.wait_for_stat("kv_events_blocks_stored", 10);
    assert_eq!(fleet.served(1000..1160).1, "10/10");
    drop(fleet);
    // Two pods of one address can't be told apart by it.
    let fleet = Fleet::start(2, |envoy| envoy.plugin("/kv_events/pod_by", json!("address")));
    let mut engine = Publisher::open(fleet.zmq(), "");
    engine.send(&json!([stored(1000..1160)]));
    engine.wait_for("closed", 1);
    assert!(fleet.envoy.log().contains("no single pod is configured with this address"));
}

/// The example's relay, from a publisher's ports to a pod.
fn relay(fleet: &Fleet, [events, replay]: [u16; 2], pod: &str) -> Process {
    let dir = temporary_dir("relay").expect("a temporary directory can be made");
    let mut command = Command::new(python());
    command.arg(root().join("examples/kv-events/relay.py"));
    let to = fleet.envoy.listener("kv-events-http");
    command.args(["--events", &format!("tcp://127.0.0.1:{events}")]);
    command.args(["--replay", &format!("tcp://127.0.0.1:{replay}")]);
    command.args(["--to", &format!("http://{to}"), "--pod", pod]);
    Process::start("relay", command, &dir, &[])
}

#[test]
fn the_relay_brings_what_was_missed() {
    let fleet = Fleet::start(2, |envoy| envoy);
    let mode = |pod: usize| fleet.stat(&format!("kv_events.pod-{pod}.mode"));
    // Nobody listens when the first batches are published; the engine keeps them, and far more than a socket holds by itself.
    let (mut engine, ports) = Publisher::bind("kv-events", 10_000);
    for start in [1000, 2000, 3000] {
        engine.send(&json!([stored(start..start + 160)]));
    }
    let nothing = batch(&json!([]), 0);
    (0..3000).for_each(|_| engine.send_payload(&nothing));
    let first = relay(&fleet, ports, "pod-1");
    engine.wait_for("open", 1);
    engine.send(&json!([stored(1160..1176)]));
    fleet.wait_for_stat("kv_events_blocks_stored", 31);
    wait_until("the pod to be exact", || mode(1) == 2);
    assert_eq!(fleet.served(1000..1176), ("pod-1".into(), "11/11".into()));
    assert_eq!(fleet.stat("kv_events_gaps"), 0);
    // Another relay takes over, and a batch is published in between.
    drop(first);
    engine.wait_for("closed", 1);
    engine.send(&json!([removed(2000..2160)]));
    let second = relay(&fleet, ports, "pod-1");
    engine.wait_for("open", 2);
    engine.send(&json!([stored(1176..1192)]));
    wait_until("what was missed to be there", || fleet.stat("kv_events.pod-1.blocks") == 22);
    assert_eq!(fleet.served(1000..1192), ("pod-1".into(), "12/12".into()));
    assert_eq!(fleet.served(2000..2160).1, "0/10");
    assert_eq!(fleet.served(3000..3160), ("pod-1".into(), "10/10".into()));
    drop(second);

    // An engine that keeps little: what is lost is lost, and said to be.
    let (mut engine, ports) = Publisher::bind("kv-events", 1);
    for start in [4000, 5000] {
        engine.send(&json!([stored(start..start + 160)]));
    }
    let _third = relay(&fleet, ports, "pod-2");
    engine.wait_for("open", 1);
    engine.send(&json!([stored(5160..5176)]));
    wait_until("the pod to be uncertain", || mode(2) == 1);
    assert_eq!(fleet.stat("kv_events.pod-2.gaps"), 1);
    engine.send(&json!([{"type": "AllBlocksCleared"}]));
    wait_until("the pod to be exact", || mode(2) == 2);
    fleet.envoy.assert_no_trap();
}

#[test]
fn an_envoy_that_starts_under_warm_engines_goes_by_what_it_routed() {
    // The engines keep their configuration, so both Envoys listen at one place.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = json!(free.expect("a port is free").port());
    let place = |envoy: Builder| {
        envoy.edit("/static_resources/listeners/2/address/socket_address/port_value", port.clone())
    };
    let fleet = Fleet::start_in(Folder::new(), Pods::start(3, &[]), place);
    let mut engine = fleet.publisher(1);
    engine.send(&json!([stored(1000..1160)]));
    wait_until("the pod to be exact", || fleet.stat("kv_events.pod-2.mode") == 2);
    assert_eq!(fleet.served(1000..1160), ("pod-2".into(), "10/10".into()));

    let Fleet { envoy, pods, folder } = fleet;
    drop(envoy);
    engine.wait_for("closed", 1);
    let fleet = Fleet::start_in(folder, pods, place);
    let mode = || fleet.stat("kv_events.pod-2.mode");
    engine.wait_for("open", 2);
    // What it holds is not known, and what it says now doesn't begin at the beginning.
    engine.send(&json!([stored(1160..1176), stored(2000..2160)]));
    wait_until("the pod to be heard", || mode() == 1);
    assert_eq!(fleet.served(2000..2160), ("pod-2".into(), "10/10".into()), "what was stored since is known");
    let (first, matched) = fleet.served(1000..1176);
    assert_eq!(matched, "0/11");
    assert_eq!(fleet.served(1000..1176), (first, "11/11".into()), "and what was routed since");
    assert_eq!(fleet.stat("kv_events.pod-2.blocks_waiting"), 1, "its block before was never told of");
    // The engine evicts a block that was told of, and one that was not.
    engine.send(&json!([removed(2144..2160), removed(1144..1160)]));
    fleet.wait_for_stat("kv_events_blocks_removed", 2);
    assert_eq!(fleet.served(2000..2160).1, "9/10");
    // What is evicted and stored again is told of, and what waited for it has its place.
    engine.send(&json!([removed(1000..1160), stored(1000..1160)]));
    wait_until("nothing to wait", || fleet.stat("kv_events.pod-2.blocks_waiting") == 0);
    assert_eq!(fleet.stat("kv_events.pod-2.blocks"), 9 + 11);
    assert_eq!(mode(), 1, "there may be more that nobody told of");
    engine.send(&json!([{"type": "AllBlocksCleared"}]));
    wait_until("the pod to be exact", || mode() == 2);
    fleet.envoy.assert_no_trap();
}
