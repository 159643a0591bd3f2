//! Prompts that are no chats: texts and token ids.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::{Fields, Invalid};
use crate::tokens;

/// The most prompts that one completion or embedding request may carry.
pub const MAX_PROMPTS: usize = 256;

/// A string, a list of strings, a list of token ids, or a list of such lists.
pub fn prompts(value: &RawValue, name: &str) -> Result<Vec<Vec<u32>>, Invalid> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Prompts {
        Text(String),
        Texts(Vec<String>),
        Ids(Vec<u32>),
        Lists(Vec<Vec<u32>>),
    }
    let prompts = match serde_json::from_str(value.get()) {
        Ok(Prompts::Text(text)) => vec![tokens_of(&text)],
        Ok(Prompts::Texts(texts)) => texts.iter().map(|text| tokens_of(text)).collect(),
        Ok(Prompts::Ids(ids)) => vec![ids],
        Ok(Prompts::Lists(lists)) => lists,
        Err(_) => return Err(Invalid(format!("{name}: neither text, nor token ids, nor a list of either"))),
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(Invalid(format!("{name}: a prompt is empty; each needs at least one token")));
    }
    if prompts.len() > MAX_PROMPTS {
        return Err(Invalid(format!("{name}: {} prompts; at most {MAX_PROMPTS} are taken", prompts.len())));
    }
    Ok(prompts)
}

/// SGLang's prompt: one text, or its token ids, which count more.
pub fn generate(fields: &Fields) -> Result<Vec<u32>, Invalid> {
    let prompt = match fields.get("input_ids")? {
        Some(ids) => ids,
        None => tokens_of(&fields.required::<Cow<str>>("text")?),
    };
    if prompt.is_empty() {
        return Err(Invalid("text: the prompt is empty; it needs at least one token".into()));
    }
    Ok(prompt)
}

fn tokens_of(text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    tokens::push_text(text, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn completions_take_every_shape_of_prompt() {
        let prompts = |value: Value| -> Result<Vec<Vec<u32>>, Invalid> {
            let value = serde_json::value::to_raw_value(&value).unwrap();
            super::prompts(&value, "prompt")
        };
        let (a, b) = (tokens::id(b"a"), tokens::id(b"b"));
        assert_eq!(prompts(json!("a")), Ok(vec![vec![a]]));
        assert_eq!(prompts(json!(["a", "b"])), Ok(vec![vec![a], vec![b]]));
        assert_eq!(prompts(json!([1, 2])), Ok(vec![vec![1, 2]]));
        assert_eq!(prompts(json!([[1], [2]])), Ok(vec![vec![1], vec![2]]));
        for bad in
            [json!(""), json!([]), json!([[]]), json!({}), json!([-1]), json!(vec!["a"; MAX_PROMPTS + 1])]
        {
            assert!(prompts(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn generate_takes_one_text_or_its_ids() {
        let prompt = |body: &str| generate(&Fields::parse(body.as_bytes()).unwrap());
        assert_eq!(prompt(r#"{"text":"a b"}"#), Ok(tokens_of("a b")));
        assert_eq!(prompt(r#"{"text":"a b","input_ids":[1,2]}"#), Ok(vec![1, 2]));
        for bad in
            ["{}", r#"{"text":""}"#, r#"{"input_ids":[]}"#, r#"{"text":["a"]}"#, r#"{"input_ids":[[1]]}"#]
        {
            assert!(prompt(bad).is_err(), "{bad}");
        }
    }
}
