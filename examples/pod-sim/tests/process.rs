//! The program itself: what it prints, and how it ends.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn start(arguments: &[&str]) -> (Child, Vec<SocketAddr>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pod-sim"))
        .args(["--pods", "2", "--port", "0"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2);
    let addresses =
        lines.map(|line| line.unwrap().strip_prefix("listening on ").unwrap().parse().unwrap()).collect();
    (child, addresses)
}

fn ends_well(mut child: Child) {
    let patience = Instant::now() + Duration::from_secs(10);
    while Instant::now() < patience {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("it goes on");
}

#[test]
fn each_pod_listens_on_the_port_it_printed_and_sigterm_ends_all() {
    let (child, addresses) = start(&[]);
    assert_ne!(addresses[0], addresses[1]);
    let open: Vec<TcpStream> = addresses.iter().map(|address| TcpStream::connect(address).unwrap()).collect();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    ends_well(child);
    drop(open);
}

#[test]
fn a_closed_standard_input_ends_it_when_asked_to() {
    let (mut child, _) = start(&["--exit-with-parent"]);
    drop(child.stdin.take());
    ends_well(child);
}

#[test]
fn wrong_flags_are_refused_by_name() {
    for (arguments, named) in [
        (&["--prot", "1"][..], "--prot"),
        (&["--blocks", "0"], "--blocks 0"),
        (&["word"], "word"),
        (&["--kv-transfer", "pigeon"], "--kv-transfer pigeon"),
        (&["--role", "decode"], "--role: needs"),
        (&["--kv-transfer", "sglang"], "--role: prefill or decode"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_pod-sim")).args(arguments).output().unwrap();
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{output:?}");
    }
}
