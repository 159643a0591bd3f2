//! `SECURITY.md` names a test for what it says of each surface, and each is there; and what it says of the supply chain.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use warmpath_tests::{root, temporary_dir};

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The cells of the page's tables that name tests.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let tables = page.split("\n\n").filter(|part| part.starts_with("| what an attacker could send |"));
    let lines = tables.flat_map(|table| table.lines().skip(2));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Whether a file has a function of this name that is run as a test, and not only on demand.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    let at = lines.iter().position(|line| line.starts_with(&function));
    let before = at.map(|at| lines[..at].iter().rev().take_while(|line| line.starts_with("#[")));
    before.is_some_and(|before| {
        before.clone().any(|line| *line == "#[test]") && !{ before }.any(|l| l.contains("ignore"))
    })
}

#[test]
fn every_test_that_the_page_names_is_there() {
    let page = read("SECURITY.md");
    let rows = rows(&page);
    assert!(rows.len() > 40, "the tables are not found: {}", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        let [what, _, tests] = row[..] else { panic!("no three cells: {row:?}") };
        let named: Vec<_> = tests.split("<br>").map(|test| test.trim_matches('`')).collect();
        for test in named {
            let there = test.split_once("::").is_some_and(|(file, name)| {
                fs::read_to_string(root().join(file)).is_ok_and(|text| has_test(&text, name))
            });
            if !there {
                wrong.push(format!("{what}: {test}"));
            }
        }
    }
    assert!(wrong.is_empty(), "no such tests, as FILE::NAME:\n{}", wrong.join("\n"));
}

#[test]
fn a_test_is_one_only_with_its_attribute() {
    let text = "#[test]\nfn one() {}\n#[test]\n#[ignore = \"slow\"]\nfn slow() {}\nfn none() {}\n    #[test]\n    fn in_a_module() {}\n";
    assert!(has_test(text, "one") && has_test(text, "in_a_module"));
    assert!(!has_test(text, "slow") && !has_test(text, "none") && !has_test(text, "on"));
}

fn imports(module: &PathBuf) -> Output {
    let script = root().join("envoy/wasm_imports.py");
    Command::new("python3").arg(script).arg(module).output().expect("python3 runs")
}

#[test]
fn the_module_imports_what_envoy_offers_to_plugins_and_no_wasi() {
    let module =
        std::env::var("WARMPATH_WASM").map_or_else(|_| root().join("warmpath-test.wasm"), PathBuf::from);
    let out = imports(&module);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // One type of function, and an import of it.
    let dir = temporary_dir("imports").expect("a temporary directory can be made");
    let (file, (from, name)) = (dir.join("wasi.wasm"), ("wasi_snapshot_preview1", "fd_write"));
    let import =
        [&[1, from.len() as u8], from.as_bytes(), &[name.len() as u8], name.as_bytes(), &[0, 0]].concat();
    let types = [1, 4, 1, 0x60, 0, 0];
    let wasi = [&b"\0asm\x01\0\0\0"[..], &types, &[2, import.len() as u8], &import].concat();
    fs::write(&file, wasi).expect("a file can be written");
    let out = imports(&file);
    let complaint = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && complaint.contains("wasi_snapshot_preview1.fd_write"), "{complaint}");
    fs::remove_dir_all(dir).expect("it can be removed");
}

#[test]
fn a_module_that_ships_has_no_trap() {
    let build = |arguments: &[&str]| {
        Command::new(root().join("wasm-build.sh")).args(arguments).output().expect("it runs")
    };
    for features in ["test-trap", "built-in,test-trap"] {
        let out = build(&["--features", features, "--out", "never.wasm"]);
        let complaint = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && complaint.contains("test-trap"), "{complaint}");
    }
    for file in [".github/workflows/release.yaml", "envoy/run.sh"] {
        assert!(!read(file).contains("test-trap"), "{file}");
    }
}

#[test]
fn dependencies_and_actions_are_pinned_and_builds_take_the_lock_file() {
    let manifest = read("Cargo.toml");
    let dependencies =
        manifest.split("[workspace.dependencies]").nth(1).and_then(|rest| rest.split("\n[").next());
    let dependencies: Vec<_> =
        dependencies.expect("the table is there").lines().filter(|line| !line.is_empty()).collect();
    assert!(dependencies.len() > 10);
    for line in dependencies {
        assert!(line.contains("\"=") && !line.contains("git"), "{line}");
    }
    for member in ["filter", "tests", "tests/bench", "tests/floor", "examples/pod-sim"] {
        let manifest = read(&format!("{member}/Cargo.toml"));
        for table in manifest
            .split("\n[")
            .filter(|table| table.lines().next().unwrap_or_default().contains("dependencies"))
        {
            for line in table.lines().skip(1).filter(|line| line.contains('=')) {
                assert!(line.contains("workspace = true") || line.contains("path = "), "{member}: {line}");
            }
        }
    }
    for file in ["ci", "release"] {
        let text = read(&format!(".github/workflows/{file}.yaml"));
        let uses =
            text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "));
        for action in uses.filter(|action| !action.starts_with("./")) {
            let commit =
                action.split_once('@').map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
            assert!(commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit()), "{file}: {action}");
        }
    }
    let build = read("wasm-build.sh");
    let calls: Vec<_> =
        build.lines().filter(|line| line.contains("args=(build") || line.contains("cargo run")).collect();
    assert!(calls.len() == 2 && calls.iter().all(|line| line.contains("--locked")), "{calls:?}");
}
