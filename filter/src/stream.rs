//! One HTTP stream, from its headers to its log line.

use crate::host::{Headers, Host};
use std::cell::Cell;
use std::rc::Rc;

/// What Envoy does with the stream after a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on to the next filter.
    Continue,
    /// Hold what has arrived.
    Pause,
}

/// What streams share.
#[derive(Default)]
pub struct Router {
    pods: Vec<String>,
    next: Cell<usize>,
}

impl Router {
    /// Builds a router from the plugin configuration.
    pub fn build(bytes: &[u8]) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Raw {
            pods: Vec<Pod>,
        }
        #[derive(serde::Deserialize)]
        struct Pod {
            address: String,
        }
        let raw: Raw = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        Ok(Self { pods: raw.pods.into_iter().map(|p| p.address).collect(), next: Cell::default() })
    }
}

/// State of one request.
pub struct Stream {
    router: Rc<Router>,
}

impl Stream {
    /// A stream that has seen nothing yet.
    pub fn new(_id: u32, router: Rc<Router>) -> Self {
        Self { router }
    }

    /// The request's headers arrived.
    pub fn on_request_headers(&mut self, host: &impl Host, end_of_stream: bool) -> Flow {
        match end_of_stream {
            true => self.route(host),
            false => Flow::Pause,
        }
    }

    /// A part of the body arrived.
    pub fn on_request_body(&mut self, host: &impl Host, end_of_stream: bool) -> Flow {
        match end_of_stream {
            true => self.route(host),
            false => Flow::Pause,
        }
    }

    fn route(&mut self, host: &impl Host) -> Flow {
        let n = self.router.next.get();
        self.router.next.set(n.wrapping_add(1));
        if let Some(pod) = self.router.pods.get(n % self.router.pods.len().max(1)) {
            let _ = host.set_header(Headers::Request, "x-gateway-destination-endpoint", pod);
        }
        Flow::Continue
    }
}
