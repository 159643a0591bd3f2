//! One schema inside the configuration's, in words.

use serde_json::{Map, Value};
use std::fmt::Write;

/// A schema, and the path of what it describes: `discovery.rules[].match`.
#[derive(Clone)]
pub struct Node<'a> {
    schema: &'a Map<String, Value>,
    /// What is said of it as a field, where that is another.
    field: &'a Map<String, Value>,
    pub path: String,
    /// May `null` stand there, which is as if nothing did?
    nullable: bool,
}

/// What it is.
pub enum Kind<'a> {
    /// An object of known fields.
    Object(Vec<Field<'a>>),
    /// Values by free names.
    Values(Node<'a>),
    /// A list.
    List(Node<'a>),
    /// Parts or protocols, by `type`.
    Typed(Vec<(&'a str, Node<'a>)>),
    /// One of several.
    Choice(Vec<Node<'a>>),
    /// This value.
    Constant(&'a Value),
    /// A string, a number or a boolean.
    Scalar(&'a str),
}

/// A field of an object.
#[derive(Clone)]
pub struct Field<'a> {
    pub name: &'a str,
    pub required: bool,
    pub node: Node<'a>,
}

impl<'a> Node<'a> {
    /// The node of a schema that isn't `true` or `false`.
    pub fn new(schema: &'a Value, path: String) -> Option<Self> {
        let field = schema.as_object()?;
        let mut schema = field;
        let mut nullable = schema.get("type").is_some_and(|kind| kind.as_array().is_some());
        if let Some([only, null]) = schema.get("anyOf").and_then(Value::as_array).map(Vec::as_slice)
            && is_null(null)
        {
            (schema, nullable) = (only.as_object()?, true);
        }
        Some(Self { schema, field, path, nullable })
    }

    fn number(&self, key: &str) -> Option<&'a Value> {
        self.schema.get(key).filter(|bound| bound.is_number())
    }

    fn inside(&self, key: &str, path: &str) -> Option<Self> {
        Self::new(self.schema.get(key)?, format!("{}{path}", self.path))
    }

    /// Its meaning.
    pub fn description(&self) -> &'a str {
        self.field.get("description").and_then(Value::as_str).unwrap_or_default()
    }

    /// What holds without it.
    pub fn default(&self) -> String {
        match (self.field.get("default"), self.kind()) {
            (Some(Value::Array(list)), _) if list.is_empty() => "none".to_owned(),
            (Some(default), _) => format!("`{default}`"),
            // Its fields have their own.
            (None, Kind::Object(_)) if !self.nullable => String::new(),
            (None, _) => "none".to_owned(),
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind<'a> {
        if let Some(properties) = self.schema.get("properties").and_then(Value::as_object) {
            return Kind::Object(self.fields(properties));
        }
        if let Some(values) = self.inside("additionalProperties", ".*") {
            return Kind::Values(values);
        }
        if let Some(items) = self.inside("items", "[]") {
            return Kind::List(items);
        }
        if let Some(value) = self.schema.get("const") {
            return Kind::Constant(value);
        }
        let choices = ["oneOf", "anyOf"].iter().find_map(|key| self.schema.get(*key)?.as_array());
        if let Some(choices) = choices {
            let choices = choices.iter().filter_map(|one| Self::new(one, self.path.clone()));
            let choices: Vec<_> = choices.collect();
            let typed = choices.iter().map(|one| Some((one.type_name()?, one.clone())));
            return typed.collect::<Option<_>>().map_or(Kind::Choice(choices), Kind::Typed);
        }
        let kind = self.schema.get("type").and_then(|kind| kind.as_str().or_else(|| kind.get(0)?.as_str()));
        Kind::Scalar(kind.unwrap_or_default())
    }

    fn fields(&self, properties: &'a Map<String, Value>) -> Vec<Field<'a>> {
        let required = self.schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|one| one == name));
        let dot = if self.path.is_empty() { "" } else { "." };
        let fields = properties.iter().filter_map(|(name, schema)| {
            let node = Self::new(schema, format!("{}{dot}{name}", self.path))?;
            Some(Field { name, required: is_required(name), node })
        });
        fields.collect()
    }

    fn type_name(&self) -> Option<&'a str> {
        self.schema.get("properties")?.get("type")?.get("const")?.as_str()
    }

    /// Are the two the same wherever they stand?
    pub fn is_like(&self, other: &Self) -> bool {
        (self.schema, self.field) == (other.schema, other.field)
    }

    /// What to write there. `link` makes one to an object or to parts, which have a place of their own.
    pub fn words(&self, link: &dyn Fn(&Self) -> String) -> String {
        match self.kind() {
            Kind::Object(_) | Kind::Typed(_) => link(self),
            Kind::Values(values) => {
                format!("{}{} by name", self.count("Properties"), plural(values.words(link)))
            }
            Kind::List(items) => format!("list of {}{}", self.count("Items"), plural(items.words(link))),
            Kind::Choice(choices) => {
                let choices: Vec<_> = choices.iter().map(Self::inline).collect();
                match choices.split_last() {
                    Some((last, [])) => last.clone(),
                    Some((last, others)) => format!("{} or {last}", others.join(", ")),
                    None => String::new(),
                }
            }
            Kind::Constant(value) => format!("`{value}`"),
            Kind::Scalar("boolean") => "true or false".to_owned(),
            Kind::Scalar(kind) => format!("{kind}{}", self.range()),
        }
    }

    /// The same on one line, where it is a choice of several.
    fn inline(&self) -> String {
        match self.kind() {
            Kind::Object(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|field| format!("\"{}\": {}", field.name, field.node.words(&Self::inline)))
                    .collect();
                format!("`{{{}}}`", fields.join(", "))
            }
            _ => self.words(&Self::inline),
        }
    }

    /// The meaning of each choice that has one, where it is one of several, or a list of such.
    pub fn choices(&self) -> String {
        match self.kind() {
            Kind::List(items) => items.choices(),
            Kind::Choice(choices) => choices.iter().fold(String::new(), |mut out, choice| {
                if !choice.description().is_empty() {
                    let _ = write!(out, " {}: {}", choice.inline(), choice.description());
                }
                out
            }),
            _ => String::new(),
        }
    }

    fn range(&self) -> String {
        let to = |high: Option<&Value>| high.map(|high| format!(" to {high}")).unwrap_or_default();
        let high = self.number("maximum");
        match (self.number("minimum"), self.number("exclusiveMinimum")) {
            (Some(low), _) => format!(" from {low}{}", to(high)),
            (None, Some(low)) => format!(" above {low}, up{}", to(high)),
            (None, None) => String::new(),
        }
    }

    fn count(&self, of: &str) -> String {
        match (self.number(&format!("min{of}")), self.number(&format!("max{of}"))) {
            (Some(least), Some(most)) => format!("{least} to {most} "),
            (Some(least), None) => format!("{least} or more "),
            (None, Some(most)) => format!("at most {most} "),
            (None, None) => String::new(),
        }
    }
}

fn plural(words: String) -> String {
    ["string", "integer", "number"]
        .iter()
        .find_map(|kind| Some(format!("{kind}s{}", words.strip_prefix(kind)?)))
        .unwrap_or(words)
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null")
}
