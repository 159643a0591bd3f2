//! The floor of the benchmark: a wasm filter that holds a request for its body, copies the body into the VM, makes
//! one shared-data get and sets the routing header. Anything that reads a prompt in Envoy costs at least this.
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, reason = "the SDK's macro defines a function")]

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, ContextType, MapType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}}

#[derive(Default)]
struct Root {
    pods: Vec<String>,
    next: std::cell::Cell<usize>,
}

impl Context for Root {}

impl RootContext for Root {
    /// The configuration is the pods' addresses, separated by white space.
    fn on_configure(&mut self, _: usize) -> bool {
        let bytes = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, usize::MAX).ok().flatten();
        let text = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
        self.pods = text.split_whitespace().map(str::to_owned).collect();
        !self.pods.is_empty()
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        let next = self.next.get();
        self.next.set(next.wrapping_add(1));
        let pod = self.pods.get(next % self.pods.len().max(1)).cloned().unwrap_or_default();
        Some(Box::new(Http { pod }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Http {
    pod: String,
}

impl Http {
    fn route(&self) -> Action {
        let body = hostcalls::get_buffer(BufferType::HttpRequestBody, 0, usize::MAX);
        std::hint::black_box(&body);
        std::hint::black_box(&hostcalls::get_shared_data("floor"));
        let name = "x-gateway-destination-endpoint";
        let _ = hostcalls::set_map_value(MapType::HttpRequestHeaders, name, Some(&self.pod));
        Action::Continue
    }
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        if end_of_stream { self.route() } else { Action::Pause }
    }

    fn on_http_request_body(&mut self, _: usize, end_of_stream: bool) -> Action {
        if end_of_stream { self.route() } else { Action::Pause }
    }
}
