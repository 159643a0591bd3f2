//! One inference request, from its body to the last byte of its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, sleep};

use crate::answer::{Head, Piece, Usage};
use crate::body::Body;
use crate::chain::Chain;
use crate::endpoint::Endpoint;
use crate::engine::{Running, TooLong, Work};
use crate::fault::Effect;
use crate::fields::{Fields, Invalid};
use crate::journal::{Entry, Outcome};
use crate::payload::{self, Broken, Payload};
use crate::pod::{Life, Pod};
use crate::transfer::{Asked, Fetched, Plan, Refusal, Transfer};

/// Time for what was sent to leave before the connection is broken; hyper drops what it has not written yet.
const FLUSH: Duration = Duration::from_millis(10);

/// The type of errors that are the engine's.
const INTERNAL: &str = "InternalServerError";

/// A request whose body has been read.
#[derive(Debug)]
pub struct Call<'a> {
    /// What is asked for.
    pub endpoint: Endpoint,
    /// The body.
    pub bytes: &'a [u8],
    /// `x-request-id`.
    pub request_id: Option<&'a str>,
}

/// Answers a request. `effect` is the fault that befalls it, if it is one of the answer.
pub async fn infer(
    pod: &Pod,
    call: &Call<'_>,
    effect: Option<Effect>,
    entry: Entry,
) -> Result<Response<Payload>, Broken> {
    let mut job = match Job::new(pod, call, effect, entry) {
        Ok(job) => job,
        Err(response) => return Ok(*response),
    };
    let life = job.life.clone();
    let fetched = tokio::select! {
        () = life.ended() => return Err(Broken),
        fetched = job.fetch() => fetched,
    };
    if let Err(refusal) = fetched {
        return Ok(job.refuse(&refusal));
    }
    if job.body.stream && call.endpoint != Endpoint::Embeddings {
        let (sender, pieces) = mpsc::channel(4);
        if matches!(job.plan, Plan::Prefill(..)) {
            // Its one token fits into the channel. Not even headers come before its KV may be handed over.
            let ended = tokio::select! {
                () = life.ended() => return Err(Broken),
                ended = job.stream(&sender) => ended,
            };
            match ended {
                Err(Stopped::Refused(refusal)) => return Ok(job.refuse(&refusal)),
                Err(Stopped::Broken) => return Err(Broken),
                Ok(()) => return Ok(events(pieces)),
            }
        }
        tokio::spawn(async move {
            let ended = tokio::select! {
                biased;
                () = sender.closed() => return,
                () = job.life.ended() => Err(Stopped::Broken),
                ended = job.stream(&sender) => ended,
            };
            if ended.is_err() {
                sleep(FLUSH).await;
                let _ = sender.send(Err(Broken)).await;
            }
        });
        return Ok(events(pieces));
    }
    tokio::select! {
        () = life.ended() => Err(Broken),
        response = job.whole() => Ok(response.unwrap_or_else(|refusal| job.refuse(&refusal))),
    }
}

fn events(pieces: mpsc::Receiver<Result<Bytes, Broken>>) -> Response<Payload> {
    let mut response = Response::new(Payload::Pieces(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response
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
    transfer: Option<Arc<Transfer>>,
    plan: Plan,
    fetched: Option<Fetched>,
}

/// Why a stream has no end.
enum Stopped {
    Broken,
    Refused(Refusal),
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
        call: &Call,
        effect: Option<Effect>,
        entry: Entry,
    ) -> Result<Self, Box<Response<Payload>>> {
        let endpoint = call.endpoint;
        let reject = |status: StatusCode, kind: &str, message: &str| {
            entry.update(|record| (record.status, record.outcome) = (status.as_u16(), Outcome::Rejected));
            Box::new(payload::error(status, kind, message))
        };
        let bad = |message: &str| reject(StatusCode::BAD_REQUEST, "BadRequestError", message);
        let life = pod.life();
        let mut body = Body::parse(endpoint, call.bytes).map_err(|Invalid(why)| bad(&why))?;
        let fields = Fields::parse(call.bytes).map_err(|Invalid(why)| bad(&why))?;
        if let Some(transfer) = &pod.transfer {
            let tokens = transfer.prompt(endpoint, &fields).map_err(|Invalid(why)| bad(&why))?;
            if let Some(tokens) = tokens.filter(|tokens| !tokens.is_empty()) {
                body.prompts = vec![tokens];
            }
        }
        let model = body.model.clone().unwrap_or_else(|| pod.options.models[0].clone());
        if !pod.options.models.contains(&model) {
            let message = format!("The model `{model}` does not exist.");
            return Err(reject(StatusCode::NOT_FOUND, "NotFoundError", &message));
        }
        let natural = pod.options.answer_tokens.max(body.min_tokens);
        let (mut generate, mut finish) = match body.max_tokens {
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
        let seed = Chain::seed(&model, body.cache_salt.as_deref());
        let plan = match &pod.transfer {
            Some(transfer) if endpoint != Endpoint::Embeddings => {
                let asked = Asked {
                    endpoint,
                    fields: &fields,
                    request_id: call.request_id,
                    body: &body,
                    answer: Work::answer(&body.prompts[0], seed),
                    id: &id,
                    blocks: body.prompts[0].len().div_ceil(life.engine.settings().block_size),
                    ends_at_once: generate == 0,
                };
                transfer.plan(&asked).map_err(|Refusal { status, why }| {
                    reject(status, if status.is_server_error() { INTERNAL } else { "BadRequestError" }, &why)
                })?
            }
            _ => Plan::Alone,
        };
        if let Plan::Prefill(offer, _) = &plan {
            generate = generate.min(1);
            finish = offer.finish.unwrap_or(finish);
        }
        let head = Head { endpoint, id, created, model, details: pod.options.prompt_tokens_details };
        entry.update(|record| {
            record.model.clone_from(&head.model);
            record.prompt_tokens = body.prompts.iter().map(Vec::len).sum();
            record.status = 200;
        });
        Ok(Self {
            seed,
            transfer: pod.transfer.clone(),
            plan,
            fetched: None,
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

    /// Fetches the prompt's KV, if another pod has computed it.
    async fn fetch(&mut self) -> Result<(), Refusal> {
        if let (Plan::Decode(claim, _), Some(transfer)) = (&self.plan, &self.transfer) {
            let prompt = &self.body.prompts[0];
            let seed = Work::answer(prompt, self.seed).seed;
            self.fetched = Some(transfer.fetch(claim, seed, prompt.len()).await?);
        }
        Ok(())
    }

    /// Hands the prompt's KV over, if another pod is to go on. Waits for that pod where the protocol does.
    async fn hand_over(&self, running: Running, usage: Usage) -> Result<(), Refusal> {
        let (Plan::Prefill(offer, _), Some(transfer)) = (&self.plan, &self.transfer) else { return Ok(()) };
        transfer.offer(offer, running, usage.prompt).await
    }

    /// The answer to a request that fails by its handoff.
    fn refuse(&self, Refusal { status, why }: &Refusal) -> Response<Payload> {
        self.entry.update(|record| (record.status, record.outcome) = (status.as_u16(), Outcome::Rejected));
        payload::error(*status, INTERNAL, why)
    }

    /// Each choice of each prompt: its index among all, which of its prompt's it is, and the prompt.
    fn choices(&self) -> impl Iterator<Item = (usize, u64, &Vec<u32>)> {
        let each = |prompt| (0..self.body.choices as u64).map(move |choice| (choice, prompt));
        self.body
            .prompts
            .iter()
            .flat_map(each)
            .enumerate()
            .map(|(index, (choice, prompt))| (index, choice, prompt))
    }

    /// Waits for the first token of a choice. Usage counts its prompt once.
    async fn start(&self, choice: u64, prompt: &[u32], usage: &mut Usage) -> Running {
        let fetched = self.fetched.as_ref().filter(|_| choice == 0);
        let (seed, generate, slowness) = (self.seed, self.generate, self.slowness);
        let work = Work { prompt, seed, generate, slowness, choice, fetched: fetched.is_some() };
        let running = self.life.engine.start(work).await.expect("the job has checked its length");
        if choice == 0 {
            usage.prompt += prompt.len();
            usage.cached += match fetched {
                // All but the last token was there without being computed.
                Some(fetched) if !fetched.tells_prefill => prompt.len() - 1,
                Some(fetched) => fetched.taken.cached,
                None => running.cached_tokens(),
            };
        }
        self.entry.update(|record| {
            record.cached_tokens = usage.cached;
            if let (Some(kv), Some(fetched)) = (&mut record.kv, fetched) {
                kv.fetched_tokens = prompt.len() - running.cached_tokens();
                kv.from = Some(fetched.from.clone());
            }
            record.ttft_ms.get_or_insert(self.arrived.elapsed().as_secs_f64() * 1000.0);
        });
        running
    }

    /// Writes the handoff into a prefill's answer.
    fn tell(&self, usage: Usage, answer: &mut Value) {
        if let (Plan::Prefill(offer, _), Some(transfer)) = (&self.plan, &self.transfer) {
            transfer.tell(offer, usage.cached, self.head.endpoint, &self.body.prompts[0], answer);
        }
    }

    /// The answer in one piece.
    async fn whole(&self) -> Result<Response<Payload>, Refusal> {
        let mut usage = Usage::default();
        let mut texts = Vec::new();
        let mut seeds = Vec::new();
        for (_, choice, prompt) in self.choices() {
            let mut running = self.start(choice, prompt, &mut usage).await;
            running.generate_all(self.generate).await;
            if let Some((_, Stop::Hang)) = self.stop {
                std::future::pending::<()>().await;
            }
            usage.completion += self.generate;
            let mut text = String::new();
            running.answer().push_words(0, self.generate, &mut text);
            texts.push(text);
            seeds.push(running.answer().seed);
            self.hand_over(running, usage).await?;
        }
        let mut answer = if self.head.endpoint == Endpoint::Embeddings {
            self.head.embeddings(&seeds, usage)
        } else {
            let piece = |(index, text)| Piece { index, text, finish: Some(self.finish) };
            let texts: Vec<Piece> = texts.iter().map(String::as_str).enumerate().map(piece).collect();
            self.head.whole(&texts, usage)
        };
        self.tell(usage, &mut answer);
        let cut = self.stop.is_some();
        self.entry.update(|record| {
            record.completion_tokens = usage.completion;
            record.outcome = if cut { Outcome::Faulted } else { Outcome::Done };
        });
        Ok(if cut { half(answer.to_string()) } else { payload::json(StatusCode::OK, &answer) })
    }

    /// The answer as events.
    async fn stream(&self, out: &Sender<Result<Bytes, Broken>>) -> Result<(), Stopped> {
        let mut usage = Usage::default();
        let mut stream = self.head.events(self.body.include_usage);
        let send = async |events: String| out.send(Ok(events.into())).await.map_err(|_| Stopped::Broken);
        for (index, choice, prompt) in self.choices() {
            let mut running = self.start(choice, prompt, &mut usage).await;
            let most = self.stop.map_or(self.generate, |(after, _)| after.min(self.generate));
            let mut sent = 0;
            let mut events = String::new();
            stream.open(index, usage, &mut events);
            if most == self.generate && most == 0 {
                stream.piece(Piece { index, text: "", finish: Some(self.finish) }, usage, &mut events);
                send(std::mem::take(&mut events)).await?;
            }
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
                    return Err(Stopped::Broken);
                }
                Some((_, Stop::Hang)) => std::future::pending().await,
                None => {}
            }
            self.hand_over(running, usage).await.map_err(Stopped::Refused)?;
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
