//! What an answer says of its prompt's tokens, read from its last bytes: of JSON, or of the last events of a stream.
//!
//! Nothing is buffered for it and nothing parsed: engines write usage behind everything long, and a name with its quotes can't
//! stand within a JSON string, where quotes are escaped.

/// Bytes of an answer's end that are kept.
pub const TAIL: usize = 2048;

/// Names under which engines say how many tokens of the prompt were in their cache.
const CACHED: [&[u8]; 2] = [b"\"cached_tokens\"", b"\"cache_read_input_tokens\""];
/// Names under which they say how many the prompt had. Anthropic's leave out those that were in the cache.
const PROMPT: [&[u8]; 2] = [b"\"prompt_tokens\"", b"\"input_tokens\""];

/// Tokens of a prompt, as the engine counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub prompt: u32,
    /// What its cache held; `None` where it doesn't say.
    pub cached: Option<u32>,
}

/// The last bytes of an answer.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Takes the last bytes of the next chunk: all of it, or [`TAIL`].
    pub fn push(&mut self, end: &[u8]) {
        let end = end.get(end.len().saturating_sub(TAIL)..).unwrap_or(end);
        let kept = TAIL.saturating_sub(end.len());
        let old = self.0.len().saturating_sub(kept);
        self.0.drain(..old);
        self.0.extend_from_slice(end);
    }

    /// What it says of the prompt's tokens; `None` where it says nothing.
    pub fn usage(&self) -> Option<Usage> {
        let anthropic = last(&self.0, CACHED[1]);
        let cached = last(&self.0, CACHED[0]).or(anthropic);
        let prompt = PROMPT.iter().find_map(|name| last(&self.0, name))?;
        let beside = if cached == anthropic { anthropic.unwrap_or(0) } else { 0 };
        Some(Usage { prompt: prompt.saturating_add(beside), cached })
    }
}

/// The number that follows the last of this name.
fn last(text: &[u8], name: &[u8]) -> Option<u32> {
    let at = text.windows(name.len()).rposition(|window| window == name)?;
    let rest = text.get(at + name.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A number that ends with the text may go on.
    rest.get(digits)?;
    std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn usage(text: &str) -> Option<Usage> {
        let mut tail = Tail::default();
        text.as_bytes().chunks(7).for_each(|chunk| tail.push(chunk));
        tail.usage()
    }

    fn of(prompt: u32, cached: u32) -> Option<Usage> {
        Some(Usage { prompt, cached: Some(cached) })
    }

    #[test]
    fn each_api_s_form_is_understood() {
        let chat = r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":90,"total_tokens":95,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":64}},"kv_transfer_params":null}"#;
        assert_eq!(usage(chat), of(90, 64));
        let stream = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\": 90, \"prompt_tokens_details\": {\"cached_tokens\": 80}}}\n\ndata: [DONE]\n\n";
        assert_eq!(usage(stream), of(90, 80));
        let responses = r#"data: {"response":{"usage":{"input_tokens":90,"input_tokens_details":{"cached_tokens":32},"output_tokens":7}}}"#;
        assert_eq!(usage(responses), of(90, 32));
        let messages = r#"{"usage":{"input_tokens":26,"cache_read_input_tokens":64,"output_tokens":3}}"#;
        assert_eq!(usage(messages), of(90, 64));
        let generate =
            r#"{"text":"a","meta_info":{"prompt_tokens":90,"completion_tokens":1,"cached_tokens":48}}"#;
        assert_eq!(usage(generate), of(90, 48));
        let silent = r#"{"usage":{"prompt_tokens":90,"prompt_tokens_details":null}}"#;
        assert_eq!(usage(silent), Some(Usage { prompt: 90, cached: None }));
        assert_eq!(usage("data: [DONE]\n\n"), None);
    }

    #[test]
    fn what_a_model_writes_is_not_taken_for_usage() {
        let told = r#"{"content":"\"prompt_tokens\": 7, \"cached_tokens\": 3","usage":{"prompt_tokens":90}}"#;
        assert_eq!(usage(told), Some(Usage { prompt: 90, cached: None }));
        assert_eq!(
            usage(r#"{"metadata":{"cached_tokens":"5"},"prompt_tokens":9}"#),
            Some(Usage { prompt: 9, cached: None })
        );
        assert_eq!(usage(r#"{"prompt_tokens":90"#), None, "cut off: it may have been 900");
        assert_eq!(usage(r#"{"prompt_tokens":99999999999}"#), None);
    }

    proptest! {
        #[test]
        fn the_tail_is_the_end_however_it_is_cut(text in prop::collection::vec(any::<u8>(), 0..6000), cut in 1..5000_usize) {
            let mut tail = Tail::default();
            text.chunks(cut).for_each(|chunk| tail.push(&chunk[chunk.len().saturating_sub(TAIL)..]));
            prop_assert_eq!(&tail.0[..], &text[text.len().saturating_sub(TAIL)..]);
            let _ = tail.usage();
        }
    }
}
