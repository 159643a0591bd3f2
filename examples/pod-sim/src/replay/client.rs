//! One streamed request on a connection of its own, timed.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::sse::Events;

/// How much of an error's text is kept, in characters.
const ERROR_TEXT: usize = 200;

/// Where requests go, and what they carry.
#[derive(Debug)]
pub struct Client {
    authority: String,
    prefix: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
}

/// A request's answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Who served it: the header `x-pod`, else `x-warmpath-pod`.
    pub pod: Option<String>,
    /// The header `x-warmpath-matched`.
    pub matched: Option<String>,
    /// The generated text.
    pub text: String,
    /// From before connecting to the first text.
    pub ttft: Duration,
    /// From before connecting to the end.
    pub total: Duration,
    /// Prompt tokens by the server's count.
    pub prompt_tokens: usize,
    /// Prompt tokens that the server found in its cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    #[serde(default)]
    completion_tokens: usize,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<usize>,
}

impl Client {
    /// A client of the server at `url`, `http://HOST:PORT` and perhaps a path before `/v1`. `headers` are `NAME: VALUE`.
    pub fn new<'a>(
        url: &str,
        headers: impl Iterator<Item = &'a str>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(format!("{url}: not of the form http://HOST:PORT"));
        };
        let port = authority.port_u16().unwrap_or(80);
        let parse = |header: &str| {
            let (name, value) = header.split_once(':').ok_or("no colon")?;
            let name = name.trim().parse::<HeaderName>().map_err(|error| error.to_string())?;
            let value = value.trim().parse::<HeaderValue>().map_err(|error| error.to_string())?;
            Ok::<_, String>((name, value))
        };
        Ok(Self {
            authority: format!("{}:{port}", authority.host()),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            headers: headers
                .map(|header| parse(header).map_err(|why| format!("header {header}: {why}")))
                .collect::<Result<_, _>>()?,
            timeout,
        })
    }

    /// Returns when the server takes connections, at once or within `most`. The error is for people to read.
    pub async fn wait(&self, most: Duration) -> Result<(), String> {
        let start = Instant::now();
        while let Err(error) = TcpStream::connect(&self.authority).await {
            if start.elapsed() >= most {
                return Err(format!("{} takes no connections within {most:?}: {error}", self.authority));
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Sends `body` to `path` and reads the answer's events to `[DONE]`. The error is for people to read.
    pub async fn post(&self, path: &str, id: &str, body: Vec<u8>) -> Result<Reply, String> {
        match timeout(self.timeout, self.exchange(path, id, body)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no whole answer within {:?}", self.timeout)),
        }
    }

    async fn exchange(&self, path: &str, id: &str, body: Vec<u8>) -> Result<Reply, String> {
        let started = Instant::now();
        let socket = TcpStream::connect(&self.authority).await;
        let socket = socket.map_err(|error| format!("can't connect to {}: {error}", self.authority))?;
        let _ = socket.set_nodelay(true);
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        // What goes wrong with the connection shows in the request's own result.
        let connection = tokio::spawn(connection);
        let mut request = Request::post(format!("{}{path}", self.prefix))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .header("x-request-id", id);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| format!("no answer: {error}"))?;
        let reply = read(response, started).await;
        connection.abort();
        reply
    }
}

async fn read(response: Response<hyper::body::Incoming>, started: Instant) -> Result<Reply, String> {
    let header =
        |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut reply = Reply {
        pod: header("x-pod").or_else(|| header("x-warmpath-pod")),
        matched: header("x-warmpath-matched"),
        ..Reply::default()
    };
    let status = response.status();
    let mut body = response.into_body();
    if status != StatusCode::OK {
        let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let text: String = String::from_utf8_lossy(&text).chars().take(ERROR_TEXT).collect();
        return Err(format!("status {status}: {text}"));
    }
    let mut events = Events::default();
    let (mut done, mut first_text) = (false, None);
    let mut wrong = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the answer breaks off: {error}"))?;
        let Some(bytes) = frame.data_ref() else { continue };
        events.push(bytes, |data| match serde_json::from_str::<Chunk>(data) {
            _ if data == "[DONE]" => done = true,
            Ok(chunk) => {
                for choice in chunk.choices {
                    let text =
                        choice.text.or(choice.delta.and_then(|delta| delta.content)).unwrap_or_default();
                    if !text.is_empty() {
                        first_text.get_or_insert_with(|| started.elapsed());
                        reply.text.push_str(&text);
                    }
                }
                if let Some(usage) = chunk.usage {
                    reply.prompt_tokens = usage.prompt_tokens;
                    reply.completion_tokens = usage.completion_tokens;
                    reply.cached_tokens =
                        usage.prompt_tokens_details.and_then(|d| d.cached_tokens).unwrap_or(0);
                }
            }
            Err(error) => wrong = Some(format!("an event can't be read: {error}: {data:.ERROR_TEXT$}")),
        });
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    if !done {
        return Err("the answer ends without [DONE]".into());
    }
    reply.total = started.elapsed();
    reply.ttft = first_text.unwrap_or(reply.total);
    Ok(reply)
}
