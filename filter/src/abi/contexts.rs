//! The SDK's contexts: one root for each plugin configuration in a VM, one HTTP context for each stream.

use super::EnvoyHost;
use crate::host::{Host, Level};
use crate::stream::{Flow, Router, Stream};
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};
use std::rc::Rc;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(100);

pub struct Root {
    router: Rc<Router>,
}

impl Root {
    pub fn new(_: u32) -> Self {
        Self { router: Rc::default() }
    }
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let host = EnvoyHost;
        let router =
            host.plugin_configuration().map_err(|e| e.to_string()).and_then(|bytes| Router::build(&bytes));
        match router {
            Ok(router) => {
                self.router = Rc::new(router);
                host.set_tick_period(TICK).is_ok()
            }
            Err(mistake) => {
                host.log(Level::Error, &format!("warmpath configuration refused: {mistake}"));
                false
            }
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http { stream: Stream::new(id, self.router.clone()) }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Http {
    stream: Stream,
}

fn action(flow: Flow) -> Action {
    match flow {
        Flow::Continue => Action::Continue,
        Flow::Pause => Action::Pause,
    }
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        action(self.stream.on_request_headers(&EnvoyHost, end_of_stream))
    }

    fn on_http_request_body(&mut self, _: usize, end_of_stream: bool) -> Action {
        action(self.stream.on_request_body(&EnvoyHost, end_of_stream))
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        action(self.stream.on_request_body(&EnvoyHost, true))
    }
}
