//! A file as a tree in which every node knows its path.

use serde_json::Value;

/// Reads JSON or YAML; several documents become a list. The error says what is wrong and where.
pub fn parse(text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    Ok(if documents.len() == 1 { documents.remove(0) } else { documents.into() })
}

/// A node of the tree.
#[derive(Clone)]
pub struct Node<'a> {
    /// Its value.
    pub value: &'a Value,
    /// Where it is; empty for the root.
    pub path: String,
}

impl<'a> Node<'a> {
    /// The whole file.
    pub fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    /// The path of a field, there or not.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field, under its own name or as protobuf's JSON spells it (`failure_policy`, `failurePolicy`).
    pub fn field(&self, name: &str) -> Option<Self> {
        let object = self.value.as_object()?;
        let camel = camel(name);
        let found = [name, &camel].into_iter().find_map(|name| Some((name, object.get(name)?)));
        let (name, value) = found?;
        (!value.is_null()).then(|| Self { value, path: self.path_of(name) })
    }

    /// A field of a field of ...
    pub fn at(&self, names: &[&str]) -> Option<Self> {
        names.iter().try_fold(self.clone(), |node, name| node.field(name))
    }

    /// Elements of a list; none where it is no list.
    pub fn items(&self) -> Vec<Self> {
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(|(i, value)| Self { value, path: format!("{}[{i}]", self.path) }).collect()
    }

    /// Elements of the list in a field.
    pub fn list(&self, name: &str) -> Vec<Self> {
        self.field(name).map(|list| list.items()).unwrap_or_default()
    }

    /// Fields and elements.
    pub fn children(&self) -> Vec<Self> {
        let fields = self.value.as_object().into_iter().flatten();
        let fields = fields.map(|(name, value)| Self { value, path: self.path_of(name) });
        fields.chain(self.items()).collect()
    }

    /// A string.
    pub fn text(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    /// The string in a field.
    pub fn text_of(&self, name: &str) -> Option<&'a str> {
        self.field(name)?.text()
    }

    /// Is it this boolean?
    pub fn is(&self, wanted: bool) -> bool {
        self.value.as_bool() == Some(wanted)
    }

    /// A whole number, which protobuf's JSON may spell as a string.
    pub fn number(&self) -> Option<u64> {
        self.value.as_u64().or_else(|| self.text()?.parse().ok())
    }

    /// A duration in seconds: `1.5s`.
    pub fn seconds(&self) -> Option<f64> {
        self.text()?.strip_suffix('s')?.parse().ok()
    }

    /// Is this a message of that type, by the last segment of its `@type`'s package path and name?
    pub fn is_type(&self, suffix: &str) -> bool {
        self.value.get("@type").and_then(Value::as_str).is_some_and(|name| name.ends_with(suffix))
    }
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut chars = word.chars();
        camel.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        camel.extend(chars);
    }
    camel
}
