//! What KV events cost in a real Envoy: how many a second come through the socket into the index of every worker, the CPU for a
//! million blocks, and what requests notice while 100,000 blocks a second flow in.
//!
//! Envoy's workers have core 0; its main thread, the publisher and the load have core 1. The publisher writes what libzmq would, prepared before, as fast
//! as Envoy takes it, or at a pace. Each batch stores 16 blocks of 16 tokens and removes the 16 that were stored longest ago.

use serde_json::json;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use warmpath_bench::prompts::{Prompts, Shape};
use warmpath_bench::router::Router;
use warmpath_bench::{mock, router};
use warmpath_tests::{Envoy, wait_long, wait_until};

const USAGE: &str = "usage: warmpath-bench-events WARMPATH.wasm ROUNDS";
const EVENT: usize = 16;
const TOKENS: u64 = 16;
/// Blocks that the engine's cache holds.
const CACHE: usize = 50_000;
/// Batches of one run: as many blocks as this times [`EVENT`].
const BATCHES: usize = 25_000;
/// Blocks a second while requests are timed.
const PACE: f64 = 100_000.0;

fn greeting() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    bytes.extend(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB");
    bytes
}

fn put_frame(out: &mut Vec<u8>, more: bool, frame: &[u8]) {
    match u8::try_from(frame.len()) {
        Ok(length) => out.extend([u8::from(more), length]),
        Err(_) => {
            out.push(2 | u8::from(more));
            out.extend((frame.len() as u64).to_be_bytes());
        }
    }
    out.extend(frame);
}

/// The messages of an engine, from its first on.
struct Engine {
    number: u64,
    next: u64,
    held: VecDeque<u64>,
}

impl Engine {
    fn new() -> Self {
        Self { number: 0, next: 0, held: VecDeque::new() }
    }

    fn name(block: u64) -> u64 {
        (block + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// One message. Every fifth begins a chain; the others go on.
    fn message(&mut self, out: &mut Vec<u8>) {
        let names: Vec<u64> = (self.next..self.next + EVENT as u64).map(Self::name).collect();
        let begins = self.number.is_multiple_of(5);
        let parent = (!begins).then(|| Self::name(self.next - 1));
        let tokens: Vec<u64> =
            (0..EVENT as u64 * TOKENS).map(|n| (self.next * 31 + n * 7) % 150_000).collect();
        self.next += EVENT as u64;
        self.held.extend(&names);
        let mut events = vec![json!({
            "type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens, "block_size": TOKENS,
            "lora_id": null, "medium": "GPU", "lora_name": null, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
        })];
        if self.held.len() > CACHE {
            let gone: Vec<_> = self.held.drain(..EVENT).collect();
            events
                .push(json!({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU", "group_idx": 0}));
        }
        let payload = rmp_serde::to_vec(&(1.0, events, 0)).expect("it is msgpack");
        put_frame(out, true, b"kv@pod-1@bench");
        put_frame(out, true, &self.number.to_be_bytes());
        put_frame(out, false, &payload);
        self.number += 1;
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(to).expect("Envoy listens");
    socket.write_all(&greeting()).expect("Envoy reads");
    // Its greeting, READY and subscription.
    let mut answer = [0; 64 + 27 + 3];
    socket.read_exact(&mut answer).expect("Envoy answers");
    assert!(answer.ends_with(&[0, 1, 1]), "no subscription to everything in {answer:?}");
    socket
}

struct Run {
    envoy: Router,
    events: SocketAddr,
    engine: Engine,
    stored: u64,
}

impl Run {
    fn start(wasm: &Path, workers: usize, pods: &[SocketAddr]) -> Self {
        let vocabulary =
            PathBuf::from(std::env::var_os("WARMPATH_VOCABULARY").expect("run tests/bench-events.sh"));
        let socket = std::env::temp_dir().join(format!("warmpath-bench-{}-{workers}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let envoy = Envoy::with_kv_events(&vocabulary, &socket, "bench").addresses(pods).module(wasm);
        let envoy = envoy.plugin("/tokenizers/0/block_tokens", json!(TOKENS)).concurrency(workers).start();
        let events = envoy.listener("kv-events");
        let envoy = Router::of("envoy", envoy);
        // It follows the log in bursts, which a worker on a core of its own wouldn't notice.
        envoy.pin_first(1);
        let ready = || envoy.stat("wasmcustom.warmpath.tokenizers_ready") == Some(1);
        wait_until("the tokenizer to be loaded", ready);
        let _ = std::fs::remove_file(&socket);
        Self { envoy, events, engine: Engine::new(), stored: 0 }
    }

    /// Writes so many batches as fast as they are taken. Returns blocks a second, and CPU for a million of them.
    fn flood(&mut self, batches: usize) -> (f64, f64) {
        // From the beginning: the connection is new.
        self.engine = Engine::new();
        let mut bytes = Vec::new();
        (0..batches).for_each(|_| self.engine.message(&mut bytes));
        let mut socket = connect(self.events);
        let (start, before) = (Instant::now(), self.envoy.cpu_used());
        socket.write_all(&bytes).expect("Envoy takes all");
        self.stored += (batches * EVENT) as u64;
        wait_long(Duration::from_secs(120), "all blocks to be in the index", || {
            (self.envoy.stat("wasmcustom.warmpath.kv_events_blocks_stored") == Some(self.stored))
                .then_some(())
        });
        let took = start.elapsed().as_secs_f64();
        // The other workers follow within a few ticks.
        std::thread::sleep(Duration::from_millis(500));
        let used = (self.envoy.cpu_used() - before).as_secs_f64();
        let blocks = (batches * EVENT) as f64;
        (blocks / took, used / blocks * 1e6)
    }
}

/// Writes batches at a pace until it is told to stop. Returns blocks written, and the time it took.
fn pace(events: SocketAddr, stop: &AtomicBool) -> (u64, Duration) {
    let mut engine = Engine::new();
    // What is prepared lasts for a minute; it isn't made while requests are timed.
    let prepared: Vec<Vec<u8>> = (0..60_000)
        .map(|_| {
            let mut message = Vec::new();
            engine.message(&mut message);
            message
        })
        .collect();
    let mut socket = connect(events);
    let start = Instant::now();
    let mut sent = 0u64;
    for message in prepared {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        socket.write_all(&message).expect("Envoy takes it");
        sent += EVENT as u64;
        let due = Duration::from_secs_f64(sent as f64 / PACE);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    (sent, start.elapsed())
}

fn percentile(times: &mut [Duration], of: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * of) as usize].as_secs_f64() * 1e3
}

fn main() {
    let mut args = std::env::args().skip(1);
    let wasm = PathBuf::from(args.next().expect(USAGE));
    let rounds: usize = args.next().and_then(|text| text.parse().ok()).expect(USAGE);
    router::pin(std::process::id(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = runtime.block_on(mock::start(4)).expect("pods start");
    println!("{:<10} | {:>12} | {:>18}", "workers", "blocks/s", "CPU s for 1M blocks");
    for workers in [1, 4] {
        let mut run = Run::start(&wasm, workers, &pods);
        run.flood(BATCHES / 4);
        let mut figures: Vec<_> = (0..rounds).map(|_| run.flood(BATCHES)).collect();
        figures.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (rate, cpu) = figures[figures.len() / 4];
        println!("{workers:<10} | {rate:>12.0} | {cpu:>18.2}");
    }
    println!(
        "{:<28} | {:>8} | {:>8} | {:>8}",
        "requests (1 KB), 4 at a time", "p50 ms", "p99 ms", "blocks/s"
    );
    for workers in [1, 4] {
        let mut run = Run::start(&wasm, workers, &pods);
        let prompts = Rc::new(Prompts::new(Shape::Quarter, 1000));
        let mut times = [Vec::new(), Vec::new()];
        let mut flowed = (0, Duration::ZERO);
        let local = tokio::task::LocalSet::new();
        let requests = |run: &mut Run, count| local.block_on(&runtime, run.envoy.run(&prompts, count, 4));
        let is_exact = |run: &Run| run.envoy.stat("wasmcustom.warmpath.kv_events.pod-1.mode") == Some(2);
        requests(&mut run, 2000);
        for _ in 0..rounds {
            times[0].extend(requests(&mut run, 4000));
            let stop = Arc::new(AtomicBool::new(false));
            let (flag, events) = (stop.clone(), run.events);
            let publisher = std::thread::spawn(move || pace(events, &flag));
            // Its messages are prepared, and its cache is full.
            wait_until("the publisher to be heard", || is_exact(&run));
            std::thread::sleep(Duration::from_millis(700));
            times[1].extend(requests(&mut run, 4000));
            stop.store(true, Ordering::Relaxed);
            let (sent, took) = publisher.join().expect("the publisher ends");
            flowed = (flowed.0 + sent, flowed.1 + took);
            wait_until("its end to be seen", || !is_exact(&run));
        }
        let rates = [0.0, flowed.0 as f64 / flowed.1.as_secs_f64()];
        for ((name, times), rate) in ["no events", "events"].iter().zip(&mut times).zip(rates) {
            let name = format!("{workers} workers, {name}");
            println!(
                "{name:<28} | {:>8.2} | {:>8.2} | {rate:>8.0}",
                percentile(times, 0.5),
                percentile(times, 0.99)
            );
        }
    }
}
