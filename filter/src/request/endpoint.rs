//! Which path is which kind of inference call.

/// An API whose bodies carry a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `/v1/chat/completions`: `messages` and `tools`.
    Chat,
    /// OpenAI's `/v1/responses`: `instructions`, `input` and `tools`.
    Responses,
    /// Anthropic's `/v1/messages`: `system`, `messages` and `tools`.
    Messages,
    /// `/v1/completions`: `prompt`.
    Completions,
    /// SGLang's `/generate`: `text` or `input_ids`.
    Generate,
    /// `/v1/embeddings`: `input`.
    Embeddings,
}

impl Endpoint {
    /// The endpoint at `path`, as in a `:path` header: a query string and one trailing slash make no difference.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        match path.strip_suffix('/').unwrap_or(path) {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Messages),
            "/v1/completions" => Some(Self::Completions),
            "/generate" => Some(Self::Generate),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// The field without which a body has no prompt.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Responses | Self::Embeddings => "input",
            Self::Completions => "prompt",
            Self::Generate => "text",
        }
    }

    /// Fields whose values keep equal prompts apart: what they bring into the prompt is not in the body, or stands in it
    /// at a place that only the engine knows.
    pub(super) fn apart(self) -> &'static [&'static str] {
        match self {
            Self::Responses => &["conversation", "previous_input_messages", "previous_response_id", "prompt"],
            Self::Generate => &["audio_data", "image_data", "input_embeds", "session_params", "video_data"],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/v1/chat/completions", Some(Endpoint::Chat)),
            ("/v1/chat/completions/", Some(Endpoint::Chat)),
            ("/v1/chat/completions?api-version=1&x=/v1/models", Some(Endpoint::Chat)),
            ("/v1/responses", Some(Endpoint::Responses)),
            ("/v1/messages?beta=true", Some(Endpoint::Messages)),
            ("/v1/completions/?", Some(Endpoint::Completions)),
            ("/generate", Some(Endpoint::Generate)),
            ("/v1/embeddings", Some(Endpoint::Embeddings)),
            ("/v1/chat/completions//", None),
            ("/v1/chat/completions/render", None),
            ("/v1/responses/resp_1", None),
            ("/v1/messages/count_tokens", None),
            ("/v1/generate", None),
            ("/V1/completions", None),
            ("/v1/models?x=/v1/completions", None),
            ("v1/completions", None),
            ("?", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::of_path(path), expected, "{path}");
        }
    }
}
