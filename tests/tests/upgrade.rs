//! An upgrade in a running Envoy, as CHANGELOG.md describes it: another build of the module, and what of the index it finds.

use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use warmpath_tests::{Envoy, Pods, Request, Response, root, temporary_dir, wait_until};

/// The shipped listener in a file that Envoy follows, and builds of the module beside it.
struct Listener {
    dir: PathBuf,
    listener: Value,
    plugin: Value,
}

impl Listener {
    fn new(pods: &Pods) -> Self {
        let text = fs::read_to_string(root().join("envoy/warmpath.yaml")).expect("it is there");
        let config: Value = serde_saphyr::from_str(&text).expect("it is YAML");
        let mut listener = config["static_resources"]["listeners"][0].clone();
        listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
        listener["address"]["socket_address"]["port_value"] = json!(0);
        let pod = |(n, address): (usize, &SocketAddr)| json!({"name": format!("pod-{n}"), "address": address.to_string()});
        let pods: Vec<_> = pods.addresses().iter().enumerate().map(pod).collect();
        let plugin = json!({"pods": pods, "debug_header": "x-warmpath-debug"});
        Self { dir: temporary_dir("upgrade").expect("a temporary directory can be made"), listener, plugin }
    }

    /// Another build: the module under test, with a section that nobody reads.
    fn build(&self, name: &str) -> PathBuf {
        let module =
            std::env::var("WARMPATH_WASM").map_or_else(|_| root().join("warmpath-test.wasm"), PathBuf::from);
        let mut bytes = fs::read(&module).unwrap_or_else(|e| panic!("{}: {e}", module.display()));
        let length = u8::try_from(name.len()).expect("a short name");
        bytes.extend([0, length + 1, length]);
        bytes.extend(name.as_bytes());
        let file = self.dir.join(name);
        fs::write(&file, bytes).expect("a module can be written");
        file
    }

    /// Hands Envoy the listener with this module. Envoy takes note of files that are moved there.
    fn set(&mut self, module: &Path) {
        let filters = &mut self.listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"];
        let config = &mut filters[0]["typed_config"]["config"];
        config["vm_config"]["code"]["local"]["filename"] = json!(module);
        config["configuration"]["value"] = json!(self.plugin.to_string());
        let (new, file) = (self.dir.join("new"), self.file());
        fs::write(&new, json!({"resources": [self.listener]}).to_string()).expect("a file can be written");
        fs::rename(new, file).expect("it can be moved");
    }

    fn file(&self) -> PathBuf {
        self.dir.join("lds.json")
    }

    /// The shipped configuration with this listener in place of its own.
    fn start(&self, pods: &Pods) -> Envoy {
        let source = json!({"resource_api_version": "V3", "path_config_source": {"path": self.file()}});
        Envoy::builder()
            .endpoints("pods", pods.addresses())
            .edit("/static_resources/listeners", json!([]))
            .edit("/node", json!({"id": "test", "cluster": "test"}))
            .edit("/dynamic_resources", json!({"lds_config": source}))
            .share(&self.dir)
            .concurrency(1)
            .argument("--drain-time-s")
            .argument("1")
            .start()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Waits until only the VMs of the listener's `n`th update are left: the main thread's, and the worker's.
fn wait_for_update(envoy: &Envoy, n: u64) {
    wait_until("Envoy to take the update", || envoy.stat("listener_manager.lds.update_success") == n + 1);
    wait_until("the new VMs to take up work", || envoy.stat("wasmcustom.warmpath.vm_started") == 2 * (n + 1));
    // With Envoy's own copy, of which others are made.
    wait_until("the old VMs to end", || envoy.stat("wasm.envoy.wasm.runtime.v8.active") == 3);
}

fn ask(envoy: &Envoy, prompt: &str) -> Response {
    let answer = Request::chat(prompt).header("x-warmpath-debug", "1").send(envoy);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

#[test]
fn the_index_stays_warm_through_an_upgrade_and_starts_cold_where_it_is_another() {
    let pods = Pods::start(4, &[]);
    let mut listener = Listener::new(&pods);
    let module = listener.build("one.wasm");
    listener.set(&module);
    let envoy = listener.start(&pods);
    let prompt = "a conversation that is known by now ".repeat(40);
    let home = ask(&envoy, &prompt).header("x-pod").expect("a pod answered").to_owned();
    let known = ask(&envoy, &prompt).header("x-warmpath-matched").expect("it is explained").to_owned();
    assert!(!known.starts_with("0/"), "{known}");

    let module = listener.build("two.wasm");
    listener.set(&module);
    wait_for_update(&envoy, 1);
    let answer = ask(&envoy, &prompt);
    let said = ["x-pod", "x-warmpath-matched"].map(|name| answer.header(name));
    assert_eq!(said, [Some(&home[..]), Some(&known[..])]);

    // Another size of the index, so another index.
    listener.plugin["index"] = json!({"max_blocks": 100_000});
    let module = listener.build("three.wasm");
    listener.set(&module);
    wait_for_update(&envoy, 2);
    assert!(ask(&envoy, &prompt).header("x-warmpath-matched").is_some_and(|said| said.starts_with("0/")));
    envoy.assert_no_trap();
}
