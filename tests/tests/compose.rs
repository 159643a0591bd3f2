//! `envoy/docker-compose.yaml`, without containers: what it names is there, and what its services run works together.

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use warmpath_tests::{Envoy, Pods, Request, root, temporary_dir};

fn yaml(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn service(name: &str) -> Value {
    yaml(&root().join("envoy/docker-compose.yaml"))["services"][name].clone()
}

fn command(service: &Value) -> Vec<String> {
    let words = service["command"].as_array().expect("a list").iter();
    // Compose makes `$` of `$$`.
    words.map(|word| word.as_str().expect("a text").replace("$$", "$")).collect()
}

/// The configuration that the service's command gives Envoy, in whose place a script prints its last argument.
fn configuration(dir: &Path) -> PathBuf {
    let stub = dir.join("envoy");
    fs::write(&stub, "#!/bin/sh\nshift $(($# - 2))\n[ \"$1\" = --config-yaml ] && printf %s \"$2\"\n")
        .expect("a file");
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).expect("it can be made a program");
    let words = command(&service("envoy"));
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let mut run = Command::new(&words[0]);
    let out = run.args(&words[1..]).env("PATH", path).current_dir(root().join("envoy")).output();
    let out = out.expect("the command runs");
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    let file = dir.join("envoy.yaml");
    fs::write(&file, out.stdout).expect("a file");
    file
}

/// What must stand in `warmpath.yaml` for the service's pods: number, first port, and the flags that are left.
fn pods(words: &[String]) -> (u16, u16, Vec<&str>) {
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--pods", count, "--port", first, flags @ ..] => {
            (count.parse().expect("a number"), first.parse().expect("a port"), flags.to_vec())
        }
        other => panic!("pods are started otherwise: {other:?}"),
    }
}

#[test]
fn the_services_serve_requests_together() {
    let dir = temporary_dir("compose").expect("a temporary directory can be made");
    let file = configuration(&dir);
    let mut expected = yaml(&root().join("envoy/warmpath.yaml"));
    expected["static_resources"]["listeners"][0]["address"]["socket_address"]["address"] = json!("0.0.0.0");
    expected["admin"]["address"]["socket_address"]["address"] = json!("0.0.0.0");
    assert_eq!(yaml(&file), expected, "all but the two addresses is warmpath.yaml");

    let words = command(&service("pods"));
    let (count, first, flags) = pods(&words);
    let endpoint = |port| json!({"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}});
    let endpoints = (first..first + count).map(endpoint).collect();
    let cluster = &expected["static_resources"]["clusters"][0];
    assert_eq!(cluster["load_assignment"]["endpoints"][0]["lb_endpoints"], Value::Array(endpoints));

    // The same, on ports that are free.
    let pods = Pods::start(usize::from(count), &flags);
    let envoy = Envoy::from_template(&file).pods(&pods).start();
    let prompt = "a long beginning that is the same each time ".repeat(30);
    let answers: Vec<_> = (0..3).map(|_| Request::chat(&prompt).send(&envoy)).collect();
    let by: Vec<_> = answers.iter().map(|answer| answer.header("x-pod").expect("a pod answered")).collect();
    assert_eq!(by, [by[0]; 3]);
    let cached = &answers[2].json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().is_some_and(|cached| cached > 100), "{cached}");
    envoy.assert_no_trap();
    fs::remove_dir_all(dir).expect("it can be removed");
}

#[test]
fn what_the_services_name_is_there() {
    let (pods, envoy, replay) = (service("pods"), service("envoy"), service("replay"));
    let versions = fs::read_to_string(root().join("envoy/versions")).expect("it is there");
    let version = versions.lines().last().expect("a version");
    assert_eq!(envoy["image"], format!("envoyproxy/envoy:v{version}"), "Envoy of the version that tests run");
    // Where a relative name is one of the compose file's folder, and of the container's.
    let mounts = envoy["volumes"].as_array().expect("a list").iter();
    let mounts: Vec<_> = mounts.map(|mount| [&mount["source"], &mount["target"]]).collect();
    assert_eq!(
        mounts,
        [["./warmpath.yaml", "/warmpath/warmpath.yaml"], ["../warmpath.wasm", "/warmpath/warmpath.wasm"]]
    );
    assert_eq!(envoy["working_dir"], "/warmpath");

    // Pods and Envoy meet on loopback, and the owner of the network publishes the ports.
    assert_eq!([&envoy["network_mode"], &replay["network_mode"]], ["service:pods"; 2]);
    assert_eq!(pods["ports"], json!(["127.0.0.1:8080:8080", "127.0.0.1:9901:9901"]));
    assert_eq!(replay["image"], pods["image"]);

    let build = ["context", "dockerfile"].map(|key| pods["build"][key].as_str().expect("a text").to_owned());
    let context = root().join("envoy").join(&build[0]);
    assert_eq!(context.canonicalize().expect("it is there"), root().canonicalize().expect("too"));
    assert!(context.join(&build[1]).is_file());
}
