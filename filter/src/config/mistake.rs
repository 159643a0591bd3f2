//! Mistakes in a configuration: where, what, and the cure.

use std::fmt;

/// Most mistakes that one report lists.
const MAX_MISTAKES: usize = 32;
/// Most characters of one problem: it may quote what the user wrote.
const MAX_PROBLEM: usize = 1000;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Path in the configuration, such as `profiles.main.scorers[1].weight`. Empty for the whole.
    pub path: String,
    /// What is wrong there, and how to mend it.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "configuration" } else { &self.path };
        write!(f, "{path}: {}", self.problem)
    }
}

/// All mistakes of a configuration, in the order of its fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mistakes {
    list: Vec<Mistake>,
    more: usize,
}

impl Mistakes {
    /// Adds one; from the thirty-third on they are only counted.
    pub fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        if self.list.len() >= MAX_MISTAKES {
            self.more += 1;
            return;
        }
        let mut problem = problem.into();
        if problem.len() > MAX_PROBLEM {
            problem = problem.chars().take(MAX_PROBLEM).chain("...".chars()).collect();
        }
        self.list.push(Mistake { path: path.into(), problem });
    }

    /// Adds what serde found in the part of the configuration at `base`.
    pub fn add_serde<E: fmt::Display>(&mut self, base: &str, error: &serde_path_to_error::Error<E>) {
        let inner = error.path().to_string();
        let path = match (base, inner.as_str()) {
            (base, "." | "?") => base.to_owned(),
            ("", inner) => inner.to_owned(),
            (base, inner) if inner.starts_with('[') => format!("{base}{inner}"),
            (base, inner) => format!("{base}.{inner}"),
        };
        self.add(path, error.inner().to_string());
    }

    /// How many there are, the unlisted included.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Is nothing wrong?
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Those that are listed.
    pub fn iter(&self) -> impl Iterator<Item = &Mistake> {
        self.list.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.list.iter().enumerate() {
            write!(f, "{}{mistake}", if i == 0 { "" } else { "\n" })?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}
