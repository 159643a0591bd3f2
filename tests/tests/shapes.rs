//! OpenAI's `/v1/responses`, Anthropic's `/v1/messages` and SGLang's `/generate`: conversations stay where their prefix is.
//! The pods read the bodies by themselves, and what they found in their caches is what counts.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use warmpath_tests::{Envoy, Pods, Request, Response, Seen, wait_until};

const SHAPES: [Shape; 4] = [Shape::Responses, Shape::Messages, Shape::Generate, Shape::GenerateIds];

/// Tokens of a block of the pods' caches.
const BLOCK: u64 = 16;

#[derive(Debug, Clone, Copy)]
enum Shape {
    Responses,
    Messages,
    Generate,
    /// As [`Generate`](Self::Generate), but by token ids.
    GenerateIds,
}

impl Shape {
    fn path(self) -> &'static str {
        match self {
            Self::Responses => "/v1/responses",
            // Where Claude Code sends its requests.
            Self::Messages => "/v1/messages?beta=true",
            Self::Generate | Self::GenerateIds => "/generate",
        }
    }

    /// The names of a stream's events, each once. SGLang's have none.
    fn events(self) -> &'static [&'static str] {
        match self {
            Self::Responses => &[
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ],
            Self::Messages => &[
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ],
            Self::Generate | Self::GenerateIds => &[],
        }
    }

    /// What a client takes from an answer to put into its next request, and the tokens that the answer says were cached.
    fn read(self, answer: &Response, stream: bool) -> (Value, u64) {
        let (said, cached) = match self {
            Self::Responses => {
                let whole = if stream { last(answer)["response"].clone() } else { answer.json() };
                (whole["output"][0].clone(), whole["usage"]["input_tokens_details"]["cached_tokens"].clone())
            }
            Self::Messages if stream => {
                let events = data(answer);
                let said: String =
                    events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
                let start = &events[0]["message"];
                (json!([{"type": "text", "text": said}]), start["usage"]["cache_read_input_tokens"].clone())
            }
            Self::Messages => {
                let whole = answer.json();
                (whole["content"].clone(), whole["usage"]["cache_read_input_tokens"].clone())
            }
            Self::Generate | Self::GenerateIds => {
                let whole = if stream { last(answer) } else { answer.json() };
                let said = if matches!(self, Self::Generate) { "text" } else { "output_ids" };
                (whole[said].clone(), whole["meta_info"]["cached_tokens"].clone())
            }
        };
        (said, cached.as_u64().unwrap_or_else(|| panic!("no cached tokens: {}", answer.text())))
    }
}

/// The JSON of a stream's events.
fn data(answer: &Response) -> Vec<Value> {
    let text = answer.text();
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    lines.map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))).collect()
}

fn last(answer: &Response) -> Value {
    data(answer).pop().expect("events")
}

/// What was said in a conversation, as a client of this API keeps it.
struct Conversation {
    shape: Shape,
    system: String,
    said: Vec<Value>,
    turn: usize,
}

impl Conversation {
    fn new(shape: Shape, system: String) -> Self {
        Self { shape, system, said: Vec::new(), turn: 0 }
    }

    /// The user says something; returns the body that asks for the answer.
    fn ask(&mut self, text: &str, stream: bool) -> Value {
        self.turn += 1;
        match self.shape {
            Shape::Responses => {
                self.said.push(json!({"role": "user", "content": [{"type": "input_text", "text": text}]}));
                // The first may be asked without a list.
                let input = if self.turn == 1 { json!(text) } else { json!(self.said) };
                json!({"model": "sim", "instructions": self.system, "input": input, "stream": stream, "max_output_tokens": 20,
                    "tools": [{"type": "function", "name": "f", "parameters": {}}], "store": false})
            }
            Shape::Messages => {
                let mut block = json!({"type": "text", "text": text});
                if self.turn > 1 {
                    block = json!({"type": "tool_result", "tool_use_id": "t", "content": [block]});
                }
                self.said.push(json!({"role": "user", "content": [block]}));
                // As Claude Code does: a bill that differs each time, and a mark that moves to the end.
                let bill = format!("x-anthropic-billing-header: cch={};", self.turn);
                let mut messages = self.said.clone();
                let last = messages.last_mut().expect("the user has said something");
                last["content"][0]["cache_control"] = json!({"type": "ephemeral"});
                json!({"model": "sim", "messages": messages, "stream": stream, "max_tokens": 20,
                    "system": [{"type": "text", "text": bill},
                        {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}],
                    "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}]})
            }
            Shape::Generate => {
                self.said.push(json!(format!("\nuser: {text}\nassistant:\n")));
                let said: String = self.said.iter().filter_map(Value::as_str).collect();
                json!({"text": format!("{}{said}", self.system), "stream": stream,
                    "sampling_params": {"max_new_tokens": 20}})
            }
            Shape::GenerateIds => {
                let system = if self.turn == 1 { self.system.as_str() } else { "" };
                self.said.extend(system.bytes().chain(text.bytes()).map(Value::from));
                json!({"input_ids": self.said, "stream": stream, "sampling_params": {"max_new_tokens": 20}})
            }
        }
    }

    /// Takes the answer into the history, and more where tools are called.
    fn answered(&mut self, said: Value) {
        match self.shape {
            Shape::Responses => {
                self.said.push(said);
                let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
                self.said.push(call);
                self.said.push(json!({"type": "function_call_output", "call_id": "c", "output": "done"}));
            }
            Shape::Messages => {
                let mut blocks = said.as_array().expect("blocks").clone();
                blocks.push(json!({"type": "tool_use", "id": "t", "name": "f", "input": {"n": self.turn}}));
                self.said.push(json!({"role": "assistant", "content": blocks}));
            }
            Shape::Generate => self.said.push(said),
            Shape::GenerateIds => self.said.extend(said.as_array().expect("ids").iter().cloned()),
        }
    }
}

fn words(seed: usize, count: usize) -> String {
    (0..count).map(|i| format!("word{} \"é\n", (seed * 7919 + i * 104_729) % 9973)).collect()
}

fn stand() -> (Pods, Envoy) {
    // Answers take 25 ms. A worker hears of others' ends a tick or two later, so that a dozen turns within that time would look
    // like a dozen in flight, and an idle pod would get its part of them.
    let pods = Pods::start(4, &["--enable-prompt-tokens-details", "--speedup", "20"]);
    let envoy = Envoy::builder().pods(&pods).plugin("/debug_header", json!("x-warmpath-debug")).start();
    (pods, envoy)
}

/// Sends a body on a new connection; returns the answer, and the record of the only pod that got it, just as it was sent.
fn send(pods: &Pods, envoy: &Envoy, mark: &str, path: &str, body: &[u8]) -> (Response, Seen) {
    let request = Request::post(path, body.to_vec()).header("content-type", "application/json");
    let answer = request.header("x-mark", mark).header("x-warmpath-debug", "1").send(envoy);
    let mut seen = pods.seen_with("x-mark", mark);
    assert_eq!(seen.len(), 1, "{mark}: one pod gets the request once: {seen:?}");
    let seen = seen.remove(0);
    seen.assert_body(body);
    assert_eq!(seen.record["path"], path);
    let named = seen.header("x-gateway-destination-endpoint").and_then(|pods| pods.split(',').next());
    assert_eq!(named, Some(&*pods.addresses()[seen.pod].to_string()), "{mark}: the filter names the pod");
    (answer, seen)
}

/// Blocks that the filter expected on the pod, and those of the prompt.
fn matched(answer: &Response) -> (u64, u64) {
    let said = answer.header("x-warmpath-matched").and_then(|said| said.split_once('/'));
    let (matched, of) = said.expect("it is explained");
    (matched.parse().expect("a number"), of.parse().expect("a number"))
}

/// Holds conversations over several pods.
fn converse(pods: &Pods, envoy: &Envoy, shape: Shape) {
    let mut used = BTreeSet::new();
    for n in 0..8 {
        let mut conversation = Conversation::new(shape, words(n, 150));
        // The pod, its tokens of prompt and answer, and the filter's blocks.
        let mut before: Option<(usize, u64, u64)> = None;
        for turn in 0..5 {
            let (mark, stream) = (format!("{shape:?} {n}.{turn}"), turn % 2 == 1);
            let body = conversation.ask(&words(1000 + n * 10 + turn, 40), stream).to_string();
            let (answer, seen) = send(pods, envoy, &mark, shape.path(), body.as_bytes());
            assert_eq!(answer.status, 200, "{mark}: {}", answer.text());
            let kind = answer.header("content-type").expect("a type");
            assert_eq!(kind.starts_with("text/event-stream"), stream, "{mark}: {kind}");
            if stream {
                let text = answer.text();
                let mut names: Vec<_> =
                    text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
                names.dedup();
                assert_eq!(names, shape.events(), "{mark}");
            }
            let (said, told) = shape.read(&answer, stream);
            let tokens = |of: &str| seen.record[format!("{of}_tokens")].as_u64().expect("tokens");
            assert_eq!((told, tokens("completion")), (tokens("cached"), 20), "{mark}: {}", answer.text());
            assert_eq!(answer.header("x-warmpath-step-down"), None, "{mark}");
            let (expected, blocks) = matched(&answer);
            if let Some((pod, all, known)) = before {
                assert_eq!(
                    seen.pod,
                    pod,
                    "{mark}: it left its pod: {:?}",
                    answer.header("x-warmpath-scores")
                );
                // All but the last token that was generated, in whole blocks.
                assert_eq!(tokens("cached"), (all - 1) / BLOCK * BLOCK, "{mark}");
                assert_eq!(expected, known, "{mark}: the filter sees the turn before in this one");
            }
            before = Some((seen.pod, tokens("prompt") + tokens("completion"), blocks));
            used.insert(seen.pod);
            conversation.answered(said);
        }
    }
    assert!(used.len() > 1, "{shape:?}: conversations spread over pods: {used:?}");
}

#[test]
fn turns_stay_on_the_pod_that_has_their_prefix() {
    let (pods, envoy) = stand();
    for shape in SHAPES {
        converse(&pods, &envoy, shape);
    }
    assert_eq!(envoy.stat("wasmcustom.warmpath.decided_by_prefix"), SHAPES.len() as u64 * 8 * 5);
    wait_until("nothing to be in flight", || envoy.stat("wasmcustom.warmpath.in_flight") == 0);
    envoy.assert_no_trap();
}

#[test]
fn what_cannot_be_read_goes_on_unchanged_by_load() {
    let (pods, envoy) = stand();
    let mut sent = 0;
    for shape in SHAPES {
        let whole = Conversation::new(shape, words(1, 20)).ask("hello", false).to_string();
        let field = match shape {
            Shape::Responses => "input",
            Shape::Messages => "messages",
            Shape::Generate => "text",
            Shape::GenerateIds => "input_ids",
        };
        let wrong = [
            "{".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            format!("{{\"{field}\":7}}"),
            format!("{{\"{field}\":[[\"a\"]]}}"),
            format!("{{\"{field}\":null}}"),
            format!("{whole}}}"),
            whole[..whole.len() / 2].to_owned(),
            whole.replacen("\"stream\":false", "\"stream\":\"no\"", 1),
        ];
        for body in wrong {
            sent += 1;
            let (answer, seen) = send(&pods, &envoy, &format!("wrong {sent}"), shape.path(), body.as_bytes());
            assert_eq!(answer.status, 400, "{shape:?} {body}: {}", answer.text());
            assert_eq!(seen.record["outcome"], "rejected");
            assert_eq!(envoy.stat("wasmcustom.warmpath.step_down_malformed"), sent, "{shape:?} {body}");
        }
        let (answer, _) = send(&pods, &envoy, &format!("{shape:?} after"), shape.path(), whole.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(envoy.stat("wasmcustom.warmpath.decided_by_load"), sent);
    assert_eq!(envoy.stat("wasmcustom.warmpath.decided_by_prefix"), SHAPES.len() as u64);
    wait_until("nothing to be in flight", || envoy.stat("wasmcustom.warmpath.in_flight") == 0);
    envoy.assert_no_trap();
}
