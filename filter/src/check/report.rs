//! What a check found.

use crate::config::{Mistake, Mistakes};
use std::fmt;

/// Findings about one file.
#[derive(Debug, Default)]
pub struct Report {
    /// What Warmpath would refuse.
    pub mistakes: Vec<Mistake>,
    /// What works, and will hurt.
    pub warnings: Vec<Mistake>,
}

impl Report {
    /// Adds a mistake.
    pub fn mistake(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.mistakes.push(Mistake { path: path.into(), problem: problem.into() });
    }

    /// Adds the mistakes of a plugin configuration that stands at `base`.
    pub fn mistakes_at(&mut self, base: &str, mistakes: &Mistakes) {
        for mistake in mistakes.iter() {
            let path = match (base, mistake.path.as_str()) {
                ("", path) => path.to_owned(),
                (base, "") => base.to_owned(),
                (base, path) => format!("{base}: {path}"),
            };
            self.mistake(path, &mistake.problem);
        }
        let unlisted = mistakes.count() - mistakes.iter().count();
        if unlisted > 0 {
            self.mistake(base, format!("and {unlisted} more mistakes"));
        }
    }

    /// Adds a warning, unless the same was given already.
    pub fn warn(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        let warning = Mistake { path: path.into(), problem: problem.into() };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mistake in &self.mistakes {
            writeln!(f, "error: {mistake}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}
