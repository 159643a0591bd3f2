//! Measures, in turn and in one run: Envoy alone, the wasm floor, Warmpath's profiles, and Dynamo's frontend where it is
//! installed, at 1, 40 and 400 KB.
//!
//! A router has one worker where it has workers, and is pinned to core 0; load and pods share core 1. CPU is what all threads
//! of the router's process used. Many short rounds are interleaved, and the lower quartile of each router is reported:
//! whatever else a machine does only ever adds.

use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use warmpath_bench::prompts::{Prompts, Shape, TURNS};
use warmpath_bench::router::Router;
use warmpath_bench::{dynamo, mock, router};
use warmpath_tests::{Envoy, wait_until};

const PODS: usize = 4;
/// Rounds that are not counted.
const WARM: usize = 3;
/// Connections while CPU is measured.
const MANY: usize = 16;

const USAGE: &str =
    "usage: warmpath-bench FLOOR.wasm WARMPATH.wasm ROUNDS SHAPE…   (quarter, cold, conversation)";

fn main() {
    let mut args = std::env::args().skip(1);
    let floor = PathBuf::from(args.next().expect(USAGE));
    let warmpath = PathBuf::from(args.next().expect(USAGE));
    let rounds: usize = args.next().and_then(|text| text.parse().ok()).expect(USAGE);
    let shapes: Vec<_> = args.map(|name| shape(&name)).collect();
    router::pin(std::process::id(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = runtime.block_on(mock::start(PODS)).expect("pods start");
    let mut routers = routers(&floor, &warmpath, &pods);
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for shape in shapes {
            for kilobytes in [1, 40, 400] {
                if shape != Shape::Conversation || kilobytes == 400 {
                    measure(&mut routers, shape, kilobytes, rounds).await;
                }
            }
        }
    });
    for router in &routers {
        println!("{:<22} | {:>7.0} MB", router.name, router.memory());
    }
}

fn shape(name: &str) -> Shape {
    match name {
        "quarter" => Shape::Quarter,
        "cold" => Shape::Cold,
        "conversation" => Shape::Conversation,
        _ => panic!("{USAGE}"),
    }
}

fn routers(floor: &Path, warmpath: &Path, pods: &[SocketAddr]) -> Vec<Router> {
    let addresses = pods.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
    let floor = || Envoy::builder().addresses(pods).module(floor);
    let profile = |name| Envoy::builder().addresses(pods).module(warmpath).plugin("/profile", json!(name));
    let mut routers = vec![
        Router::envoy("envoy-buffer", router::buffer_only(floor())),
        Router::envoy("wasm-floor", floor().plugin_text(&addresses)),
        Router::envoy("round-robin", profile("round-robin")),
        Router::envoy("prefix-aware", profile("prefix-aware")),
        Router::envoy("by filter state", profile("prefix-aware").via_filter_state()),
    ];
    let Some(vocabulary) = std::env::var_os("WARMPATH_VOCABULARY").map(PathBuf::from) else { return routers };
    // By default a part of a long new prompt is tokenized; others tokenize all of it.
    for (name, most_new) in [("exact-tokens", 128 << 10), ("exact, no limit", 8 << 20)] {
        let socket = std::env::temp_dir().join(format!("warmpath-bench-{}", std::process::id()));
        let exact = Envoy::with_tokenizer(&vocabulary, &socket, "bench").addresses(pods).module(warmpath);
        let exact = Router::envoy(name, exact.plugin("/tokenizers/0/max_new_bytes", json!(most_new)));
        let ready = || exact.stat("wasmcustom.warmpath.tokenizers_ready") == Some(1);
        wait_until("the tokenizer to be loaded", ready);
        // It was fetched, and is not fetched again.
        let _ = std::fs::remove_file(&socket);
        routers.push(exact);
    }
    if let Some(python) = std::env::var_os("DYNAMO_PYTHON") {
        routers.push(dynamo::start(Path::new(&python), &vocabulary, PODS));
    }
    routers
}

async fn measure(routers: &mut [Router], shape: Shape, kilobytes: usize, rounds: usize) {
    let prompts = Rc::new(Prompts::new(shape, kilobytes * 1000));
    let (alone, many) = match (shape, kilobytes) {
        (Shape::Conversation, _) => (TURNS, TURNS * MANY),
        (_, 400) => (40, 20 * MANY),
        _ => (100, 60 * MANY),
    };
    let mut p50 = vec![Vec::new(); routers.len()];
    let mut cpu = vec![Vec::new(); routers.len()];
    for round in 0..rounds + WARM {
        for (i, router) in routers.iter_mut().enumerate() {
            let mut times = router.run(&prompts, alone, 1).await;
            if shape == Shape::Conversation {
                // The last quarter of the turns: those that are about as long as was asked for.
                times.drain(..TURNS * 3 / 4);
            }
            times.sort_unstable();
            let before = router.cpu_used();
            router.run(&prompts, many, MANY).await;
            let used = (router.cpu_used() - before).as_secs_f64() * 1e6 / many as f64;
            // The first rounds warm connections, caches and the JIT.
            if round >= WARM {
                p50[i].push(times[times.len() / 2].as_secs_f64() * 1e6);
                cpu[i].push(used);
            }
        }
    }
    println!("{:<22} | {:>10} | {:>17}", format!("{shape:?}, {kilobytes} KB"), "p50 us", "CPU us a request");
    let base = quartile(&mut cpu[1]);
    for (i, router) in routers.iter().enumerate() {
        let (p50, cpu) = (quartile(&mut p50[i]), quartile(&mut cpu[i]));
        println!("{:<22} | {:>10.0} | {:>7.0} = {:>5.2} x floor", router.name, p50, cpu, cpu / base);
    }
}

fn quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}
