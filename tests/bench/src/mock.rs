//! Pods that answer at once, so that what is measured is the router.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming, header::CONTENT_TYPE};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::net::TcpListener;

const ANSWER: &str = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// What a busy vLLM answers at `/metrics`: 50 KB.
pub const METRICS: &str = include_str!("../../../filter/tests/data/metrics/vllm-0.32-busy.txt");

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/metrics" {
        return Ok(Response::new(Full::new(Bytes::from_static(METRICS.as_bytes()))));
    }
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Starts `n` pods on free ports of this runtime.
pub async fn start(n: usize) -> std::io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for _ in 0..n {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let _ = socket.set_nodelay(true);
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service_fn(answer)),
                );
            }
        });
    }
    Ok(addresses)
}
