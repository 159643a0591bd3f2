//! What Warmpath asks of its host, as one trait, so that every line of logic runs natively in tests.
//!
//! Two implementations exist: `abi::EnvoyHost` over proxy-wasm hostcalls, and [`fake::FakeHost`] in memory. Both
//! obey the same rules, most of them Envoy's, and are held to them by one suite (`contract`):
//!
//! * Shared data is process-wide and is never freed: use a fixed set of keys.
//! * A call may fail at any time. Nothing here panics; every status other than success is a [`HostError`].
//! * Only what has bounds is asked for: bodies are read with a limit, and Envoy bounds headers.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

#[cfg(any(test, feature = "test-trap"))]
pub mod contract;
#[cfg(not(target_arch = "wasm32"))]
pub mod fake;
mod headers;

pub use headers::HeaderMap;

/// A hostcall that did not succeed: which one, and the proxy-wasm status it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostError {
    /// Name of the hostcall.
    pub call: &'static str,
    /// proxy-wasm status; 2 is BadArgument, 10 InternalFailure.
    pub status: u32,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hostcall {} answered status {}", self.call, self.status)
    }
}

impl std::error::Error for HostError {}

/// Shorthand for what every hostcall returns.
pub type HostResult<T> = Result<T, HostError>;

/// Version of a shared value, as Envoy counts it: unequal to that of every other write in this process.
pub type Cas = NonZeroU32;

/// A value read from shared data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes. Empty where the key was emptied.
    pub value: Vec<u8>,
    /// Pass it as [`Expect::Version`] to replace exactly this value.
    pub cas: Cas,
}

/// On what condition a shared value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Write whatever is there.
    Anything,
    /// Write only if the key has never been written.
    Absent,
    /// Write only if the value is the one that was read with this version.
    Version(Cas),
}

/// Outcome of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Write {
    /// The value is stored.
    Done,
    /// Somebody else wrote first; nothing was stored.
    Conflict,
}

/// The key-value store that all VMs of one `vm_id` share: one process-wide mutex, about 1 us a call.
pub trait SharedData {
    /// Reads a value. `None` where the key was never written.
    fn shared_get(&self, key: &str) -> HostResult<Option<Versioned>>;
    /// Writes a value under a condition.
    fn shared_set(&self, key: &str, value: &[u8], expect: Expect) -> HostResult<Write>;
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For whoever debugs Warmpath itself.
    Debug,
    /// What happens once in a while and is worth knowing.
    Info,
    /// A step down, or a setting that will hurt.
    Warn,
    /// Something that must be mended by a person.
    Error,
}

/// Characters of an entry of the log: room for all mistakes of a configuration that are named.
const LONGEST_ENTRY: usize = 40_000;

/// A message fit for Envoy's log, whoever is quoted in it, and however much: its further lines are indented, so that none passes for
/// an entry of its own, and other control characters, which a terminal might obey, are spaces.
pub fn entry_of_log(message: &str) -> Cow<'_, str> {
    if message.len() <= LONGEST_ENTRY && !message.chars().any(char::is_control) {
        return Cow::Borrowed(message);
    }
    let plain =
        message.chars().take(LONGEST_ENTRY).map(|c| if c.is_control() && c != '\n' { ' ' } else { c });
    Cow::Owned(plain.collect::<String>().replace('\n', "\n  "))
}

/// Kinds of metrics that Envoy's stats know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows. Envoy refuses increments of 0.
    Counter,
    /// Goes up and down; one process-wide value.
    Gauge,
    /// Distribution of recorded values.
    Histogram,
}

/// Handle of a defined metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricId(pub u32);

/// Which header map of the current stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// The client's request.
    Request,
    /// The pod's, or Envoy's own, response.
    Response,
    /// The answer to a call of ours, while it is being handed over.
    Answer,
}

/// What becomes of `content-length` when a body is replaced: Envoy sends on what that says, whatever the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// It is set. The headers must be held.
    Set,
    /// The headers are gone, and went without it.
    Removed,
}

/// Everything else that Warmpath asks of Envoy. Calls on headers, body and properties speak of the current stream.
pub trait Host: SharedData {
    /// Wall-clock time since the epoch. It can jump: never conclude from it that somebody is dead.
    fn now(&self) -> Duration;
    /// Writes a line to Envoy's log. Failures are swallowed: there is nowhere left to report them.
    fn log(&self, level: Level, message: &str);
    /// Sets how often this VM's root context ticks.
    fn set_tick_period(&self, period: Duration) -> HostResult<()>;
    /// The plugin's configuration, as the bytes that Envoy was given.
    fn plugin_configuration(&self) -> HostResult<Vec<u8>>;

    /// Defines a metric, or finds the one of that name.
    fn define_metric(&self, kind: MetricKind, name: &str) -> HostResult<MetricId>;
    /// Adds to a counter or gauge.
    fn increment_metric(&self, id: MetricId, by: i64) -> HostResult<()>;
    /// Sets a gauge, or records a value of a histogram.
    fn record_metric(&self, id: MetricId, value: u64) -> HostResult<()>;

    /// Reads a property such as `["upstream", "address"]`. `None` where it has no value (yet).
    fn property(&self, path: &[&str]) -> HostResult<Option<Vec<u8>>>;
    /// Writes filter state `wasm.<name>`, which access logs can show.
    fn set_filter_state(&self, name: &str, value: &[u8]) -> HostResult<()>;

    /// Reads all headers of the current stream. Envoy answers with none where they are more than 1024, or over 1 MiB.
    fn headers(&self, map: Headers) -> HostResult<HeaderMap>;
    /// Reads a header of the current stream; several values arrive joined by commas. Bytes need not be UTF-8.
    fn header(&self, map: Headers, name: &str) -> HostResult<Option<Vec<u8>>>;
    /// Replaces a header, or adds it.
    fn set_header(&self, map: Headers, name: &str, value: &str) -> HostResult<()>;
    /// Removes every value of a header.
    fn remove_header(&self, map: Headers, name: &str) -> HostResult<()>;
    /// Copies at most `max` bytes of the buffered request body.
    fn request_body(&self, max: usize) -> HostResult<Vec<u8>>;
    /// Replaces the whole buffered request body.
    fn replace_request_body(&self, body: &[u8], length: Length) -> HostResult<()>;

    /// Copies the bytes of the response body's part that is passing, from `start` on, at most `max`.
    fn response_body(&self, start: usize, max: usize) -> HostResult<Vec<u8>>;

    /// Calls a cluster, which must exist and have a host. The answer comes to the context that called, under the number that
    /// this returns, unless it is gone by then; a time-out comes as 503 or 504, a reset without headers.
    fn call(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> HostResult<u32>;
    /// Copies at most `max` bytes of an answer's body, while it is being handed over.
    fn answer_body(&self, max: usize) -> HostResult<Vec<u8>>;

    /// Copies at most `max` bytes that have arrived on the current connection.
    fn downstream_data(&self, max: usize) -> HostResult<Vec<u8>>;
    /// Puts `data` in the place of the first `size` bytes that have arrived: the filter after this one sees it.
    fn replace_downstream_data(&self, size: usize, data: &[u8]) -> HostResult<()>;
    /// Closes the current connection, after what is on its way out. Not from within one of its own callbacks.
    fn close_connection(&self) -> HostResult<()>;

    /// Makes calls from a tick speak of that stream.
    fn set_effective_context(&self, stream: u32) -> HostResult<()>;
    /// Lets a paused request go on.
    fn resume_request(&self) -> HostResult<()>;
    /// Lets a paused response go on.
    fn resume_response(&self) -> HostResult<()>;
    /// Breaks off the request and its answer, of which a part was sent: the client sees that it isn't whole.
    fn reset_request(&self) -> HostResult<()>;
    /// Answers the request here, whether or not it is on its way to a pod, as long as no answer has begun.
    fn respond(&self, status: u32, headers: &[(&str, &str)], body: &[u8], details: &str) -> HostResult<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_quoted_passes_for_an_entry_of_the_log() {
        assert!(matches!(entry_of_log("the pod \"pé\" is there"), Cow::Borrowed("the pod \"pé\" is there")));
        let forged = "a model\n[2026-01-01][critical] all is lost\r\x1b[2J\u{85}end";
        assert_eq!(entry_of_log(forged), "a model\n  [2026-01-01][critical] all is lost  [2J end");
        assert_eq!(entry_of_log(&"é".repeat(1 << 20)).chars().count(), LONGEST_ENTRY);
    }
}
