//! The documents of a Kubernetes manifest, each of which must be read, as must each of their fields.

use crate::fields::Fields;
use crate::root;
use serde_json::Value;

/// The documents of one file, by kind and name.
pub struct Manifests(Vec<Value>);

impl Manifests {
    /// Reads a file of `examples/`.
    pub fn load(file: &str) -> Self {
        let file = root().join("examples").join(file);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
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
        let spec = Fields::of(&format!("{kind} {name}"), &document["spec"]);
        Self { name, namespace, spec }
    }
}
