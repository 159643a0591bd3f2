//! What is measured: an Envoy in some configuration, or another router's process.

use crate::load;
use crate::prompts::Prompts;
use serde_json::json;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use warmpath_tests::{Builder, Envoy, Process};

/// A router, pinned to core 0 with all its threads.
pub struct Router {
    /// What the table calls it.
    pub name: &'static str,
    address: SocketAddr,
    process: u32,
    runs: Runs,
    next: usize,
}

enum Runs {
    Envoy(Envoy),
    /// The router's process, and that of its pods.
    Others(Process, Process),
}

impl Router {
    /// Envoy with one worker.
    pub fn envoy(name: &'static str, builder: Builder) -> Self {
        Self::of(name, builder.concurrency(1).start())
    }

    /// An Envoy that runs.
    pub fn of(name: &'static str, envoy: Envoy) -> Self {
        let (address, process) = (envoy.address(), envoy.process_id());
        pin(process, 0);
        Self { name, address, process, runs: Runs::Envoy(envoy), next: 0 }
    }

    /// A router that is no Envoy, with pods of its own on core 1.
    pub fn other(name: &'static str, address: SocketAddr, router: Process, pods: Process) -> Self {
        let process = router.id();
        pin(process, 0);
        pin(pods.id(), 1);
        Self { name, address, process, runs: Runs::Others(router, pods), next: 0 }
    }

    /// Binds the first thread of its process to another core. Envoy's has no connections.
    pub fn pin_first(&self, core: usize) {
        taskset("-cp", self.process, core);
    }

    /// A statistic of Envoy's; `None` where this is no Envoy.
    pub fn stat(&self, name: &str) -> Option<u64> {
        match &self.runs {
            Runs::Envoy(envoy) => Some(envoy.stat(name)),
            Runs::Others(..) => None,
        }
    }

    /// Sends the next `count` requests. Returns how long each took.
    pub async fn run(&mut self, prompts: &Rc<Prompts>, count: usize, concurrency: usize) -> Vec<Duration> {
        let first = self.next;
        self.next += count;
        load::run(self.address, prompts, first, count, concurrency).await.unwrap_or_else(|e| {
            let log = match &self.runs {
                Runs::Envoy(envoy) => envoy.log(),
                Runs::Others(router, pods) => router.log() + &pods.log(),
            };
            panic!("{}: {e}\n{log}", self.name)
        })
    }

    /// CPU that its process has used.
    pub fn cpu_used(&self) -> Duration {
        let threads =
            std::fs::read_dir(format!("/proc/{}/task", self.process)).expect("the router runs").flatten();
        // The first number of schedstat: nanoseconds on a CPU.
        let used = threads.filter_map(|thread| -> Option<u64> {
            let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            stat.split_whitespace().next()?.parse().ok()
        });
        Duration::from_nanos(used.sum())
    }

    /// Memory of its process, in MB.
    pub fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1000.0
    }
}

/// Envoy's own buffering instead of the wasm filter.
pub fn buffer_only(builder: Builder) -> Builder {
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
pub fn pin(process: u32, core: usize) {
    taskset("-acp", process, core);
}

fn taskset(how: &str, process: u32, core: usize) {
    let ran = Command::new("taskset").args([how, &core.to_string(), &process.to_string()]).output();
    assert!(
        ran.is_ok_and(|run| run.status.success()),
        "taskset (util-linux) could not pin a process to core {core}"
    );
}
