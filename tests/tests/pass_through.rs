//! What Warmpath must not hold: requests that aren't inference go on while they arrive, and upgraded connections carry
//! bytes both ways.

use std::net::TcpListener;
use warmpath_tests::{Envoy, Raw, Request};

/// A pod that the test itself plays.
fn stand() -> (TcpListener, Envoy) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens");
    (listener, Envoy::builder().addresses(&[address]).concurrency(1).start())
}

#[test]
fn a_websocket_upgrade_carries_bytes_both_ways() {
    let (listener, envoy) = stand();
    for path in ["/v1/realtime", "/v1/chat/completions"] {
        let mut client = Raw::send(
            &envoy,
            format!(
                "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                 sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\
                 x-gateway-destination-endpoint: 127.0.0.1:1\r\n\r\n"
            ),
        );
        let mut pod = Raw::accept(&listener);
        let request =
            String::from_utf8(pod.until(b"\r\n\r\n").expect("the request comes")).expect("it is text");
        assert!(request.starts_with(&format!("GET {path} ")), "{request}");
        assert!(request.to_ascii_lowercase().contains("\r\nupgrade: websocket\r\n"), "{request}");
        pod.write("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
        assert_eq!(client.head().map(|head| head.status), Some(101));
        for turn in 0..3 {
            client.write(format!("ping {turn};"));
            assert_eq!(pod.until(b";"), Some(format!("ping {turn};").into_bytes()));
            pod.write(format!("pong {turn};"));
            assert_eq!(client.until(b";"), Some(format!("pong {turn};").into_bytes()));
        }
        drop(client);
        assert_eq!(pod.rest(), b"", "the pod is told that the client left");
    }
    envoy.assert_no_trap();
}

#[test]
fn an_unknown_path_is_not_held_for_its_body() {
    let (listener, envoy) = stand();
    for http2 in [false, true] {
        let request = Request::chunked("/upload", &[b"first part;"]).unfinished();
        let request = if http2 { request.http2() } else { request };
        let exchange = request.start(&envoy).expect("Envoy accepts");
        exchange.until("the request to reach the pod", || listener_has_connection(&envoy));
        let mut pod = Raw::accept(&listener);
        let head = pod.until(b"\r\n\r\n").expect("the headers come while the body is still to come");
        assert!(head.starts_with(b"POST /upload "));
        assert!(pod.until(b"first part;").is_some());
        pod.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        let answer = exchange.head().and_then(|stream| stream.finish()).expect("the pod's answer comes");
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    }
    envoy.assert_no_trap();
}

fn listener_has_connection(envoy: &Envoy) -> bool {
    envoy.stat("cluster.pods.upstream_cx_active") == 1
}

#[test]
fn a_response_is_passed_on_as_it_comes() {
    let (listener, envoy) = stand();
    let exchange = Request::chat("slowly").start(&envoy).expect("Envoy accepts");
    exchange.until("the request to reach the pod", || listener_has_connection(&envoy));
    let mut pod = Raw::accept(&listener);
    pod.until(b"\r\n\r\n").expect("the request comes");
    pod.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut stream = exchange.head().expect("the headers are passed on before the body");
    for piece in ["data: 1\n\n", "data: 2\n\n"] {
        pod.write(format!("{:x}\r\n{piece}\r\n", piece.len()));
        let chunk = stream.chunk().expect("the stream goes on").expect("the stream has not ended");
        assert_eq!(chunk, piece.as_bytes());
    }
    pod.write("0\r\n\r\n");
    assert_eq!(stream.chunk().expect("the stream ends well"), None);
    envoy.assert_no_trap();
}
