//! The text in which metrics are told: Prometheus' own format, and OpenMetrics.
//!
//! A line is a sample: a name, labels in braces, a value, and maybe a timestamp and an exemplar.
//! ```text
//! vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
//! ```
//! One pass over the bytes, which keeps nothing and allocates nothing: of some hundred samples a handful are wanted. A line
//! that is no sample is passed and counted, and so are names in quotes, which are sent to those alone who ask for them.

use std::borrow::Cow;
use std::io::BufRead;

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// Which series it is, with its labels.
    pub name: &'a str,
    /// The labels.
    pub labels: Labels<'a>,
    /// The value; it may be `NaN` or infinite.
    pub value: f64,
}

/// Samples of a text, in its order.
#[derive(Debug, Clone)]
pub struct Samples<'a> {
    /// `None` after the last line.
    rest: Option<&'a [u8]>,
    unread: u64,
}

impl<'a> Samples<'a> {
    /// Those of a text of any bytes.
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: Some(text), unread: 0 }
    }

    /// Lines up to here, of those that were read, that are neither samples nor comments nor empty.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let mut after = rest;
        // What searches a word at a time, and can't fail in memory.
        let length = after.skip_until(b'\n').ok()?;
        let line = rest.get(..length)?;
        let Some(line) = line.strip_suffix(b"\n") else {
            self.rest = None;
            return Some(line);
        };
        self.rest = Some(after);
        Some(line)
    }
}

impl<'a> Samples<'a> {
    /// The next sample whose name is wanted. Of the other lines nothing is read but what stands where a name would, which is
    /// most of the work of reading a text of which little is wanted.
    pub fn next_of(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Sample<'a>> {
        loop {
            let line = self.line()?;
            let line = blank(line.strip_suffix(b"\r").unwrap_or(line));
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t')).unwrap_or(line.len());
            if !line.get(..end).is_some_and(&is_wanted) {
                continue;
            }
            let sample = std::str::from_utf8(line).ok().and_then(sample);
            if sample.is_some() {
                return sample;
            }
            self.unread += 1;
        }
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Sample<'a>;

    fn next(&mut self) -> Option<Sample<'a>> {
        self.next_of(|_| true)
    }
}

/// What follows blanks at the start.
fn blank(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    bytes.get(blanks..).unwrap_or_default()
}

/// What follows blanks at the start of a text.
fn trim(text: &str) -> &str {
    // Mostly there are none, and a look at one byte is cheaper than a search.
    match text.as_bytes().first() {
        Some(b' ' | b'\t') => text.trim_start_matches([' ', '\t']),
        _ => text,
    }
}

/// Whether a byte may be in the name of a label or, with a colon, of a metric.
fn is_in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A name at the start of a text, and the rest.
fn name(text: &str, is_in: impl Fn(u8) -> bool) -> Option<(&str, &str)> {
    let end = text.bytes().position(|byte| !is_in(byte)).unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end)?;
    let is_name = name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    is_name.then_some((name, rest))
}

/// The name of a metric at the start of a text, and the rest.
pub(super) fn metric(text: &str) -> Option<(&str, &str)> {
    name(text, |byte| is_in_name(byte) || byte == b':')
}

/// Whether a text is the name of a label.
pub(super) fn is_label(text: &str) -> bool {
    name(text, is_in_name).is_some_and(|(_, rest)| rest.is_empty())
}

/// What is up to the next blank, and what follows the blanks.
fn word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    (word, trim(rest))
}

/// Reads a line without its end and without blanks at its start.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, rest) = metric(line)?;
    let (labels, rest) = match trim(rest).strip_prefix('{') {
        Some(inside) => Labels::split(inside)?,
        // Something has to keep the value from the name.
        None if trim(rest).len() < rest.len() => (Labels(""), rest),
        None => return None,
    };
    let (value, rest) = word(trim(rest));
    let value = value.parse().ok()?;
    // Of the timestamp nothing is wanted but that it be one, and an exemplar is no more than a comment here.
    let (timestamp, rest) = if rest.starts_with('#') { ("", rest) } else { word(rest) };
    let is_timestamp = timestamp.is_empty() || timestamp.parse::<f64>().is_ok();
    let is_end = rest.is_empty() || rest.starts_with('#');
    (is_timestamp && is_end).then_some(Sample { name, labels, value })
}

/// The labels of a sample: what is inside its braces, well formed. They are taken apart when they are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels<'a>(&'a str);

impl<'a> Labels<'a> {
    /// The labels at the start of what follows a brace, and what follows the other.
    pub(super) fn split(inside: &'a str) -> Option<(Self, &'a str)> {
        let mut rest = inside;
        while let Some((_, _, after)) = label(rest) {
            rest = after;
        }
        let after = trim(rest).strip_prefix('}')?;
        // What is before the rest are labels, but for a brace and blanks.
        let labels = inside.get(..inside.len() - rest.len())?;
        Some((Self(labels), after))
    }

    /// Each label's name and value, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> + use<'a> {
        self.raw().map(|(name, value)| (name, unescaped(value)))
    }

    /// The value of the first label of a name.
    pub fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.raw().find(|(there, _)| *there == name).map(|(_, value)| unescaped(value))
    }

    /// As [`Labels::iter`], with escapes as they stand.
    fn raw(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (name, value, after) = label(rest)?;
            rest = after;
            Some((name, value))
        })
    }
}

/// A label at the start of a text: its name, its value with its escapes, and what follows the comma that there has to be
/// before another.
fn label(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = name(trim(text), is_in_name)?;
    let value = trim(trim(rest).strip_prefix('=')?).strip_prefix('"')?;
    let end = end_of_value(value)?;
    let (value, after) = value.split_at_checked(end)?;
    let after = trim(after.strip_prefix('"')?);
    match after.strip_prefix(',') {
        Some(after) => Some((name, value, after)),
        None => (after.is_empty() || after.starts_with('}')).then_some((name, value, after)),
    }
}

/// Where a value ends: at the first quote that no backslash escapes.
fn end_of_value(text: &str) -> Option<usize> {
    let mut quotes = text.match_indices('"').map(|(at, _)| at);
    quotes.find(|at| {
        let before = text.as_bytes().get(..*at).unwrap_or_default();
        let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
        backslashes.is_multiple_of(2)
    })
}

/// A value without its escapes. A backslash that escapes nothing stands for itself.
fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut from = value.chars();
    while let Some(next) = from.next() {
        let mut after = from.clone();
        let meant = match (next, after.next()) {
            ('\\', Some(escaped @ ('\\' | '"'))) => escaped,
            ('\\', Some('n')) => '\n',
            _ => {
                text.push(next);
                continue;
            }
        };
        text.push(meant);
        from = after;
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a sample is, owned, so that two can be compared: the value by its bits.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    struct Plain {
        name: String,
        labels: Vec<(String, String)>,
        value: u64,
    }

    fn read(text: &[u8]) -> (Vec<Plain>, u64) {
        let mut samples = Samples::new(text);
        let all = samples
            .by_ref()
            .map(|sample| Plain {
                name: sample.name.to_owned(),
                labels: sample
                    .labels
                    .iter()
                    .map(|(name, value)| (name.to_owned(), value.into_owned()))
                    .collect(),
                value: sample.value.to_bits(),
            })
            .collect();
        (all, samples.unread())
    }

    /// One line, character by character, as the formats describe it.
    fn literally(line: &str) -> Option<Plain> {
        #[derive(PartialEq)]
        enum At {
            Name,
            AfterName,
            Label,
            LabelName,
            Equals,
            Quote,
            LabelValue,
            Escape,
            AfterLabel,
            BeforeValue,
            Value,
            AfterValue,
            Timestamp,
            AfterTimestamp,
            Exemplar,
        }
        let mut sample = Plain::default();
        let (mut label, mut text) = (String::new(), String::new());
        let (mut value, mut timestamp) = (String::new(), String::new());
        let mut at = At::Name;
        for next in line.chars() {
            let is_blank = next == ' ' || next == '\t';
            let is_first = next.is_ascii_alphabetic() || next == '_';
            at = match at {
                At::Name if is_first || next == ':' || (next.is_ascii_digit() && !sample.name.is_empty()) => {
                    sample.name.push(next);
                    At::Name
                }
                At::Name if sample.name.is_empty() => return None,
                At::Name | At::AfterName if is_blank => At::AfterName,
                At::Name | At::AfterName if next == '{' => At::Label,
                At::Label if next == '}' => At::BeforeValue,
                At::Label if is_blank => At::Label,
                At::Label if is_first => {
                    label = next.to_string();
                    At::LabelName
                }
                At::LabelName if is_first || next.is_ascii_digit() => {
                    label.push(next);
                    At::LabelName
                }
                At::LabelName | At::Equals if next == '=' => At::Quote,
                At::LabelName | At::Equals if is_blank => At::Equals,
                At::Quote if is_blank => At::Quote,
                At::Quote if next == '"' => At::LabelValue,
                At::LabelValue if next == '\\' => At::Escape,
                At::LabelValue if next == '"' => {
                    sample.labels.push((std::mem::take(&mut label), std::mem::take(&mut text)));
                    At::AfterLabel
                }
                At::LabelValue => {
                    text.push(next);
                    At::LabelValue
                }
                At::Escape => {
                    match next {
                        'n' => text.push('\n'),
                        '\\' | '"' => text.push(next),
                        _ => text.extend(['\\', next]),
                    }
                    At::LabelValue
                }
                At::AfterLabel if is_blank => At::AfterLabel,
                At::AfterLabel if next == ',' => At::Label,
                At::AfterLabel if next == '}' => At::BeforeValue,
                At::BeforeValue if is_blank => At::BeforeValue,
                At::Value | At::AfterValue if is_blank => At::AfterValue,
                At::AfterName | At::BeforeValue | At::Value => {
                    value.push(next);
                    At::Value
                }
                At::AfterValue | At::AfterTimestamp if next == '#' => At::Exemplar,
                At::Timestamp | At::AfterTimestamp if is_blank => At::AfterTimestamp,
                At::AfterValue | At::Timestamp => {
                    timestamp.push(next);
                    At::Timestamp
                }
                At::Exemplar => At::Exemplar,
                _ => return None,
            };
        }
        let is_end =
            matches!(at, At::Value | At::AfterValue | At::Timestamp | At::AfterTimestamp | At::Exemplar);
        (is_end && (timestamp.is_empty() || timestamp.parse::<f64>().is_ok())).then_some(())?;
        sample.value = value.parse::<f64>().ok()?.to_bits();
        Some(sample)
    }

    /// All lines, each copied and read literally.
    fn reference(text: &[u8]) -> (Vec<Plain>, u64) {
        let (mut samples, mut unread) = (Vec::new(), 0);
        for line in text.split(|byte| *byte == b'\n') {
            let mut line = line.to_vec();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            while matches!(line.first(), Some(b' ' | b'\t')) {
                line.remove(0);
            }
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            match String::from_utf8(line).ok().and_then(|line| literally(&line)) {
                Some(sample) => samples.push(sample),
                None => unread += 1,
            }
        }
        (samples, unread)
    }

    #[test]
    fn all_that_the_formats_have_is_read() {
        let text = b"# HELP a:b What \"it\" is {\n# TYPE a:b gauge\n\n\
            a:b 1\n  a:b\t{}\t 2.5e-3 1700000000000\n\
            a{x=\"1\",y=\"\\\\ \\\" \\n \\t \xc3\xa9 } , =\",}+Inf\r\n\
            a_bucket{le=\"+Inf\"} 17 # {trace_id=\"x\"} 0.67 1520879607.789\n\
            a { x = \"\" , x=\"2\" } NaN -5 # {}\n\
            a -Inf 1.5\n#EOF\n# EOF";
        let (samples, unread) = read(text);
        let names: Vec<_> = samples.iter().map(|sample| sample.name.as_str()).collect();
        let values: Vec<_> = samples.iter().map(|sample| f64::from_bits(sample.value).to_string()).collect();
        assert_eq!(names, ["a:b", "a:b", "a", "a_bucket", "a", "a"]);
        assert_eq!(values, ["1", "0.0025", "inf", "17", "NaN", "-inf"]);
        assert_eq!(unread, 0);
        let labels: Vec<_> = samples.iter().map(|sample| sample.labels.len()).collect();
        assert_eq!(labels, [0, 0, 2, 1, 2, 0]);
        assert_eq!(samples[2].labels[1].1, "\\ \" \n \\t \u{e9} } , =");
        assert_eq!((samples, unread), reference(text));
    }

    #[test]
    fn labels_are_looked_up() {
        let text = b"a{x=\"1\",y=\"a\\\\b\",x=\"2\"} 1";
        let sample = Samples::new(text).next().unwrap();
        assert_eq!(sample.labels.get("x"), Some(Cow::Borrowed("1")), "the first");
        assert!(matches!(sample.labels.get("x"), Some(Cow::Borrowed(_))));
        assert_eq!(sample.labels.get("y").as_deref(), Some("a\\b"));
        assert_eq!((sample.labels.get("z"), sample.labels.get("")), (None, None));
    }

    #[test]
    fn lines_that_are_no_samples_are_passed_and_counted() {
        let lines = [
            "a",
            "a{}",
            "a{",
            "a{x}1",
            "a{x=1} 1",
            "a{x=\"1} 1",
            "a{x=\"1\" y=\"2\"} 1",
            "a{,} 1",
            "a{x=\"1\",,} 1",
            "a{x=\"1\\\"} 1",
            "a 1x",
            "a 1 x",
            "a 1 2 3",
            "a 1#",
            "a1",
            "1a 1",
            "a# 1",
            "{\"a\"} 1",
            "a{\"x\"=\"1\"} 1",
            "a 0x10",
            "a 1_000",
            "a 1 2#",
            "a\u{a0}1",
            "é 1",
            "a{é=\"1\"} 1",
            "a{1x=\"1\"} 1",
            "a{x:=\"1\"} 1",
            "\ra 1",
        ];
        for line in lines {
            let text = format!("b 1\n{line}\nc 2");
            let (samples, unread) = read(text.as_bytes());
            assert_eq!((samples.len(), unread), (2, 1), "{line}");
            assert_eq!((samples, unread), reference(text.as_bytes()), "{line}");
        }
        assert_eq!(read(b"a\xff 1\n# \xff\na{x=\"\xff\"} 1\na 1\n").1, 2);
        for none in [&b""[..], b"\n", b"\r\n\n \t\n", b"#"] {
            assert_eq!(read(none), (vec![], 0));
        }
    }

    #[test]
    fn real_texts_are_read_as_they_stand() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/metrics");
        let mut texts = 0;
        for file in std::fs::read_dir(dir).unwrap() {
            let text = std::fs::read(file.unwrap().path()).unwrap();
            let (samples, unread) = read(&text);
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#');
            assert_eq!((samples.len(), unread), (lines.count(), 0));
            assert_eq!((samples, unread), reference(&text));
            texts += 1;
        }
        assert_eq!(texts, 5);
    }

    /// A sample, and a line that says it.
    fn line() -> impl Strategy<Value = (Plain, String)> {
        let value = prop_oneof![
            any::<f64>(),
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            (0u32..100).prop_map(f64::from)
        ];
        let labels =
            prop::collection::vec(("[a-zA-Z_][a-zA-Z0-9_]{0,5}", "[a-z\\\\\"\n{},= #é\t]{0,8}"), 0..4);
        let blank = || "[ \t]{0,2}";
        (
            ("[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", labels, value),
            (blank(), blank(), blank(), any::<bool>()),
            prop_oneof![
                Just(""),
                Just(" 1700000000000"),
                Just("\t-1.5 "),
                Just(" # {a=\"b\"} 1"),
                Just(" 1 # {}")
            ],
            prop_oneof![Just(""), Just("\r")],
        )
            .prop_map(|((name, labels, value), (one, two, three, is_ended), after, end)| {
                let mut line = format!("{one}{name}");
                let labels: Vec<(String, String)> = labels;
                for (at, (label, text)) in labels.iter().enumerate() {
                    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                    let before = if at == 0 { format!("{two}{{") } else { ",".to_owned() };
                    line += &format!("{before}{three}{label}{one}={two}\"{text}\"{three}");
                }
                match (labels.is_empty(), is_ended) {
                    (true, _) => line += &format!(" {two}"),
                    (false, true) => line += &format!(",{one}}}{two}"),
                    (false, false) => line += &format!("}}{two}"),
                }
                let number = match value {
                    _ if value.is_nan() => "NaN".to_owned(),
                    _ if value.is_infinite() => format!("{}Inf", if value > 0.0 { '+' } else { '-' }),
                    _ => format!("{value:?}"),
                };
                let value = if value.is_nan() { f64::NAN } else { value };
                (Plain { name, labels, value: value.to_bits() }, format!("{line}{number}{after}{end}"))
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn what_was_written_is_read(lines in prop::collection::vec(line(), 0..8), is_ended: bool) {
            let mut text = lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n# x\n\n");
            if is_ended {
                text.push('\n');
            }
            let expected: Vec<_> = lines.into_iter().map(|(sample, _)| sample).collect();
            prop_assert_eq!(read(text.as_bytes()), (expected, 0));
            prop_assert_eq!(read(text.as_bytes()), reference(text.as_bytes()));
        }

        #[test]
        fn changed_text_is_read_as_the_reference_reads_it(
            lines in prop::collection::vec(line(), 1..4),
            changes in prop::collection::vec((any::<prop::sample::Index>(), hostile(), 0..3u8), 1..6),
        ) {
            let mut text = lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n").into_bytes();
            for (at, byte, how) in changes {
                let at = at.index(text.len());
                match how {
                    0 => text[at] = byte,
                    1 => text.insert(at, byte),
                    _ if text.len() > 1 => drop(text.remove(at)),
                    _ => {}
                }
            }
            prop_assert_eq!(read(&text), reference(&text));
        }

        #[test]
        fn any_bytes_are_read_as_the_reference_reads_them(text in prop::collection::vec(hostile(), 0..60)) {
            prop_assert_eq!(read(&text), reference(&text));
        }

        #[test]
        fn labels_of_any_bytes_are_read_as_the_reference_reads_them(inside in prop::collection::vec(hostile(), 0..30)) {
            let text = [b"a{b=\"", inside.as_slice(), b"\"} 1"].concat();
            prop_assert_eq!(read(&text), reference(&text));
        }
    }

    fn hostile() -> impl Strategy<Value = u8> {
        prop_oneof![
            9 => prop::sample::select(b"a:_{}\"\\,= \t\r\n#1.eN+-n\xc3\xa9\xff\0".to_vec()),
            1 => any::<u8>(),
        ]
    }
}
