//! What the two steps of a workflow take beyond their legs: one client, requests one after the other, pods that answer at once.
//!
//! A leg is the request sent straight to a pod. What two legs take is what a client would wait that called both pods itself; what the
//! workflow takes beyond that is Envoy, the filter, and the callout. A one-step profile stands beside it, in the same run.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use warmpath_bench::prompts::{Prompts, Shape};
use warmpath_bench::router::{Router, pin};
use warmpath_bench::{load, mock};
use warmpath_tests::Envoy;

const USAGE: &str = "usage: warmpath-bench-handoff WARMPATH.wasm ROUNDS";
/// Rounds that are not counted.
const WARM: usize = 3;

fn main() {
    let mut args = std::env::args().skip(1);
    let warmpath = PathBuf::from(args.next().expect(USAGE));
    let rounds: usize = args.next().and_then(|text| text.parse().ok()).expect(USAGE);
    pin(std::process::id(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = runtime.block_on(mock::start(4)).expect("pods start");
    let role = |n: usize| if n < 2 { "prefill" } else { "decode" };
    let listed: Vec<Value> = pods
        .iter()
        .enumerate()
        .map(|(n, address)| json!({"name": format!("pod-{n}"), "address": address.to_string(), "labels": {"role": role(n)}}))
        .collect();
    let envoy = || Envoy::builder().addresses(&pods).module(&warmpath).plugin("/pods", json!(listed));
    let workflow = |protocol: Value| {
        let always = json!({"min_tokens": 0, "min_share": 0, "max_slowdown": 1000});
        let pd = json!({"protocol": protocol, "cluster": "pods", "remote_prefill": always});
        envoy().plugin("/workflows", json!({"pd": pd})).plugin("/workflow", json!("pd"))
    };
    let mut routers = [
        Router::envoy("one step: prefix-aware", envoy().plugin("/profile", json!("prefix-aware"))),
        Router::envoy("two steps in turn: nixl", workflow(json!({"type": "nixl"}))),
    ];
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for kilobytes in [1, 40, 400] {
            let prompts = Rc::new(Prompts::new(Shape::Quarter, kilobytes * 1000));
            let count = if kilobytes == 400 { 60 } else { 150 };
            let mut times: Vec<Vec<Duration>> = vec![Vec::new(); routers.len() + 1];
            let mut straight = 0;
            for round in 0..rounds + WARM {
                let legs = load::run(pods[3], &prompts, straight, count, 1).await.expect("pods answer");
                straight += count;
                let mut all = vec![legs];
                for router in &mut routers {
                    all.push(router.run(&prompts, count, 1).await);
                }
                if round >= WARM {
                    times.iter_mut().zip(all).for_each(|(times, new)| times.extend(new));
                }
            }
            let at = |times: &mut Vec<Duration>, part: usize| {
                times.sort_unstable();
                times[times.len() * part / 100].as_secs_f64() * 1e6
            };
            let [leg50, leg99] = [50, 99].map(|part| at(&mut times[0], part));
            println!(
                "{:<30} | {:>8} | {:>8} | beyond two legs",
                format!("{kilobytes} KB"),
                "p50 us",
                "p99 us"
            );
            println!("{:<30} | {leg50:>8.0} | {leg99:>8.0} |", "a leg, straight to its pod");
            for (router, times) in routers.iter().zip(&mut times[1..]) {
                let [p50, p99] = [50, 99].map(|part| at(times, part));
                let beyond = format!("{:>8.0} | {:>8.0}", p50 - 2.0 * leg50, p99 - 2.0 * leg99);
                let beyond = if router.name.starts_with("two") { beyond } else { String::new() };
                println!("{:<30} | {p50:>8.0} | {p99:>8.0} | {beyond}", router.name);
            }
        }
    });
    let handed_over = routers[1].stat("wasmcustom.warmpath.prefills_remote").unwrap_or(0);
    let lost = routers[1].stat("wasmcustom.warmpath.aggregated_failed").unwrap_or(0);
    assert!(handed_over > 0 && lost == 0, "{handed_over} were handed over, {lost} were not");
}
