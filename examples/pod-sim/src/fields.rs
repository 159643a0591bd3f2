//! Fields of JSON objects, read on demand.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Why a body is refused, for the client to read.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

/// A JSON object whose values are read on demand.
#[derive(Default, Deserialize)]
pub struct Fields<'a>(#[serde(borrow)] HashMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    /// Reads an object.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Invalid> {
        serde_json::from_slice(bytes).map_err(|error| Invalid(format!("body is not a JSON object: {error}")))
    }

    /// The value of `name`, `None` where it is absent or null.
    pub fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, Invalid> {
        let Some(raw) = self.0.get(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map_err(|error| Invalid(format!("{name}: {error}")))
    }

    /// The value of `name`, without which the body is refused.
    pub fn required<T: Deserialize<'a>>(&self, name: &str) -> Result<T, Invalid> {
        self.get(name)?.ok_or_else(|| Invalid(format!("{name}: field required")))
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    /// The JSON text of `name` without its outer white space, unless it is absent or null.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|raw| raw.get()).filter(|text| *text != "null")
    }
}
