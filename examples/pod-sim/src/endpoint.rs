//! The inference requests that a pod answers.

/// The kinds of inference request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// OpenAI's `/v1/responses`
    Responses,
    /// Anthropic's `/v1/messages`
    Messages,
    /// `/v1/completions`
    Completions,
    /// SGLang's `/generate`
    Generate,
    /// `/v1/embeddings`
    Embeddings,
}

impl Endpoint {
    /// What is asked for at `path`, which has no query string.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Messages),
            "/v1/completions" => Some(Self::Completions),
            "/generate" => Some(Self::Generate),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// How the ids of its answers begin.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Responses => "resp_",
            Self::Messages => "msg_",
            Self::Completions | Self::Embeddings => "cmpl-",
            Self::Generate => "",
        }
    }

    /// The fields that bound an answer's length; the first that is there counts.
    pub fn limits(self) -> &'static [&'static str] {
        match self {
            Self::Chat | Self::Completions => &["max_completion_tokens", "max_tokens"],
            Self::Responses => &["max_output_tokens"],
            Self::Messages => &["max_tokens"],
            Self::Generate => &["max_new_tokens"],
            Self::Embeddings => &[],
        }
    }
}
