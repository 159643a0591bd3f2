//! Child processes that never outlive the test that started them.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Waits for the end of its standard input, which comes when the test lets go of it or dies, in whatever way; then
/// runs the clean-up command it was given, kills the process group and removes the directory.
const GUARD: &str =
    r#"group=$1 dir=$2; shift 2; read -r _; [ $# = 0 ] || "$@"; kill -s KILL -- "-$group"; rm -rf "$dir""#;

/// A program running in a process group and a temporary directory of its own, its output in a file there.
pub struct Process {
    child: Child,
    guard: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `dir`. When it must end, `cleanup` runs first, then its group is killed and
    /// `dir` removed.
    pub fn start(name: &str, command: Command, dir: &Path, cleanup: &[&str]) -> Self {
        Self::start_reading(Stdio::null(), name, command, dir, cleanup)
    }

    /// The same, with an input of its own; where it is piped, [`Process::input`] is the other end.
    pub fn start_reading(
        input: Stdio,
        name: &str,
        mut command: Command,
        dir: &Path,
        cleanup: &[&str],
    ) -> Self {
        let log = dir.join("log");
        let out = File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let child = command
            .stdin(input)
            .stdout(out.try_clone().expect("a file handle can be duplicated"))
            .stderr(out)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{name}: {command:?} does not start: {e}"));
        // A group of its own, so that Ctrl-C leaves the guard time to do its work.
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard", &child.id().to_string()])
            .arg(dir)
            .args(cleanup)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("sh starts");
        Self { child, guard, name: name.to_owned(), log }
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Prints the end of its output, for the reader of a failed test.
    pub fn print_log(&self) {
        let log = self.log();
        // Envoy tells hundreds of lines of its build at start.
        let lines: Vec<_> = log.lines().filter(|line| !line.contains("][info][main]")).collect();
        let tail = &lines[lines.len().saturating_sub(60)..];
        eprintln!("---- last lines of {} ----\n{}\n----", self.name, tail.join("\n"));
    }

    /// Its input, once, where it is piped.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Panics with its output if it has ended.
    #[track_caller]
    pub fn assert_running(&mut self) {
        assert!(!self.has_ended(), "{} ended; it printed:\n{}", self.name, self.log());
    }

    /// Process id, which is that of its process group too.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_log();
        }
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a directory that nobody else uses.
pub fn temporary_dir(name: &str) -> io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("warmpath-{}-{n}-{name}", std::process::id()));
        match fs::create_dir(&dir) {
            // A process that was killed has left it, and the system has counted its processes round since.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| dir),
        }
    }
}
