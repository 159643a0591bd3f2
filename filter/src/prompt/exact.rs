//! The chain of a request's prompt in the engine's own tokens, where its model's tokenizer is there.

use super::delivery::{Delivery, Loaded};
use super::{Extent, dialect};
use crate::blocks::{Apart, BlockSize, Chain, ChainBuilder};
use crate::config::TokenizerSettings;
use crate::pipeline::Body;
use crate::request::{Prompt, Request, tree, unescaped};
use std::cell::RefCell;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// A request whose chain is made of tokens where that can be, and of its text elsewhere.
pub struct Exact<'a> {
    /// What was read of the body.
    pub request: &'a Request<'a>,
    /// The body.
    pub bytes: &'a [u8],
    /// The tokenizer of the model that is asked for.
    pub delivery: &'a RefCell<Delivery>,
    /// How they are used.
    pub settings: &'a TokenizerSettings,
    /// Since the epoch, for templates that tell the date.
    pub now: Duration,
    /// What came of it.
    pub outcome: RefCell<Outcome>,
}

/// What a chain was made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// Nobody asked.
    #[default]
    Unasked,
    /// Tokens.
    Exact,
    /// The first tokens: what follows was new, and more than may be tokenized at once.
    Cut,
    /// Text: the tokenizer is not there yet.
    NotReady,
    /// Text: the prompt is one that cannot be rendered or tokenized as the engine would. Says why.
    NotFollowed(String),
}

impl Body for Exact<'_> {
    fn model(&self) -> Option<&str> {
        self.request.model.as_deref()
    }

    fn user(&self) -> Option<&str> {
        self.request.user.as_deref()
    }

    fn streams(&self) -> bool {
        self.request.stream
    }

    fn computes_all(&self) -> bool {
        self.request.computes_all
    }

    fn block_tokens(&self, size: BlockSize) -> f32 {
        match *self.outcome.borrow() {
            Outcome::Exact | Outcome::Cut => self.settings.block_tokens as f32,
            _ => self.request.block_tokens(size),
        }
    }

    fn chain(&self, size: BlockSize) -> Chain {
        let made = match self.delivery.try_borrow_mut() {
            Ok(mut delivery) => delivery.loaded().map(|loaded| self.tokens(loaded)),
            Err(_) => None,
        };
        let (outcome, chain) = match made {
            None => (Outcome::NotReady, None),
            Some(Err(why)) => (Outcome::NotFollowed(why), None),
            Some(Ok((chain, Extent::Whole))) => (Outcome::Exact, Some(chain)),
            Some(Ok((chain, Extent::Start))) => (Outcome::Cut, Some(chain)),
        };
        self.outcome.replace(outcome);
        chain.unwrap_or_else(|| self.request.chain(size))
    }
}

impl Exact<'_> {
    fn builder(&self) -> ChainBuilder {
        let block_tokens = self.settings.block_tokens;
        // Chats and completions of equal tokens share blocks, as they do in the engine.
        let apart = Apart {
            model: self.settings.model(self.request.model.as_deref()),
            lora: self.request.lora,
            salt: self.request.cache_salt.as_deref().map(|salt| xxh3_64(salt.as_bytes())),
            extra_key: self.request.extra_key,
        };
        // Two bytes make a token at the least, mostly three or four.
        ChainBuilder::tokens(apart.seed(block_tokens), block_tokens, self.bytes.len() / 3)
    }

    /// The chain of the prompt's tokens, or why they can't be known.
    fn tokens(&self, loaded: &mut Loaded) -> Result<(Chain, Extent), String> {
        if let Some(field) = self.request.altered_by {
            return Err(format!("{field} changes the prompt"));
        }
        let Loaded { tokenizer, template } = loaded;
        let mut chain = self.builder();
        let most_new = self.settings.max_new_bytes;
        let extent = match &self.request.prompt {
            Prompt::Tokens(tokens) => {
                chain.push_tokens(tokens);
                Extent::Whole
            }
            Prompt::Text(text) => {
                let text = unescaped(text).ok_or_else(|| "a text that is no Unicode".to_owned())?;
                chain.push_tokens(tokenizer.around().0);
                let extent = tokenizer.chain(&text, most_new, &mut chain)?;
                if extent == Extent::Whole {
                    chain.push_tokens(tokenizer.around().1);
                }
                extent
            }
            Prompt::Chat(_) => {
                let template =
                    template.as_ref().ok_or_else(|| "a model without a chat template".to_owned())?;
                let mut body = tree(self.bytes).map_err(|error| error.to_string())?;
                let chat = dialect::chat(self.request.endpoint, &mut body, template, self.now)?;
                let text = template.render(chat).map_err(|error| error.to_string())?;
                tokenizer.chain(&text, most_new, &mut chain)?
            }
        };
        Ok((chain.finish(), extent))
    }
}

#[cfg(test)]
mod tests {
    use super::super::delivery::Source;
    use super::super::template::ChatTemplate;
    use super::super::{Tokenizer, convert};
    use super::*;
    use crate::request::{Endpoint, Limits, parse};
    use serde_json::json;
    use std::collections::BTreeMap;

    fn loaded() -> Loaded {
        let vocab: serde_json::Map<_, _> =
            convert::names_of_bytes().zip(0..).map(|(name, id)| (name, json!(id))).collect();
        let file = json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        let image = convert(file.to_string().as_bytes()).unwrap();
        let config =
            json!({"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"});
        Loaded {
            tokenizer: Tokenizer::load(&image, 1, 0).unwrap(),
            template: ChatTemplate::load(config.to_string().as_bytes()).unwrap(),
        }
    }

    fn cut(endpoint: Endpoint, body: &str, max_new_bytes: usize) -> Result<(Vec<u64>, Extent), String> {
        let request = parse(endpoint, body.as_bytes(), &Limits::default()).unwrap();
        let source = Source::BuiltIn(String::new());
        let settings = TokenizerSettings {
            models: Vec::new(),
            aliases: BTreeMap::new(),
            source: source.clone(),
            block_tokens: 4,
            memory_bytes: 0,
            max_new_bytes,
        };
        let delivery = RefCell::new(Delivery::new(source, 0));
        let exact = Exact {
            request: &request,
            bytes: body.as_bytes(),
            delivery: &delivery,
            settings: &settings,
            now: Duration::ZERO,
            outcome: RefCell::default(),
        };
        exact.tokens(&mut loaded()).map(|(chain, extent)| (chain.hashes, extent))
    }

    fn hashes(endpoint: Endpoint, body: &str) -> Result<Vec<u64>, String> {
        let (hashes, extent) = cut(endpoint, body, usize::MAX)?;
        assert_eq!(extent, Extent::Whole);
        Ok(hashes)
    }

    #[test]
    fn new_text_is_tokenized_up_to_a_limit() {
        let body = json!({"prompt": "word ".repeat(10_000)}).to_string();
        let (whole, start) =
            (hashes(Endpoint::Completions, &body).unwrap(), cut(Endpoint::Completions, &body, 20_000));
        let (start, extent) = start.unwrap();
        assert_eq!(extent, Extent::Start);
        // Two parts of 8 KiB and a little, in blocks of four tokens of a byte each.
        assert_eq!(start, whole[..start.len()]);
        assert_eq!(start.len(), crate::blocks::depth_within(2 * 8200 / 4));
    }

    #[test]
    fn equal_prompts_have_equal_tokens_wherever_they_are_asked() {
        let expected = hashes(Endpoint::Completions, r#"{"prompt": "<system>be brief<user>hello"}"#).unwrap();
        assert!(expected.len() > 3);
        for (endpoint, body) in [
            (
                Endpoint::Chat,
                r#"{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]}"#,
            ),
            (
                Endpoint::Messages,
                r#"{"system": "be brief", "messages": [{"role": "user", "content": "hello"}]}"#,
            ),
            (Endpoint::Responses, r#"{"instructions": "be brief", "input": "hello"}"#),
            (Endpoint::Generate, r#"{"text": "<system>be brief<user>hello"}"#),
        ] {
            assert_eq!(hashes(endpoint, body), Ok(expected.clone()), "{body}");
        }
        let salted =
            hashes(Endpoint::Completions, r#"{"prompt": "<system>be brief<user>hello", "extra_key": "a"}"#);
        assert!(salted.unwrap().iter().all(|hash| !expected.contains(hash)));
        let ids = hashes(Endpoint::Generate, r#"{"input_ids": [[1, 2, 3, 4], [5]], "text": "a"}"#);
        assert_eq!(ids, hashes(Endpoint::Completions, r#"{"prompt": [1, 2, 3, 4]}"#));
    }

    #[test]
    fn long_words_count_for_more() {
        let extent = |text: String, most| {
            cut(Endpoint::Completions, &json!({"prompt": text}).to_string(), most).map(|(_, extent)| extent)
        };
        // Without a place to cut at; the same bytes in short words and in long ones.
        assert_eq!(extent("wordword1".repeat(1000), 20_000), Ok(Extent::Whole));
        assert_eq!(extent(format!("{}1", "w".repeat(999)).repeat(9), 20_000), Ok(Extent::Start));
        assert_eq!(extent(format!("{}1", "w".repeat(999)).repeat(9), 80_000), Ok(Extent::Whole));
        assert!(extent("w".repeat(20_000), 80_000).unwrap_err().contains("a word of 20000 bytes"));
    }

    #[test]
    fn what_is_not_in_the_body_has_no_tokens() {
        for (endpoint, body, cause) in [
            (Endpoint::Responses, r#"{"input": "a", "previous_response_id": "r"}"#, "previous_response_id"),
            (Endpoint::Generate, r#"{"text": "a", "image_data": "i"}"#, "image_data"),
            (
                Endpoint::Messages,
                r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
                "image",
            ),
        ] {
            let error = hashes(endpoint, body).unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
    }
}
