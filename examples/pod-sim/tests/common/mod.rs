//! Pods on real sockets, and a client that sees every byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pod_sim::engine::Settings;
use pod_sim::pod::{Options, Pod};
use pod_sim::time::TimeModel;
use pod_sim::transfer::Transfer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longer than any answer takes, unless a test is about that.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A pod that takes no time.
pub async fn pod() -> SocketAddr {
    pod_with(|_, _| {}).await
}

/// A pod with settings of its own.
pub async fn pod_with(change: impl FnOnce(&mut Settings, &mut Options)) -> SocketAddr {
    start(None, change).await
}

/// A pod that perhaps takes part in disaggregation.
pub async fn start(
    transfer: Option<Arc<Transfer>>,
    change: impl FnOnce(&mut Settings, &mut Options),
) -> SocketAddr {
    let time = TimeModel {
        prefill_rate: 1000.0,
        decode_rate: 100.0,
        speedup: f64::INFINITY,
        chunk: Duration::from_millis(1),
    };
    let mut settings = Settings { blocks: 1000, block_size: 16, max_running: 8, time };
    let mut options = Options {
        models: vec!["sim".into(), "other".into()],
        answer_tokens: 8,
        prompt_tokens_details: true,
        max_body: 1 << 20,
        keep_alive: PATIENCE,
        journal: 100,
        journal_bodies: true,
    };
    change(&mut settings, &mut options);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pod = Pod::new("pod-1".into(), settings, options, transfer);
    tokio::spawn(pod_sim::server::serve(Arc::new(pod), listener));
    address
}

/// A chat with one message of `words` words, and extra fields.
pub fn chat(words: usize, extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "word ".repeat(words)}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Opens a connection and sends a request on it.
pub async fn open(pod: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    open_as("", pod, method, path, body).await
}

/// The same under an `x-request-id`, if it isn't empty.
pub async fn open_as(id: &str, pod: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(pod).await.unwrap();
    let id = if id.is_empty() { String::new() } else { format!("x-request-id: {id}\r\n") };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: pod\r\nx-test: yes\r\n{id}content-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    socket
}

/// What comes until the pod closes the connection or `end` appears.
pub async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    let all = async {
        while !String::from_utf8_lossy(&bytes).contains(end) {
            if !matches!(socket.read_buf(&mut bytes).await, Ok(1..)) {
                break;
            }
        }
    };
    timeout(PATIENCE, all).await.expect("neither the end nor a closed connection");
    String::from_utf8(bytes).unwrap()
}

/// A whole exchange: status, headers as text, body as JSON (or null).
pub async fn ask(pod: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, String, Value) {
    ask_as("", pod, method, path, body).await
}

/// The same under an `x-request-id`, if it isn't empty.
pub async fn ask_as(
    id: &str,
    pod: SocketAddr,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, String, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut socket = open_as(id, pod, method, path, &body).await;
    let mut text = read_until(&mut socket, "\r\n\r\n").await;
    let (head, _) = text.split_once("\r\n\r\n").expect("headers");
    let head = head.to_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    while text.len() < head.len() + 4 + length {
        let mut more = [0; 4096];
        let count = timeout(PATIENCE, socket.read(&mut more)).await.unwrap().unwrap();
        assert!(count > 0, "the body breaks off: {text}");
        text.push_str(std::str::from_utf8(&more[..count]).unwrap());
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.clone(), serde_json::from_str(&text[head.len() + 4..]).unwrap_or_default())
}

/// The pod's figures.
pub async fn stats(pod: SocketAddr) -> Value {
    ask(pod, "GET", "/sim/stats", &Value::Null).await.2
}

/// The last request that the pod has on record.
pub async fn last_record(pod: SocketAddr) -> Value {
    ask(pod, "GET", "/sim/requests", &Value::Null).await.2.as_array().unwrap().last().unwrap().clone()
}
