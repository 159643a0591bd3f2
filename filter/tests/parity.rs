//! Token ids and rendered chats against Hugging Face's own, on real vocabularies: `tests/parity/get.sh` says where they
//! come from, and `tests/run.sh` runs this.

use serde_json::{Map, Value};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use warmpath::prompt::template::{Chat, ChatTemplate};
use warmpath::prompt::{Tokenizer, convert};

/// Differences that are shown; all are counted.
const SHOWN: usize = 5;

fn answers(model: &str) -> (Value, Vec<Value>) {
    let dir = std::env::var("WARMPATH_PARITY").expect("WARMPATH_PARITY=$(tests/parity/get.sh)");
    let file = std::fs::File::open(Path::new(&dir).join(format!("{model}.jsonl"))).expect("made by get.sh");
    let mut lines = std::io::BufReader::new(file)
        .lines()
        .map(|line| serde_json::from_str(&line.expect("UTF-8")).expect("a JSON object"));
    (lines.next().expect("a header"), lines.collect())
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of ids")
}

fn parity(model: &str) {
    let (header, cases) = answers(model);
    let vocabulary = PathBuf::from(header["vocabulary"].as_str().expect("a path"));
    let json = std::fs::read(vocabulary.join("tokenizer.json")).expect("a vocabulary");
    let image = convert(&json).expect("byte-level BPE");
    let load = || Tokenizer::load(&image, 42, 1 << 20).expect("an image");
    // Once in one piece, once in as many as can be.
    let (mut tokenizer, mut cutting) = (load(), load().cut_after(1));
    assert!(cutting.may_cut());
    let (mut texts, mut chats, mut refused, mut unsure, mut different) = (0, 0, 0, 0, Vec::new());
    let mut too_long = 0;
    for case in &cases {
        let rendered = match case.get("text") {
            Some(text) => {
                texts += 1;
                text.as_str().map(str::to_owned)
            }
            None => {
                chats += 1;
                let own = render(case, &header["special"]);
                let reference = case["rendered"].as_str();
                match (&own, reference) {
                    (Ok(own), Some(reference)) if own == reference => {}
                    (Err(_), None) => refused += 1,
                    // Known, and a step down: a list is printed that holds what Python may escape.
                    (Err(error), Some(_)) if error.contains("a list is printed") => unsure += 1,
                    _ => different.push(first_difference(&own, reference, &case["chat"]["refused"])),
                }
                reference.map(str::to_owned)
            }
        };
        if let Some(text) = rendered {
            let reference = ids(&case["ids"]);
            for tokenizer in [&mut tokenizer, &mut cutting] {
                let mut own = Vec::new();
                if let Err(error) = tokenizer.encode(&text, &mut own) {
                    // Known, and a step down.
                    assert!(error.starts_with("a word of 1"), "{error}");
                    too_long += 1;
                    continue;
                }
                if own != reference {
                    let at = own.iter().zip(&reference).take_while(|(a, b)| a == b).count();
                    different.push(format!("ids of {text:?} differ from number {at} on"));
                }
            }
        }
    }
    println!(
        "{model}: {texts} texts, {chats} chats, {refused} refused by both, {unsure} left to byte blocks"
    );
    let shown = different.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(different.is_empty(), "{model}: {} differ:\n{shown}", different.len());
    assert!(texts >= 1000 && chats - refused - unsure >= 200, "the corpus is too small to say anything");
    assert!(too_long <= 4, "{too_long} texts have words beyond all bounds");
    assert!(unsure * 20 < chats, "more than a twentieth of the chats can't be rendered");
}

fn first_difference(own: &Result<String, String>, reference: Option<&str>, refused: &Value) -> String {
    let (Ok(own), Some(reference)) = (own, reference) else {
        return format!("ours: {own:.200?}, the reference: {reference:.200?} {refused}");
    };
    let same = own.chars().zip(reference.chars()).take_while(|(a, b)| a == b).count();
    let near = |text: &str| text.chars().skip(same.saturating_sub(60)).take(120).collect::<String>();
    format!("from character {same} on: {:?}\n  but the reference: {:?}", near(own), near(reference))
}

fn render(case: &Value, special: &Value) -> Result<String, String> {
    let mut config: Map<String, Value> = special.as_object().expect("tokens by name").clone();
    config.insert("chat_template".to_owned(), case["template"].clone());
    let template = ChatTemplate::load(Value::Object(config).to_string().as_bytes());
    let template = template.map_err(|error| error.to_string())?.expect("it has one");
    let given = &case["chat"];
    let list = |name: &str| given.get(name).and_then(Value::as_array).cloned();
    let flag = |name: &str| given.get(name) == Some(&Value::Bool(true));
    let chat = Chat {
        messages: list("messages").expect("messages"),
        tools: list("tools"),
        kwargs: given.get("kwargs").and_then(Value::as_object).cloned().unwrap_or_default(),
        add_generation_prompt: flag("add_generation_prompt"),
        continue_final_message: flag("continue_final_message"),
        ..Chat::default()
    };
    template.render(chat).map_err(|error| error.to_string())
}

#[test]
#[ignore = "needs WARMPATH_PARITY=$(tests/parity/get.sh); tests/run.sh runs it"]
fn qwen3() {
    parity("qwen3");
}

#[test]
#[ignore = "needs WARMPATH_PARITY=$(tests/parity/get.sh); tests/run.sh runs it"]
fn qwen3_with_the_pattern_of_qwen3_5() {
    parity("qwen3-marks");
}

#[test]
#[ignore = "needs WARMPATH_PARITY=$(tests/parity/get.sh); tests/run.sh runs it"]
fn llama_3_1() {
    parity("llama3.1");
}

#[test]
#[ignore = "needs WARMPATH_PARITY=$(tests/parity/get.sh); tests/run.sh runs it"]
fn deepseek() {
    parity("deepseek");
}
