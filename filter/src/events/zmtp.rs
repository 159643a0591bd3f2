//! ZMTP 3.x, as a subscriber speaks it: a publisher's bytes -> messages. <https://rfc.zeromq.org/spec/23/>
//!
//! An engine's PUB socket connects to Envoy; this is the other end. It answers the greeting, the NULL mechanism's READY and
//! heartbeats, subscribes to everything, and hands over each message once it is whole. Bytes may arrive in pieces of any size.
//! Lengths are checked when they are announced, and memory is taken for bytes that have arrived, never for announced ones.

use std::fmt;

/// Most frames of a message. Events have three: topic, sequence, payload.
pub const MAX_FRAMES: usize = 8;
/// Longest command: READY with its metadata is the longest that a publisher sends.
const MAX_COMMAND: usize = 4096;
/// Longest quotation of a socket's type, in bytes.
const MOST_QUOTED: usize = 32;

const SIGNATURE: usize = 10;
const GREETING: usize = 64;
/// Major version 3, in which minor versions differ in commands alone.
const VERSION: [u8; 2] = [3, 1];
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

mod flag {
    pub const MORE: u8 = 1;
    pub const LONG: u8 = 2;
    pub const COMMAND: u8 = 4;
}

/// Why a connection can't go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The first bytes are not ZMTP's.
    NotZmtp,
    /// A version before 3.
    Version(u8),
    /// Something else than NULL: CURVE and PLAIN are not spoken here.
    Mechanism(String),
    /// The peer is no publisher.
    Socket(String),
    /// Reserved bits, a command within a message, or one that makes no sense.
    Malformed(&'static str),
    /// More bytes than are taken.
    TooLong {
        /// Bytes of the message, as far as announced.
        bytes: u64,
        /// Bytes that are taken.
        most: usize,
    },
    /// Whoever was handed a message wants no more.
    Unwanted,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotZmtp => f.write_str("it doesn't speak ZeroMQ (ZMTP); connect a PUB socket to this port"),
            Self::Version(major) => {
                write!(f, "it speaks ZMTP {major}.x, and 3.x is spoken here (libzmq 4 or later)")
            }
            Self::Mechanism(name) => {
                write!(f, "it wants the security mechanism {name:?}; only NULL is spoken here")
            }
            Self::Socket(kind) => write!(f, "it is a {kind:?} socket; connect a PUB"),
            Self::Malformed(what) => write!(f, "{what}"),
            Self::TooLong { bytes, most } => {
                write!(f, "a message of {bytes} bytes; kv_events.max_message_bytes is {most}")
            }
            Self::Unwanted => f.write_str("its messages are not wanted"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was said yet.
    New,
    /// Our greeting was sent; the peer's isn't whole.
    Greeting,
    /// Both greetings are there; the peer's READY isn't.
    Greeted,
    Open,
}

/// The subscriber's end of one connection.
#[derive(Debug)]
pub struct Subscriber {
    state: State,
    /// Bytes that have arrived of what isn't whole yet.
    carried: Vec<u8>,
    /// Bytes that `carried` must have before it is worth another look.
    needed: usize,
    most: usize,
    /// Whether a PING of the present bytes was answered.
    has_ponged: bool,
}

/// What one look at the bytes brought.
enum Step {
    /// So many bytes are dealt with.
    Took(usize),
    /// Nothing can be done with fewer bytes than these.
    Needs(usize),
}

/// A frame as its header announces it.
struct Frame {
    flags: u8,
    header: usize,
    length: u64,
}

/// Reads a frame's header. `Err`: so many bytes are needed for it.
fn frame(bytes: &[u8]) -> Result<Frame, usize> {
    let flags = *bytes.first().ok_or(2usize)?;
    if flags & flag::LONG == 0 {
        let length = *bytes.get(1).ok_or(2usize)?;
        return Ok(Frame { flags, header: 2, length: length.into() });
    }
    let length = bytes.get(1..).and_then(|rest| rest.first_chunk()).ok_or(9usize)?;
    Ok(Frame { flags, header: 9, length: u64::from_be_bytes(*length) })
}

impl Subscriber {
    /// An end of a new connection. Messages of more than `most` bytes are refused.
    pub fn new(most: usize) -> Self {
        Self { state: State::New, carried: Vec::new(), needed: 0, most, has_ponged: false }
    }

    /// Whether greetings and READY were exchanged.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Bytes that are kept until more arrive.
    pub fn carried(&self) -> usize {
        self.carried.len()
    }

    /// The first frame of the message that isn't whole yet, where that is.
    pub fn first_frame(&self) -> Option<&[u8]> {
        let header = frame(&self.carried).ok()?;
        let end = header.header.checked_add(usize::try_from(header.length).ok()?)?;
        self.carried.get(header.header..end).filter(|_| header.flags & flag::COMMAND == 0)
    }

    /// Takes the next bytes. Appends to `out` what is to be sent, and hands each whole message to `each` as its frames; where
    /// that answers false, or here is an error, the connection is to be closed.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(&[&[u8]]) -> bool,
    ) -> Result<(), Refused> {
        self.has_ponged = false;
        if self.carried.is_empty() {
            let taken = self.run(bytes, out, each)?;
            self.carried = bytes.get(taken..).unwrap_or_default().to_vec();
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.carried);
        all.extend_from_slice(bytes);
        let taken = if all.len() < self.needed { 0 } else { self.run(&all, out, each)? };
        // A buffer that held a long message is given back with it.
        self.carried = if taken == 0 { all } else { all.get(taken..).unwrap_or_default().to_vec() };
        Ok(())
    }

    fn run(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(&[&[u8]]) -> bool,
    ) -> Result<usize, Refused> {
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let step = match self.state {
                State::New => self.begin(rest, out)?,
                State::Greeting => self.greet(rest, out)?,
                State::Greeted | State::Open => self.traffic(rest, out, each)?,
            };
            match step {
                Step::Took(count) => taken += count,
                Step::Needs(count) => {
                    self.needed = count;
                    return Ok(taken);
                }
            }
        }
    }

    /// The signature alone is worth an answer: libzmq waits for ours before it says more.
    fn begin(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        if bytes.first().is_some_and(|first| *first != 0xff) {
            return Err(Refused::NotZmtp);
        }
        let Some(signature) = bytes.first_chunk::<SIGNATURE>() else { return Ok(Step::Needs(SIGNATURE)) };
        if signature.last() != Some(&0x7f) {
            return Err(Refused::NotZmtp);
        }
        out.extend_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f]);
        out.extend_from_slice(&VERSION);
        out.extend_from_slice(MECHANISM);
        out.extend_from_slice(&[0; 32]);
        self.state = State::Greeting;
        Ok(Step::Took(0))
    }

    fn greet(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        // Alone it is worth a look: greetings before 3 are shorter, and what is missing of 64 bytes would never come.
        let Some(major) = bytes.get(SIGNATURE) else { return Ok(Step::Needs(SIGNATURE + 1)) };
        if *major < 3 {
            return Err(Refused::Version(*major));
        }
        let Some(greeting) = bytes.first_chunk::<GREETING>() else { return Ok(Step::Needs(GREETING)) };
        let mechanism = greeting.get(12..32).unwrap_or_default();
        if mechanism != MECHANISM {
            let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
            return Err(Refused::Mechanism(String::from_utf8_lossy(name).into_owned()));
        }
        self.state = State::Greeted;
        let mut ready = Vec::new();
        put_property(&mut ready, b"Socket-Type", b"SUB");
        put_command(out, b"READY", &ready);
        Ok(Step::Took(GREETING))
    }

    fn traffic(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(&[&[u8]]) -> bool,
    ) -> Result<Step, Refused> {
        let mut frames: [&[u8]; MAX_FRAMES] = [&[]; MAX_FRAMES];
        let (mut count, mut at) = (0, 0);
        loop {
            let header = match frame(bytes.get(at..).unwrap_or_default()) {
                Ok(header) => header,
                Err(needed) => return Ok(Step::Needs(at.saturating_add(needed))),
            };
            if header.flags & !(flag::MORE | flag::LONG | flag::COMMAND) != 0 {
                return Err(Refused::Malformed("a frame has reserved bits set"));
            }
            let is_command = header.flags & flag::COMMAND != 0;
            if is_command && (count > 0 || header.flags & flag::MORE != 0) {
                return Err(Refused::Malformed("a command stands within a message"));
            }
            let most = if is_command { MAX_COMMAND } else { self.most };
            let total = header.length.saturating_add(at as u64);
            let body = at.saturating_add(header.header);
            let end = usize::try_from(header.length).ok().and_then(|length| body.checked_add(length));
            let Some(end) = end.filter(|_| total <= most as u64) else {
                return Err(Refused::TooLong { bytes: total, most });
            };
            let Some(content) = bytes.get(body..end) else { return Ok(Step::Needs(end)) };
            if is_command {
                self.command(content, out)?;
                return Ok(Step::Took(end));
            }
            if self.state != State::Open {
                return Err(Refused::Malformed("a message came before READY"));
            }
            let Some(place) = frames.get_mut(count) else {
                return Err(Refused::Malformed("a message has more than 8 frames"));
            };
            *place = content;
            (count, at) = (count + 1, end);
            if header.flags & flag::MORE == 0 {
                return match each(frames.get(..count).unwrap_or_default()) {
                    true => Ok(Step::Took(end)),
                    false => Err(Refused::Unwanted),
                };
            }
        }
    }

    fn command(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let malformed = Refused::Malformed("a command has no name");
        let (length, rest) = content.split_first().ok_or(malformed.clone())?;
        let (name, data) = rest.split_at_checked((*length).into()).ok_or(malformed)?;
        match (self.state, name) {
            (State::Greeted, b"READY") => {
                let kind = property(data, b"Socket-Type")?.unwrap_or_default();
                if kind != b"PUB" && kind != b"XPUB" {
                    let quoted = kind.get(..MOST_QUOTED).unwrap_or(kind);
                    return Err(Refused::Socket(String::from_utf8_lossy(quoted).into_owned()));
                }
                self.state = State::Open;
                // To everything, in the form that 3.0 and 3.1 both take: a message of 1 and a prefix.
                out.extend_from_slice(&[0, 1, 1]);
                Ok(())
            }
            (State::Greeted, _) => Err(Refused::Malformed("the first command is not READY")),
            (_, b"ERROR") => Err(Refused::Malformed("the peer says ERROR")),
            (_, b"PING") => {
                // A time to live in tenths of a second, and a context that comes back.
                let context = data.get(2..).filter(|context| context.len() <= 16);
                let context = context.ok_or(Refused::Malformed("a PING makes no sense"))?;
                // One answer is enough for all that came at once: who doesn't read them should not make them pile up.
                if !std::mem::replace(&mut self.has_ponged, true) {
                    put_command(out, b"PONG", context);
                }
                Ok(())
            }
            // What later versions may add.
            _ => Ok(()),
        }
    }
}

/// The value of a property in a READY command's metadata. Names differ in case.
fn property<'a>(mut data: &'a [u8], wanted: &[u8]) -> Result<Option<&'a [u8]>, Refused> {
    let mut next = || {
        let (length, rest) = data.split_first()?;
        let (name, rest) = rest.split_at_checked((*length).into())?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        data = rest;
        Some((name, value, rest.is_empty()))
    };
    loop {
        let (name, value, is_last) = next().ok_or(Refused::Malformed("READY makes no sense"))?;
        if name.eq_ignore_ascii_case(wanted) {
            return Ok(Some(value));
        }
        if is_last {
            return Ok(None);
        }
    }
}

fn put_property(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

/// A command of less than 256 bytes.
fn put_command(out: &mut Vec<u8>, name: &[u8], data: &[u8]) {
    out.extend_from_slice(&[flag::COMMAND, (1 + name.len() + data.len()) as u8, name.len() as u8]);
    out.extend_from_slice(name);
    out.extend_from_slice(data);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What libzmq 4.3.5 sends when its PUB connects, up to its first message.
    pub(crate) fn hello() -> Vec<u8> {
        let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
        bytes.extend(MECHANISM);
        bytes.extend([0; 32]);
        bytes.extend(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB");
        bytes
    }

    pub(crate) fn put_message(out: &mut Vec<u8>, frames: &[&[u8]]) {
        for (i, frame) in frames.iter().enumerate() {
            let more = u8::from(i + 1 < frames.len());
            match u8::try_from(frame.len()) {
                Ok(length) => out.extend([more, length]),
                Err(_) => {
                    out.push(more | flag::LONG);
                    out.extend((frame.len() as u64).to_be_bytes());
                }
            }
            out.extend(*frame);
        }
    }

    /// The frames of each message.
    type Messages = Vec<Vec<Vec<u8>>>;

    /// Messages, answer and outcome when the bytes arrive in these pieces.
    fn run(pieces: &[&[u8]], most: usize) -> (Messages, Vec<u8>, Result<(), Refused>) {
        let mut subscriber = Subscriber::new(most);
        let (mut messages, mut out) = (Vec::new(), Vec::new());
        for piece in pieces {
            let outcome = subscriber.receive(piece, &mut out, &mut |frames| {
                messages.push(frames.iter().map(|frame| frame.to_vec()).collect());
                true
            });
            if outcome.is_err() {
                return (messages, out, outcome);
            }
        }
        (messages, out, Ok(()))
    }

    fn refused(bytes: &[u8]) -> Refused {
        run(&[bytes], 1000).2.unwrap_err()
    }

    #[test]
    fn answers_in_the_order_that_libzmq_waits_for() {
        let bytes = hello();
        let (_, out, _) = run(&[&bytes[..9]], 1000);
        assert!(out.is_empty());
        let (_, greeting, _) = run(&[&bytes[..10]], 1000);
        assert_eq!((greeting.len(), &greeting[..12]), (64, &[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1][..]));
        let (_, ready, _) = run(&[&bytes[..64]], 1000);
        assert_eq!(&ready[64..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
        let (_, all, outcome) = run(&[&bytes], 1000);
        assert_eq!((&all[ready.len()..], outcome), (&b"\0\x01\x01"[..], Ok(())));
    }

    #[test]
    fn pings_are_answered_with_their_context() {
        let mut bytes = hello();
        let before = run(&[&bytes], 1000).1.len();
        bytes.extend(b"\x04\x0a\x04PING\x00\x10abc\x04\x05\x04PONG");
        let (_, out, outcome) = run(&[&bytes], 1000);
        assert_eq!((&out[before..], outcome), (&b"\x04\x08\x04PONGabc"[..], Ok(())));
    }

    #[test]
    fn of_many_pings_at_once_one_is_answered() {
        let mut bytes = hello();
        let before = run(&[&bytes], 1000).1.len();
        let pings = b"\x04\x0a\x04PING\x00\x10abc".repeat(50);
        bytes.extend(&pings);
        assert_eq!(run(&[&bytes], 1000).1.len() - before, 10);
        assert_eq!(run(&[&bytes, &pings], 1000).1.len() - before, 20);
    }

    #[test]
    fn who_is_no_publisher_is_refused() {
        assert_eq!(refused(b"GET / HTTP/1.1\r\n"), Refused::NotZmtp);
        assert_eq!(refused(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7e]), Refused::NotZmtp);
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = hello();
            bytes[at..at + to.len()].copy_from_slice(to);
            refused(&bytes)
        };
        assert_eq!(changed(10, &[1]), Refused::Version(1));
        assert_eq!(changed(12, b"CURVE"), Refused::Mechanism("CURVE".into()));
        assert_eq!(changed(hello().len() - 3, b"SUB"), Refused::Socket("SUB".into()));
        assert_eq!(changed(hello().len() - 7, &[9]), Refused::Malformed("READY makes no sense"));
        assert_eq!(changed(64, &[0]), Refused::Malformed("a message came before READY"));
        assert_eq!(changed(67, b"HELLO"), Refused::Malformed("the first command is not READY"));
    }

    #[test]
    fn an_old_version_is_refused_by_its_first_byte() {
        // libzmq 3 waits for our signature after its own, and then says less than a greeting of 3.x has.
        let (signature, rest) = (&hello()[..10], [1, 1, 0, 0]);
        assert_eq!(run(&[signature, &rest], 1000).2, Err(Refused::Version(1)));
    }

    #[test]
    fn a_long_type_of_socket_is_not_quoted_whole() {
        let mut bytes = hello();
        bytes.truncate(GREETING);
        let mut ready = Vec::new();
        put_property(&mut ready, b"Socket-Type", &[b'x'; 4000]);
        bytes.extend([flag::COMMAND | flag::LONG, 0, 0, 0, 0, 0, 0]);
        bytes.extend((6 + ready.len() as u16).to_be_bytes());
        bytes.extend(b"\x05READY");
        bytes.extend(ready);
        assert_eq!(refused(&bytes), Refused::Socket("x".repeat(32)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let after = |more: &[u8]| refused(&[&hello()[..], more].concat());
        assert_eq!(after(&[8, 0]), Refused::Malformed("a frame has reserved bits set"));
        assert_eq!(after(&[1, 0, 4, 5]), Refused::Malformed("a command stands within a message"));
        assert_eq!(after(&[5, 0]), Refused::Malformed("a command stands within a message"));
        assert_eq!(after(&[4, 0]), Refused::Malformed("a command has no name"));
        assert_eq!(after(b"\x04\x06\x04PING\0"), Refused::Malformed("a PING makes no sense"));
        assert_eq!(after(b"\x04\x08\x05ERROR\x01x"), Refused::Malformed("the peer says ERROR"));
        assert_eq!(after(&[1, 0].repeat(9)), Refused::Malformed("a message has more than 8 frames"));
    }

    #[test]
    fn announced_lengths_are_refused_before_a_byte_of_them_arrives() {
        let after = |more: &[u8]| refused(&[&hello()[..], more].concat());
        assert_eq!(after(&[2, 0, 0, 0, 0, 0, 0, 3, 0xe9]), Refused::TooLong { bytes: 1001, most: 1000 });
        assert_eq!(after(&[2; 9]), Refused::TooLong { bytes: 0x0202_0202_0202_0202, most: 1000 });
        assert_eq!(
            after(&[2, 255, 255, 255, 255, 255, 255, 255, 255]),
            Refused::TooLong { bytes: u64::MAX, most: 1000 }
        );
        // The frames of a message together.
        let mut two = vec![1, 200];
        two.extend([0; 200]);
        two.extend([2, 0, 0, 0, 0, 0, 0, 3, 0xe8]);
        assert_eq!(after(&two), Refused::TooLong { bytes: 1202, most: 1000 });
        let mut long = hello();
        long.extend([2, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff]);
        let mut subscriber = Subscriber::new(64 << 20);
        subscriber.receive(&long, &mut Vec::new(), &mut |_| true).unwrap();
        assert!(subscriber.carried.capacity() < 64, "{}", subscriber.carried.capacity());
    }

    #[test]
    fn who_is_handed_messages_can_end_it() {
        let mut bytes = hello();
        put_message(&mut bytes, &[b"a"]);
        let mut subscriber = Subscriber::new(1000);
        let outcome = subscriber.receive(&bytes, &mut Vec::new(), &mut |_| false);
        assert_eq!(outcome, Err(Refused::Unwanted));
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            messages in prop::collection::vec(
                prop::collection::vec(prop_oneof![
                    4 => prop::collection::vec(any::<u8>(), 0..20),
                    1 => prop::collection::vec(any::<u8>(), 250..600),
                ], 1..MAX_FRAMES),
                0..6,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut bytes = hello();
            for message in &messages {
                let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                put_message(&mut bytes, &frames);
            }
            let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            at.push(0);
            at.push(bytes.len());
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (got, out, outcome) = run(&pieces, 10_000);
            prop_assert_eq!((&got, &outcome), (&messages, &Ok(())));
            prop_assert_eq!(out, run(&[&bytes], 10_000).1);
            // The last byte is what makes the last message whole.
            let short = run(&[&bytes[..bytes.len() - 1]], 10_000);
            prop_assert!(messages.is_empty() || short.0 == messages[..messages.len() - 1]);
        }

        #[test]
        fn hostile_bytes_end_in_an_error_or_wait(tail in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(4), any::<u8>()], 0..200), from in 0..95usize) {
            let mut bytes = hello();
            bytes.truncate(from);
            bytes.extend(tail);
            let mut subscriber = Subscriber::new(500);
            let _ = subscriber.receive(&bytes, &mut Vec::new(), &mut |_| true);
            prop_assert!(subscriber.carried() <= bytes.len());
        }
    }
}
