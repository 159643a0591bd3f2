//! A batch of KV events as engines write them -> [`Batch`].
//!
//! vLLM, SGLang and those who follow them publish batches in msgpack: as arrays or as maps, with events as tagged arrays or as
//! maps with a `type`. Fields are absent where they have their default, come in any order in maps, and new ones appear; hashes
//! are signed or unsigned numbers, bytes, or text. All of that is read by one walk, which also reads the same in JSON.
//!
//! An event that can't be used doesn't keep those beside it from being read. Only what isn't msgpack or JSON at all is an error.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

use super::event::Fields;
use super::value::{Scalar, otherwise};

pub use super::event::{Event, Extra, Name, Place, Removed, Stored};

/// Most events of a batch; one has about as many as an engine's step has requests.
pub const MAX_EVENTS: usize = 65_536;
/// Longest error, in characters.
const MOST_SAID: usize = 200;

/// A batch of events of one cache.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// When it was published, in seconds since the epoch by the engine's clock; 0 where it doesn't say.
    pub time: f64,
    /// The data-parallel rank whose cache it is.
    pub rank: u32,
    /// In their order.
    pub events: Vec<Event>,
}

/// Reads a batch in msgpack.
///
/// # Errors
/// Where the bytes are no msgpack, or no batch; nothing of it is to be used.
pub fn msgpack(bytes: &[u8]) -> Result<Batch, String> {
    let mut from = rmp_serde::Deserializer::from_read_ref(bytes);
    from.set_max_depth(32);
    Batch::deserialize(&mut from).map_err(said)
}

/// Reads a batch in JSON.
///
/// # Errors
/// Where the text is no JSON, or no batch.
pub fn json(bytes: &[u8]) -> Result<Batch, String> {
    serde_json::from_slice(bytes).map_err(said)
}

/// An error in words, without all of the text that it may quote: that can be as long as the batch.
fn said(error: impl fmt::Display) -> String {
    error.to_string().chars().take(MOST_SAID).collect()
}

/// The next value of an array, or the value of a map's key.
pub(super) trait Next<'de> {
    type Error: Error;
    fn next<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Self::Error>;
}

pub(super) struct Element<'a, A>(pub &'a mut A);
pub(super) struct Entry<'a, A>(pub &'a mut A);

impl<'de, A: SeqAccess<'de>> Next<'de> for Element<'_, A> {
    type Error = A::Error;
    fn next<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(seed)
    }
}

impl<'de, A: MapAccess<'de>> Next<'de> for Entry<'_, A> {
    type Error = A::Error;
    fn next<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_value_seed(seed).map(Some)
    }
}

impl Batch {
    /// Reads a field by its name. Says whether there was a value.
    fn read<'de, N: Next<'de>>(&mut self, field: &str, mut from: N) -> Result<bool, N::Error> {
        Ok(match field {
            "ts" => from.next(Scalar::SEED)?.map(|value| self.time = value.number().unwrap_or(0.0)),
            "events" => from.next(Events(&mut self.events))?,
            "data_parallel_rank" | "attn_dp_rank" => {
                from.next(Scalar::SEED)?.map(|value| self.rank = value.small().unwrap_or(0))
            }
            _ => from.next(Scalar::SEED)?.map(|_| ()),
        }
        .is_some())
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Batch;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a batch of KV events: [ts, events, rank], or a map of these")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Batch, A::Error> {
                let mut batch = Batch::default();
                for field in ["ts", "events", "data_parallel_rank"] {
                    if !batch.read(field, Element(&mut from))? {
                        break;
                    }
                }
                while batch.read("", Element(&mut from))? {}
                Ok(batch)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Batch, A::Error> {
                let mut batch = Batch::default();
                while let Some(key) = from.next_key_seed(Scalar::SEED)? {
                    batch.read(key.text().unwrap_or_default(), Entry(&mut from))?;
                }
                Ok(batch)
            }
        }
        from.deserialize_any(Walk)
    }
}

/// Reads a list of events into a vector. Anything else has none.
struct Events<'a>(&'a mut Vec<Event>);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(event) = from.next_element::<Fields<'de>>()? {
            if self.0.len() >= MAX_EVENTS {
                return Err(A::Error::custom(format_args!("more than {MAX_EVENTS} events in a batch")));
            }
            self.0.push(event.event());
        }
        Ok(())
    }
    otherwise!(());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use xxhash_rust::xxh3::xxh3_64;

    /// Batches as a real engine sent them: each a length and a payload.
    fn captured(file: &str) -> Vec<Vec<u8>> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(file);
        let bytes = std::fs::read(path).unwrap();
        let mut rest = bytes.as_slice();
        let mut batches = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk() {
            let (payload, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            batches.push(payload.to_vec());
            rest = after;
        }
        batches
    }

    fn to_msgpack(value: &Value) -> Vec<u8> {
        rmp_serde::to_vec(value).unwrap()
    }

    /// What both formats make of a batch.
    fn read(value: &Value) -> Batch {
        let one = msgpack(&to_msgpack(value)).unwrap();
        assert_eq!(json(value.to_string().as_bytes()).unwrap(), one);
        one
    }

    fn event(value: Value) -> Event {
        let mut batch = read(&json!([1.0, [value]]));
        assert_eq!(batch.events.len(), 1);
        batch.events.remove(0)
    }

    fn stored(value: Value) -> Stored {
        match event(value) {
            Event::Stored(stored) => stored,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_vllm_0_32_sent_is_what_it_holds() {
        let (mut names, mut tokens, mut removals) = (Vec::new(), 0u64, 0);
        for payload in
            ["a", "b"].iter().flat_map(|which| captured(&format!("vllm-0.32-kv-events-{which}.bin")))
        {
            let batch = msgpack(&payload).unwrap();
            assert!(batch.time > 1.7e9 && batch.rank == 0);
            for event in batch.events {
                match event {
                    Event::Stored(stored) => {
                        assert_eq!(
                            (stored.block_size, stored.place),
                            (32, Place { is_offloaded: false, group: Some(0) })
                        );
                        assert_eq!(stored.tokens.len(), 32 * stored.names.len());
                        assert!(stored.is_main && stored.extra.is_empty() && stored.lora.is_none());
                        assert_eq!(stored.parent, None);
                        tokens += stored.tokens.iter().map(|id| u64::from(*id)).sum::<u64>();
                        names.extend(stored.names);
                    }
                    Event::Removed(removed) => removals += removed.names.len(),
                    other => panic!("{other:?}"),
                }
            }
        }
        // As msgspec, with which vLLM writes them, reads them.
        assert_eq!((names.len(), removals, tokens), (82, 16, 2_214_765));
        assert_eq!(names.iter().fold(0, |all, name| all ^ name), 17_168_159_876_498_087_373);
    }

    #[test]
    fn arrays_and_maps_of_all_ages_are_read() {
        let expected = Stored {
            names: vec![7, u64::MAX],
            parent: Some(3),
            tokens: vec![1, 2, 3, 4],
            block_size: 2,
            is_main: true,
            ..Stored::default()
        };
        // vLLM of 2025, SGLang (signed), vLLM since 2026 (fields absent, in any order, and unknown ones).
        for value in [
            json!(["BlockStored", [7, u64::MAX], 3, [1, 2, 3, 4], 2, null]),
            json!(["BlockStored", [7, u64::MAX], 3, [1, 2, 3, 4], 2]),
            json!(["BlockStored", [7, -1], 3, [1, 2, 3, 4], 2, null, "GPU", {"a": [1]}, null, null, null, null, "LOCAL", 9, 8, 7]),
            json!({"type": "BlockStored", "block_hashes": [7, -1], "parent_block_hash": 3, "token_ids": [1, 2, 3, 4], "block_size": 2}),
            json!({"new": {"x": [1, {"y": null}]}, "token_ids": [1, 2, 3, 4], "medium": "gpu", "parent_block_hash": 3, "lora_id": null,
                "block_size": 2, "extra_keys": [null, null], "block_hashes": [7, -1], "session_id": "s", "type": "BlockStored"}),
        ] {
            assert_eq!(stored(value), expected);
        }
        let removed = Removed { names: vec![5], place: Place { is_offloaded: true, group: Some(2) } };
        assert_eq!(event(json!(["BlockRemoved", [5], "CPU", 2])), Event::Removed(removed.clone()));
        let map = json!({"type": "BlockRemoved", "block_hashes": [5], "medium": "STORAGE", "group_idx": 2});
        assert_eq!(event(map), Event::Removed(removed));
        for cleared in [json!(["AllBlocksCleared"]), json!({"type": "AllBlocksCleared"})] {
            assert_eq!(event(cleared), Event::Cleared);
        }
        for unknown in [json!(["Later", 1, [2]]), json!({"type": "Later", "x": 1})] {
            assert_eq!(event(unknown), Event::Unknown);
        }
    }

    #[test]
    fn batches_are_arrays_or_maps() {
        let events = vec![Event::Cleared];
        for (value, rank) in [
            (json!([2.5, [["AllBlocksCleared"]]]), 0),
            (json!([2.5, [["AllBlocksCleared"]], 3]), 3),
            (json!([2.5, [["AllBlocksCleared"]], null, "later"]), 0),
            (json!({"ts": 2.5, "later": {}, "events": [["AllBlocksCleared"]], "data_parallel_rank": 3}), 3),
        ] {
            assert_eq!(read(&value), Batch { time: 2.5, rank, events: events.clone() });
        }
        assert_eq!(read(&json!([7, []])).time, 7.0);
        for none in [json!(1), json!("x"), json!(null), json!([1.0, [3]]), json!([1.0, ["x"]])] {
            assert!(msgpack(&to_msgpack(&none)).is_err(), "{none}");
            assert!(json(none.to_string().as_bytes()).is_err(), "{none}");
        }
        // Sixteen fields and more.
        let mut many: serde_json::Map<_, _> = (0..70_000).map(|n| (format!("field{n}"), json!(n))).collect();
        many.insert("type".into(), json!("AllBlocksCleared"));
        assert_eq!(event(Value::Object(many)), Event::Cleared);
    }

    #[test]
    fn hashes_are_numbers_bytes_or_text() {
        // [1.0, [["BlockRemoved", [<32 bytes>, -2, "abc"]]]]
        let mut bytes = b"\x92\xcb\x3f\xf0\0\0\0\0\0\0\x91\x92\xacBlockRemoved\x93\xc4\x20".to_vec();
        bytes.extend([9; 32]);
        bytes.extend(b"\xfe\xa3abc");
        let names = vec![xxh3_64(&[9; 32]), u64::MAX - 1, xxh3_64(b"abc")];
        let removed = Removed { names, place: Place::default() };
        assert_eq!(msgpack(&bytes).unwrap().events, [Event::Removed(removed)]);
    }

    #[test]
    fn what_an_event_lacks_is_said_and_others_are_read() {
        let whole = json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2], "block_size": 2});
        for (field, value, why) in [
            ("block_hashes", json!(null), "block_hashes"),
            ("block_hashes", json!([1.5]), "block_hashes"),
            ("block_hashes", json!(5), "block_hashes"),
            ("token_ids", json!([1, -2]), "token_ids"),
            ("token_ids", json!([[1, 2], [2, 3]]), "token_ids"),
            ("token_ids", json!([1, 4_294_967_296u64]), "token_ids"),
            ("token_ids", json!([1, 2, 3]), "as many"),
            ("block_size", json!(0), "block_size"),
            ("block_size", json!("2"), "block_size"),
            ("parent_block_hash", json!([1]), "parent_block_hash"),
            ("type", json!(null), "type"),
        ] {
            let mut broken = whole.clone();
            broken[field] = value.clone();
            let batch = read(&json!([1.0, [broken, whole]]));
            let [Event::Unusable(said), Event::Stored(_)] = batch.events.as_slice() else {
                panic!("{field} {value}: {batch:?}");
            };
            assert!(said.contains(why), "{field} {value}: {said}");
        }
    }

    #[test]
    fn what_keeps_blocks_apart_is_kept_by_block() {
        let event = |extra: Value| {
            stored(
                json!({"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [1, 2], "block_size": 1,
                "lora_name": "a", "extra_keys": extra, "kv_cache_spec_kind": "mla_attention"}),
            )
        };
        let text = |text: &str| Some(xxh3_64(text.as_bytes()));
        let found = event(json!([["a", "salt"], ["a"]]));
        assert_eq!(found.lora.as_deref(), Some("a"));
        let expected = [
            Extra { block: 0, texts: [text("a"), text("salt")], other: 0 },
            Extra { block: 1, texts: [text("a"), None], other: 0 },
        ];
        assert_eq!(found.extra, expected);
        // Images: pairs of a hash and an offset.
        let image = |hash: &str, offset: i64| event(json!([null, [[hash, offset]]])).extra;
        let one = image("h", 0);
        assert_eq!((one.len(), one[0].block, one[0].texts), (1, 1, [None, None]));
        assert!(one[0].other != 0 && one != image("h", 1) && one != image("g", 0) && one == image("h", 0));
        let third = event(json!([["a", "b", "c"]])).extra;
        assert!(third[0].other != 0 && third != event(json!([["a", "b", "d"]])).extra);
        assert_eq!(event(json!([[], "x"])).extra, [Extra { block: 1, texts: [text("x"), None], other: 0 }]);
    }

    #[test]
    fn layers_that_do_not_attend_to_all_are_told_apart() {
        let is_main = |kind: Value| {
            stored(json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1, "kv_cache_spec_kind": kind}))
                .is_main
        };
        for main in
            [json!(null), json!("full_attention"), json!("mla_attention"), json!("sink_full_attention")]
        {
            assert!(is_main(main));
        }
        for other in ["sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "new_kind"]
        {
            assert!(!is_main(json!(other)));
        }
    }

    #[test]
    fn announced_lengths_take_no_memory() {
        // Arrays, maps, texts and bytes of 4 billion, of which nothing follows.
        for head in [
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
        ] {
            for before in [&b""[..], b"\x92\x01", b"\x92\x01\x91", b"\x92\x01\x91\x92\xacBlockRemoved"] {
                assert!(msgpack(&[before, head].concat()).is_err());
            }
        }
        assert!(msgpack(&vec![0x91; 5_000_000]).is_err(), "too deep");
        let deep =
            |before: &str| format!("[1.0, [[{before}{}{}]]]", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(
            json(deep("\"Later\", ").as_bytes()).unwrap().events,
            [Event::Unknown],
            "passed, not kept"
        );
        let stored = "\"BlockStored\", [], null, [], 16, null, null, null, ";
        assert!(json(deep(stored).as_bytes()).unwrap_err().contains("recursion limit"));
        let many = json!([1.0, vec![json!(["AllBlocksCleared"]); MAX_EVENTS + 1]]);
        assert!(msgpack(&to_msgpack(&many)).unwrap_err().contains("more than 65536 events"));
    }

    #[test]
    fn errors_do_not_quote_a_whole_batch() {
        let long = json!("\u{1}".repeat(100_000));
        for value in [long.clone(), json!([1.0, [long]])] {
            assert!(msgpack(&to_msgpack(&value)).unwrap_err().len() <= MOST_SAID);
            assert!(json(value.to_string().as_bytes()).unwrap_err().len() <= MOST_SAID);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn changed_bytes_are_read_or_refused(at: prop::sample::Index, to: u8, cut: prop::sample::Index, which in 0..6usize) {
            let mut all = captured("vllm-0.32-kv-events-b.bin");
            all.extend(captured("vllm-0.32-kv-events-a.bin"));
            let mut payload = all[which].clone();
            let at = at.index(payload.len());
            payload[at] = to;
            let _ = msgpack(&payload);
            payload.truncate(cut.index(payload.len()));
            let _ = msgpack(&payload);
        }
    }
}
