//! The schema of the whole configuration.

use crate::config::RawConfig;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value};

/// What comes first in a schema, in this order.
const ORDER: [&str; 6] = ["$schema", "title", "description", "type", "properties", "items"];

/// JSON Schema (draft 2020-12) of a plugin configuration. Everything stands where it is used: there are no references.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(tidy));
    settings.into_generator().into_root_schema_for::<RawConfig>().to_value()
}

fn tidy(schema: &mut Schema) {
    let Some(schema) = schema.as_object_mut() else { return };
    // Of Rust's types, and not known to validators.
    schema.remove("format");
    // A description's lines are those of the source.
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    match schema.get_mut("default") {
        // What holds without the field is no value.
        Some(Value::Null) => {
            schema.remove("default");
        }
        // By the digits that were written: as a double, an f32 has others.
        Some(default) if default.is_f64() => {
            let digits = default.as_f64().map(|number| (number as f32).to_string()).unwrap_or_default();
            *default = serde_json::from_str(&digits).unwrap_or(Value::Null);
        }
        _ => {}
    }
    let rank = |key: &str| ORDER.iter().position(|first| *first == key).unwrap_or(ORDER.len());
    let mut entries: Vec<_> = std::mem::take(schema).into_iter().collect();
    entries.sort_by(|(one, _), (other, _)| rank(one).cmp(&rank(other)).then_with(|| one.cmp(other)));
    *schema = Map::from_iter(entries);
}
