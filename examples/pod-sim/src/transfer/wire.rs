//! The network between the pods: a listener beside the HTTP server, and the client that fetches from another's.
//!
//! Real engines speak ZeroMQ, NCCL or RDMA here; pod-sim speaks HTTP, and no KV is in it: a claim goes over, and word of what
//! it gets comes back.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Transfer;
use super::store::{Shown, Taken};
use crate::payload::{self, Payload};

/// Where claims go.
const TAKE: &str = "/sim/kv/take";

/// The longest claim or answer to one.
const MAX_BODY: usize = 64 << 20;

/// What is given to the network beyond the time that the other side may take.
const SLACK: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct Claimed {
    key: String,
    prompt: u64,
    terms: Value,
    patience_ms: u64,
}

/// Serves a pod's side listener for ever.
pub async fn listen(transfer: Arc<Transfer>, listener: TcpListener) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let _ = socket.set_nodelay(true);
        let transfer = transfer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let transfer = transfer.clone();
                async move { Ok::<_, Infallible>(answer(&transfer, request).await) }
            });
            // An error here is a pod that left.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn answer(transfer: &Transfer, request: Request<Incoming>) -> Response<Payload> {
    let (parts, body) = request.into_parts();
    let refuse = |status, why: &str| payload::json(status, &json!({"detail": why}));
    match (&parts.method, parts.uri.path()) {
        (&Method::POST, TAKE) => {
            let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
                return refuse(StatusCode::BAD_REQUEST, "the claim breaks off");
            };
            let claim: Claimed = match serde_json::from_slice(&body.to_bytes()) {
                Ok(claim) => claim,
                Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
            };
            let shown = Shown { prompt: claim.prompt, terms: claim.terms };
            let patience = Duration::from_millis(claim.patience_ms);
            match transfer.store().take(&claim.key, &shown, patience).await {
                Ok(taken) => {
                    payload::json(StatusCode::OK, &json!({"tokens": taken.tokens, "cached": taken.cached}))
                }
                Err(why) => refuse(StatusCode::CONFLICT, &why),
            }
        }
        (&Method::GET, path) => match transfer.lookup(path) {
            Some(found) => payload::json(StatusCode::OK, &found),
            None => refuse(StatusCode::NOT_FOUND, "Not Found"),
        },
        _ => refuse(StatusCode::NOT_FOUND, "Not Found"),
    }
}

/// Claims KV from the pod whose side listener is at `from`, and waits for it for as long as `patience`.
pub async fn take(from: &str, key: &str, shown: &Shown, patience: Duration) -> Result<Taken, String> {
    let claim = json!({"key": key, "prompt": shown.prompt, "terms": shown.terms,
        "patience_ms": u64::try_from(patience.as_millis()).unwrap_or(u64::MAX)});
    let (status, answer) = ask(from, Method::POST, TAKE, claim.to_string(), patience).await?;
    let number = |name: &str| answer[name].as_u64().and_then(|number| usize::try_from(number).ok());
    match (status, number("tokens"), number("cached")) {
        (StatusCode::OK, Some(tokens), Some(cached)) => Ok(Taken { tokens, cached }),
        _ => Err(format!("{from}: {}", answer["detail"].as_str().unwrap_or("no such route"))),
    }
}

/// Reads JSON from the listener at `from`.
pub async fn get(from: &str, path: &str) -> Result<Value, String> {
    match ask(from, Method::GET, path, String::new(), Duration::ZERO).await? {
        (StatusCode::OK, answer) => Ok(answer),
        (status, _) => Err(format!("{from}{path}: {status}")),
    }
}

async fn ask(
    from: &str,
    method: Method,
    path: &str,
    body: String,
    patience: Duration,
) -> Result<(StatusCode, Value), String> {
    let exchange = async {
        let socket = TcpStream::connect(from).await.map_err(|error| format!("can't connect: {error}"))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        // A task of its own, which ends with `sender`: what goes wrong shows in the request's result.
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header(HOST, from);
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok::<_, String>((status, serde_json::from_slice(&body).unwrap_or_default()))
    };
    match timeout(patience + SLACK, exchange).await {
        Ok(result) => result.map_err(|why| format!("{from}: {why}")),
        Err(_) => Err(format!("{from}: no answer in time")),
    }
}
