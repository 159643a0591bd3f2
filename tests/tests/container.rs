//! Envoy in a container. Ignored where there is none; `tests/run.sh --container` runs it.

use serde_json::json;
use warmpath_tests::{Envoy, Pods, Request};

#[test]
#[ignore = "needs a container: tests/run.sh --container"]
fn envoy_runs_in_the_container_and_routes_to_pods_of_this_machine() {
    let pods = Pods::start(2, &[]);
    let header = json!([{"header": {"key": "x-host", "value": "%HOSTNAME%"}}]);
    let envoy = Envoy::builder().pods(&pods).hcm("/route_config/response_headers_to_add", header).start();
    let container = envoy.container().expect("Envoy was started in a container");
    let answer = Request::chat("where are you?").send(&envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Envoy tells its host's name, and only that container bears this one.
    assert_eq!(answer.header("x-host"), Some(container));
    // It read its configuration from a place that this machine doesn't have.
    assert!(envoy.admin("/server_info").contains("/warmpath/envoy.json"));
    assert!(!std::path::Path::new("/warmpath").exists());
    assert_eq!(pods.seen().len(), 1);
    envoy.assert_no_trap();
}
