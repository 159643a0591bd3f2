//! wasm32 only: the module's entry points, as thin adaptors between the SDK's callbacks and [`crate::stream`].
//! Nothing else names `proxy_wasm`.

mod contexts;
mod hostcalls;
mod random;
#[cfg(feature = "test-trap")]
mod tests;

pub use hostcalls::EnvoyHost;

use crate::host::{Host, Level};

/// Which version a module is, for those who have the file alone: `envoy/wasm_imports.py` shows it.
#[used]
#[unsafe(link_section = "warmpath.version")]
static VERSION: [u8; crate::VERSION.len()] = {
    let mut bytes = [0; crate::VERSION.len()];
    bytes.copy_from_slice(crate::VERSION.as_bytes());
    bytes
};

proxy_wasm::main! {{
    std::panic::set_hook(Box::new(|panic| EnvoyHost.log(Level::Error, &format!("warmpath trapped: {panic}"))));
    proxy_wasm::set_root_context(|id| Box::new(contexts::Root::new(id)));
}}
