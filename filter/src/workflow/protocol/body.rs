//! A client's body, as protocols see it.

use crate::request::{Edit, Endpoint, Outline};
use serde_json::value::RawValue;
use std::ops::Deref;

/// Fields that are looked at beside the protocols' own.
pub const FIELDS: [&str; 23] = [
    "background",
    "best_of",
    "input_ids",
    "logprob_token_ids",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "min_tokens",
    "n",
    "previous_response_id",
    "prompt",
    "prompt_token_ids",
    "sampling_params",
    "store",
    "stream",
    "stream_options",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "use_beam_search",
    "vllm_xargs",
];

/// A body whose fields can be edited.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    /// All of it.
    pub bytes: &'a [u8],
    /// Where its fields stand.
    pub outline: &'a Outline,
}

/// The body of an inference call.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a> {
    /// Where it was sent to.
    pub endpoint: Endpoint,
    /// What it is.
    pub fields: Fields<'a>,
}

impl<'a> Deref for Body<'a> {
    type Target = Fields<'a>;

    fn deref(&self) -> &Fields<'a> {
        &self.fields
    }
}

impl<'a> Fields<'a> {
    /// Whether the field stands there at all.
    pub fn has(&self, name: &str) -> bool {
        self.outline.value(self.bytes, name).is_some()
    }

    /// The JSON text of a field; `null` is absence.
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        self.outline.value(self.bytes, name).filter(|value| *value != b"null")
    }

    /// What takes out those of these fields that stand there.
    pub fn without(&self, names: &[&'static str]) -> Vec<Edit<'static>> {
        names.iter().copied().filter(|name| self.has(name)).map(Edit::Remove).collect()
    }

    /// The body as the pod of a leg gets it: stripped of what a client must not say, but for what the leg says itself.
    pub fn edited(&self, mut strip: Vec<Edit<'static>>, leg: Vec<Edit<'static>>) -> Vec<u8> {
        strip.retain(|edit| leg.iter().all(|other| other.name() != edit.name()));
        strip.extend(leg);
        self.outline.edit(self.bytes, &strip)
    }
}

impl Body<'_> {
    /// Why this request can't be split over two pods whatever the protocol, if it can't.
    pub fn unfit(&self) -> Option<&'static str> {
        // Several answers would each claim the one handoff.
        let several = |name: &str| self.field(name).is_some_and(|value| value != b"1");
        let is_true = |name: &str| self.field(name) == Some(b"true");
        match self.endpoint {
            _ if several("n") || several("best_of") || is_true("use_beam_search") => {
                Some("several answers are asked for")
            }
            Endpoint::Completions if self.is_list_of_prompts("prompt") => Some("it has several prompts"),
            Endpoint::Generate if self.is_list_of_prompts("text") || self.is_list_of_prompts("input_ids") => {
                Some("it has several prompts")
            }
            Endpoint::Generate if self.asks_for_several_samples() => Some("several answers are asked for"),
            // One engine remembers it.
            Endpoint::Responses if is_true("background") || self.field("previous_response_id").is_some() => {
                Some("its engine has to remember it")
            }
            Endpoint::Responses if !self.has_only_functions() => Some("its tools would run twice"),
            _ => None,
        }
    }

    /// SGLang's `n` stands among its sampling parameters.
    fn asks_for_several_samples(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Sampling {
            n: Option<serde_json::Value>,
        }
        let Some(sampling) = self.field("sampling_params") else { return false };
        serde_json::from_slice::<Sampling>(sampling)
            .is_ok_and(|sampling| sampling.n.is_some_and(|n| !n.is_null() && n != 1))
    }

    /// Whether the client runs all of its tools, and the engine none.
    fn has_only_functions(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Tool<'a> {
            #[serde(borrow, rename = "type")]
            kind: std::borrow::Cow<'a, str>,
        }
        let Some(tools) = self.field("tools") else { return true };
        serde_json::from_slice::<Vec<Tool<'_>>>(tools)
            .is_ok_and(|tools| tools.iter().all(|tool| tool.kind == "function"))
    }

    /// Several texts, or lists of tokens. One list of tokens is one prompt.
    fn is_list_of_prompts(&self, name: &str) -> bool {
        let Some(list @ [b'[', ..]) = self.field(name) else { return false };
        let is_prompt = |value: &&RawValue| value.get().starts_with(['"', '[']);
        serde_json::from_slice::<Vec<&RawValue>>(list)
            .is_ok_and(|list| list.len() > 1 && list.first().is_some_and(is_prompt))
    }
}
