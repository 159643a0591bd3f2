//! A real Envoy with the shipped configuration in front of a test's pods.

use crate::config::Config;
use crate::container::{self, Container};
use crate::process::{Process, temporary_dir};
use crate::{Pods, Request, root, version, wait_long};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// How long Envoy may take to start: on a busy machine, compiling the module for all workers takes its time.
const STARTUP: Duration = Duration::from_secs(120);

/// Stands for the directory of Envoy's configuration, which nobody knows before it starts.
pub const DIR: &str = "@DIR@";
/// Stands for the file of the module under test.
pub const MODULE: &str = "@MODULE@";

/// What an Envoy will be started with. See [`Envoy::builder`].
pub struct Builder {
    config: Config,
    concurrency: usize,
    arguments: Vec<String>,
    module: Option<PathBuf>,
    files: Vec<(String, String)>,
    shared: Vec<PathBuf>,
}

/// A running Envoy; dropping it ends it.
pub struct Envoy {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
    container: Option<Container>,
}

impl Envoy {
    /// The shipped `envoy/warmpath.yaml` on free ports, with four workers.
    pub fn builder() -> Builder {
        Self::from_template(&root().join("envoy/warmpath.yaml"))
    }

    /// Another configuration file of the same shape: a filter `warmpath` in the first listener, a cluster `pods`.
    pub fn from_template(file: &Path) -> Builder {
        Builder::of(Config::load(file))
    }

    /// A configuration as it is, with four workers. Its listener must be at port 0.
    pub fn from_config(config: Value) -> Builder {
        Builder::of(Config::of(config))
    }

    /// The shipped configuration in front of these pods.
    pub fn start(pods: &Pods) -> Self {
        Self::builder().pods(pods).start()
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the listener of this name listens.
    #[track_caller]
    pub fn listener(&self, name: &str) -> SocketAddr {
        let listeners = Request::get("/listeners?format=json").send(self.admin).json();
        let all = listeners["listener_statuses"].as_array().expect("a list").iter();
        let named = all.filter(|listener| listener["name"] == name);
        let found = named.filter_map(|listener| socket(&listener["local_address"])).next();
        found.unwrap_or_else(|| panic!("no listener {name} in {listeners}"))
    }

    /// URL of a path on this Envoy.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What the admin interface answers to a GET.
    pub fn admin(&self, path: &str) -> String {
        Request::get(path).send(self.admin).text()
    }

    /// What the admin interface answers to a POST.
    pub fn admin_post(&self, path: &str) -> String {
        Request::post(path, "").send(self.admin).text()
    }

    /// Counters and gauges whose names match a regular expression.
    pub fn stats(&self, filter: &str) -> BTreeMap<String, u64> {
        let answer = self.admin(&format!("/stats?filter={filter}"));
        let pairs = answer.lines().filter_map(|line| line.rsplit_once(": "));
        pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }

    /// A counter or gauge. Envoy makes many of them at their first use: what is absent counts as 0.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats(&format!("^{}$", name.replace('.', "%5C."))).into_values().next().unwrap_or(0)
    }

    /// What Envoy, and the filter within it, have logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Prints the end of the log. Happens by itself when an Envoy is dropped by a failing test; one in a static isn't.
    pub fn print_log(&self) {
        self.process.print_log();
    }

    /// Process id, in a container too.
    #[track_caller]
    pub fn process_id(&self) -> u32 {
        match &self.container {
            None => self.process.id(),
            Some(container) => container.process_id().expect("the container's engine knows its process"),
        }
    }

    /// Name of the container, which is its host name too; `None` for a process of this machine.
    pub fn container(&self) -> Option<&str> {
        self.container.as_ref().map(|container| container.name.as_str())
    }

    /// Panics, with the log's lines, if a VM of this Envoy has trapped.
    #[track_caller]
    pub fn assert_no_trap(&self) {
        let log = self.log();
        let traps: Vec<_> =
            log.lines().filter(|l| l.contains("in-VM") || l.contains("panicked at")).collect();
        assert!(traps.is_empty(), "a VM trapped:\n{}", traps.join("\n"));
    }
}

impl From<&Envoy> for SocketAddr {
    fn from(envoy: &Envoy) -> Self {
        envoy.address
    }
}

impl Builder {
    fn of(config: Config) -> Self {
        Self {
            config,
            concurrency: 4,
            arguments: Vec::new(),
            module: None,
            files: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// Puts a file beside the configuration. In all of them [`DIR`] stands for where they are, [`MODULE`] for the module's file.
    pub fn file(mut self, name: &str, text: String) -> Self {
        self.files.push((name.to_owned(), text));
        self
    }

    /// Puts Envoy in front of these pods.
    pub fn pods(self, pods: &Pods) -> Self {
        self.addresses(pods.addresses())
    }

    /// Puts Envoy in front of pods at these addresses, whoever is there.
    pub fn addresses(mut self, addresses: &[SocketAddr]) -> Self {
        self.config.set_pods(addresses);
        self
    }

    /// Makes these the endpoints of a cluster.
    pub fn endpoints(mut self, cluster: &str, addresses: &[SocketAddr]) -> Self {
        self.config.set_endpoints(cluster, addresses);
        self
    }

    /// Number of workers.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers;
        self
    }

    /// Sets a value of the filter's configuration by JSON pointer; the pointer "" replaces all of it.
    pub fn plugin(mut self, pointer: &str, value: Value) -> Self {
        self.config.edit_plugin(pointer, value);
        self
    }

    /// Replaces the filter's configuration by a text, JSON or not.
    pub fn plugin_text(mut self, text: &str) -> Self {
        self.config.set_plugin_text(text);
        self
    }

    /// Sets a value of the Envoy configuration by JSON pointer.
    pub fn edit(mut self, pointer: &str, value: Value) -> Self {
        self.config.edit(pointer, value);
        self
    }

    /// Sets a value of the HTTP connection manager by JSON pointer.
    pub fn hcm(mut self, pointer: &str, value: Value) -> Self {
        self.config.edit_hcm(pointer, value);
        self
    }

    /// Puts an HTTP filter before all others.
    pub fn filter_before(mut self, filter: Value) -> Self {
        self.config.insert_filter(filter);
        self
    }

    /// Puts an HTTP filter right behind Warmpath.
    pub fn filter_behind(mut self, filter: Value) -> Self {
        self.config.insert_filter_behind(filter);
        self
    }

    /// Sets a value of the HTTP options of the cluster `pods` by JSON pointer.
    pub fn upstream_http(mut self, pointer: &str, value: Value) -> Self {
        self.config.edit_upstream_http(pointer, value);
        self
    }

    /// Has stock filters behind Warmpath hold the headers and set the routing header.
    pub fn via_filter_state(mut self) -> Self {
        self.config.leave_to_filter_state();
        self
    }

    /// Loads another module than the one under test.
    pub fn module(mut self, file: &Path) -> Self {
        self.module = Some(file.to_owned());
        self
    }

    /// Lets Envoy see a folder that its configuration names, in a container too.
    pub fn share(mut self, folder: &Path) -> Self {
        if !self.shared.iter().any(|known| known == folder) {
            self.shared.push(folder.to_owned());
        }
        self
    }

    /// Adds an argument of Envoy's command line.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Starts Envoy and waits until it takes requests.
    #[track_caller]
    pub fn start(self) -> Envoy {
        let (mut process, dir, container) = self.spawn();
        let admin_file = dir.join("admin");
        let admin: SocketAddr = wait_long(STARTUP, "Envoy's admin address", || {
            process.assert_running();
            fs::read_to_string(&admin_file).ok()?.trim().parse().ok()
        });
        let address = wait_long(STARTUP, "Envoy to be ready", || {
            process.assert_running();
            let ready = Request::get("/ready").try_send(admin).is_ok_and(|answer| answer.status == 200);
            ready.then(|| listener(admin)).flatten()
        });
        Envoy { process, address, admin, container }
    }

    /// Starts Envoy with a configuration that it must refuse; returns what it logged by its end.
    #[track_caller]
    pub fn refused(self) -> String {
        let (mut process, _, _) = self.spawn();
        wait_long(STARTUP, "Envoy to refuse the configuration", || process.has_ended().then(|| process.log()))
    }

    fn spawn(mut self) -> (Process, PathBuf, Option<Container>) {
        let dir = temporary_dir("envoy").expect("a temporary directory can be made");
        let container = Container::wanted(&dir.file_name().unwrap_or_default().to_string_lossy());
        let (mut command, seen) = match &container {
            None => (Command::new(binary()), dir.clone()),
            Some(container) => (container.run(&dir, &self.shared), PathBuf::from(container::DIR)),
        };
        let module = match &container {
            None => module(self.module.as_deref()),
            Some(_) => {
                fs::copy(module(self.module.as_deref()), dir.join("warmpath.wasm"))
                    .expect("the module can be copied");
                seen.join("warmpath.wasm")
            }
        };
        let module = module.display().to_string();
        self.config.set_module(&module);
        version::adapt(&mut self.config);
        self.files.push(("envoy.json".to_owned(), self.config.to_json()));
        for (name, text) in &self.files {
            let text = text.replace(DIR, &seen.display().to_string()).replace(MODULE, &module);
            fs::write(dir.join(name), text).expect("the configuration can be written");
        }
        command.arg("-c").arg(seen.join("envoy.json")).arg("--admin-address-path").arg(seen.join("admin"));
        command
            .args(["--concurrency", &self.concurrency.to_string(), "--disable-hot-restart"])
            .args(&self.arguments);
        let cleanup = container.as_ref().map(Container::remove).unwrap_or_default();
        let process = Process::start("envoy", command, &dir, &cleanup);
        (process, dir, container)
    }
}

fn listener(admin: SocketAddr) -> Option<SocketAddr> {
    let listeners = Request::get("/listeners?format=json").send(admin).json();
    socket(&listeners["listener_statuses"][0]["local_address"])
}

fn socket(address: &Value) -> Option<SocketAddr> {
    let socket = &address["socket_address"];
    let port = u16::try_from(socket["port_value"].as_u64()?).ok().filter(|port| *port != 0)?;
    Some(SocketAddr::new(socket["address"].as_str()?.parse().ok()?, port))
}

fn module(other: Option<&Path>) -> PathBuf {
    let named = other.map(Path::to_owned).or_else(|| std::env::var_os("WARMPATH_WASM").map(PathBuf::from));
    let file = named.unwrap_or_else(|| root().join("warmpath-test.wasm"));
    fs::canonicalize(&file).unwrap_or_else(|e| panic!("{}: {e}; run ./wasm-build.sh --test", file.display()))
}

/// The Envoy under test, where it runs in no container.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("ENVOY_BIN") {
            return PathBuf::from(path);
        }
        let script = root().join("envoy/get-envoy.sh");
        let run = Command::new(&script).stderr(Stdio::inherit()).output();
        let run = run.unwrap_or_else(|e| panic!("{}: {e}", script.display()));
        assert!(run.status.success(), "{} found no Envoy; set ENVOY_BIN to one", script.display());
        PathBuf::from(String::from_utf8_lossy(&run.stdout).trim())
    })
}
