//! Envoy in a local container, as `tests/container.sh` prepares it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs Envoy instead of this machine.
pub struct Container {
    /// The container engine and its global options, such as `podman --runtime runc`.
    engine: Vec<String>,
    image: String,
    /// Name of the container, and its host name.
    pub name: String,
}

/// Where a container finds the test's directory; beside it, it sees of this machine only what a test shares with it.
pub const DIR: &str = "/warmpath";

/// Where images have Envoy.
const ENVOY: &str = "/usr/local/bin/envoy";

/// What a container may have where the engine itself has no more: see `tests/container.sh`.
const LIMITS: [&str; 4] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"];

impl Container {
    /// A container named `name`, if `ENVOY_CONTAINER` (engine) and `ENVOY_IMAGE` ask for one.
    pub fn wanted(name: &str) -> Option<Self> {
        let engine = std::env::var("ENVOY_CONTAINER").ok().filter(|engine| !engine.is_empty())?;
        let image = std::env::var("ENVOY_IMAGE").expect("ENVOY_CONTAINER goes with ENVOY_IMAGE");
        let engine = engine.split_whitespace().map(str::to_owned).collect();
        Some(Self { engine, image, name: name.to_owned() })
    }

    /// The command that runs Envoy there, its arguments still to be added. Pods listen on this machine's loopback, so
    /// the network is this machine's. What is `shared` has the same path there as here.
    pub fn run(&self, dir: &Path, shared: &[PathBuf]) -> Command {
        let mut command = Command::new(&self.engine[0]);
        command.args(&self.engine[1..]).args(["run", "--rm", "--network", "host", "--user", "0"]);
        command.args(["--name", &self.name, "--hostname", &self.name]);
        command.args(LIMITS);
        command.args(["--volume", &format!("{}:{DIR}", dir.display())]);
        for path in shared {
            command.args(["--volume", &format!("{0}:{0}", path.display())]);
        }
        command.args(["--entrypoint", ENVOY, &self.image]);
        command
    }

    /// The command that runs the image's Envoy alone, its arguments still to be added.
    pub fn run_alone(&self) -> Command {
        let mut command = Command::new(&self.engine[0]);
        command.args(&self.engine[1..]).args(["run", "--rm", "--network", "host"]).args(LIMITS);
        command.args(["--entrypoint", ENVOY, &self.image]);
        command
    }

    /// Id of Envoy's process, as this machine knows it.
    pub fn process_id(&self) -> Option<u32> {
        let mut command = Command::new(&self.engine[0]);
        command.args(&self.engine[1..]).args(["inspect", "--format", "{{.State.Pid}}", &self.name]);
        String::from_utf8_lossy(&command.output().ok()?.stdout).trim().parse().ok()
    }

    /// The command that ends it.
    pub fn remove(&self) -> Vec<&str> {
        let engine = self.engine.iter().map(String::as_str);
        engine.chain(["rm", "--force", "--time", "0", &self.name]).collect()
    }
}
