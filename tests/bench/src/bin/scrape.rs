//! What it costs a real Envoy to ask engines for their load: CPU with 64 pods that are asked once a second and answer as a busy
//! vLLM does, against the same Envoy that asks nobody, by turns in one run.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use warmpath_bench::mock;
use warmpath_bench::router::Router;
use warmpath_tests::{Envoy, wait_until};

const USAGE: &str = "usage: warmpath-bench-scrape WARMPATH.wasm ROUNDS";
const PODS: usize = 64;
const WORKERS: usize = 4;
/// Of one measurement.
const SECONDS: u64 = 10;

fn envoy(module: &Path, pods: &[SocketAddr], metrics: Option<Value>) -> Envoy {
    let builder = Envoy::builder().addresses(pods).module(module).concurrency(WORKERS);
    match metrics {
        Some(metrics) => builder.plugin("/metrics", metrics).start(),
        None => builder.start(),
    }
}

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let module = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let rounds: usize = arguments.next().and_then(|text| text.parse().ok()).ok_or(USAGE)?;
    let (sender, pods) = std::sync::mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let _ = sender.send(mock::start(PODS).await);
            std::future::pending::<()>().await;
        });
    });
    let pods = pods.recv().map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;

    let asking = envoy(&module, &pods, Some(json!({"cluster": "pods"})));
    wait_until("all engines to be heard", || asking.stat("wasmcustom.warmpath.engines_heard") == PODS as u64);
    let silent = envoy(&module, &pods, None);
    let before = asking.stat("wasmcustom.warmpath.asked");
    let (start, mut asked_for) = (Instant::now(), Duration::ZERO);
    let mut routers = [Router::of("asks nobody", silent), Router::of("asks 64 pods", asking)];
    let mut shares = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (router, shares) in routers.iter_mut().zip(&mut shares) {
            let (since, used) = (Instant::now(), router.cpu_used());
            std::thread::sleep(Duration::from_secs(SECONDS));
            let used = router.cpu_used().saturating_sub(used);
            shares.push(used.as_secs_f64() / since.elapsed().as_secs_f64() * 100.0);
        }
        asked_for = start.elapsed();
    }
    let asked = routers[1].stat("wasmcustom.warmpath.asked").unwrap_or(0).saturating_sub(before);
    let median = |shares: &mut Vec<f64>| {
        shares.sort_by(f64::total_cmp);
        shares[shares.len() / 2]
    };
    let [silent, asking] = shares.each_mut().map(median);
    println!(
        "{PODS} pods, {WORKERS} workers, answers of {} bytes, median of {rounds} times {SECONDS} s",
        mock::METRICS.len()
    );
    println!("asks nobody      {silent:5.2} % of a core");
    println!(
        "asks every pod   {asking:5.2} % of a core, {:.0} answers a second",
        asked as f64 / asked_for.as_secs_f64()
    );
    println!("asking costs     {:5.2} % of a core", asking - silent);
    Ok(())
}
