//! The sockets and the routes of a pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::net::TcpListener;
use xxhash_rust::xxh3::xxh3_64;

use crate::endpoint::Endpoint;
use crate::fault::Effect;
use crate::inference::{Call, infer};
use crate::journal::{Entry, KvRecord, Outcome, Record};
use crate::metrics;
use crate::payload::{self, Broken, Payload};
use crate::pod::Pod;
use crate::transfer::Leg;

/// Serves a pod on a listener, over HTTP/1.1 and HTTP/2 with prior knowledge, for ever.
pub async fn serve(pod: Arc<Pod>, listener: TcpListener) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // hyper counts the idle time before a request's headers into this one.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(pod.options.keep_alive);
    for connection in 0.. {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Out of file handles, most likely: wait for some to be closed.
                eprintln!("{}: can't accept a connection: {error}", pod.name);
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = socket.set_nodelay(true);
        let (pod, builder) = (pod.clone(), builder.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| respond(pod.clone(), connection, request));
            // Errors here are clients that left, and connections broken on purpose.
            let _ = builder.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

/// Answers a request, and signs the answer.
async fn respond(
    pod: Arc<Pod>,
    connection: u64,
    request: Request<Incoming>,
) -> Result<Response<Payload>, Broken> {
    let format = request.headers().get("endpoint-load-metrics-format").cloned();
    let mut response = route(&pod, connection, request).await?;
    let headers = response.headers_mut();
    if let Ok(name) = HeaderValue::from_str(&pod.name) {
        headers.insert("x-pod", name);
    }
    let load = format.and_then(|format| metrics::orca(&pod.life().engine, format.to_str().ok()?));
    if let Some(load) = load.and_then(|load| HeaderValue::try_from(load).ok()) {
        headers.insert("endpoint-load-metrics", load);
    }
    Ok(response)
}

async fn route(pod: &Pod, connection: u64, request: Request<Incoming>) -> Result<Response<Payload>, Broken> {
    let (parts, body) = request.into_parts();
    let (trailers, bytes) = match Limited::new(body, pod.options.max_body).collect().await {
        Ok(body) => (body.trailers().cloned().unwrap_or_default(), body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message =
                format!("The body is longer than {} bytes; --max-body-mb raises that.", pod.options.max_body);
            return Ok(payload::error(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", &message));
        }
        Err(_) => return Err(Broken),
    };
    let path = parts.uri.path();
    if let Some(what) = path.strip_prefix("/sim/") {
        return Ok(control(pod, &parts.method, what, &bytes));
    }
    let endpoint = Endpoint::of_path(path);
    let leg = match (&pod.transfer, endpoint) {
        (Some(transfer), Some(endpoint)) => transfer.leg(endpoint, &bytes),
        _ => Leg::Alone,
    };
    let effect = pod.faults.next(path, leg);
    // Probes are not recorded: they would push out what tests look for.
    let entry = (path != "/health" && path != "/metrics").then(|| {
        pod.journal.begin(Record {
            id: parts.headers.get("x-request-id").map_or_else(String::new, text),
            path: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            protocol: format!("{:?}", parts.version),
            connection,
            headers: texts(&parts.headers),
            trailers: texts(&trailers),
            body_bytes: bytes.len(),
            body_hash: format!("{:016x}", xxh3_64(&bytes)),
            body: pod.options.journal_bodies.then(|| String::from_utf8_lossy(&bytes).into_owned()),
            kv: endpoint.and(pod.transfer.as_ref()).map(|_| KvRecord { leg, ..KvRecord::default() }),
            ..Record::default()
        })
    });
    match effect {
        Some(Effect::Refuse {}) => {
            close(entry, 0, Outcome::Faulted);
            return Err(Broken);
        }
        Some(Effect::Status { status, retry_after }) => {
            close(entry, status, Outcome::Faulted);
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response = payload::error(status, "SimulatedError", "A fault that was asked for.");
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            return Ok(response);
        }
        Some(Effect::Hang { after_tokens: None }) => {
            pod.life().ended().await;
            return Err(Broken);
        }
        _ => {}
    }
    match (endpoint, entry, &parts.method) {
        (Some(endpoint), Some(entry), &Method::POST) => {
            let id = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok());
            infer(pod, &Call { endpoint, bytes: &bytes, request_id: id }, effect, entry).await
        }
        (endpoint, entry, method) => {
            let response = look(pod, method, path, endpoint.is_some());
            let outcome = if response.status().is_success() { Outcome::Done } else { Outcome::Rejected };
            close(entry, response.status().as_u16(), outcome);
            Ok(response)
        }
    }
}

/// What isn't inference.
fn look(pod: &Pod, method: &Method, path: &str, known: bool) -> Response<Payload> {
    let engine = pod.life().engine;
    match (method, path) {
        (&Method::GET, "/health") => payload::whole(StatusCode::OK, "text/plain", Bytes::new()),
        (&Method::GET, "/metrics") => {
            let text = metrics::prometheus(&engine, &pod.options.models[0]);
            payload::whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
        }
        (&Method::GET, "/v1/models") => {
            let limit = engine.settings().blocks as usize * engine.settings().block_size;
            let model =
                |id| json!({"id": id, "object": "model", "owned_by": "pod-sim", "max_model_len": limit});
            let models: Vec<_> = pod.options.models.iter().map(model).collect();
            payload::json(StatusCode::OK, &json!({"object": "list", "data": models}))
        }
        (&Method::POST, "/reset_prefix_cache") => {
            engine.cache().clear();
            payload::whole(StatusCode::OK, "text/plain", Bytes::new())
        }
        (_, "/health" | "/metrics" | "/v1/models" | "/reset_prefix_cache") => wrong_method(),
        _ if known => wrong_method(),
        _ => payload::error(StatusCode::NOT_FOUND, "NotFoundError", "Not Found"),
    }
}

fn wrong_method() -> Response<Payload> {
    payload::error(StatusCode::METHOD_NOT_ALLOWED, "BadRequestError", "Method Not Allowed")
}

/// The simulation's own routes, below `/sim/`. No fault touches them.
fn control(pod: &Pod, method: &Method, what: &str, bytes: &[u8]) -> Response<Payload> {
    let done = || payload::json(StatusCode::OK, &json!({"ok": true}));
    match (method, what) {
        (&Method::GET, "requests") => payload::json(StatusCode::OK, &json!(pod.journal.records())),
        (&Method::GET, "stats") => payload::json(StatusCode::OK, &stats(pod)),
        (&Method::GET, "fault") => payload::json(StatusCode::OK, &pod.faults.list()),
        (&Method::POST, "fault") => match pod.faults.add(bytes) {
            Ok(()) => done(),
            Err(why) => payload::error(StatusCode::BAD_REQUEST, "BadRequestError", &why),
        },
        (&Method::DELETE, "fault") => {
            pod.faults.clear();
            done()
        }
        (&Method::POST, "kv/drop") => {
            if let Some(transfer) = &pod.transfer {
                transfer.store().clear();
            }
            done()
        }
        (&Method::POST, "reset") => {
            pod.reset();
            done()
        }
        (_, "requests" | "stats" | "fault" | "reset" | "kv/drop") => wrong_method(),
        _ => payload::error(
            StatusCode::NOT_FOUND,
            "NotFoundError",
            "/sim/ has requests, stats, fault, reset and kv/drop.",
        ),
    }
}

fn stats(pod: &Pod) -> serde_json::Value {
    let engine = pod.life().engine;
    let counters = engine.counters();
    let cache = engine.cache();
    let transfer = pod.transfer.as_ref();
    let [kv_held, kv_fetched, kv_expired] =
        transfer.map(|transfer| transfer.store().counts()).unwrap_or_default();
    json!({
        "name": pod.name,
        "requests": pod.journal.begun(),
        "running": counters.running.load(Relaxed),
        "waiting": counters.waiting.load(Relaxed),
        "prompt_tokens": counters.queried.load(Relaxed),
        "cached_tokens": counters.hit.load(Relaxed),
        "completion_tokens": counters.generated.load(Relaxed),
        "block_size": engine.settings().block_size,
        "blocks": cache.capacity(),
        "blocks_in_use": cache.in_use(),
        "blocks_cached": cache.cached(),
        "blocks_evicted": cache.evicted(),
        "role": transfer.map(|transfer| transfer.settings().role),
        "engine_id": transfer.map(|transfer| transfer.engine_id()),
        "bootstrap": transfer.map(|transfer| transfer.side().to_string()),
        "kv_port": transfer.map(|transfer| transfer.side().port()),
        "kv_held": kv_held,
        "kv_fetched": kv_fetched,
        "kv_expired": kv_expired,
    })
}

fn close(entry: Option<Entry>, status: u16, outcome: Outcome) {
    if let Some(entry) = entry {
        entry.update(|record| (record.status, record.outcome) = (status, outcome));
    }
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn texts(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for (name, value) in headers {
        let all: &mut String = texts.entry(name.to_string()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(&text(value));
    }
    texts
}
