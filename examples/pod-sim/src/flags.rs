//! Command lines: a list of flags that is the parser, the help and, by a test, what the README must name.

use std::str::FromStr;

/// One flag.
#[derive(Debug)]
pub struct Flag {
    /// With its dashes.
    pub name: &'static str,
    /// What stands for its value in the help; empty for a switch.
    pub value: &'static str,
    /// One line, with the default.
    pub help: &'static str,
}

/// A parsed command line.
#[derive(Debug)]
pub struct Flags {
    given: Vec<(&'static str, String)>,
    rest: Vec<String>,
}

impl Flags {
    /// Parses `--name value`, `--name=value`, switches and bare words. The error says what is unknown or missing.
    pub fn parse(known: &[Flag], arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut flags = Self { given: Vec::new(), rest: Vec::new() };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            if !argument.starts_with("--") {
                flags.rest.push(argument);
                continue;
            }
            let (name, inline) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            let Some(flag) = known.iter().find(|flag| flag.name == name) else {
                return Err(format!("{name}: no such flag; --help lists them"));
            };
            let value = match (flag.value.is_empty(), inline) {
                (true, None) => String::new(),
                (true, Some(_)) => return Err(format!("{name} takes no value")),
                (false, Some(value)) => value,
                (false, None) => {
                    arguments.next().ok_or_else(|| format!("{name} needs a value: {}", flag.value))?
                }
            };
            flags.given.push((flag.name, value));
        }
        Ok(flags)
    }

    /// The last value given for `name`, or `default`.
    pub fn get<T: FromStr<Err: std::fmt::Display>>(&self, name: &str, default: T) -> Result<T, String> {
        Ok(self.find(name)?.unwrap_or(default))
    }

    /// The last value given for `name`.
    pub fn find<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.all(name).last() else { return Ok(None) };
        text.parse().map(Some).map_err(|error| format!("{name} {text}: {error}"))
    }

    /// The same for a number that must be above 0.
    pub fn positive<T>(&self, name: &str, default: T) -> Result<T, String>
    where
        T: FromStr<Err: std::fmt::Display> + PartialOrd + Default + std::fmt::Display,
    {
        let value = self.get(name, default)?;
        if value > T::default() { Ok(value) } else { Err(format!("{name} {value}: must be above 0")) }
    }

    /// Every value given for `name`.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.given.iter().filter(move |(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// Whether `name` was given.
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The words that belong to no flag.
    pub fn rest(&self) -> &[String] {
        &self.rest
    }
}

/// The help: `usage`, then a line for each flag.
pub fn help(usage: &str, known: &[Flag]) -> String {
    let title = |flag: &Flag| format!("{} {}", flag.name, flag.value);
    let width = known.iter().map(|flag| title(flag).len()).max().unwrap_or(0);
    let lines = known.iter().map(|flag| format!("  {:width$}  {}\n", title(flag), flag.help));
    format!("{usage}\n\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Flag; 3] = [
        Flag { name: "--port", value: "N", help: "" },
        Flag { name: "--model", value: "NAME", help: "" },
        Flag { name: "--loud", value: "", help: "" },
    ];

    fn parse(line: &str) -> Result<Flags, String> {
        Flags::parse(&KNOWN, line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn values_switches_and_words_are_told_apart() {
        let flags = parse("a --port 1 --model=x b --loud --model y --port=2").unwrap();
        assert_eq!(flags.get("--port", 0), Ok(2));
        assert_eq!(flags.all("--model").collect::<Vec<_>>(), ["x", "y"]);
        assert!(flags.has("--loud"));
        assert_eq!(flags.rest(), ["a", "b"]);
        assert_eq!(parse("").unwrap().get("--port", 7), Ok(7));
    }

    #[test]
    fn mistakes_name_the_flag() {
        assert!(parse("--prot 1").unwrap_err().contains("--prot"));
        assert!(parse("--port").unwrap_err().contains("--port needs"));
        assert!(parse("--loud=yes").unwrap_err().contains("--loud takes no value"));
        assert!(parse("--port 0").unwrap().positive("--port", 1).unwrap_err().contains("--port 0"));
        assert!(parse("--port nan").unwrap().positive("--port", 1.0).unwrap_err().contains("--port NaN"));
        assert_eq!(parse("").unwrap().positive("--port", 1.5), Ok(1.5));
        assert!(parse("--port x").unwrap().get("--port", 0).unwrap_err().contains("--port x"));
    }
}
