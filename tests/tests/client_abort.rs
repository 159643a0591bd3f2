//! Clients that leave, at every phase of a request and in every manner. Nothing of the request may stay behind, and
//! the next one is served by the same VM.

use serde_json::{Value, json};
use warmpath_tests::{Envoy, Exchange, Pods, Raw, Request, wait_until};

const CHAT: &str = "/v1/chat/completions";

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Closes its HTTP/1.1 connection.
    Close,
    /// Closes its HTTP/2 connection.
    CloseHttp2,
    /// Resets its HTTP/2 stream and keeps the connection.
    ResetHttp2,
}

const MANNERS: [Manner; 3] = [Manner::Close, Manner::CloseHttp2, Manner::ResetHttp2];

struct Stand {
    pods: Pods,
    envoy: Envoy,
}

impl Stand {
    fn start(arguments: &[&str]) -> Self {
        let pods = Pods::start(2, arguments);
        let envoy = Envoy::builder().pods(&pods).concurrency(1).start();
        Self { pods, envoy }
    }

    fn begin(&self, manner: Manner, request: Request) -> Exchange {
        let request = if matches!(manner, Manner::Close) { request } else { request.http2() };
        request.start(&self.envoy).expect("Envoy accepts")
    }

    /// Leaves, and waits until Envoy has noticed.
    fn leave(&self, manner: Manner, exchange: Exchange) {
        let gone = || self.active() == (0, 0);
        if matches!(manner, Manner::ResetHttp2) {
            exchange.cancel();
            exchange.until("Envoy to notice the reset", gone);
        } else {
            drop(exchange);
            wait_until("Envoy to notice that the client left", gone);
        }
    }

    /// Requests that Envoy has in hand: of clients, and to pods.
    fn active(&self) -> (u64, u64) {
        (self.envoy.stat("http.llm.downstream_rq_active"), self.envoy.stat("cluster.pods.upstream_rq_active"))
    }

    fn outcomes(&self) -> Vec<Value> {
        self.pods.seen().into_iter().map(|seen| seen.record["outcome"].clone()).collect()
    }

    #[track_caller]
    fn serves_the_next(&self) {
        let answer = Request::chat("And now?").send(&self.envoy);
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.envoy.assert_no_trap();
        wait_until("all requests to end", || self.active() == (0, 0));
    }
}

#[test]
fn after_the_headers() {
    let stand = Stand::start(&[]);
    for (turn, manner) in MANNERS.into_iter().enumerate() {
        let exchange = stand.begin(manner, Request::chunked(CHAT, &[]).unfinished());
        exchange.until("the headers to arrive", || stand.active().0 == 1);
        stand.leave(manner, exchange);
        assert_eq!(stand.outcomes().len(), turn, "{manner:?}: no pod hears of it");
        stand.serves_the_next();
    }
    // With a length promised that never comes.
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n");
    let client = Raw::send(&stand.envoy, head);
    wait_until("the headers to arrive", || stand.active().0 == 1);
    drop(client);
    wait_until("Envoy to notice that the client left", || stand.active() == (0, 0));
    stand.serves_the_next();
}

#[test]
fn in_the_body() {
    let stand = Stand::start(&[]);
    for (turn, manner) in MANNERS.into_iter().enumerate() {
        let received = || stand.envoy.stat("http.llm.downstream_cx_rx_bytes_total");
        let before = received();
        let part = [b"{\"model\":\"sim\",\"messages\":[".as_slice(), &[b' '; 50_000]].concat();
        let exchange = stand.begin(manner, Request::chunked(CHAT, &[&part]).unfinished());
        exchange.until("part of the body to arrive", || received() > before + part.len() as u64);
        stand.leave(manner, exchange);
        assert_eq!(stand.outcomes().len(), turn, "{manner:?}: no pod hears of it");
        stand.serves_the_next();
    }
}

#[test]
fn before_the_response() {
    let stand = Stand::start(&[]);
    for manner in MANNERS {
        for pod in 0..2 {
            stand.pods.fault(pod, &json!({"kind": "hang"}));
        }
        let exchange = stand.begin(manner, Request::chat("hang"));
        exchange.until("a pod to have it", || stand.outcomes().iter().any(|outcome| outcome == "running"));
        stand.leave(manner, exchange);
        wait_until("the pod to be told", || !stand.outcomes().iter().any(|outcome| outcome == "running"));
        for pod in 0..2 {
            stand.pods.clear_faults(pod);
        }
        stand.serves_the_next();
    }
    let aborted = stand.outcomes().iter().filter(|outcome| *outcome == "aborted").count();
    assert_eq!(aborted, MANNERS.len(), "each was ended at the pod, once");
}

#[test]
fn in_the_response() {
    // 100,000 tokens at 1,000 a second: whoever ended such a stream, it was the client.
    let stand = Stand::start(&["--speedup", "1", "--decode-rate", "1000", "--blocks", "10000"]);
    for (turn, manner) in MANNERS.into_iter().enumerate() {
        let body = json!({"model": "sim", "messages": [{"role": "user", "content": "on and on"}], "stream": true,
            "max_tokens": 100_000, "ignore_eos": true});
        let request = Request::json(CHAT, &body);
        let mut stream = match manner {
            Manner::Close => request.stream(&stand.envoy),
            _ => request.http2().stream(&stand.envoy),
        };
        assert_eq!(stream.status(), 200);
        for _ in 0..3 {
            stream.chunk().expect("the stream goes on").expect("the stream has not ended");
        }
        let gone = || stand.active() == (0, 0);
        if matches!(manner, Manner::ResetHttp2) {
            stream.cancel("Envoy to notice the reset", gone);
        } else {
            drop(stream);
            wait_until("Envoy to notice that the client left", gone);
        }
        let aborted = || stand.outcomes().iter().filter(|outcome| *outcome == "aborted").count();
        wait_until("the pod to be told", || aborted() == turn + 1);
        stand.serves_the_next();
    }
}
