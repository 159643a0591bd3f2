//! The OCI image of a module, as `wasm-build.sh --image` writes it, read back by tools that have no part in that.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use warmpath_tests::{root, temporary_dir};

const VERSION: &str = "9.8.7";

/// The smallest module of a version: a header, and one custom section.
fn module() -> Vec<u8> {
    let name = b"warmpath.version";
    let size = u8::try_from(1 + name.len() + VERSION.len()).expect("a short section");
    [b"\0asm\x01\0\0\0", &[0, size, 16][..], name, VERSION.as_bytes()].concat()
}

/// Runs a program, which must succeed; returns what it printed.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let out = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn script(name: &str) -> String {
    root().join("envoy").join(name).display().to_string()
}

/// The image of a module of this content: what was printed, and the archive.
fn image(module: &[u8], dir: &Path) -> (String, PathBuf) {
    let (file, archive) = (dir.join("made-up.wasm"), dir.join("image.tar"));
    fs::write(&file, module).expect("a module can be written");
    let arguments = [&script("wasm_image.py"), &file.display().to_string(), &archive.display().to_string()];
    let printed = run("python3", &arguments.map(String::as_str));
    (String::from_utf8(printed).expect("text"), archive)
}

fn sha256(file: &Path) -> String {
    let printed = String::from_utf8(run("sha256sum", &[&file.display().to_string()])).expect("text");
    format!("sha256:{}", printed.split_whitespace().next().expect("a digest"))
}

fn read(file: &Path) -> Value {
    let text = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The file that a descriptor names, after a look at all it says of it.
#[track_caller]
fn blob(layout: &Path, descriptor: &Value, media_type: &str) -> PathBuf {
    assert_eq!(descriptor["mediaType"], media_type);
    let digest = descriptor["digest"].as_str().expect("a digest");
    let file = layout.join("blobs/sha256").join(digest.strip_prefix("sha256:").expect("by SHA-256"));
    assert_eq!(sha256(&file), digest);
    assert_eq!(descriptor["size"], fs::metadata(&file).expect("it is there").len());
    file
}

#[test]
fn an_image_has_the_form_that_gateways_read_and_holds_the_module() {
    let dir = temporary_dir("image").expect("a temporary directory can be made");
    let (printed, archive) = image(&module(), &dir);
    let layout = dir.join("layout");
    fs::create_dir(&layout).expect("a directory can be made");
    let layout_name = layout.display().to_string();
    run("tar", &["-C", &layout_name, "-xf", &archive.display().to_string()]);

    assert_eq!(read(&layout.join("oci-layout")), json!({"imageLayoutVersion": "1.0.0"}));
    let index = read(&layout.join("index.json"));
    assert_eq!(index["schemaVersion"], 2);
    assert_eq!(index["mediaType"], "application/vnd.oci.image.index.v1+json");
    // A second one would make readers ask for a platform.
    assert_eq!(index["manifests"].as_array().map(Vec::len), Some(1));
    let manifest_file = blob(&layout, &index["manifests"][0], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], VERSION);

    let manifest = read(&manifest_file);
    assert_eq!(manifest["schemaVersion"], 2);
    assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(manifest["annotations"]["org.opencontainers.image.version"], VERSION);
    assert_eq!(manifest["annotations"]["org.opencontainers.image.licenses"], env!("CARGO_PKG_LICENSE"));
    // Envoy Gateway and Istio read the last layer, if it is of this type.
    assert_eq!(manifest["layers"].as_array().map(Vec::len), Some(1));
    let layer = blob(&layout, &manifest["layers"][0], "application/vnd.oci.image.layer.v1.tar+gzip");
    let layer_name = layer.display().to_string();
    assert_eq!(run("tar", &["-tzf", &layer_name]), b"plugin.wasm\n");
    assert_eq!(run("tar", &["-xzOf", &layer_name, "plugin.wasm"]), module());

    let config = read(&blob(&layout, &manifest["config"], "application/vnd.oci.image.config.v1+json"));
    let unpacked = dir.join("unpacked");
    fs::write(&unpacked, run("gzip", &["-dc", &layer_name])).expect("it can be written");
    assert_eq!(config["rootfs"], json!({"type": "layers", "diff_ids": [sha256(&unpacked)]}));
    assert_eq!((&config["os"], &config["architecture"]), (&json!("linux"), &json!("amd64")));
    assert_eq!(fs::read_dir(layout.join("blobs/sha256")).expect("a directory").count(), 3);

    // What users pin.
    assert!(printed.contains(&sha256(&manifest_file)), "{printed}");
    assert!(printed.contains(&sha256(&dir.join("made-up.wasm"))), "{printed}");
    let again = temporary_dir("image").expect("a temporary directory can be made");
    assert_eq!(fs::read(&archive).expect("it is there"), fs::read(image(&module(), &again).1).expect("too"));
    fs::remove_dir_all(dir).and_then(|()| fs::remove_dir_all(again)).expect("they can be removed");
}

#[test]
fn a_module_without_a_version_gets_no_image() {
    let dir = temporary_dir("image").expect("a temporary directory can be made");
    let file = dir.join("bare.wasm");
    fs::write(&file, b"\0asm\x01\0\0\0").expect("a module can be written");
    let out =
        Command::new("python3").arg(script("wasm_image.py")).args([&file, &dir.join("image.tar")]).output();
    let out = out.expect("python3 runs");
    assert!(!out.status.success());
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(complaint.contains("no section warmpath.version"), "{complaint}");
    assert!(!dir.join("image.tar").exists());
    fs::remove_dir_all(dir).expect("it can be removed");
}

#[test]
fn the_module_says_its_version() {
    let file =
        std::env::var("WARMPATH_WASM").map_or_else(|_| root().join("warmpath-test.wasm"), PathBuf::from);
    let printed = run("python3", &[&script("wasm_imports.py"), &file.display().to_string()]);
    let printed = String::from_utf8(printed).expect("text");
    assert!(printed.contains(&format!(": warmpath {}, ", env!("CARGO_PKG_VERSION"))), "{printed}");
}

#[test]
#[ignore = "needs podman: tests/run.sh --container"]
fn a_container_engine_takes_the_image() {
    let engine = std::env::var("ENVOY_CONTAINER").expect("tests/container.sh sets it");
    if !engine.starts_with("podman") {
        // Docker reads archives of this form only with containerd's image store.
        return eprintln!("{engine} is not podman; skipped");
    }
    let mut words: Vec<_> = engine.split_whitespace().collect();
    let podman = words.remove(0);
    let podman = |arguments: &[&str]| run(podman, &[&words[..], arguments].concat());
    let dir = temporary_dir("image").expect("a temporary directory can be made");
    let (_, archive) = image(&module(), &dir);
    let (image, out) = (format!("localhost/warmpath:{VERSION}"), dir.join("out").display().to_string());
    podman(&["load", "--input", &archive.display().to_string()]);
    let container = String::from_utf8(podman(&["create", &image, "plugin.wasm"])).expect("text");
    podman(&["cp", &format!("{}:/plugin.wasm", container.trim()), &out]);
    podman(&["rm", container.trim()]);
    podman(&["rmi", &image]);
    assert_eq!(fs::read(&out).expect("it was copied"), module());
    fs::remove_dir_all(dir).expect("it can be removed");
}
