//! The `tokenizers` crate, loading the whole file its own way, is the reference of what an image makes of it.

use super::*;
use crate::blocks::ChainBuilder;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokenizers::pipeline::{EncodeOptions, PipelineTokenizer};

/// What texts of these tests are made of: letters, spaces of all kinds, `é` and a combining accent, and what patterns look for.
const ALPHABET: &[&str] = &[
    "a", "b", "c", "e", " ", "\n", "é", "漢", "\u{301}", "1", ".", "S", "'s", "\r\n", "\t", "\u{3000}", "'R",
    "/", "。",
];

/// Patterns of Qwen, Llama 3, o200k, Tekken, and those that DeepSeek uses one after another.
const PATTERNS: &[&[&str]] = &[
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"\p{N}{1,3}",
        "[一-龥\u{3040}-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
];

fn pre_tokenizer(patterns: &[&str]) -> Value {
    let split = |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let splits: Vec<_> = patterns.iter().map(split).chain([byte_level]).collect();
    json!({"type": "Sequence", "pretokenizers": splits})
}

/// A vocabulary of all bytes and what `picks` merges, as tokenizer.json writes it.
fn vocabulary(
    picks: &[(prop::sample::Index, prop::sample::Index)],
) -> (BTreeMap<String, u32>, Vec<[String; 2]>) {
    let mut vocab: BTreeMap<String, u32> = convert::names_of_bytes().zip(0..).collect();
    // Merges of what occurs in these tests, not of any bytes.
    let mut tokens: Vec<String> =
        ALPHABET.iter().flat_map(|text| text.bytes()).map(convert::name_of).collect();
    let mut merges = Vec::new();
    for (left, right) in picks {
        let pair = [left, right].map(|at| tokens[at.index(tokens.len())].clone());
        let product = pair.concat();
        let next = vocab.len() as u32;
        vocab.entry(product.clone()).or_insert(next);
        tokens.push(product);
        merges.push(pair);
    }
    (vocab, merges)
}

fn reference(file: &Value) -> PipelineTokenizer {
    let canonical = tokenizers::canonicalize_str(&file.to_string()).unwrap();
    tokenizers::from_json(&canonical).unwrap()
}

fn encode(tokenizer: &mut Tokenizer, text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    tokenizer.encode(text, &mut out).unwrap();
    out
}

/// Twice: the second time, what is remembered is recalled.
fn chain(tokenizer: &mut Tokenizer, text: &str) -> [Vec<u64>; 2] {
    [(), ()].map(|()| {
        let mut chain = ChainBuilder::tokens(3, 4, 0);
        assert_eq!(tokenizer.chain(text, usize::MAX, &mut chain), Ok(Extent::Whole));
        chain.finish().hashes
    })
}

fn chain_of(ids: &[u32]) -> [Vec<u64>; 2] {
    let mut chain = ChainBuilder::tokens(3, 4, 0);
    chain.push_tokens(ids);
    let hashes = chain.finish().hashes;
    [hashes.clone(), hashes]
}

fn encode_reference(tokenizer: &PipelineTokenizer, text: &str, add_special_tokens: bool) -> Vec<u32> {
    let options = EncodeOptions { add_special_tokens, ..EncodeOptions::default() };
    let mut out = Vec::new();
    tokenizer.encode_into(text, &options, &mut out).unwrap();
    out.into_iter().map(u32::from).collect()
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => prop::sample::select(ALPHABET).prop_map(str::to_owned),
        1 => prop::sample::select(&["<s>", "<x>", "NO", "<|end|>"][..]).prop_map(str::to_owned),
        // Past what is merged pair by pair, and what is remembered.
        1 => (prop::sample::select(ALPHABET), 1..80usize).prop_map(|(text, count)| text.repeat(count)),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn added(id: u32, content: &str, flags: [bool; 5]) -> Value {
    let [single_word, lstrip, rstrip, normalized, special] = flags;
    json!({"id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
        "normalized": normalized, "special": special})
}

proptest! {
    // Building the reference takes long.
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn ids_are_those_of_the_reference(
        picks in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..60),
        texts in prop::collection::vec(text(), 1..12),
        flags: [[bool; 4]; 2],
        ignore_merges: bool,
        old_merges: bool,
        normalizer in prop::sample::select(vec![json!(null), json!({"type": "NFC"}), json!({"type": "Lowercase"})]),
        split in prop::sample::select(vec![
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]}),
        ]),
        seed: u64,
        // With the memory of segments off and on, tight and wide.
        memory in prop::sample::select(vec![0, 2000, 1 << 20]),
    ) {
        let (vocab, merges) = vocabulary(&picks);
        let size = vocab.len() as u32;
        let flags = |n: usize| {
            let [lstrip, rstrip, normalized, special] = flags[n];
            [false, lstrip, rstrip, normalized, special]
        };
        let merges: Vec<Value> = match old_merges {
            // Names of tokens have no space.
            true => merges.iter().map(|pair| json!(pair.join(" "))).collect(),
            false => merges.iter().map(|pair| json!(pair)).collect(),
        };
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [added(size, "<s>", [false, false, false, false, true]),
                added(size + 1, "<x>", flags(0)), added(size + 2, "NO", flags(1))],
            "normalizer": normalizer, "pre_tokenizer": split, "decoder": null,
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [size], "tokens": ["<s>"]}}},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
                "vocab": vocab, "merges": merges},
        });
        let image = convert(file.to_string().as_bytes()).unwrap();
        let mut own = Tokenizer::load(&image, seed, memory).unwrap();
        let reference = reference(&file);
        prop_assert_eq!(own.around(), (&[size][..], &[][..]));
        // Twice: the second time words are remembered.
        for text in texts.iter().chain(&texts) {
            let ids = encode(&mut own, text);
            prop_assert_eq!(&ids, &encode_reference(&reference, text, false), "{:?}", text);
            prop_assert_eq!(chain(&mut own, text), chain_of(&ids), "{:?}", text);
            let whole = [&[size][..], &ids].concat();
            prop_assert_eq!(whole, encode_reference(&reference, text, true), "{:?}", text);
        }
    }

    #[test]
    fn a_conversation_has_the_ids_of_its_text(
        picks in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 20..60),
        turns in prop::collection::vec((text(), text(), any::<prop::sample::Index>()), 1..12),
        edits in prop::collection::vec((any::<prop::sample::Index>(), text()), 0..4),
        memory in 0..20_000usize,
    ) {
        let (vocab, merges) = vocabulary(&picks);
        let size = vocab.len() as u32;
        let file = json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
            "normalizer": {"type": "NFC"},
            "added_tokens": [added(size, "<s>", [false, false, false, false, true]),
                added(size + 1, "<x>", [false, true, true, false, true])],
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
        let image = convert(file.to_string().as_bytes()).unwrap();
        let load = |memory| Tokenizer::load(&image, 5, memory).unwrap();
        let (mut with, mut without) = (load(memory), load(0));
        let mut told: Vec<String> = Vec::new();
        for (question, answer, at) in &turns {
            let document = ALPHABET[at.index(ALPHABET.len())].repeat(100);
            told.push(format!("<s>{question}{document}<x>{answer}<s>"));
            let ids = encode(&mut without, &told.concat());
            prop_assert_eq!(chain(&mut with, &told.concat()), chain_of(&ids));
            prop_assert_eq!(chain(&mut without, &told.concat()), chain_of(&ids));
        }
        for (at, text) in &edits {
            let turn = at.index(told.len());
            told[turn] = text.clone();
            let ids = encode(&mut without, &told.concat());
            prop_assert_eq!(chain(&mut with, &told.concat()), chain_of(&ids));
            prop_assert_eq!(chain(&mut without, &told.concat()), chain_of(&ids));
        }
        prop_assert!(with.segments_bytes() <= memory);
    }

    #[test]
    fn no_file_is_a_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let (vocab, merges) = vocabulary(&[]);
        let mut file = json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
            "added_tokens": [added(300, "<s>", [false, false, true, false, true])],
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}}).to_string().into_bytes();
        let i = at.index(file.len());
        file[i] = byte;
        if let Ok(mut tokenizer) = convert(&file).map(|image| Tokenizer::load(&image, 1, 1000).unwrap()) {
            let _ = tokenizer.encode("a<s> é漢 \n\u{301}s>'s 12<s", &mut Vec::new());
        }
        let _ = convert(&file[..cut.index(file.len())]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_text_cut_anywhere_safe_has_the_ids_of_the_whole(
        picks in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..60),
        texts in prop::collection::vec((text(), text(), text()), 1..8),
        patterns in prop::option::of(prop::sample::select(PATTERNS)),
        composed: bool,
        pieces in prop::sample::select(vec![1, 2, 7, 60]),
        // More than any part of such a text has.
        most_new in 900..1500usize,
    ) {
        let (vocab, merges) = vocabulary(&picks);
        let file = json!({
            "normalizer": if composed { json!({"type": "NFC"}) } else { json!(null) },
            "pre_tokenizer": match patterns {
                None => json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
                Some(patterns) => pre_tokenizer(patterns),
            },
            "added_tokens": [added(vocab.len() as u32, "<x>", [false, false, false, true, false])],
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        });
        let image = convert(file.to_string().as_bytes()).unwrap();
        let load = || Tokenizer::load(&image, 3, 1 << 20).unwrap();
        prop_assert!(load().may_cut(), "{patterns:?}");
        let reference = reference(&file);
        for (a, b, c) in texts {
            // Texts of letters between the odd ones have more places to cut at.
            let text = format!("{a} b{b} c\n漢{c}\ne a");
            let (mut cut, mut bounded) = (load().cut_after(pieces), load().cut_after(pieces));
            let ids = encode_reference(&reference, &text, false);
            prop_assert_eq!(&encode(&mut cut, &text), &ids, "{:?}", text);
            prop_assert_eq!(chain(&mut cut, &text), chain_of(&ids), "{:?}", text);
            // Asked often enough, a text is known whole, however little is tokenized at once: a part at the least each time.
            let short = |text: &str| text.chars().take(60).collect::<String>();
            let text = format!("{} b{} c\n漢{}\ne a", short(&a), short(&b), short(&c)).repeat(6);
            let ids = encode_reference(&reference, &text, false);
            for asked in 1.. {
                let mut chain = ChainBuilder::tokens(3, 4, 0);
                let extent = bounded.chain(&text, most_new, &mut chain).unwrap();
                let hashes = chain.finish().hashes;
                prop_assert_eq!(&hashes, &chain_of(&ids)[0][..hashes.len()]);
                if extent == Extent::Whole {
                    prop_assert_eq!(&hashes, &chain_of(&ids)[0]);
                    break;
                }
                prop_assert!(asked <= text.len() / 64, "{} times", asked);
            }
        }
    }
}

fn refusal(edit: impl FnOnce(&mut Value)) -> String {
    let (vocab, _) = vocabulary(&[]);
    let mut file = json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    edit(&mut file);
    convert(file.to_string().as_bytes()).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn refusals_name_the_cause() {
    assert!(convert(b"").unwrap_err().to_string().contains("EOF while parsing"));
    let cases: [(&str, Value, &str); 10] = [
        ("/model/type", json!("Unigram"), "the model type Unigram"),
        ("/model/type", json!("WordPiece"), "the model type WordPiece"),
        ("/model/vocab", json!({}), "its vocabulary is empty"),
        ("/model/vocab", json!({"a": 0}), "without a token for the byte 0x00"),
        ("/model/vocab", json!([["a", 0.5]]), "its vocabulary is empty"),
        ("/model/merges", json!([["a", "nobody"]]), "\"nobody\", which is not in the vocabulary"),
        ("/model/merges", json!(["a b c"]), "the merge \"a b c\""),
        ("/pre_tokenizer", json!(null), "BPE that is not byte-level"),
        ("/pre_tokenizer", json!({"type": "ByteLevel", "add_prefix_space": true}), "add_prefix_space: true"),
        ("/added_tokens", json!([{"id": 4_000_000_000u32, "content": "x"}]), "\"x\" has id 4000000000"),
    ];
    for (path, value, cause) in cases {
        let said = refusal(|file| *file.pointer_mut(path).unwrap() = value);
        assert!(said.starts_with("tokenizer.json ") && said.contains(cause), "{path}: {said}");
    }
    let said = refusal(|file| file["pre_tokenizer"] = pre_tokenizer(&[r"\w{1,7}|.|\s+"]));
    assert!(said.contains(r"none of those known") && said.contains(r"\\w{1,7}|."), "{said}");
    // The crate would take these for another pattern.
    for digits in [r"\p{N}{1,2}", r"\p{N}+"] {
        let pattern = PATTERNS[0][0].replace(r"\p{N}|", &format!("{digits}|"));
        let said = refusal(|file| file["pre_tokenizer"] = pre_tokenizer(&[&pattern]));
        assert!(said.contains("none of those known"), "{said}");
    }
    let said =
        refusal(|file| file["added_tokens"] = json!([{"id": 300, "content": "東", "single_word": true}]));
    assert!(said.contains("\"東\"") && said.contains("single_word"), "{said}");
    let said = refusal(|file| file["model"]["dropout"] = json!(0.1));
    assert!(said.contains("dropout"), "{said}");
    let said = refusal(|file| file["model"]["end_of_word_suffix"] = json!("</w>"));
    assert!(said.contains("end_of_word_suffix \"</w>\""), "{said}");
    let said = refusal(|file| file["added_tokens"] = json!([{"id": 1, "content": "a"}]));
    assert!(said.contains("two ids"), "{said}");
}
