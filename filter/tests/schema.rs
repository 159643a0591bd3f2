//! The schema says what the filter reads: the same fields, types, ranges and defaults, and whatever stands in this repository.

use jsonschema::Validator;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use warmpath::config::{Router, load};
use warmpath::pipeline::BUILT_IN;
use warmpath::pipeline::part::Stage;
use warmpath::pipeline::registry::REGISTRY;
use warmpath::reference;
use warmpath::workflow::protocol::PROTOCOLS;

fn validator() -> Validator {
    jsonschema::validator_for(&reference::schema()).unwrap()
}

/// What parts and protocols must have beside their `type`; and what more of their schemas there is to see.
fn own_fields(name: &str, stage: Option<Stage>) -> Value {
    match (name, stage) {
        ("session", Some(Stage::Prepare)) => json!({"from": [{"header": "h"}, {"cookie": "c"}, "user"]}),
        ("hash-key", _) => {
            json!({"from": [{"header": "h"}, {"cookie": "c"}, "user", "model", {"prefix": 4}]})
        }
        ("label", _) => json!({"label": "role", "any_of": ["a"]}),
        ("affinity", Some(Stage::Filter)) => json!({"label": "zone"}),
        ("mooncake", None) => json!({"bootstrap_cluster": "b"}),
        _ => json!({}),
    }
}

fn typed(name: &str, stage: Option<Stage>) -> Value {
    let mut part = own_fields(name, stage);
    part["type"] = name.into();
    part
}

fn parts(stage: Stage) -> Vec<Value> {
    let of_stage = REGISTRY.iter().filter(|entry| entry.stage == stage);
    of_stage.map(|entry| typed(entry.name, Some(stage))).collect()
}

/// A right configuration that has every object of the schema.
fn everything() -> Value {
    let mut profiles = json!({"all": {
        "prepare": parts(Stage::Prepare), "filters": parts(Stage::Filter), "scorers": parts(Stage::Score),
        "picker": {"type": "best"},
    }});
    for picker in parts(Stage::Pick) {
        profiles[format!("by-{}", picker["type"].as_str().unwrap())] = json!({"picker": picker});
    }
    let mut workflows = json!({});
    for protocol in PROTOCOLS {
        workflows[protocol.name] = json!({"protocol": typed(protocol.name, None)});
    }
    for object in ["prefill", "decode", "aggregated", "remote_prefill"] {
        workflows["nixl"][object] = json!({});
    }
    json!({
        "pods": [{"name": "a", "address": "10.0.0.1:8000", "labels": {"zone": "z"}, "models": ["m"]}],
        "discovery": {
            "cluster": "admin",
            "pods_of": ["pods"],
            "rules": [{"match": {"zone": "z"}, "labels": {"rack": "r"}}],
        },
        "profiles": profiles,
        "workflows": workflows,
        "select": [{"path": "/a", "header": {"name": "h"}, "profile": "by-random"}],
        "blocks": {}, "index": {}, "limits": {}, "routing": {}, "kv_events": {},
        "tokenizers": [{"models": ["m"], "cluster": "c", "path": "/"}],
        "metrics": {
            "engine": "custom",
            "cluster": "c",
            "names": {
                "kv_usage": {"used": "u", "total": "t"},
                "block_size": {"series": "s", "label": "l"},
                "blocks": {"series": "s", "label": "l"},
            },
        },
        "breaker": {"open_seconds": 1, "max_open_seconds": 3600},
        "admission": {"models": {"m": 1}},
    })
}

/// A field of an object of [`everything`], there or not.
struct Place<'a> {
    /// JSON Pointer of the object.
    object: String,
    name: String,
    /// Is any name allowed there?
    free: bool,
    schema: &'a Value,
}

impl Place<'_> {
    /// The configuration with this value there.
    fn with(&self, value: Value) -> Value {
        let mut config = everything();
        fields(&mut config, &self.object).insert(self.name.clone(), value);
        config
    }

    fn without(&self) -> Value {
        let mut config = everything();
        fields(&mut config, &self.object).remove(&self.name);
        config
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.schema.get(key)?.as_f64()
    }

    fn is(&self, kind: &str) -> bool {
        let kinds = &self.schema["type"];
        kinds == kind || kinds.get(0).is_some_and(|first| first == kind)
    }

    fn at(&self) -> String {
        format!("{}/{}", self.object, self.name)
    }
}

fn fields<'a>(config: &'a mut Value, pointer: &str) -> &'a mut Map<String, Value> {
    config.pointer_mut(pointer).unwrap().as_object_mut().unwrap()
}

/// Adds every field of the objects in `value`; and to `met` the schemas of objects, by address.
fn places<'a>(
    schema: &'a Value,
    value: &Value,
    pointer: &str,
    out: &mut Vec<Place<'a>>,
    met: &mut BTreeSet<*const Value>,
) {
    let place =
        |name: &str, free, schema| Place { object: pointer.to_owned(), name: name.to_owned(), free, schema };
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        met.insert(schema);
        for (name, schema) in properties {
            out.push(place(name, false, schema));
            if let Some(value) = value.get(name) {
                places(schema, value, &format!("{pointer}/{name}"), out, met);
            }
        }
    } else if let Some(schema) = schema.get("additionalProperties").filter(|schema| schema.is_object()) {
        for (name, value) in value.as_object().unwrap() {
            out.push(place(name, true, schema));
            places(schema, value, &format!("{pointer}/{name}"), out, met);
        }
    } else if let Some(schema) = schema.get("items") {
        for (i, value) in value.as_array().unwrap().iter().enumerate() {
            places(schema, value, &format!("{pointer}/{i}"), out, met);
        }
    } else if let Some(choices) = ["oneOf", "anyOf"].iter().find_map(|key| schema.get(*key)?.as_array()) {
        let choice = choices.iter().find(|choice| jsonschema::is_valid(choice, value));
        places(choice.unwrap_or_else(|| panic!("{pointer}: {value}")), value, pointer, out, met);
    }
}

/// All schemas of objects with known fields.
fn objects(schema: &Value, out: &mut BTreeSet<*const Value>) {
    if schema.get("properties").is_some_and(Value::is_object) && schema.get("type").is_some() {
        out.insert(schema);
    }
    match schema {
        Value::Object(map) => map.values().for_each(|inner| objects(inner, out)),
        Value::Array(list) => list.iter().for_each(|inner| objects(inner, out)),
        _ => {}
    }
}

fn every_place(schema: &Value) -> Vec<Place<'_>> {
    let (mut out, mut met, mut all) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    places(schema, &everything(), "", &mut out, &mut met);
    objects(schema, &mut all);
    assert_eq!(met.len(), all.len(), "an object of the schema is not in `everything`");
    out
}

fn read(config: &Value) -> Result<Router, String> {
    load(config.to_string().as_bytes()).map_err(|mistakes| mistakes.to_string())
}

/// That the filter and the schema both take it.
#[track_caller]
fn accepted(validator: &Validator, config: &Value, what: &str) {
    if let Err(mistakes) = read(config) {
        panic!("{what}: the filter refuses it: {mistakes}");
    }
    if let Err(error) = validator.validate(config) {
        panic!("{what}: the schema refuses it: {error} at {}", error.instance_path());
    }
}

/// That neither does.
#[track_caller]
fn refused(validator: &Validator, config: &Value, what: &str) -> String {
    assert!(!validator.is_valid(config), "{what}: the schema takes it");
    read(config).err().unwrap_or_else(|| panic!("{what}: the filter takes it"))
}

#[test]
fn it_is_a_schema() {
    let schema = reference::schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    if let Err(error) = jsonschema::meta::validate(&schema) {
        panic!("{error}");
    }
    accepted(&validator(), &everything(), "everything");
}

#[test]
fn every_range_is_what_the_filter_takes() {
    let (schema, validator) = (reference::schema(), validator());
    let mut ranges = 0;
    for place in every_place(&schema).iter().filter(|place| place.is("integer") || place.is("number")) {
        let at = place.at();
        let least = place.number("minimum").or(place.number("exclusiveMinimum"));
        let (Some(least), Some(most)) = (least, place.number("maximum")) else { panic!("{at} has no range") };
        ranges += 1;
        let whole = place.is("integer");
        let number = |value: f64| if whole { json!(value as i64) } else { json!(value) };
        let step = |from: f64| if whole { 1.0 } else { f64::max(from * 0.001, 0.001) };
        let (low, below) = match place.number("minimum") {
            Some(_) => (least, least - step(least)),
            None => (least + step(least), least),
        };
        for value in [low, most] {
            accepted(&validator, &place.with(number(value)), &format!("{at} = {value}"));
        }
        for value in [below, most + step(most)] {
            let what = format!("{at} = {value}");
            let mistakes = refused(&validator, &place.with(number(value)), &what);
            // A port beyond 65535 is no number of its type to serde.
            let named = ["out of range", "invalid value"].iter().any(|words| mistakes.contains(words));
            assert!(named && mistakes.contains(&place.name), "{what}: {mistakes}");
        }
    }
    assert!(ranges > 50, "{ranges}");
}

#[test]
fn every_default_is_what_holds_without_the_field() {
    let schema = reference::schema();
    let outcome = |config: &Value| {
        let router = read(config)?;
        let workflows = router.workflows().iter().map(|one| {
            (
                one.prefill,
                one.decode,
                one.timeout,
                one.attempts,
                one.retries_decode,
                one.worth,
                one.on_failure,
            )
        });
        let workflows: Vec<_> = workflows.collect();
        Ok::<_, String>(format!("{:?} {:?} {workflows:?}", router.settings(), router.pods()))
    };
    let mut defaults = 0;
    for place in every_place(&schema) {
        if let Some(default) = place.schema.get("default") {
            assert_eq!(outcome(&place.with(default.clone())), outcome(&place.without()), "{}", place.at());
            defaults += 1;
        }
    }
    assert!(defaults > 50, "{defaults}");
}

#[test]
fn every_field_has_its_type_and_its_meaning() {
    let (schema, validator) = (reference::schema(), validator());
    for place in every_place(&schema) {
        let at = place.at();
        // A `type`, or the one field of a choice, which has the description.
        let is_tag = place.schema.get("const").is_some() || place.object.contains("/from/");
        let meant = place.schema.get("description").and_then(Value::as_str);
        assert!(
            is_tag || place.free || meant.is_some_and(|text| text.ends_with('.')),
            "{at} has no description"
        );
        let wrong = if place.is("integer") || place.is("number") { json!("1") } else { json!(12.5) };
        refused(&validator, &place.with(wrong), &at);
    }
}

#[test]
fn every_object_has_the_fields_that_the_filter_knows_and_no_others() {
    let (schema, validator) = (reference::schema(), validator());
    let places = every_place(&schema);
    let mut objects: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for place in places.iter().filter(|place| !place.free) {
        objects.entry(&place.object).or_default().insert(&place.name);
    }
    // Of these serde says no more than that they are none of several.
    let several = ["/metrics/names/", "/profiles/all/prepare/1/from/", "/profiles/all/prepare/2/from/"];
    for (object, mut names) in objects {
        let mut config = everything();
        fields(&mut config, object).insert("no such field".to_owned(), json!(0));
        let mistakes = refused(&validator, &config, object);
        if several.iter().any(|start| object.starts_with(start)) {
            continue;
        }
        let line = mistakes.lines().find(|line| line.contains("no such field"));
        let line = line.unwrap_or_else(|| panic!("{mistakes}"));
        let known: BTreeSet<_> = line.split('`').skip(3).step_by(2).collect();
        // The registry and the profile take these out before the rest is read.
        names.retain(|name| known.contains(name) || !["type", "weight", "strict"].contains(name));
        assert_eq!(names, known, "{object}");
    }
}

#[test]
fn a_required_field_is_required_by_both() {
    let (schema, validator) = (reference::schema(), validator());
    let mut required = 0;
    for place in every_place(&schema) {
        let config = place.without();
        if !validator.is_valid(&config) {
            refused(&validator, &config, &place.at());
            required += 1;
        }
    }
    assert!(required > 30, "{required}");
}

/// Plugin configurations, wherever they stand in a file: as a file, as JSON in Envoy's YAML, or in a manifest of a gateway.
fn plugins(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    if file.extension().is_some_and(|kind| kind == "json") {
        return vec![serde_json::from_str(&text).unwrap()];
    }
    fn find(value: &Value, out: &mut Vec<Value>) {
        if let Some(json) = value.get("value").and_then(Value::as_str).filter(|_| is_text(value)) {
            out.push(serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}")));
        }
        // Envoy Gateway's policy, and Istio's plugin.
        out.extend(value.get("config").filter(|_| value.get("code").is_some()).cloned());
        out.extend(value.get("pluginConfig").cloned());
        match value {
            Value::Object(map) => map.values().for_each(|inner| find(inner, out)),
            Value::Array(list) => list.iter().for_each(|inner| find(inner, out)),
            _ => {}
        }
    }
    fn is_text(value: &Value) -> bool {
        value["@type"] == "type.googleapis.com/google.protobuf.StringValue"
    }
    let mut found = Vec::new();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents.iter().for_each(|document| find(document, &mut found));
    found
}

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "pod-sim" {
            files(&path, out);
        } else if name.ends_with(".json") || name.ends_with(".yaml") {
            out.push(path);
        }
    }
}

#[test]
fn whatever_stands_in_this_repository_is_right() {
    let (root, validator) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), validator());
    let mut found = vec![root.join("envoy/warmpath.yaml"), root.join("filter/tests/check/good-plugin.json")];
    files(&root.join("examples"), &mut found);
    assert!(found.len() >= 20, "{found:?}");
    for file in found {
        let plugins = plugins(&file);
        // The part of Istio's manifests that both ways have in common.
        let has_none = file.ends_with("examples/istio/gateway.yaml");
        assert_eq!(plugins.is_empty(), has_none, "{}: plugin configurations", file.display());
        for plugin in plugins {
            accepted(&validator, &plugin, &file.display().to_string());
        }
    }
    for built_in in BUILT_IN {
        let profile: Value = serde_json::from_str(built_in.json).unwrap();
        let config = json!({"pods": [], "profiles": {"own": profile}});
        if let Err(error) = validator.validate(&config) {
            panic!("{}: {error} at {}", built_in.name, error.instance_path());
        }
    }
}

#[test]
fn a_configuration_may_name_its_schema() {
    let config = json!({"$schema": "../filter/warmpath.schema.json", "pods": [{"address": "10.0.0.1:1"}]});
    accepted(&validator(), &config, "$schema");
}
