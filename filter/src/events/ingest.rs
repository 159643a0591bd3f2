//! KV events by HTTP, on a listener of their own: `POST /warmpath/v1/kv-events/POD[?model=MODEL][&rank=RANK]`.
//!
//! The body is a batch as engines publish it, in msgpack or (with `content-type: application/json`) in JSON. Its number stands in
//! `x-warmpath-sequence`; a publisher without numbers vouches for having missed nothing. An empty body with the number of the
//! next batch says that the publisher is still there and has sent all before: to be said every few seconds, with the `rank` where
//! it isn't 0.
//!
//! Whoever has heard nothing of the engine before says so with `x-warmpath-publisher: new`: its number may be the next one by chance, of
//! an engine that was started anew.
//!
//! Answers are JSON with `next`, the number that is to come next, and `mode`: 202, or an error that says what is wrong. 409: batches
//! before this one are missing; replay from `next`, or send this one with `x-warmpath-gap: accept` if that can't be.

use crate::host::{HeaderMap, Headers, Host};
use crate::plugin::Plugin;
use crate::stream::Flow;
use serde_json::{Value, json};
use std::rc::Rc;

use super::batch::{self, Batch};
use super::feed::Sequence;
use super::feeds::{Mode, Speaker};
use super::intake::{Intake, Message, Problem, Source};

/// What paths begin with.
pub const PATH: &str = "/warmpath/v1/kv-events/";

/// State of one request.
pub struct Ingest {
    plugin: Rc<Plugin>,
    /// What its headers say, once they were found right.
    asked: Option<Asked>,
}

/// What a request's headers say.
struct Asked {
    source: Source,
    /// Of an empty body, or of a question; a batch says its own.
    rank: u32,
    number: Option<u64>,
    accepts_gap: bool,
    /// Whether the publisher, or who brings its events, has heard nothing before.
    is_new: bool,
    is_json: bool,
}

/// An answer: status, and what the body says.
struct Answer(u32, Value);

impl Answer {
    fn error(status: u32, message: impl std::fmt::Display) -> Self {
        Self(status, json!({"error": {"message": message.to_string()}}))
    }
}

impl Ingest {
    /// A request of which nothing was heard.
    pub fn new(plugin: Rc<Plugin>) -> Self {
        Self { plugin, asked: None }
    }

    /// The request's headers arrived.
    pub fn on_headers(&mut self, host: &impl Host, end_of_stream: bool) -> Flow {
        let headers = host.headers(Headers::Request).unwrap_or_default();
        match self.asked(host, &headers) {
            Ok(asked) if headers.text(":method").as_deref() == Some("GET") => {
                let answer = self.status(&asked);
                self.respond(host, answer)
            }
            Ok(asked) => {
                self.asked = Some(asked);
                if end_of_stream { self.finish(host, &[]) } else { Flow::Pause }
            }
            Err(answer) => self.respond(host, answer),
        }
    }

    /// A part of the body arrived; `buffered` bytes are held by now.
    pub fn on_body(&mut self, host: &impl Host, buffered: usize, end_of_stream: bool) -> Flow {
        let most = self.plugin.settings.kv_events.max_message_bytes;
        if self.asked.is_none() {
            return Flow::Pause;
        }
        if buffered > most {
            self.asked = None;
            let why = format!("the batch has more than {most} bytes; see kv_events.max_message_bytes");
            return self.respond(host, Answer::error(413, why));
        }
        if !end_of_stream {
            return Flow::Pause;
        }
        self.on_trailers(host)
    }

    /// The body is whole.
    pub fn on_trailers(&mut self, host: &impl Host) -> Flow {
        match host.request_body(self.plugin.settings.kv_events.max_message_bytes) {
            Ok(body) => self.finish(host, &body),
            Err(error) => self.respond(host, Answer::error(500, error)),
        }
    }

    fn asked(&self, host: &impl Host, headers: &HeaderMap) -> Result<Asked, Answer> {
        let settings = &self.plugin.settings.kv_events;
        if let Some(token) = &settings.token {
            let given = headers.text("authorization");
            let given = given.as_deref().and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
            if !is_same(given.as_bytes(), token.as_bytes()) {
                self.report(host, &Problem::Stranger("a request without the right token".to_owned()));
                let cure = "send the header `authorization: Bearer TOKEN` with the token of kv_events.token";
                return Err(Answer::error(401, cure));
            }
        }
        let path = headers.text(":path").unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let pod = path.strip_prefix(PATH).filter(|pod| !pod.is_empty() && !pod.contains('/')).map(decoded);
        let Some(pod) = &pod else {
            return Err(Answer::error(404, format!("there is nothing at {path:?}; POST {PATH}POD")));
        };
        let method = headers.text(":method").unwrap_or_default();
        if method != "POST" && method != "GET" {
            return Err(Answer::error(405, "POST a batch, or GET what is known of the pod"));
        }
        let Some(pod) = self.plugin.pod_named(pod) else {
            self.report(host, &Problem::Stranger("a request names a pod that isn't configured".to_owned()));
            return Err(Answer::error(
                404,
                format!("no pod is called {pod:?}; see `pods` in the configuration"),
            ));
        };
        if headers.get("content-encoding").is_some_and(|coding| &*coding != b"identity") {
            return Err(Answer::error(415, "send the batch uncompressed"));
        }
        let number = headers.text("x-warmpath-sequence").map(|text| text.parse::<u64>());
        let Ok(number) = number.transpose() else {
            return Err(Answer::error(400, "x-warmpath-sequence is no number"));
        };
        let field = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name));
        let model = field("model=").map(decoded);
        let Ok(rank) = field("rank=").unwrap_or("0").parse() else {
            return Err(Answer::error(400, "rank is no number"));
        };
        let is = |name: &str, text: &str| {
            headers.text(name).is_some_and(|value| value.to_ascii_lowercase().contains(text))
        };
        Ok(Asked {
            source: self.intake(host).source(pod, model.as_deref().filter(|model| !model.is_empty())),
            rank,
            number,
            accepts_gap: is("x-warmpath-gap", "accept"),
            is_new: is("x-warmpath-publisher", "new"),
            is_json: is("content-type", "json"),
        })
    }

    fn finish(&mut self, host: &impl Host, body: &[u8]) -> Flow {
        let Some(asked) = self.asked.take() else { return Flow::Pause };
        let answer = match body.is_empty() {
            true => self.heartbeat(&asked),
            false => self.take(host, &asked, body),
        };
        self.respond(host, answer)
    }

    fn take(&self, host: &impl Host, asked: &Asked, body: &[u8]) -> Answer {
        let batch = if asked.is_json { batch::json(body) } else { batch::msgpack(body) };
        let batch = match batch {
            Ok(batch) => batch,
            Err(why) => {
                let problem = Problem::Unreadable(why);
                self.report(host, &problem);
                return Answer::error(400, problem);
            }
        };
        let id = self.cache_id(&asked.source, batch.rank);
        if let Some(id) = &id
            && let Ok(mut fleet) = self.plugin.fleet.try_borrow_mut()
        {
            if fleet.index.find(id).is_none() {
                fleet.catch_up(host);
            }
            if fleet.feeds.is_busy() || fleet.index.find(id).is_none() {
                return Answer::error(503, "the index takes nothing for the moment; try again in a second");
            }
            let is_gap = fleet.feeds.sequence(&fleet.index, id, asked.number, asked.is_new) == Sequence::Gap;
            if let Some(number) = asked.number.filter(|_| is_gap && !asked.accepts_gap) {
                // An engine that counts from further back has started anew.
                let next = fleet.feeds.next(id).filter(|next| *next < number && !asked.is_new).unwrap_or(0);
                let what = "batches before this one are missing: replay them from `next`, or send this one with \
                            x-warmpath-gap: accept";
                return Answer(409, json!({"error": {"message": what}, "next": next}));
            }
        }
        self.take_batch(host, asked, &batch)
    }

    fn take_batch(&self, host: &impl Host, asked: &Asked, batch: &Batch) -> Answer {
        let Asked { source, number, is_new: anew, .. } = asked;
        let intake = self.intake(host);
        let message = Message { source, batch, number: *number, anew: *anew, speaker: Speaker::Requests };
        match intake.take(&message) {
            Ok(taken) => {
                intake.flush();
                let Answer(status, mut body) = self.known(202, source, batch.rank);
                if let (Some(size), Value::Object(body)) = (taken.mismatch, &mut body) {
                    let why =
                        format!("the engine's blocks have {size} tokens; see the tokenizer's block_tokens");
                    body.insert("warning".to_owned(), why.into());
                }
                Answer(status, body)
            }
            Err(problem) => {
                self.report(host, &problem);
                Answer::error(422, problem)
            }
        }
    }

    /// The publisher has sent all before the number that it gives.
    fn heartbeat(&self, asked: &Asked) -> Answer {
        let Some(number) = asked.number else {
            return Answer::error(
                400,
                "the body is empty; send a batch, or the next number in x-warmpath-sequence",
            );
        };
        let Some(id) = self.cache_id(&asked.source, asked.rank) else {
            return Answer::error(422, Problem::NoRank(asked.rank));
        };
        let Ok(mut guard) = self.plugin.fleet.try_borrow_mut() else { return Answer::error(503, "busy") };
        let fleet = &mut *guard;
        let now = fleet.ticks();
        match fleet.feeds.next(&id) {
            Some(next) if next == number => fleet.feeds.still_there(&mut fleet.index, &id, now),
            next => {
                let what = "batches are missing: replay them from `next`";
                return Answer(409, json!({"error": {"message": what}, "next": next.unwrap_or(0)}));
            }
        }
        drop(guard);
        self.known(202, &asked.source, asked.rank)
    }

    fn status(&self, asked: &Asked) -> Answer {
        self.known(200, &asked.source, asked.rank)
    }

    /// What this worker knows of a cache.
    fn known(&self, status: u32, source: &Source, rank: u32) -> Answer {
        let id = self.cache_id(source, rank);
        let (Some(id), Ok(fleet)) = (id, self.plugin.fleet.try_borrow()) else {
            return Answer::error(503, "nothing is known of it at the moment");
        };
        let mode = match fleet.feeds.mode(&id, fleet.ticks()) {
            Mode::Approximate => "approximate",
            Mode::Uncertain => "uncertain",
            Mode::Exact => "exact",
        };
        Answer(status, json!({"next": fleet.feeds.next(&id), "mode": mode}))
    }

    fn cache_id(&self, source: &Source, rank: u32) -> Option<String> {
        source.pod.cache_id(rank)
    }

    fn intake<'a, H: Host>(&'a self, host: &'a H) -> Intake<'a, H> {
        Intake { host, plugin: &self.plugin }
    }

    fn report(&self, host: &impl Host, problem: &Problem) {
        self.intake(host).report("a request to kv-events", problem);
    }

    fn respond(&self, host: &impl Host, Answer(status, body): Answer) -> Flow {
        let mut headers = vec![("content-type", "application/json")];
        if status == 503 {
            headers.push(("retry-after", "1"));
        }
        let _ = host.respond(status, &headers, body.to_string().as_bytes(), "warmpath_kv_events");
        Flow::Pause
    }
}

/// Whether two secrets are equal, in a time that doesn't say where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A value of a query without its percent signs.
fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%')
            .then(|| after.first_chunk::<2>())
            .flatten()
            .and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        match (escaped, byte) {
            (Some(byte), _) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (None, b'+') => {
                out.push(b' ');
                rest = after;
            }
            (None, byte) => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
