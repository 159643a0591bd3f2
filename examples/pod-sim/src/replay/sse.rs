//! Reading server-sent events off a stream of bytes that is cut anywhere.

/// The bytes of a line that isn't finished.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
}

impl Events {
    /// Adds bytes and hands on the data of each `data:` line that they finish. Every event of OpenAI's API is one line.
    pub fn push(&mut self, bytes: &[u8], mut on_data: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&self.line);
                if let Some(data) = line.trim_end().strip_prefix("data:") {
                    on_data(data.trim_start());
                }
                self.line.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn wherever_the_bytes_are_cut_the_events_are_the_same(
            data in proptest::collection::vec("[a-z{}:é]{0,9}", 0..6), cuts in proptest::collection::vec(1usize..9, 60),
        ) {
            let text: String =
                data.iter().enumerate().map(|(i, d)| format!("data:{}{d}{}", [" ", ""][i % 2], ["\n\n", "\r\n\r\n"][i % 2])).collect();
            let mut rest = text.as_bytes();
            let (mut events, mut read) = (Events::default(), Vec::new());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                events.push(now, |data| read.push(data.to_owned()));
                rest = later;
            }
            prop_assert_eq!(read, data);
        }
    }

    #[test]
    fn other_lines_are_passed_over() {
        let (mut events, mut read) = (Events::default(), Vec::new());
        events
            .push(b": ping\nevent: x\ndata: a\nid: 1\n\ndata: unfinished", |data| read.push(data.to_owned()));
        assert_eq!(read, ["a"]);
    }
}
