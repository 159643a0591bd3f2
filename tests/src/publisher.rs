//! An engine's publisher of KV events: libzmq's PUB socket, which connects to Envoy, or to which a relay connects.

use crate::process::{Process, temporary_dir};
use crate::{root, wait_for};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

/// A publisher, connected or trying to be; dropping it ends it.
pub struct Publisher {
    process: Process,
    input: ChildStdin,
    topic: String,
    /// The number of the next batch.
    pub next: u64,
}

impl Publisher {
    /// A publisher under a topic, as `kv@pod-1@llama`. Further arguments are options of its socket, such as
    /// `HEARTBEAT_IVL=100`.
    pub fn connect(to: SocketAddr, topic: &str, options: &[&str]) -> Self {
        Self::start(topic, |command| command.arg(format!("tcp://{to}")).args(options))
    }

    /// A publisher that binds, with a buffer of its last `kept` batches, and the ports of both.
    pub fn bind(topic: &str, kept: usize) -> (Self, [u16; 2]) {
        let publisher = Self::start(topic, |command| command.args(["bind", &kept.to_string()]));
        let ports = wait_for("the publisher to be bound", || {
            let log = publisher.process.log();
            let mut said = log.lines().find_map(|line| line.strip_prefix("bound "))?.split(' ');
            let mut port = || said.next()?.parse().ok();
            Some([port()?, port()?])
        });
        (publisher, ports)
    }

    fn start(topic: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let dir = temporary_dir("publisher").expect("a temporary directory can be made");
        let mut command = Command::new(python());
        arguments(command.arg(root().join("tests/kv-publisher.py")));
        let mut process = Process::start_reading(Stdio::piped(), "kv-publisher", command, &dir, &[]);
        let input = process.input().expect("its input is a pipe");
        Self { process, input, topic: topic.to_owned(), next: 0 }
    }

    /// The same, once the other end has answered.
    #[track_caller]
    pub fn open(to: SocketAddr, topic: &str) -> Self {
        let publisher = Self::connect(to, topic, &[]);
        publisher.wait_for("open", 1);
        publisher
    }

    /// How often it said so far that it is "open" or "closed".
    pub fn said(&self, what: &str) -> usize {
        self.process.log().lines().filter(|line| line.ends_with(what)).count()
    }

    /// Waits until it said so for this time.
    #[track_caller]
    pub fn wait_for(&self, what: &str, times: usize) {
        wait_for(&format!("the publisher to be {what}"), || (self.said(what) >= times).then_some(()));
    }

    /// Sends frames as they are.
    pub fn send_frames(&mut self, frames: &[&[u8]]) {
        let mut line = String::new();
        for (i, frame) in frames.iter().enumerate() {
            line.push_str(if i == 0 { "" } else { " " });
            frame.iter().for_each(|byte| write!(line, "{byte:02x}").expect("a string takes all"));
        }
        line.push('\n');
        self.input.write_all(line.as_bytes()).expect("the publisher takes messages");
    }

    /// Publishes a payload under the next number.
    pub fn send_payload(&mut self, payload: &[u8]) {
        let (topic, number) = (self.topic.clone(), self.next.to_be_bytes());
        self.next += 1;
        self.send_frames(&[topic.as_bytes(), &number, payload]);
    }

    /// Publishes events, given as JSON, as one batch in msgpack.
    pub fn send(&mut self, events: &Value) {
        self.send_payload(&batch(events, 0));
    }
}

/// Events of a rank as a batch in msgpack.
pub fn batch(events: &Value, rank: u32) -> Vec<u8> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    rmp_serde::to_vec(&(now.as_secs_f64(), events, rank)).expect("JSON is msgpack")
}

/// A Python that has pyzmq.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let cache = std::env::var_os("WARMPATH_CACHE").map_or_else(|| root().join(".envoy"), PathBuf::from);
        let dir = cache.join("pyzmq");
        let made = Command::new(root().join("envoy/venv.sh")).arg(&dir).arg("pyzmq==27.3.0").status();
        assert!(made.is_ok_and(|status| status.success()), "envoy/venv.sh made no environment with pyzmq");
        dir.join("bin/python")
    })
}
