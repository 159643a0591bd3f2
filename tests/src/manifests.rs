//! Kubernetes manifests, read strictly: whoever makes something of one takes each field that it has, and is told of those it
//! doesn't know.

use serde_json::{Map, Value};
use std::path::Path;

/// The documents of one file, by kind and name.
pub struct Manifests(Vec<Value>);

impl Manifests {
    /// Reads a YAML file.
    pub fn load(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        Self(serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display())))
    }

    /// Takes out all documents of a kind.
    pub fn take(&mut self, kind: &str) -> Vec<Manifest> {
        let (taken, rest) =
            std::mem::take(&mut self.0).into_iter().partition(|document| document["kind"] == kind);
        self.0 = rest;
        let taken: Vec<Value> = taken;
        taken.into_iter().map(|document| Manifest::new(kind, document)).collect()
    }

    /// Takes out the only document of a kind.
    #[track_caller]
    pub fn one(&mut self, kind: &str) -> Manifest {
        let mut all = self.take(kind);
        assert_eq!(all.len(), 1, "documents of kind {kind}");
        all.remove(0)
    }

    /// All documents must have been taken.
    #[track_caller]
    pub fn done(self) {
        let kinds: Vec<_> = self.0.iter().map(|document| document["kind"].clone()).collect();
        assert!(kinds.is_empty(), "nobody knows what to make of {kinds:?}");
    }
}

/// One document.
pub struct Manifest {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// What it says.
    pub spec: Fields,
}

impl Manifest {
    fn new(kind: &str, document: Value) -> Self {
        let text = |at: &str| document.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        let spec = Fields::new(format!("{kind} {name}"), document["spec"].clone());
        Self { name, namespace, spec }
    }
}

/// The fields of an object, to be taken one by one.
pub struct Fields {
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// An object that stands at `path`.
    #[track_caller]
    pub fn new(path: String, object: Value) -> Self {
        match object {
            Value::Object(fields) => Self { path, fields },
            other => panic!("{path} is no object: {other}"),
        }
    }

    /// Takes a field, if it is there.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name)
    }

    /// Takes a field that must be there.
    #[track_caller]
    pub fn need(&mut self, name: &str) -> Value {
        self.take(name).unwrap_or_else(|| panic!("{} has no {name}", self.path))
    }

    /// Takes a field that must be there and a text.
    #[track_caller]
    pub fn text(&mut self, name: &str) -> String {
        self.need(name)
            .as_str()
            .map(str::to_owned)
            .unwrap_or_else(|| panic!("{}.{name} is no text", self.path))
    }

    /// Takes an object; an absent one is empty.
    #[track_caller]
    pub fn object(&mut self, name: &str) -> Self {
        let value = self.take(name).unwrap_or_else(|| Value::Object(Map::new()));
        Self::new(format!("{}.{name}", self.path), value)
    }

    /// Takes a list of objects; an absent one is empty.
    #[track_caller]
    pub fn objects(&mut self, name: &str) -> Vec<Self> {
        let list = self.take(name).unwrap_or_else(|| Value::Array(Vec::new()));
        let list = list.as_array().unwrap_or_else(|| panic!("{}.{name} is no list", self.path));
        let path = |i: usize| format!("{}.{name}[{i}]", self.path);
        list.iter().enumerate().map(|(i, item)| Self::new(path(i), item.clone())).collect()
    }

    /// A field must say this.
    #[track_caller]
    pub fn must_be(&mut self, name: &str, value: Value) {
        assert_eq!(self.need(name), value, "{}.{name}", self.path);
    }

    /// All fields must have been taken.
    #[track_caller]
    pub fn done(self) {
        let names: Vec<_> = self.fields.keys().collect();
        assert!(names.is_empty(), "{}: nobody knows what to make of {names:?}", self.path);
    }
}
