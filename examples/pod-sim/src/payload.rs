//! Response bodies: whole, or piece by piece with a way to break off.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

/// A response's body.
#[derive(Debug)]
pub enum Payload {
    /// All there is; `None` once sent.
    Whole(Option<Bytes>),
    /// Pieces as they come. An error among them breaks the connection.
    Pieces(mpsc::Receiver<Result<Bytes, Broken>>),
}

/// The connection is to be closed without (the rest of) an answer.
#[derive(Debug)]
pub struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is closed on purpose")
    }
}

impl std::error::Error for Broken {}

impl Body for Payload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// A whole answer of the given content type.
pub fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Payload> {
    let body = body.into();
    let mut response = Response::new(Payload::Whole((!body.is_empty()).then_some(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A whole answer of JSON.
pub fn json(status: StatusCode, value: &Value) -> Response<Payload> {
    whole(status, "application/json", value.to_string())
}

/// An error answer in OpenAI's form.
pub fn error(status: StatusCode, kind: &str, message: &str) -> Response<Payload> {
    json(status, &crate::answer::error(status.as_u16(), kind, message))
}
