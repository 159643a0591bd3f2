//! The header in which an engine tells its load with each answer -> [`Reading`].
//!
//! An engine sends `endpoint-load-metrics` where the request asked for it by `endpoint-load-metrics-format: TEXT` (or `JSON`).
//! The server of vLLM in Python (vllm/entrypoints/serve/utils/orca_metrics.py) writes the format first,
//! ```text
//! TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0
//! JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}
//! ```
//! and others leave it out. Of several ranks each has its numbers in the text, but the last alone has its in JSON: the text is
//! the better one to ask for. Triton calls the use of the cache `kv_cache_utilization`. Everything else of an ORCA report, as the
//! use of processors, is passed; the binary form isn't read.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

use super::{Reading, Sum};

/// Longest header that is read, in bytes. Envoy's own limit for all headers is of this order.
pub const MAX_HEADER: usize = 65_536;

/// Reads the header's value. `None` where nothing that is wanted is in it.
pub fn read(header: &[u8]) -> Option<Reading> {
    let header = std::str::from_utf8(header).ok().filter(|header| header.len() <= MAX_HEADER)?.trim();
    let mut report = Report::default();
    match header.split_once([' ', '\t']) {
        Some((format, list)) if format.eq_ignore_ascii_case("text") => report.read_list(list),
        Some((format, json)) if format.eq_ignore_ascii_case("json") => report.read_json(json)?,
        _ if header.starts_with('{') => report.read_json(header)?,
        _ => report.read_list(header),
    }
    let reading = Reading {
        running: report.running.requests(),
        waiting: report.waiting.requests(),
        kv_usage: report.kv_usage.share(),
        unread: report.unread,
        ..Reading::default()
    };
    report.is_there.then_some(reading)
}

/// What a report said up to here.
#[derive(Default)]
struct Report {
    running: Sum,
    waiting: Sum,
    kv_usage: Sum,
    is_there: bool,
    unread: u64,
}

impl Report {
    fn sum(&mut self, name: &str) -> Option<&mut Sum> {
        match name {
            "num_requests_running" => Some(&mut self.running),
            "num_requests_waiting" => Some(&mut self.waiting),
            "kv_cache_usage_perc" | "gpu_cache_usage_perc" | "kv_cache_utilization" => {
                Some(&mut self.kv_usage)
            }
            _ => None,
        }
    }

    fn add(&mut self, name: &str, value: f64) {
        if let Some(sum) = self.sum(name) {
            sum.add(value);
            self.is_there = true;
        }
    }

    /// Reads names and numbers as they are in the text.
    fn read_list(&mut self, list: &str) {
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let read =
                entry.split_once('=').map(|(name, value)| (name.trim_end(), value.trim_start().parse()));
            match read {
                Some((name, Ok(value))) => {
                    self.add(name.strip_prefix("named_metrics.").unwrap_or(name), value);
                }
                _ => self.unread += 1,
            }
        }
    }

    fn read_json(&mut self, json: &str) -> Option<()> {
        let mut from = serde_json::Deserializer::from_str(json);
        Entries { into: self, is_named: false }.deserialize(&mut from).ok()?;
        from.end().ok()
    }
}

/// Reads the entries of a report in JSON.
struct Entries<'a> {
    into: &'a mut Report,
    /// Whether these are the named metrics; other maps are passed.
    is_named: bool,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a load report")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        let Self { into, is_named } = self;
        while let Some(name) = from.next_key::<String>()? {
            if !is_named && matches!(&*name, "named_metrics" | "namedMetrics") {
                from.next_value_seed(Entries { into: &mut *into, is_named: true })?;
            } else if into.sum(&name).is_some() {
                // A number, or whatever else is there instead.
                let value: &RawValue = from.next_value()?;
                into.add(&name, value.get().parse().unwrap_or(f64::NAN));
            } else {
                from.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(kv_usage: impl Into<Option<f32>>, waiting: impl Into<Option<f32>>) -> Option<Reading> {
        Some(Reading { kv_usage: kv_usage.into(), waiting: waiting.into(), ..Reading::default() })
    }

    #[test]
    fn what_vllm_0_32_sent_is_read() {
        let text = b"TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.043052837573385516";
        assert_eq!(read(text), load(0.043_052_837, 0.0));
        let json = br#"JSON {"named_metrics": {"num_requests_waiting": 1.0, "kv_cache_usage_perc": 0.043052837573385516}}"#;
        assert_eq!(read(json), load(0.043_052_837, 1.0));
    }

    #[test]
    fn other_forms_are_read() {
        for header in [
            "TEXT named_metrics.kv_cache_usage_perc=0.5,named_metrics.num_requests_waiting=3",
            "text cpu_utilization=0.3, mem_utilization=0.8, rps_fractional=10.0, eps=1, \
             named_metrics.kv_cache_utilization=0.5, utilization.x=9, named_metrics.num_requests_waiting = 3e0 ,",
            "named_metrics.kv_cache_usage_perc=0.5,named_metrics.num_requests_waiting=3",
            " kv_cache_usage_perc=0.5, num_requests_waiting=3 ",
            "JSON {\"cpu_utilization\": 0.3, \"named_metrics\": {\"kv_cache_usage_perc\": 0.5, \"x\": [{}], \
             \"num_requests_waiting\": 3}, \"utilization\": {\"num_requests_waiting\": 8}}",
            "json {\"namedMetrics\":{\"num_requests_waiting\":3},\"kv_cache_utilization\":5e-1}",
            "{\"named_metrics\":{\"kv_cache_usage_perc\":0.5,\"num_requests_waiting\":3}}",
        ] {
            assert_eq!(read(header.as_bytes()), load(0.5, 3.0), "{header}");
        }
    }

    #[test]
    fn ranks_are_added_up() {
        let two = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0, \
            named_metrics.kv_cache_usage_perc=0.75, named_metrics.num_requests_waiting=1.0";
        assert_eq!(read(two.as_bytes()), load(0.5, 4.0));
    }

    #[test]
    fn what_is_none_is_none() {
        for header in [
            "",
            "TEXT",
            "TEXT ",
            "JSON ",
            "JSON {}",
            "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.5}",
            "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.5}} x",
            "JSON [1]",
            "JSON {\"named_metrics\": 1}",
            "JSON {\"named_metrics\": {\"named_metrics\": {\"kv_cache_usage_perc\": 0.5}}}",
            "BIN kv_cache_usage_perc=1",
            "cpu_utilization=0.5",
            "TEXT utilization.kv_cache_usage_perc=0.5",
        ] {
            assert_eq!(read(header.as_bytes()), None, "{header}");
        }
        assert_eq!(read(b"\xffnum_requests_waiting=3"), None);
        assert_eq!(read(format!("num_requests_waiting=3{}", " ".repeat(MAX_HEADER)).as_bytes()), None);
    }

    #[test]
    fn numbers_that_cannot_be_meant_are_absent() {
        for value in ["NaN", "-1", "inf", "1e999"] {
            let header = format!("TEXT kv_cache_usage_perc={value}, num_requests_waiting=2");
            assert_eq!(read(header.as_bytes()), load(None, 2.0), "{value}");
        }
        for value in ["null", "\"3\"", "[1]", "{\"a\": {}}", "-1", "1e999"] {
            let header = format!("JSON {{\"num_requests_waiting\": 2, \"kv_cache_usage_perc\": {value}}}");
            assert_eq!(read(header.as_bytes()), load(None, 2.0), "{value}");
        }
        let unread = read(b"TEXT x, num_requests_waiting=2, kv_cache_usage_perc=half").unwrap();
        assert_eq!((unread.kv_usage, unread.waiting, unread.unread), (None, Some(2.0), 2));
    }

    #[test]
    fn depth_is_no_matter() {
        for open in ["[", "{\"a\":"] {
            let deep = format!("JSON {{\"kv_cache_usage_perc\":{}", open.repeat(10_000));
            assert_eq!(read(deep.as_bytes()), None);
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_are_read_or_not(at: prop::sample::Index, to: u8, cut: prop::sample::Index, is_json: bool) {
            let header: &[u8] = if is_json {
                b"JSON {\"named_metrics\": {\"num_requests_waiting\": 1.0, \"kv_cache_usage_perc\": 0.5}}"
            } else {
                b"TEXT named_metrics.num_requests_waiting=1.0, named_metrics.kv_cache_usage_perc=0.5"
            };
            let mut header = header.to_vec();
            let at = at.index(header.len());
            header[at] = to;
            let _ = read(&header);
            header.truncate(cut.index(header.len()));
            let _ = read(&header);
        }
    }
}
