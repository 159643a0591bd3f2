//! Which profile or workflow a request comes to, by path, model and headers.

/// A condition on one request, and what it comes to where that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub(super) path: Option<PathPattern>,
    pub(super) model: Option<String>,
    pub(super) header: Option<(String, Option<String>)>,
    pub(super) target: Target,
}

/// What a request comes to, by its position in the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One profile, one pod.
    Profile(usize),
    /// A plan of several steps.
    Workflow(usize),
}

/// A path, or what paths begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPattern {
    /// This path and no other.
    Exact(String),
    /// Every path that begins so.
    Prefix(String),
}

impl PathPattern {
    /// Reads `/v1/chat/completions` or `/v1/*`. The error is the cure.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, pattern): (_, fn(String) -> Self) = match text.strip_suffix('*') {
            Some(path) => (path, Self::Prefix),
            None => (text, Self::Exact),
        };
        if !path.starts_with('/') || path.contains(['*', '?', '#']) || path.len() > 1024 {
            let cure =
                "give a path such as /v1/chat/completions, or its beginning and one * at the end: /v1/*";
            return Err(format!("{text:?} is no path pattern; {cure}"));
        }
        Ok(pattern(path.to_owned()))
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == exact,
            Self::Prefix(start) => path.starts_with(start.as_str()),
        }
    }
}

impl Rule {
    /// Do path and headers match? The query string doesn't count.
    pub(super) fn matches_head(&self, path: &str, header: &dyn Fn(&str) -> Option<Vec<u8>>) -> bool {
        let path = path.split(['?', '#']).next().unwrap_or(path);
        self.path.as_ref().is_none_or(|pattern| pattern.matches(path))
            && self.header.as_ref().is_none_or(|(name, wanted)| {
                header(name)
                    .is_some_and(|value| wanted.as_ref().is_none_or(|wanted| value == wanted.as_bytes()))
            })
    }

    /// Does the model match?
    pub(super) fn matches_model(&self, model: Option<&str>) -> bool {
        self.model.as_deref().is_none_or(|wanted| model == Some(wanted))
    }
}
