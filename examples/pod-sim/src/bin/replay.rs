//! `replay`: sends conversations or a trace, and measures what comes back.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pod_sim::flags::{self, Flag, Flags};
use pod_sim::replay::{Client, Session, Summary, compare, conversations, trace};
use serde_json::{Value, json};

const USAGE: &str = "replay: multi-turn conversations, or a trace, against an OpenAI-compatible server.
  replay --url http://HOST:PORT [FLAGS]
  replay --compare A.json B.json ...";

const FLAGS: &[Flag] = &[
    Flag { name: "--url", value: "URL", help: "the server [http://127.0.0.1:10000]" },
    Flag { name: "--model", value: "NAME", help: "the model asked for [sim]" },
    Flag { name: "--header", value: "NAME:VALUE", help: "a header for every request; repeatable" },
    Flag { name: "--timeout-seconds", value: "X", help: "a request that takes longer is an error [120]" },
    Flag { name: "--wait-seconds", value: "X", help: "so long the server may take to start [0]" },
    Flag { name: "--label", value: "TEXT", help: "what the run is called in tables [the URL]" },
    Flag { name: "--out", value: "FILE", help: "write rows and totals there, as JSON" },
    Flag { name: "--quiet", value: "", help: "print totals only" },
    Flag { name: "--block-size", value: "N", help: "tokens in a block, for the ideal hit share [16]" },
    Flag { name: "--seed", value: "N", help: "equal seeds give equal conversations [1]" },
    Flag { name: "--conversations", value: "N", help: "how many [32]" },
    Flag { name: "--turns", value: "N", help: "turns of each [4]" },
    Flag { name: "--system-prompts", value: "N", help: "different system prompts, shared by all [4]" },
    Flag { name: "--skew", value: "X", help: "the n-th system prompt comes in proportion to 1/n^X [0]" },
    Flag { name: "--system-words", value: "N", help: "words of a system prompt [600]" },
    Flag { name: "--turn-words", value: "N", help: "words the user says in a turn, on average [80]" },
    Flag { name: "--answer-tokens", value: "N", help: "tokens of an answer [48]" },
    Flag { name: "--think-ms", value: "MS", help: "pause before a turn, on average [200]" },
    Flag {
        name: "--concurrency",
        value: "N",
        help: "conversations [8], or requests of a trace [256], at once",
    },
    Flag { name: "--trace", value: "FILE", help: "replay this trace in Mooncake's format instead" },
    Flag { name: "--speed", value: "X", help: "trace: times faster than recorded [1]" },
    Flag { name: "--limit", value: "N", help: "trace: only the first requests [1000]" },
    Flag { name: "--token-scale", value: "X", help: "trace: tokens sent for each one recorded [0.125]" },
    Flag { name: "--compare", value: "", help: "print the totals of earlier runs side by side" },
    Flag { name: "--help", value: "", help: "this text" },
];

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let flags = Flags::parse(FLAGS, std::env::args().skip(1))?;
    if flags.has("--help") {
        print!("{}", flags::help(USAGE, FLAGS));
        return Ok(ExitCode::SUCCESS);
    }
    if flags.has("--compare") {
        let runs = flags.rest().iter().map(|file| read(file)).collect::<Result<Vec<Summary>, String>>()?;
        print!("{}", compare(&runs));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(word) = flags.rest().first() {
        return Err(format!("{word}: not a flag; --help lists them"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let summary = runtime.map_err(|error| format!("can't start: {error}"))?.block_on(play(&flags))?;
    if let Some(file) = flags.find::<String>("--out")? {
        let json = serde_json::to_string_pretty(&summary).map_err(|error| error.to_string())?;
        std::fs::write(&file, json).map_err(|error| format!("can't write {file}: {error}"))?;
    }
    println!("\n{}", compare(std::slice::from_ref(&summary)));
    // Some errors may be what a run is about; no answer at all never is.
    Ok(if summary.totals.requests > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn play(flags: &Flags) -> Result<Summary, String> {
    let url: String = flags.get("--url", "http://127.0.0.1:10000".to_owned())?;
    let client = Client::new(&url, flags.all("--header"), seconds(flags, "--timeout-seconds", 120.0)?)?;
    client.wait(seconds(flags, "--wait-seconds", 0.0)?).await?;
    let model: String = flags.get("--model", "sim".to_owned())?;
    let label = flags.get("--label", url.clone())?;
    let start = || -> Result<Arc<Session>, String> {
        Ok(Arc::new(Session::new(client, flags.get("--block-size", 16)?, flags.has("--quiet"))))
    };
    let (session, load) = match flags.find::<String>("--trace")? {
        Some(file) => {
            let settings = trace::Settings {
                model,
                speed: flags.positive("--speed", 1.0)?,
                scale: flags.positive("--token-scale", 0.125)?,
                concurrency: flags.positive("--concurrency", 256)?,
            };
            let text =
                std::fs::read_to_string(&file).map_err(|error| format!("can't read {file}: {error}"))?;
            let lines = trace::parse(&text, flags.get("--limit", 1000)?)
                .map_err(|error| format!("{file}: {error}"))?;
            let load = json!({"trace": file, "speed": settings.speed, "token_scale": settings.scale});
            let session = start()?;
            trace::play(&session, &settings, lines).await;
            (session, load)
        }
        None => {
            let settings = conversations::Settings {
                model,
                seed: flags.get("--seed", 1)?,
                conversations: flags.get("--conversations", 32)?,
                turns: flags.get("--turns", 4)?,
                system_prompts: flags.get("--system-prompts", 4)?,
                skew: flags.get("--skew", 0.0)?,
                system_words: flags.get("--system-words", 600)?,
                turn_words: flags.get("--turn-words", 80)?,
                answer_tokens: flags.get("--answer-tokens", 48)?,
                concurrency: flags.positive("--concurrency", 8)?,
                think_ms: flags.get("--think-ms", 200)?,
            };
            let load = serde_json::to_value(&settings).map_err(|error| error.to_string())?;
            let session = start()?;
            conversations::play(&session, &settings).await;
            (session, load)
        }
    };
    let mut load: BTreeMap<String, Value> =
        serde_json::from_value(load).map_err(|error| error.to_string())?;
    load.insert("url".into(), url.into());
    let session = Arc::into_inner(session).ok_or("a request is still under way")?;
    Ok(session.finish(label, load))
}

fn seconds(flags: &Flags, name: &str, default: f64) -> Result<Duration, String> {
    let seconds = flags.get(name, default)?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{name} {seconds}: {error}"))
}

fn read(file: &str) -> Result<Summary, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("can't read {file}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{file}: not a run of replay: {error}"))
}

#[cfg(test)]
mod tests {
    use super::FLAGS;

    #[test]
    fn the_readme_names_every_flag() {
        let readme = include_str!("../../README.md");
        for flag in FLAGS {
            assert!(readme.contains(&format!("`{}", flag.name)), "{} is missing", flag.name);
        }
    }
}
