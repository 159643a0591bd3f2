//! A bare TCP connection: for what no client library would send, and for leaving at any moment.

use crate::{DEADLINE, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// A connection to which bytes are written as they are.
pub struct Raw {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// Status and headers of an HTTP/1.1 response.
#[derive(Debug)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Names in lower case, and values, in order.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

impl Raw {
    /// Connects.
    pub fn connect(address: impl Into<SocketAddr>) -> Self {
        Self::new(TcpStream::connect_timeout(&address.into(), DEADLINE).expect("the listener accepts"))
    }

    /// Connects and writes.
    pub fn send(address: impl Into<SocketAddr>, bytes: impl AsRef<[u8]>) -> Self {
        let mut raw = Self::connect(address);
        raw.write(bytes);
        raw
    }

    /// Takes the next connection of a listener: the other side of one, to play a pod.
    pub fn accept(listener: &TcpListener) -> Self {
        listener.set_nonblocking(true).expect("a listener can be polled");
        let (stream, _) = wait_for("a connection", || listener.accept().ok());
        stream.set_nonblocking(false).expect("a connection can block");
        Self::new(stream)
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(DEADLINE)).expect("a read time-out can be set");
        stream.set_nodelay(true).expect("small writes can go out at once");
        Self { stream, unread: Vec::new() }
    }

    /// Writes all of it. The other side may have closed already, so failing to write is no failure.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Reads the head of a response. `None` when the other side closed before one was whole.
    pub fn head(&mut self) -> Option<Head> {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            self.read_more()?;
        };
        let rest = self.unread.split_off(end + 4);
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.unread, rest)).into_owned();
        let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Head { status, headers })
    }

    /// Reads until `needle` has come; returns everything up to its end. `None` when the other side closed before.
    pub fn until(&mut self, needle: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.unread.windows(needle.len()).position(|window| window == needle) {
                let rest = self.unread.split_off(at + needle.len());
                return Some(std::mem::replace(&mut self.unread, rest));
            }
            self.read_more()?;
        }
    }

    /// Reads all that comes until the other side closes.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.read_more().is_some() {}
        std::mem::take(&mut self.unread)
    }

    fn read_more(&mut self) -> Option<()> {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => None,
            Ok(n) => {
                self.unread.extend_from_slice(&buffer[..n]);
                Some(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer in {DEADLINE:?}"),
            Err(_) => None,
        }
    }
}
