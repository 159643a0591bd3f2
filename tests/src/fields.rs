//! Objects of which every field must be read.

use serde_json::{Map, Value};

/// Fields that are still to be read. Dropping it panics where any are left: what is not known must not pass unnoticed.
pub struct Fields {
    path: String,
    left: Map<String, Value>,
}

impl Fields {
    /// The fields of an object.
    #[track_caller]
    pub fn of(path: &str, object: &Value) -> Self {
        let left = object.as_object().unwrap_or_else(|| panic!("{path} is no object: {object}")).clone();
        Self { path: path.to_owned(), left }
    }

    /// Is there such a field?
    pub fn has(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    /// A field that must be there.
    #[track_caller]
    pub fn take(&mut self, name: &str) -> Value {
        self.left.remove(name).unwrap_or_else(|| panic!("{}.{name} is missing", self.path))
    }

    /// A field that may be absent.
    pub fn maybe(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name)
    }

    /// A field that can be but this.
    #[track_caller]
    pub fn is(&mut self, name: &str, expected: Value) {
        assert_eq!(self.take(name), expected, "{}.{name}", self.path);
    }

    /// A string.
    #[track_caller]
    pub fn text(&mut self, name: &str) -> String {
        let value = self.take(name);
        value.as_str().unwrap_or_else(|| panic!("{}.{name} is no text: {value}", self.path)).to_owned()
    }

    /// An object.
    #[track_caller]
    pub fn object(&mut self, name: &str) -> Self {
        Self::of(&format!("{}.{name}", self.path), &self.take(name))
    }

    /// A list of objects.
    #[track_caller]
    pub fn list(&mut self, name: &str) -> Vec<Self> {
        let list = self.take(name);
        let path = format!("{}.{name}", self.path);
        let items = list.as_array().unwrap_or_else(|| panic!("{path} is no list: {list}"));
        items.iter().enumerate().map(|(n, item)| Self::of(&format!("{path}[{n}]"), item)).collect()
    }

    /// The same, where an absent list is an empty one.
    #[track_caller]
    pub fn maybe_list(&mut self, name: &str) -> Vec<Self> {
        if self.has(name) { self.list(name) } else { Vec::new() }
    }

    /// The object that is a whole list.
    #[track_caller]
    pub fn only(&mut self, name: &str) -> Self {
        let mut list = self.list(name);
        assert_eq!(list.len(), 1, "{}.{name} must have one element", self.path);
        list.remove(0)
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let left: Vec<_> = self.left.keys().collect();
            assert!(left.is_empty(), "{} has fields that are not known here: {left:?}", self.path);
        }
    }
}
