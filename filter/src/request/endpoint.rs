//! Which path is which kind of inference call.

/// An API whose bodies carry a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/chat/completions`: `messages` and `tools`.
    Chat,
    /// `/v1/completions`: `prompt`.
    Completions,
    /// `/v1/embeddings`: `input`.
    Embeddings,
}

impl Endpoint {
    /// The endpoint at `path`, as in a `:path` header: a query string and one trailing slash make no difference.
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        match path.strip_suffix('/').unwrap_or(path) {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => None,
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
            ("/v1/completions/?", Some(Endpoint::Completions)),
            ("/v1/embeddings", Some(Endpoint::Embeddings)),
            ("/v1/chat/completions//", None),
            ("/v1/chat/completions/render", None),
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
