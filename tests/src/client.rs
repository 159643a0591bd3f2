//! Requests on connections of their own, over HTTP/1.1 or HTTP/2, and their responses.

use crate::DEADLINE;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep, timeout};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Sent = Result<hyper::Response<Incoming>, hyper::Error>;

/// A request. It goes out on a new connection, by HTTP/1.1 unless told otherwise.
#[derive(Clone)]
pub struct Request {
    method: String,
    path: String,
    headers: HeaderMap,
    body: Frames,
    http2: bool,
}

/// A whole response.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
}

/// A request under way, to which no response has come yet. Dropping it closes its connection.
pub struct Exchange {
    sent: JoinHandle<Sent>,
    runtime: Runtime,
}

/// A response whose body is still coming. Dropping it closes its connection.
pub struct Streaming {
    response: hyper::Response<Incoming>,
    runtime: Runtime,
}

impl Request {
    /// A request without a body.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path, Frames::default())
    }

    /// A request with a body of known length.
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let length = body.len() as u64;
        Self::new(
            "POST",
            path,
            Frames { frames: [Frame::data(body)].into(), length: Some(length), ..Frames::default() },
        )
    }

    /// A JSON body.
    pub fn json(path: &str, body: &Value) -> Self {
        Self::post(path, body.to_string()).header("content-type", "application/json")
    }

    /// A chat with one message, to the model that simulated pods serve.
    pub fn chat(text: &str) -> Self {
        let messages = json!([{"role": "user", "content": text}]);
        Self::json("/v1/chat/completions", &json!({"model": "sim", "messages": messages, "max_tokens": 4}))
    }

    /// A body in chunks, its length not told ahead.
    pub fn chunked(path: &str, chunks: &[&[u8]]) -> Self {
        let frames = chunks.iter().map(|chunk| Frame::data(Bytes::copy_from_slice(chunk))).collect();
        Self::new("POST", path, Frames { frames, ..Frames::default() })
    }

    fn new(method: &str, path: &str, body: Frames) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body,
            http2: false,
        }
    }

    /// The same body of known length and in pieces, by both versions of HTTP.
    pub fn all_ways(path: &str, body: &[u8]) -> [Self; 4] {
        let pieces: Vec<_> = body.chunks((body.len() / 3 + 1).min(100_000)).collect();
        let (whole, chunked) = (Self::post(path, body.to_vec()), Self::chunked(path, &pieces));
        [whole.clone(), chunked.clone(), whole.http2(), chunked.http2()]
    }

    /// Another method.
    pub fn method(mut self, method: &str) -> Self {
        self.method = method.to_owned();
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let name: HeaderName = name.parse().expect("a header name");
        self.headers.append(name, HeaderValue::from_bytes(value.as_ref()).expect("a header value"));
        self
    }

    /// Ends the body with a trailer. The body's length is then not told ahead.
    pub fn trailer(mut self, name: &'static str, value: &'static str) -> Self {
        self = self.header("trailer", name);
        let trailers =
            HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
        self.body.frames.push_back(Frame::trailers(trailers));
        self.body.length = None;
        self
    }

    /// Never ends the body: more of it seems to come.
    pub fn unfinished(mut self) -> Self {
        self.body.open = true;
        self.body.length = None;
        self
    }

    /// Waits before each part of the body.
    pub fn paced(mut self, pause: Duration) -> Self {
        self.body.pause = pause;
        self
    }

    /// Uses HTTP/2, with prior knowledge.
    pub fn http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    /// Sends it and reads the whole response.
    #[track_caller]
    pub fn send(self, to: impl Into<SocketAddr>) -> Response {
        let what = format!("{} {}", self.method, self.path);
        self.try_send(to).unwrap_or_else(|e| panic!("{what}: {e}"))
    }

    /// Sends it and reads the whole response, or says why there was none.
    pub fn try_send(self, to: impl Into<SocketAddr>) -> Result<Response, Failure> {
        self.start(to)?.head()?.finish()
    }

    /// Sends it and reads the response's headers.
    #[track_caller]
    pub fn stream(self, to: impl Into<SocketAddr>) -> Streaming {
        let what = format!("{} {}", self.method, self.path);
        self.start(to).and_then(Exchange::head).unwrap_or_else(|e| panic!("{what}: {e}"))
    }

    /// Connects and begins to send.
    pub fn start(self, to: impl Into<SocketAddr>) -> Result<Exchange, Failure> {
        let address = to.into();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sent = runtime.block_on(async { timeout(DEADLINE, self.connect_and_send(address)).await? })?;
        Ok(Exchange { sent, runtime })
    }

    async fn connect_and_send(self, address: SocketAddr) -> Result<JoinHandle<Sent>, Failure> {
        let http2 = self.http2;
        let request = self.into_hyper(address)?;
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let io = TokioIo::new(tcp);
        Ok(if http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            tokio::spawn(async move { sender.send_request(request).await })
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection.with_upgrades());
            tokio::spawn(async move { sender.send_request(request).await })
        })
    }

    fn into_hyper(self, address: SocketAddr) -> Result<hyper::Request<Frames>, Failure> {
        let uri = if self.http2 { format!("http://{address}{}", self.path) } else { self.path };
        let mut request = hyper::Request::builder().method(self.method.as_str()).uri(uri).body(self.body)?;
        *request.headers_mut() = self.headers;
        if !self.http2 && !request.headers().contains_key("host") {
            request.headers_mut().insert("host", address.to_string().parse()?);
        }
        Ok(request)
    }
}

impl Exchange {
    /// Goes on sending until `condition` holds; panics after [`DEADLINE`], naming what was waited for.
    #[track_caller]
    pub fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        run_until(&self.runtime, what, condition);
    }

    /// Gives up the request: by HTTP/2 its stream is reset and its connection stays open, as long as
    /// [`until`](Self::until) runs.
    pub fn cancel(&self) {
        self.sent.abort();
    }

    /// Waits for the response's headers.
    pub fn head(self) -> Result<Streaming, Failure> {
        let Self { runtime, sent } = self;
        let response = runtime.block_on(async { timeout(DEADLINE, sent).await })???;
        Ok(Streaming { response, runtime })
    }
}

impl Streaming {
    /// Status code.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The next piece of the body; `None` at its end.
    pub fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame =
                self.runtime.block_on(async { timeout(DEADLINE, self.response.body_mut().frame()).await })?;
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => return Ok(Some(data)),
                Some(Err(_trailers)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Gives up the rest: by HTTP/2 the stream is reset and the connection stays open until `condition` holds.
    #[track_caller]
    pub fn cancel(self, what: &str, condition: impl FnMut() -> bool) {
        drop(self.response);
        run_until(&self.runtime, what, condition);
    }

    /// Reads the rest.
    pub fn finish(mut self) -> Result<Response, Failure> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk()? {
            body.extend_from_slice(&chunk);
        }
        Ok(Response { status: self.status(), headers: self.headers().clone(), body })
    }
}

/// Lets connections work until `condition` holds, which is looked at from outside of the runtime.
#[track_caller]
fn run_until(runtime: &Runtime, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }
}

impl Response {
    /// A header's value, as far as it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in the body {:?}", self.text()))
    }
}

/// A body given beforehand.
#[derive(Default)]
struct Frames {
    frames: VecDeque<Frame<Bytes>>,
    length: Option<u64>,
    open: bool,
    /// Before each frame.
    pause: Duration,
    /// The pause under way.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Clone for Frames {
    fn clone(&self) -> Self {
        let frames = self.frames.iter().map(|frame| match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Frame::data(data.clone()),
            (_, trailers) => Frame::trailers(trailers.cloned().unwrap_or_default()),
        });
        Self {
            frames: frames.collect(),
            length: self.length,
            open: self.open,
            pause: self.pause,
            waiting: None,
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.pause.is_zero() && !self.frames.is_empty() {
            let pause = self.pause;
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(pause)));
            if waiting.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.waiting = None;
        }
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None if self.open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && !self.open
    }

    fn size_hint(&self) -> SizeHint {
        match self.length {
            Some(length) => SizeHint::with_exact(length),
            None if self.is_end_stream() => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}
