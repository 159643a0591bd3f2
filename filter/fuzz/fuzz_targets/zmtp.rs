//! Any bytes from a publisher, at once and in pieces: a difference between the two is a finding.
//!
//! Input: options (the publisher has said hello; most bytes of a message; the number of the message that is unwanted), how many
//! cuts there are and where, each in two bytes, then what arrives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warmpath::events::zmtp::{MAX_FRAMES, Refused, Subscriber};
use warmpath_fuzz::{MOST_SAID, live, within};

/// What libzmq 4.3.5 sends when its PUB connects, up to its first message.
const HELLO: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
/// Most bytes that are carried of what isn't a message: the longest command's.
const MOST_COMMAND: usize = 4096;
/// Two headers of frames: the last one's, and one that nothing is known of yet.
const HEADERS: usize = 18;

#[derive(Debug, PartialEq)]
struct Outcome {
    /// For each message, each frame's length and bytes, and a mark at the end.
    messages: Vec<u8>,
    answers: Vec<u8>,
    /// Whether it is open, or why it ended.
    end: Result<bool, Refused>,
}

fn receive(pieces: &[&[u8]], most: usize, unwanted: usize) -> Outcome {
    let mut subscriber = Subscriber::new(most);
    // The record has its room before anything is counted: a frame has two bytes at least, and takes ten more here.
    let all: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut messages = Vec::with_capacity(6 * all);
    let (mut answers, mut arrived, mut count) = (Vec::new(), 0, 0);
    let mut each = |frames: &[&[u8]]| {
        assert!((1..=MAX_FRAMES).contains(&frames.len()));
        assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() <= most);
        for frame in frames {
            messages.push(0);
            messages.extend(frame.len().to_le_bytes());
            messages.extend(*frame);
        }
        messages.push(1);
        count += 1;
        count != unwanted
    };
    let mut end = Ok(());
    for piece in pieces {
        arrived += piece.len();
        end = within(1024 + 16 * arrived, || subscriber.receive(piece, &mut answers, &mut each));
        assert!(subscriber.carried() <= arrived);
        assert!(subscriber.carried() < most.max(MOST_COMMAND) + HEADERS);
        if end.is_err() {
            break;
        }
    }
    let end = end.map(|()| subscriber.is_open());
    let (carried, before) = (subscriber.carried(), live());
    drop(subscriber);
    // A vector grows to twice its size, and to eight bytes at first.
    assert!(before - live() <= 8 + 2 * carried, "a buffer is kept for what is gone");
    Outcome { messages, answers, end }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[options, cuts], rest)) = data.split_first_chunk() else { return };
    let Some((cuts, rest)) = rest.split_at_checked(usize::from(cuts % 16) * 2) else { return };
    let greeting: &[u8] = if options & 1 == 0 { &[] } else { HELLO };
    let most = [0, 10, 1000, 100_000][usize::from(options >> 1 & 3)];
    let unwanted = usize::from(options >> 3);
    let bytes = [greeting, rest].concat();
    let mut at: Vec<_> = cuts.as_chunks().0.iter().map(|cut| u16::from_le_bytes(*cut).into()).collect();
    at.iter_mut().for_each(|at| *at %= bytes.len() + 1);
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    let pieces: Vec<_> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    let whole = receive(&[&bytes], most, unwanted);
    let cut = receive(&pieces, most, unwanted);
    assert_eq!((&cut.messages, &cut.end), (&whole.messages, &whole.end));
    // Of PINGs that come at once, one is answered; of those that come one after the other, each is.
    assert!(cut.answers.starts_with(&whole.answers));
    if let Err(refused) = &whole.end {
        let said = refused.to_string().len();
        assert!(said <= MOST_SAID, "{said} bytes are said");
    }
});
