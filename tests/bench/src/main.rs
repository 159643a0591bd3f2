//! Measures, in turn and in one run: Envoy alone, the wasm floor, and Warmpath's profiles, at 1, 40 and 400 KB.
//!
//! Envoy has one worker pinned to core 0; load and pods share core 1. CPU is what all threads of Envoy's process used.
//! Many short rounds are interleaved, and the lower quartile of each variant is reported: whatever else a machine does
//! only ever adds.

mod load;
mod mock;
mod prompts;

use prompts::Prompts;
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use warmpath_tests::{Builder, Envoy, wait_until};

const PODS: usize = 4;
/// Rounds that are not counted.
const WARM: usize = 3;

/// One way to route, and what was measured of it.
struct Variant {
    name: &'static str,
    envoy: Envoy,
    next: usize,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let floor = PathBuf::from(args.next().expect("usage: warmpath-bench FLOOR.wasm WARMPATH.wasm [ROUNDS]"));
    let warmpath =
        PathBuf::from(args.next().expect("usage: warmpath-bench FLOOR.wasm WARMPATH.wasm [ROUNDS]"));
    let rounds: usize = args.next().map_or(20, |text| text.parse().expect("ROUNDS is a number"));
    pin(std::process::id(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = runtime.block_on(mock::start(PODS)).expect("pods start");
    let variants = variants(&floor, &warmpath, &pods);
    tokio::task::LocalSet::new().block_on(&runtime, measure(variants, rounds));
}

fn variants(floor: &Path, warmpath: &Path, pods: &[SocketAddr]) -> Vec<Variant> {
    let addresses = pods.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
    let floor = || Envoy::builder().addresses(pods).module(floor);
    let profile = |name| Envoy::builder().addresses(pods).module(warmpath).plugin("/profile", json!(name));
    let mut variants = vec![
        variant("envoy-buffer", buffer_only(floor())),
        variant("wasm-floor", floor().plugin_text(&addresses)),
        variant("round-robin", profile("round-robin")),
        variant("prefix-aware", profile("prefix-aware")),
    ];
    if let Some(folder) = std::env::var_os("WARMPATH_VOCABULARY") {
        let socket = std::env::temp_dir().join(format!("warmpath-bench-{}", std::process::id()));
        let exact =
            Envoy::with_tokenizer(Path::new(&folder), &socket, "bench").addresses(pods).module(warmpath);
        variants.push(variant("exact-tokens", exact));
        let envoy = &variants[variants.len() - 1].envoy;
        wait_until("the tokenizer to be loaded", || envoy.stat("wasmcustom.warmpath.tokenizers_ready") == 1);
        // It was fetched, and is not fetched again.
        let _ = std::fs::remove_file(&socket);
    }
    variants
}

async fn measure(mut variants: Vec<Variant>, rounds: usize) {
    println!(
        "{:<14}{:>8} | {:>22} | {:>36}",
        "", "", "p50 us, concurrency 1", "CPU us a request, concurrency 16"
    );
    for kilobytes in [1, 40, 400] {
        let prompts = Rc::new(Prompts::new(kilobytes * 1000));
        let (alone, many) = if kilobytes < 100 { (100, 1000) } else { (40, 320) };
        let mut p50 = vec![Vec::new(); variants.len()];
        let mut cpu = vec![Vec::new(); variants.len()];
        for round in 0..rounds + WARM {
            for (i, v) in variants.iter_mut().enumerate() {
                let mut times = v.run(&prompts, alone, 1).await;
                times.sort_unstable();
                let before = cpu_used(v.envoy.process_id());
                v.run(&prompts, many, 16).await;
                let used = (cpu_used(v.envoy.process_id()) - before).as_secs_f64() * 1e6 / many as f64;
                // The first rounds warm connections, caches and the JIT.
                if round >= WARM {
                    p50[i].push(times[times.len() / 2].as_secs_f64() * 1e6);
                    cpu[i].push(used);
                }
            }
        }
        let base = quartile(&mut cpu[1]);
        for (i, v) in variants.iter().enumerate() {
            let (p50, cpu) = (quartile(&mut p50[i]), quartile(&mut cpu[i]));
            println!(
                "{:<14}{:>5} KB | {:>22.0} | {:>18.0} = {:>4.2} x floor",
                v.name,
                kilobytes,
                p50,
                cpu,
                cpu / base
            );
        }
    }
}

impl Variant {
    async fn run(&mut self, prompts: &Rc<Prompts>, count: usize, concurrency: usize) -> Vec<Duration> {
        let first = self.next;
        self.next += count;
        load::run(self.envoy.address(), prompts, first, count, concurrency)
            .await
            .unwrap_or_else(|e| panic!("{}: {e}\n{}", self.name, self.envoy.log()))
    }
}

fn variant(name: &'static str, builder: Builder) -> Variant {
    let envoy = builder.concurrency(1).start();
    pin(envoy.process_id(), 0);
    Variant { name, envoy, next: 0 }
}

/// Envoy's own buffering instead of the wasm filter.
fn buffer_only(builder: Builder) -> Builder {
    let filter = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0";
    builder.edit(
        filter,
        json!({"name": "warmpath", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
            "max_request_bytes": 33_554_432
        }}),
    )
}

/// Binds a process with all its threads to a core.
fn pin(process: u32, core: usize) {
    let ran = Command::new("taskset").args(["-acp", &core.to_string(), &process.to_string()]).output();
    assert!(
        ran.is_ok_and(|run| run.status.success()),
        "taskset (util-linux) could not pin a process to core {core}"
    );
}

/// CPU that a process has used.
fn cpu_used(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("Envoy runs").flatten();
    // The first number of schedstat: nanoseconds on a CPU.
    let used = threads.filter_map(|thread| -> Option<u64> {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse().ok()
    });
    Duration::from_nanos(used.sum())
}

fn quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}
