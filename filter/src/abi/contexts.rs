//! The SDK's contexts: one root for each plugin configuration in a VM, one HTTP context for each stream.

use super::EnvoyHost;
use crate::events::{Connection, HTTP_ROOT, Ingest, ZMQ_ROOT};
use crate::host::{Host, Level};
use crate::plugin::{Plugin, Vm};
use crate::stream::{Flow, Stream};
use proxy_wasm::traits::{Context, HttpContext, RootContext, StreamContext};
use proxy_wasm::types::{Action, ContextType, PeerType};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Clock of everything that is measured in ticks.
const TICK: Duration = Duration::from_millis(100);

thread_local! {
    static VM: RefCell<Vm> = RefCell::default();
}

pub struct Root {
    id: u32,
    role: Role,
    plugin: Option<Rc<Plugin>>,
}

/// What the streams of a plugin are, by its root id.
#[derive(Clone, Copy)]
enum Role {
    Requests,
    EventsByHttp,
    EventsByZmq,
}

impl Role {
    fn read() -> Self {
        match EnvoyHost.property(&["plugin_root_id"]).ok().flatten().as_deref() {
            Some(id) if id == HTTP_ROOT.as_bytes() => Self::EventsByHttp,
            Some(id) if id == ZMQ_ROOT.as_bytes() => Self::EventsByZmq,
            _ => Self::Requests,
        }
    }
}

impl Root {
    pub fn new(id: u32) -> Self {
        Self { id, role: Role::Requests, plugin: None }
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, call: u32, _: usize, _: usize, _: usize) {
        if let Some(plugin) = &self.plugin {
            plugin.on_answer(&EnvoyHost, call);
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let configured = VM.with(|vm| match vm.try_borrow_mut() {
            Ok(mut vm) => vm.configure(&EnvoyHost, self.id),
            Err(_) => Err("the VM is being configured already".to_owned()),
        });
        self.role = Role::read();
        match configured {
            Ok(plugin) => {
                self.plugin = Some(plugin);
                EnvoyHost.set_tick_period(TICK).is_ok()
            }
            Err(mistakes) => {
                EnvoyHost.log(Level::Error, &format!("warmpath configuration refused: {mistakes}"));
                false
            }
        }
    }

    fn on_tick(&mut self) {
        if let Some(plugin) = &self.plugin {
            plugin.tick(&EnvoyHost);
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        let plugin = self.plugin.clone();
        if let Role::EventsByHttp = self.role {
            return Some(Box::new(HttpEvents { ingest: plugin.map(Ingest::new) }));
        }
        let stream = plugin.map(|plugin| Rc::new(RefCell::new(Stream::new(id, plugin))));
        Some(Box::new(Http { stream }))
    }

    fn create_stream_context(&self, id: u32) -> Option<Box<dyn StreamContext>> {
        Some(Box::new(ZmqEvents {
            connection: self.plugin.clone().map(|plugin| Connection::new(id, plugin)),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        match self.role {
            Role::Requests | Role::EventsByHttp => Some(ContextType::HttpContext),
            Role::EventsByZmq => Some(ContextType::StreamContext),
        }
    }
}

/// A stream; without a configuration, requests just go on.
struct Http {
    stream: Option<Rc<RefCell<Stream>>>,
}

impl Http {
    fn with(&self, callback: impl FnOnce(&mut Stream) -> Flow) -> Action {
        let stream = self.stream.as_ref().and_then(|stream| stream.try_borrow_mut().ok());
        action(stream.map_or(Flow::Continue, |mut stream| callback(&mut stream)))
    }
}

fn action(flow: Flow) -> Action {
    match flow {
        Flow::Continue => Action::Continue,
        Flow::Pause => Action::Pause,
    }
}

impl Context for Http {
    fn on_http_call_response(&mut self, call: u32, _: usize, _: usize, _: usize) {
        self.with(|stream| {
            stream.on_answer(&EnvoyHost, call);
            Flow::Continue
        });
    }
}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "test-trap")]
        if super::tests::wanted() {
            return Action::Pause;
        }
        let flow = self.stream.as_ref().map(|s| Stream::on_request_headers(s, &EnvoyHost, end_of_stream));
        action(flow.unwrap_or(Flow::Continue))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.with(|stream| stream.on_request_body(&EnvoyHost, size, end_of_stream))
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.with(|stream| stream.on_request_trailers(&EnvoyHost))
    }

    fn on_http_response_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        self.with(|stream| stream.on_response_headers(&EnvoyHost, end_of_stream))
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.with(|stream| stream.on_response_body(&EnvoyHost, size, end_of_stream))
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        self.with(|stream| stream.on_response_body(&EnvoyHost, 0, true))
    }

    fn on_log(&mut self) {
        self.with(|stream| {
            stream.on_log(&EnvoyHost);
            Flow::Continue
        });
    }
}

/// A request that brings KV events.
struct HttpEvents {
    ingest: Option<Ingest>,
}

impl Context for HttpEvents {}

impl HttpContext for HttpEvents {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let flow = self.ingest.as_mut().map(|ingest| ingest.on_headers(&EnvoyHost, end_of_stream));
        action(flow.unwrap_or(Flow::Continue))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let flow = self.ingest.as_mut().map(|ingest| ingest.on_body(&EnvoyHost, size, end_of_stream));
        action(flow.unwrap_or(Flow::Continue))
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        action(self.ingest.as_mut().map_or(Flow::Continue, |ingest| ingest.on_trailers(&EnvoyHost)))
    }
}

/// A connection of a publisher of KV events. Whatever is left in its buffer, Envoy's echo filter sends back.
struct ZmqEvents {
    connection: Option<Connection>,
}

impl Context for ZmqEvents {}

impl StreamContext for ZmqEvents {
    fn on_downstream_data(&mut self, size: usize, end_of_stream: bool) -> Action {
        let answer = match (&mut self.connection, EnvoyHost.downstream_data(size)) {
            (Some(connection), Ok(bytes)) => connection.on_data(&EnvoyHost, &bytes),
            _ => Vec::new(),
        };
        let replaced = EnvoyHost.replace_downstream_data(size, &answer).is_ok();
        if replaced && (end_of_stream || !answer.is_empty()) { Action::Continue } else { Action::Pause }
    }

    fn on_downstream_close(&mut self, _: PeerType) {
        if let Some(connection) = &mut self.connection {
            connection.on_close(&EnvoyHost);
        }
    }
}
