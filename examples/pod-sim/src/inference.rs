//! One inference request, from its body to the last byte of its answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, sleep};

use crate::answer::{Head, Piece, Usage};
use crate::body::Body;
use crate::chain::Chain;
use crate::endpoint::Endpoint;
use crate::engine::{Running, TooLong, Work};
use crate::fault::Effect;
use crate::fields::Invalid;
use crate::journal::{Entry, Outcome};
use crate::payload::{self, Broken, Payload};
use crate::pod::{Life, Pod};

/// Time for what was sent to leave before the connection is broken; hyper drops what it has not written yet.
const FLUSH: Duration = Duration::from_millis(10);

/// Answers a request whose body has been read. `effect` is the fault that befalls it, if it is one of the answer.
pub async fn infer(
    pod: &Pod,
    endpoint: Endpoint,
    bytes: &[u8],
    effect: Option<Effect>,
    entry: Entry,
) -> Result<Response<Payload>, Broken> {
    let job = match Job::new(pod, endpoint, bytes, effect, entry) {
        Ok(job) => job,
        Err(response) => return Ok(*response),
    };
    if job.body.stream && endpoint != Endpoint::Embeddings {
        let (sender, pieces) = mpsc::channel(4);
        tokio::spawn(async move {
            let ended = tokio::select! {
                biased;
                () = sender.closed() => return,
                () = job.life.ended() => Err(Broken),
                ended = job.stream(&sender) => ended,
            };
            if let Err(broken) = ended {
                sleep(FLUSH).await;
                let _ = sender.send(Err(broken)).await;
            }
        });
        let mut response = Response::new(Payload::Pieces(pieces));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        return Ok(response);
    }
    tokio::select! {
        () = job.life.ended() => Err(Broken),
        response = job.whole() => Ok(response),
    }
}

/// A request that will be answered.
struct Job {
    life: Life,
    entry: Entry,
    arrived: Instant,
    head: Head,
    body: Body,
    seed: u64,
    generate: usize,
    finish: &'static str,
    slowness: f64,
    /// Stop after so many tokens, and then: break the connection, or say nothing more.
    stop: Option<(usize, Stop)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Cut,
    Hang,
}

impl Job {
    /// Reads and checks a request; the error is the answer to give.
    fn new(
        pod: &Pod,
        endpoint: Endpoint,
        bytes: &[u8],
        effect: Option<Effect>,
        entry: Entry,
    ) -> Result<Self, Box<Response<Payload>>> {
        let reject = |status: StatusCode, kind: &str, message: &str| {
            entry.update(|record| (record.status, record.outcome) = (status.as_u16(), Outcome::Rejected));
            Box::new(payload::error(status, kind, message))
        };
        let bad = |message: &str| reject(StatusCode::BAD_REQUEST, "BadRequestError", message);
        let life = pod.life();
        let body = Body::parse(endpoint, bytes).map_err(|Invalid(why)| bad(&why))?;
        let model = body.model.clone().unwrap_or_else(|| pod.options.models[0].clone());
        if !pod.options.models.contains(&model) {
            let message = format!("The model `{model}` does not exist.");
            return Err(reject(StatusCode::NOT_FOUND, "NotFoundError", &message));
        }
        let natural = pod.options.answer_tokens;
        let (generate, finish) = match body.max_tokens {
            _ if endpoint == Endpoint::Embeddings => (0, "stop"),
            Some(most) if most <= natural || body.ignore_eos => (most, "length"),
            _ => (natural, "stop"),
        };
        for prompt in &body.prompts {
            if let Err(TooLong { limit }) = life.engine.blocks_for(prompt.len(), generate) {
                return Err(bad(&format!(
                    "This model's maximum context length is {limit} tokens. However, you requested {} tokens \
                     ({} in the prompt, {generate} in the completion).",
                    prompt.len().saturating_add(generate),
                    prompt.len(),
                )));
            }
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = format!("{}{}-{}", endpoint.id_prefix(), pod.name, entry.sequence());
        let head = Head { endpoint, id, created, model, details: pod.options.prompt_tokens_details };
        entry.update(|record| {
            record.model.clone_from(&head.model);
            record.prompt_tokens = body.prompts.iter().map(Vec::len).sum();
            record.status = 200;
        });
        Ok(Self {
            seed: Chain::seed(&head.model, body.cache_salt.as_deref()),
            life,
            entry,
            arrived: Instant::now(),
            head,
            body,
            generate,
            finish,
            slowness: if let Some(Effect::Slow { factor }) = effect { factor } else { 1.0 },
            stop: match effect {
                Some(Effect::Cut { after_tokens }) => Some((after_tokens, Stop::Cut)),
                Some(Effect::Hang { after_tokens: Some(after) }) => Some((after, Stop::Hang)),
                _ => None,
            },
        })
    }

    /// Waits for the first token of a prompt.
    async fn start(&self, prompt: &[u32], usage: &mut Usage) -> Running {
        let work = Work { prompt, seed: self.seed, generate: self.generate, slowness: self.slowness };
        let running = self.life.engine.start(work).await.expect("the job has checked its length");
        usage.prompt += prompt.len();
        usage.cached += running.cached_tokens();
        self.entry.update(|record| {
            record.cached_tokens = usage.cached;
            record.ttft_ms.get_or_insert(self.arrived.elapsed().as_secs_f64() * 1000.0);
        });
        running
    }

    /// The answer in one piece.
    async fn whole(&self) -> Response<Payload> {
        let mut usage = Usage::default();
        let mut texts = Vec::new();
        let mut seeds = Vec::new();
        for prompt in &self.body.prompts {
            let mut running = self.start(prompt, &mut usage).await;
            running.generate_all(self.generate).await;
            if let Some((_, Stop::Hang)) = self.stop {
                std::future::pending::<()>().await;
            }
            usage.completion += self.generate;
            let mut text = String::new();
            running.answer().push_words(0, self.generate, &mut text);
            texts.push(text);
            seeds.push(running.answer().seed);
        }
        let answer = if self.head.endpoint == Endpoint::Embeddings {
            self.head.embeddings(&seeds, usage)
        } else {
            let piece = |(index, text)| Piece { index, text, finish: Some(self.finish) };
            let texts: Vec<Piece> = texts.iter().map(String::as_str).enumerate().map(piece).collect();
            self.head.whole(&texts, usage)
        };
        let cut = self.stop.is_some();
        self.entry.update(|record| {
            record.completion_tokens = usage.completion;
            record.outcome = if cut { Outcome::Faulted } else { Outcome::Done };
        });
        if cut { half(answer.to_string()) } else { payload::json(StatusCode::OK, &answer) }
    }

    /// The answer as events.
    async fn stream(&self, out: &Sender<Result<Bytes, Broken>>) -> Result<(), Broken> {
        let mut usage = Usage::default();
        let mut stream = self.head.events(self.body.include_usage);
        let send = async |events: String| out.send(Ok(events.into())).await.map_err(|_| Broken);
        for (index, prompt) in self.body.prompts.iter().enumerate() {
            let mut running = self.start(prompt, &mut usage).await;
            let most = self.stop.map_or(self.generate, |(after, _)| after.min(self.generate));
            let mut sent = 0;
            let mut events = String::new();
            stream.open(index, usage, &mut events);
            while sent < most {
                let ready = running.generate(most).await;
                let mut text = String::new();
                running.answer().push_words(sent, ready, &mut text);
                let finish = (ready == self.generate).then_some(self.finish);
                usage.completion += ready - sent;
                stream.piece(Piece { index, text: &text, finish }, usage, &mut events);
                sent = ready;
                self.entry.update(|record| record.completion_tokens = usage.completion);
                send(std::mem::take(&mut events)).await?;
            }
            match self.stop {
                Some((_, Stop::Cut)) => {
                    self.entry.update(|record| record.outcome = Outcome::Faulted);
                    return Err(Broken);
                }
                Some((_, Stop::Hang)) => std::future::pending().await,
                None => {}
            }
        }
        let mut events = String::new();
        stream.close(usage, &mut events);
        // Before the last event leaves, so that whoever has read it finds the record done.
        self.entry.update(|record| record.outcome = Outcome::Done);
        send(events).await
    }
}

/// The first half of an answer that promises the whole.
fn half(answer: String) -> Response<Payload> {
    let (sender, pieces) = mpsc::channel(2);
    let mut response = Response::new(Payload::Pieces(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(answer.len()));
    tokio::spawn(async move {
        let bytes = Bytes::from(answer);
        let _ = sender.send(Ok(bytes.slice(..bytes.len() / 2))).await;
        sleep(FLUSH).await;
        let _ = sender.send(Err(Broken)).await;
    });
    response
}
