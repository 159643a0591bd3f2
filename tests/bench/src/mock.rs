//! Pods that answer at once, so that what is measured is the router.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming, header::CONTENT_TYPE};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::LazyLock;
use tokio::net::TcpListener;

const ANSWER: &str = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// What says that a request is a prefill by NIXL, and what its answer has besides: blocks of a prompt of 16,000 tokens.
const PREFILL: &[u8] = b"\"do_remote_decode\":true";
static PREFILLED: LazyLock<Bytes> = LazyLock::new(|| {
    let blocks: Vec<u32> = (0..1000).collect();
    let params = format!(
        r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[{blocks:?}],"remote_engine_id":"e","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600}}"#
    );
    Bytes::from(ANSWER.replacen('{', &format!(r#"{{"kv_transfer_params":{params},"#), 1))
});

/// What a busy vLLM answers at `/metrics`: 50 KB.
pub const METRICS: &str = include_str!("../../../filter/tests/data/metrics/vllm-0.32-busy.txt");

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/metrics" {
        return Ok(Response::new(Full::new(Bytes::from_static(METRICS.as_bytes()))));
    }
    let (mut body, mut end) = (request.into_body(), Vec::new());
    while let Some(Ok(frame)) = body.frame().await {
        // What a router adds to a body is at its end.
        if let Some(data) = frame.data_ref() {
            end = data.slice(data.len().saturating_sub(512)..).to_vec();
        }
    }
    let is_prefill = end.windows(PREFILL.len()).any(|part| part == PREFILL);
    let answer = if is_prefill { PREFILLED.clone() } else { Bytes::from_static(ANSWER.as_bytes()) };
    let mut response = Response::new(Full::new(answer));
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
