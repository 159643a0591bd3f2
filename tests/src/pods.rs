//! Simulated GPU pods, and what they have seen.

use crate::process::{Process, temporary_dir};
use crate::{Request, wait_for};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// Pods of one `pod-sim` process; dropping them ends it.
pub struct Pods {
    _process: Process,
    addresses: Vec<SocketAddr>,
}

/// A request as a pod has seen it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Position of the pod.
    pub pod: usize,
    /// The pod's record of it: `path`, `protocol`, `headers`, `trailers`, `body_bytes`, `body_hash` (xxh3-64 in 16 hex
    /// digits), `status`, `outcome` and more.
    pub record: Value,
}

impl Seen {
    /// A request header; several of one name are joined with ", ".
    pub fn header(&self, name: &str) -> Option<&str> {
        self.record["headers"][name].as_str()
    }

    /// Whether the pod got exactly this body.
    #[track_caller]
    pub fn assert_body(&self, body: &[u8]) {
        let got = (self.record["body_bytes"].as_u64(), self.record["body_hash"].as_str());
        let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body));
        assert_eq!(
            got,
            (Some(body.len() as u64), Some(hash.as_str())),
            "the pod got another body: {}",
            self.record
        );
    }
}

impl Pods {
    /// Starts `count` pods on free ports, with further arguments for `pod-sim`. Unless they say `--speedup`, nothing
    /// takes a pod time.
    #[track_caller]
    pub fn start(count: usize, arguments: &[&str]) -> Self {
        let dir = temporary_dir("pods").expect("a temporary directory can be made");
        let mut command = Command::new(binary());
        command.args(["--pods", &count.to_string(), "--port", "0", "--speedup", "inf"]).args(arguments);
        let mut process = Process::start("pod-sim", command, &dir, &[]);
        let addresses = wait_for("the pods to listen", || {
            process.assert_running();
            let log = process.log();
            let lines = log.lines().filter_map(|line| line.split_once("listening on "));
            let addresses: Vec<_> = lines.filter_map(|(_, address)| address.trim().parse().ok()).collect();
            (addresses.len() == count).then_some(addresses)
        });
        Self { _process: process, addresses }
    }

    /// Where they listen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What a pod's own interface answers to a GET, such as `/sim/stats`.
    #[track_caller]
    pub fn get(&self, pod: usize, path: &str) -> Value {
        Request::get(path).send(self.addresses[pod]).json()
    }

    /// Asks a pod for a fault; see pod-sim's README.
    #[track_caller]
    pub fn fault(&self, pod: usize, fault: &Value) {
        let answer = Request::json("/sim/fault", fault).send(self.addresses[pod]);
        assert!(answer.status < 300, "pod {pod} refused the fault {fault}: {}", answer.text());
    }

    /// Makes a pod forget its faults.
    #[track_caller]
    pub fn clear_faults(&self, pod: usize) {
        let answer = Request::get("/sim/fault").method("DELETE").send(self.addresses[pod]);
        assert!(answer.status < 300, "pod {pod} keeps its faults: {}", answer.text());
    }

    /// The latest requests, pod by pod.
    pub fn seen(&self) -> Vec<Seen> {
        let of = |pod| match self.get(pod, "/sim/requests") {
            Value::Array(records) => records.into_iter().map(move |record| Seen { pod, record }),
            other => panic!("/sim/requests is no list: {other}"),
        };
        (0..self.addresses.len()).flat_map(of).collect()
    }

    /// The requests that carried this header.
    pub fn seen_with(&self, name: &str, value: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.header(name) == Some(value)).collect()
    }
}

fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("POD_SIM") {
        return PathBuf::from(path);
    }
    // Test binaries are in target/<profile>/deps, pod-sim is in target/<profile>.
    let exe = std::env::current_exe().expect("a test knows its binary");
    let path = exe.ancestors().nth(2).expect("a test binary lies in target/<profile>/deps").join("pod-sim");
    assert!(path.exists(), "{} is missing; run: cargo build --package pod-sim", path.display());
    path
}
