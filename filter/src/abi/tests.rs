//! What end-to-end tests ask of a module that was built for them, by request headers.

use super::EnvoyHost;
use crate::host::{Headers, Host, contract};

/// Does what the request's headers ask for: `x-test-trap` traps this VM; `x-test-contract` holds Envoy's shared data to
/// the contract, under keys that begin with the header's value, and answers with the outcome. Says whether it answered.
pub fn wanted() -> bool {
    let header = |name| EnvoyHost.header(Headers::Request, name).ok().flatten();
    if header("x-test-trap").is_some() {
        std::process::abort();
    }
    let Some(prefix) = header("x-test-contract") else { return false };
    let outcome = contract::holds(&EnvoyHost, &String::from_utf8_lossy(&prefix));
    let (status, body) = match outcome {
        Ok(()) => (200, "holds".to_owned()),
        Err(broken) => (500, broken.to_string()),
    };
    EnvoyHost.respond(status, &[], body.as_bytes(), "test").is_ok()
}
