//! `pod-sim`: one or more simulated GPU pods in one process.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pod_sim::engine::Settings;
use pod_sim::flags::{self, Flag, Flags};
use pod_sim::pod::{Options, Pod};
use pod_sim::server;
use pod_sim::time::TimeModel;
use pod_sim::transfer::{self, Kind, Role, Transfer, wire};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str =
    "pod-sim: simulated GPU pods behind OpenAI's API. Prints `listening on HOST:PORT` for each.";

const FLAGS: &[Flag] = &[
    Flag { name: "--host", value: "IP", help: "address to listen on [127.0.0.1]" },
    Flag {
        name: "--port",
        value: "N",
        help: "port of the first pod, the next ones follow; 0 takes free ones [8001]",
    },
    Flag { name: "--pods", value: "N", help: "pods in this process, each with its own port and cache [1]" },
    Flag {
        name: "--name",
        value: "TEXT",
        help: "what x-pod tells; of several pods NAME-1, NAME-2, ... [pod]",
    },
    Flag { name: "--model", value: "NAME", help: "a model that is served; repeatable [sim]" },
    Flag { name: "--blocks", value: "N", help: "blocks in a pod's prefix cache [4096]" },
    Flag { name: "--block-size", value: "N", help: "tokens in a block [16]" },
    Flag { name: "--max-running", value: "N", help: "requests that run at once; more wait [16]" },
    Flag { name: "--prefill-rate", value: "N", help: "prompt tokens computed in a simulated second [8000]" },
    Flag {
        name: "--decode-rate",
        value: "N",
        help: "tokens each request generates in a simulated second [50]",
    },
    Flag {
        name: "--speedup",
        value: "X",
        help: "simulated seconds in a real one; inf: nothing takes time [1]",
    },
    Flag { name: "--chunk-ms", value: "MS", help: "least real time between two chunks of a stream [10]" },
    Flag {
        name: "--answer-tokens",
        value: "N",
        help: "length of an answer that no max_tokens cuts short [32]",
    },
    Flag {
        name: "--enable-prompt-tokens-details",
        value: "",
        help: "tell cached_tokens in usage, as vLLM's flag does",
    },
    Flag { name: "--max-body-mb", value: "N", help: "longest request body [64]" },
    Flag {
        name: "--keep-alive-seconds",
        value: "X",
        help: "idle connections are closed after so long, as by vLLM [5]",
    },
    Flag { name: "--journal", value: "N", help: "how many requests /sim/requests keeps [1000]" },
    Flag { name: "--journal-bodies", value: "", help: "/sim/requests keeps the requests' bodies too" },
    Flag {
        name: "--kv-transfer",
        value: "NAME",
        help: "take part in disaggregation: nixl, sglang, p2p-nccl, mooncake or trtllm [none]",
    },
    Flag { name: "--role", value: "NAME", help: "with --kv-transfer: prefill, decode or both [both]" },
    Flag {
        name: "--bootstrap-port",
        value: "N",
        help: "port of the first pod's side listener, the next ones follow; 0 takes free ones [0]",
    },
    Flag {
        name: "--transfer-timeout-seconds",
        value: "X",
        help: "how long the legs of a request wait for each other, where they do [10]",
    },
    Flag {
        name: "--kv-ttl-seconds",
        value: "X",
        help: "how long KV is kept that no decode pod fetches [480]",
    },
    Flag { name: "--exit-with-parent", value: "", help: "quit when standard input is closed" },
    Flag { name: "--help", value: "", help: "this text" },
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pod-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let flags = Flags::parse(FLAGS, std::env::args().skip(1))?;
    if flags.has("--help") {
        print!("{}", flags::help(USAGE, FLAGS));
        return Ok(());
    }
    if let Some(word) = flags.rest().first() {
        return Err(format!("{word}: not a flag; --help lists them"));
    }
    if flags.has("--exit-with-parent") {
        // A thread, because reading standard input can't be cancelled.
        std::thread::spawn(|| {
            let mut ignored = [0; 64];
            while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
            std::process::exit(0);
        });
    }
    // One thread: several pods, a load and an Envoy share few cores in tests and demos.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("can't start: {error}"))?.block_on(serve(&flags))
}

async fn serve(flags: &Flags) -> Result<(), String> {
    let host: IpAddr = flags.get("--host", IpAddr::from([127, 0, 0, 1]))?;
    let first_port: u16 = flags.get("--port", 8001)?;
    let pods: u16 = flags.positive("--pods", 1)?;
    let name: String = flags.get("--name", "pod".to_owned())?;
    let (settings, options, transfer) = (settings(flags)?, options(flags)?, transfer(flags)?);
    let side_port: u16 = flags.get("--bootstrap-port", 0)?;
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    for index in 0..pods {
        let (listener, address) = listen(host, "--port", first_port, index).await?;
        let name = if pods == 1 { name.clone() } else { format!("{name}-{}", index + 1) };
        let transfer = match &transfer {
            None => None,
            Some(settings) => {
                let (listener, address) = listen(host, "--bootstrap-port", side_port, index).await?;
                let transfer = Arc::new(Transfer::new(settings.clone(), address));
                tokio::spawn(wire::listen(transfer.clone(), listener));
                Some(transfer)
            }
        };
        let pod = Arc::new(Pod::new(name, settings.clone(), options.clone(), transfer));
        tokio::spawn(server::serve(pod, listener));
        println!("listening on {address}");
    }
    let [terminate, interrupt] = signals;
    let mut terminate = terminate.map_err(|error| format!("can't wait for SIGTERM: {error}"))?;
    let mut interrupt = interrupt.map_err(|error| format!("can't wait for SIGINT: {error}"))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // At once, with all connections: a pod that is killed doesn't say goodbye.
    std::process::exit(0)
}

/// Listens for pod `index` of those whose first has the port of `flag`.
async fn listen(
    host: IpAddr,
    flag: &str,
    first: u16,
    index: u16,
) -> Result<(TcpListener, SocketAddr), String> {
    let port = match first {
        0 => 0,
        first => first.checked_add(index).ok_or_else(|| format!("{flag} {first}: no ports from there on"))?,
    };
    let listener = TcpListener::bind((host, port)).await;
    let listener = listener.map_err(|error| format!("can't listen on {host}:{port}: {error}"))?;
    let address = listener.local_addr().map_err(|error| format!("{host}:{port}: {error}"))?;
    Ok((listener, address))
}

fn transfer(flags: &Flags) -> Result<Option<transfer::Settings>, String> {
    let role = flags.get("--role", Role::Both)?;
    let settings = transfer::Settings {
        kind: match flags.find("--kv-transfer")? {
            Some(kind) => kind,
            None if flags.has("--role") => return Err("--role: needs --kv-transfer".into()),
            None => return Ok(None),
        },
        role,
        timeout: seconds(flags, "--transfer-timeout-seconds", 10.0)?,
        ttl: seconds(flags, "--kv-ttl-seconds", 480.0)?,
    };
    if role == Role::Both && matches!(settings.kind, Kind::Sglang | Kind::P2pNccl) {
        return Err("--role: prefill or decode is needed, since these servers are one or the other".into());
    }
    Ok(Some(settings))
}

fn seconds(flags: &Flags, name: &str, default: f64) -> Result<Duration, String> {
    let seconds: f64 = flags.get(name, default)?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{name} {seconds}: {error}"))
}

fn settings(flags: &Flags) -> Result<Settings, String> {
    Ok(Settings {
        blocks: flags.positive("--blocks", 4096)?,
        block_size: flags.positive("--block-size", 16)?,
        max_running: flags.positive("--max-running", 16)?,
        time: TimeModel {
            prefill_rate: flags.positive("--prefill-rate", 8000.0)?,
            decode_rate: flags.positive("--decode-rate", 50.0)?,
            speedup: flags.positive("--speedup", 1.0)?,
            chunk: Duration::from_millis(flags.get("--chunk-ms", 10)?),
        },
    })
}

fn options(flags: &Flags) -> Result<Options, String> {
    let models: Vec<String> = flags.all("--model").map(str::to_owned).collect();
    Ok(Options {
        models: if models.is_empty() { vec!["sim".to_owned()] } else { models },
        answer_tokens: flags.get("--answer-tokens", 32)?,
        prompt_tokens_details: flags.has("--enable-prompt-tokens-details"),
        max_body: flags.get("--max-body-mb", 64usize)?.saturating_mul(1 << 20),
        keep_alive: seconds(flags, "--keep-alive-seconds", 5.0)?,
        journal: flags.get("--journal", 1000)?,
        journal_bodies: flags.has("--journal-bodies"),
    })
}

#[cfg(test)]
mod tests {
    use super::FLAGS;

    #[test]
    fn the_readme_names_every_flag() {
        let readme = include_str!("../README.md");
        for flag in FLAGS {
            assert!(readme.contains(&format!("`{}", flag.name)), "{} is missing", flag.name);
        }
    }
}
