//! What a profile may say of parts, made from the registry for the schema of the configuration.

use super::build::MAX_PARTS;
use super::part::Stage;
use super::registry::REGISTRY;
use crate::config::Bounds;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// What a profile itself reads of a filter.
#[derive(Default, JsonSchema)]
#[serde(default)]
pub struct OfFilter {
    /// If the filter leaves nobody: refuse the request with 503 (`true`), or go on as if the filter weren't there, and count it
    /// (`false`).
    pub strict: bool,
}

/// What a profile itself reads of a scorer.
#[derive(JsonSchema)]
#[serde(default)]
pub struct OfScorer {
    /// Factor of the score in the sum.
    #[schemars(transform = Self::WEIGHT.schema())]
    pub weight: f32,
}

impl OfScorer {
    /// Weights that there may be.
    pub const WEIGHT: Bounds<f32> = Bounds::new(0.0, 1000.0);
}

impl Default for OfScorer {
    fn default() -> Self {
        Self { weight: 1.0 }
    }
}

/// A list of preparations.
pub fn preparations(generator: &mut SchemaGenerator) -> Schema {
    list(parts(Stage::Prepare, &Map::new(), generator))
}

/// A list of filters.
pub fn filters(generator: &mut SchemaGenerator) -> Schema {
    let common = OfFilter::json_schema(generator);
    list(parts(Stage::Filter, &properties(common), generator))
}

/// A list of scorers.
pub fn scorers(generator: &mut SchemaGenerator) -> Schema {
    let common = OfScorer::json_schema(generator);
    list(parts(Stage::Score, &properties(common), generator))
}

/// A picker.
pub fn pickers(generator: &mut SchemaGenerator) -> Schema {
    parts(Stage::Pick, &Map::new(), generator)
}

/// One of these, each by its name as `type`, with its own fields.
pub fn one_of<'a>(all: impl Iterator<Item = (&'a str, Schema)>) -> Schema {
    let all: Vec<_> = all.map(|(name, schema)| typed(name, schema)).collect();
    json_schema!({"oneOf": all})
}

fn typed(name: &str, mut schema: Schema) -> Schema {
    let mut required = vec![Value::from("type")];
    if let Some(Value::Array(own)) = schema.remove("required") {
        required.extend(own);
    }
    let mut fields = Map::new();
    fields.insert("type".to_owned(), json!({"const": name}));
    fields.extend(properties(schema.clone()));
    schema.insert("properties".to_owned(), fields.into());
    schema.insert("required".to_owned(), required.into());
    schema
}

fn parts(stage: Stage, common: &Map<String, Value>, generator: &mut SchemaGenerator) -> Schema {
    let of_stage = REGISTRY.iter().filter(|entry| entry.stage == stage);
    one_of(of_stage.filter_map(|entry| {
        let mut schema = entry.schema?(generator);
        let mut fields = properties(schema.clone());
        fields.extend(common.clone());
        schema.insert("properties".to_owned(), fields.into());
        Some((entry.name, schema))
    }))
}

fn list(items: Schema) -> Schema {
    json_schema!({"type": "array", "items": items, "maxItems": MAX_PARTS})
}

fn properties(mut schema: Schema) -> Map<String, Value> {
    match schema.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    }
}
