//! What differs between the versions of Envoy that tests run on. Nothing else in these tests looks at the version.

use crate::config::Config;
use crate::container::Container;
use crate::envoy::binary;
use std::io::Write as _;
use std::process::Command;
use std::sync::OnceLock;

/// Makes a configuration fit for the Envoy under test, as the README says to.
pub fn adapt(config: &mut Config) {
    // Of 1.36 the routes' `request_body_buffer_limit` begins to count only where no filter holds the headers any more
    // (envoyproxy/envoy#42607), so the listener's has to say the same.
    if version() < (1, 37) {
        config.hold_by_listener();
    }
}

/// Whether clients can tell by HTTP/2 that Envoy broke an answer off. 1.36 resets the stream with NO_ERROR, as if all were well
/// (envoyproxy/envoy#42269).
pub fn breaks_off_http2() -> bool {
    holds(version() >= (1, 37), "that HTTP/2 clients can tell when an answer is broken off")
}

/// Whether a route's limit of bodies counts where a filter holds the headers: see [`adapt`], which can't see a gateway's routes.
pub fn heeds_limits_of_routes() -> bool {
    holds(version() >= (1, 37), "that a route's limit of bodies counts where a filter holds the headers")
}

/// Tells that a part of a test is left out, past the harness, which would keep it to itself. `tests/run.sh` counts these lines.
fn holds(does: bool, what: &str) -> bool {
    if !does {
        let (major, minor) = version();
        let _ = writeln!(std::io::stderr(), "NOT ON ENVOY {major}.{minor}: {what}");
    }
    does
}

/// Of the Envoy under test: 1 and 40 of 1.40.0.
fn version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut command = match Container::wanted("version") {
            Some(container) => container.run_alone(),
            None => Command::new(binary()),
        };
        let output = command.arg("--version").output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Such as "envoy  version: 9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL".
        let mut numbers = text.split('/').rev().nth(3).unwrap_or_default().split('.');
        let mut number = || numbers.next()?.parse().ok();
        number().zip(number()).unwrap_or_else(|| panic!("no version in {text:?}"))
    })
}
