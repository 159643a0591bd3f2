//! Names, or what names begin with: `pods`, `engine-*`.

/// Longest pattern in bytes: a DNS name, and a star.
const MAX_PATTERN: usize = 256;

/// A name, or the beginning of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This name and no other.
    Exact(String),
    /// Every name that begins so, that beginning included.
    Prefix(String),
}

impl Pattern {
    /// Reads `pods` or `engine-*`. The error is the cure.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = match text.strip_suffix('*') {
            Some(start) => Self::Prefix(start.to_owned()),
            None => Self::Exact(text.to_owned()),
        };
        let (Self::Exact(name) | Self::Prefix(name)) = &pattern;
        if text.is_empty()
            || text.len() > MAX_PATTERN
            || name.contains('*')
            || name.chars().any(char::is_control)
        {
            let cure = format!(
                "give a name, or its beginning and one * at the end, of 1 to {MAX_PATTERN} printable characters"
            );
            return Err(format!("\"{}\" is no pattern; {cure}", text.escape_debug()));
        }
        Ok(pattern)
    }

    /// Is this name meant?
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => name == exact,
            Self::Prefix(start) => name.starts_with(start.as_str()),
        }
    }

    /// The one name that is meant; `None` where many may be.
    pub fn exact(&self) -> Option<&str> {
        match self {
            Self::Exact(exact) => Some(exact),
            Self::Prefix(_) => None,
        }
    }

    /// As an RE2 regular expression, without anchors.
    pub fn regex(&self) -> String {
        let (name, rest) = match self {
            Self::Exact(exact) => (exact, ""),
            Self::Prefix(start) => (start, ".*"),
        };
        let mut regex = String::with_capacity(name.len() + rest.len());
        for char in name.chars() {
            if r"\.+*?()|[]{}^$".contains(char) {
                regex.push('\\');
            }
            regex.push(char);
        }
        regex + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pattern_means_what_it_says(text in r"[ab.*|]{0,4}", name in r"[ab.*|]{0,4}") {
            let stars = text.matches('*').count();
            match Pattern::parse(&text) {
                Err(problem) => prop_assert!(text.is_empty() || stars > 1 || !text.ends_with('*'), "{}", problem),
                Ok(pattern) => {
                    // Letter by letter: equal up to the star, and after it anything.
                    let (mut wanted, mut given) = (text.chars(), name.chars());
                    let expected = loop {
                        match wanted.next() {
                            Some('*') => break true,
                            next if next != given.next() => break false,
                            None => break true,
                            Some(_) => {}
                        }
                    };
                    prop_assert_eq!(pattern.matches(&name), expected);
                    prop_assert_eq!(pattern.exact().is_some(), stars == 0);
                }
            }
        }

        #[test]
        fn every_byte_sequence_is_read_or_refused(text in any::<String>()) {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert!(pattern.matches(text.trim_end_matches('*')));
                prop_assert!(pattern.regex().len() <= 2 * text.len() + 2);
            }
        }
    }

    #[test]
    fn a_regular_expression_means_the_same() {
        let regex = |text: &str| Pattern::parse(text).map(|pattern| pattern.regex());
        assert_eq!(regex("pods-1_a"), Ok("pods-1_a".to_owned()));
        assert_eq!(regex("*"), Ok(".*".to_owned()));
        assert_eq!(regex("outbound|80||a.b*"), Ok(r"outbound\|80\|\|a\.b.*".to_owned()));
        assert_eq!(regex(r"a\+?()[]{}^$ä"), Ok(r"a\\\+\?\(\)\[\]\{\}\^\$ä".to_owned()));
    }
}
