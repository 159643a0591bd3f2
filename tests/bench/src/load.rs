//! A closed loop of clients, each with one connection that it keeps.

use crate::prompts::Prompts;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sends `count` requests over `concurrency` connections, each as many that follow one another. Returns how long each took,
/// in the order of their numbers.
pub async fn run(
    target: SocketAddr,
    prompts: &Rc<Prompts>,
    first: usize,
    count: usize,
    concurrency: usize,
) -> Outcome<Vec<Duration>> {
    let tasks: Vec<_> = (0..concurrency)
        .map(|lane| {
            let prompts = prompts.clone();
            let each = count / concurrency;
            let numbers = first + lane * each..first + (lane + 1) * each;
            tokio::task::spawn_local(client(target, prompts, numbers))
        })
        .collect();
    let mut times = Vec::with_capacity(count);
    for task in tasks {
        times.extend(task.await??);
    }
    Ok(times)
}

async fn client(
    target: SocketAddr,
    prompts: Rc<Prompts>,
    numbers: impl Iterator<Item = usize>,
) -> Outcome<Vec<Duration>> {
    let socket = TcpStream::connect(target).await?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    tokio::task::spawn_local(connection);
    let mut times = Vec::new();
    for n in numbers {
        let body = prompts.body(n);
        let request = Request::post("/v1/chat/completions")
            .header(header::HOST, "bench")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::<Bytes>::new(body))?;
        let start = Instant::now();
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        times.push(start.elapsed());
        if !status.is_success() {
            return Err(format!("request {n} was answered {status}").into());
        }
    }
    Ok(times)
}
