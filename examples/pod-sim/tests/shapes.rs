//! The APIs beside OpenAI's chats and completions, on real sockets: what each tells of its answer, whole and streamed.

mod common;

use std::net::SocketAddr;

use common::{ask, chat, last_record, open, pod, read_until, stats};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const GENERATE: &str = "/generate";

/// A request for 4 tokens.
fn body(path: &str, stream: bool) -> Value {
    let text = "word ".repeat(100);
    match path {
        RESPONSES => json!({"input": text, "max_output_tokens": 4, "stream": stream}),
        MESSAGES => {
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": stream})
        }
        _ => json!({"text": text, "sampling_params": {"max_new_tokens": 4}, "stream": stream}),
    }
}

/// The text of an answer, and what it tells of prompt, cached and generated tokens.
fn told(path: &str, answer: &Value) -> (String, [u64; 3]) {
    let number = |pointer: &str| answer.pointer(pointer).and_then(Value::as_u64).expect(pointer);
    let (text, tokens) = match path {
        RESPONSES => {
            let [input, output] = ["input", "output"].map(|of| number(&format!("/usage/{of}_tokens")));
            let cached = number("/usage/input_tokens_details/cached_tokens");
            ("/output/0/content/0/text", [input, cached, output])
        }
        MESSAGES => {
            let cached = number("/usage/cache_read_input_tokens");
            (
                "/content/0/text",
                [number("/usage/input_tokens") + cached, cached, number("/usage/output_tokens")],
            )
        }
        _ => {
            let of = |what| number(&format!("/meta_info/{what}_tokens"));
            ("/text", [of("prompt"), of("cached"), of("completion")])
        }
    };
    (answer.pointer(text).and_then(Value::as_str).expect(text).to_owned(), tokens)
}

/// The data of all events of a stream.
async fn stream(pod: SocketAddr, path: &str, end: &str) -> Vec<String> {
    let text = read_until(&mut open(pod, "POST", path, &body(path, true).to_string()).await, end).await;
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    text.lines().filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)).collect()
}

#[tokio::test]
async fn each_api_tells_what_the_record_says() {
    for path in [RESPONSES, MESSAGES, GENERATE] {
        let pod = pod().await;
        let mut texts = Vec::new();
        for repeated in [false, true] {
            let (status, _, answer) = ask(pod, "POST", path, &body(path, false)).await;
            assert_eq!(status, 200, "{answer}");
            let (text, tokens) = told(path, &answer);
            let record = last_record(pod).await;
            let recorded =
                ["prompt", "cached", "completion"].map(|of| record[format!("{of}_tokens")].as_u64());
            assert_eq!(recorded, tokens.map(Some), "{path}");
            let [prompt, cached, completion] = tokens;
            assert_eq!(cached, if repeated { (prompt - 1) / 16 * 16 } else { 0 }, "{path}");
            assert_eq!((completion, text.split(' ').count()), (4, 4), "{path}: {text}");
            texts.push(text);
        }
        assert_eq!(texts[0], texts[1]);
    }
}

#[tokio::test]
async fn what_a_chat_left_in_the_cache_is_there_for_every_api_of_chats() {
    let pod = pod().await;
    let chat = ask(pod, "POST", "/v1/chat/completions", &chat(100, json!({}))).await.2;
    let prompt = chat["usage"]["prompt_tokens"].as_u64().expect("tokens");
    let mut found = 0;
    for path in [RESPONSES, MESSAGES, GENERATE] {
        let (_, [_, cached, _]) = told(path, &ask(pod, "POST", path, &body(path, false)).await.2);
        assert_eq!(cached, if path == GENERATE { 0 } else { (prompt - 1) / 16 * 16 }, "{path}");
        found += cached;
    }
    assert_eq!(stats(pod).await["cached_tokens"], found);
}

#[tokio::test]
async fn a_stream_ends_with_what_the_whole_answer_tells() {
    for path in [RESPONSES, MESSAGES, GENERATE] {
        let pod = pod().await;
        ask(pod, "POST", path, &body(path, false)).await;
        let (text, tokens) = told(path, &ask(pod, "POST", path, &body(path, false)).await.2);
        let events = stream(pod, path, "0\r\n\r\n").await;
        let json = |event: &String| -> Value { serde_json::from_str(event).expect("an event is JSON") };
        let last = match path {
            RESPONSES => json(events.last().expect("events"))["response"].clone(),
            MESSAGES => {
                let all: Vec<Value> = events.iter().map(json).collect();
                let said: String = all.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
                json!({"content": [{"text": said}], "usage": all[all.len() - 2]["usage"]})
            }
            _ => {
                assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
                json(&events[events.len() - 2])
            }
        };
        assert_eq!(told(path, &last), (text, tokens), "{path}");
        assert_eq!(last_record(pod).await["outcome"], "done");
    }
}

#[tokio::test]
async fn faults_strike_every_api() {
    for (path, end) in [(RESPONSES, "response.completed"), (MESSAGES, "message_stop"), (GENERATE, "[DONE]")] {
        let pod = pod().await;
        for fault in
            [json!({"kind": "cut", "after_tokens": 2, "count": 1}), json!({"kind": "status", "status": 503})]
        {
            assert_eq!(ask(pod, "POST", "/sim/fault", &fault).await.0, 200);
        }
        let events = stream(pod, path, "never").await.concat();
        assert!(!events.contains(end), "{events}");
        assert_eq!(last_record(pod).await["completion_tokens"], 2, "{path}");
        assert_eq!(ask(pod, "POST", path, &body(path, false)).await.0, 503, "{path}");
    }
}

#[tokio::test]
async fn what_an_api_refuses_it_names() {
    let pod = pod().await;
    for (path, body, why) in [
        (RESPONSES, json!({"input": []}), "input: at least one"),
        (MESSAGES, json!({"messages": [{"role": "user", "content": "a"}]}), "max_tokens: field required"),
        (GENERATE, json!({"sampling_params": {}}), "text: field required"),
    ] {
        let (status, _, answer) = ask(pod, "POST", path, &body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.starts_with(why), "{path}: {status} {answer}");
        assert_eq!(ask(pod, "GET", path, &Value::Null).await.0, 405);
    }
}
