//! The release workflow, as far as it runs without a forge.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};
use warmpath_tests::{root, temporary_dir};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn workflow(name: &str) -> Value {
    let file = root().join(".github/workflows").join(name);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Runs the step that compares the tag with the rest; returns also what it left for later steps, and the notes.
fn compare(tag: &str) -> (Output, String, String) {
    let release = workflow("release.yaml");
    let steps = release["jobs"]["release"]["steps"].as_array().expect("a list");
    let step =
        steps.iter().find(|step| step["name"].as_str().is_some_and(|name| name.starts_with("The tag")));
    let script = step.expect("there is such a step")["run"].as_str().expect("a script");
    let dir = temporary_dir("release").expect("a temporary directory can be made");
    let mut run = Command::new("bash");
    run.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]).current_dir(root());
    run.env("GITHUB_REF_NAME", tag).env("RUNNER_TEMP", &dir).env("GITHUB_ENV", dir.join("env"));
    let out = run.output().expect("bash runs");
    let read = |name| fs::read_to_string(dir.join(name)).unwrap_or_default();
    let left = (out, read("env"), read("notes.md"));
    fs::remove_dir_all(dir).expect("it can be removed");
    left
}

#[test]
fn a_release_is_of_the_version_that_all_name_and_has_its_notes() {
    let (out, env, notes) = compare(&format!("v{VERSION}"));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(env, format!("VERSION={VERSION}\n"));
    assert!(notes.contains("### ") && !notes.contains("\n## "), "{notes}");
}

#[test]
fn a_tag_of_another_version_is_refused() {
    let (out, env, _) = compare("v99.0.0");
    assert!(!out.status.success());
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(complaint.contains("v99.0.0") && complaint.contains(VERSION), "{complaint}");
    assert_eq!(env, "");
}

#[test]
fn one_rust_builds_everywhere() {
    let rust = workflow("release.yaml")["env"]["RUSTUP_TOOLCHAIN"].clone();
    assert_eq!(workflow("ci.yaml")["env"]["RUSTUP_TOOLCHAIN"], rust);
    let dockerfile = fs::read_to_string(root().join("examples/pod-sim/Dockerfile")).expect("it is there");
    let rust = rust.as_str().expect("a version");
    assert!(dockerfile.contains(&format!("rust:{rust}-")), "{dockerfile}");
}
