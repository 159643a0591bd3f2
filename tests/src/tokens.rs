//! `examples/exact-tokens` and `examples/kv-events`, with a tokenizer from a test's folder.

use crate::{Builder, Envoy, root};
use serde_json::json;
use std::path::Path;

impl Envoy {
    /// An Envoy to be, as the example has it: the tokenizer of `model` is in `folder`, and `socket`, which must not exist,
    /// is where Envoy serves it to itself.
    pub fn with_tokenizer(folder: &Path, socket: &Path, model: &str) -> Builder {
        Self::of_example("exact-tokens", folder, socket, model)
    }

    /// The same of `examples/kv-events`, to which engines say what they hold.
    pub fn with_kv_events(folder: &Path, socket: &Path, model: &str) -> Builder {
        Self::of_example("kv-events", folder, socket, model)
    }

    fn of_example(example: &str, folder: &Path, socket: &Path, model: &str) -> Builder {
        let listener = "/static_resources/listeners/1";
        let routes = "filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";
        let endpoint =
            "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
        let file = |builder: Builder, n: usize, name: &str| {
            let file = folder.join(name).display().to_string();
            builder.edit(&format!("{listener}/{routes}/{n}/direct_response/body/filename"), json!(file))
        };
        // No other test can have taken it, as it could a port.
        let address = json!({"pipe": {"path": socket.display().to_string()}});
        let builder = Envoy::from_template(&root().join("examples").join(example).join("envoy.yaml"));
        file(file(builder, 0, "tokenizer.json"), 1, "tokenizer_config.json")
            .edit(&format!("{listener}/address"), address.clone())
            .edit(endpoint, address)
            .plugin("/tokenizers/0/models", json!([model]))
            .share(folder)
            .share(socket.parent().expect("a socket lies in a folder"))
    }
}
