//! JSONPaths of patches.

use serde_json::Value;

/// Adds a field to all places of a JSONPath of the form `..list[?(@.name=='NAME')].a.b` or `..list[*].a.b`; returns how many
/// there are.
pub fn add(node: &mut Value, path: &str, name: &str, value: &Value) -> usize {
    let known = "a JSONPath of the form ..list[?(@.name=='NAME')].a.b or ..list[*].a.b";
    let (list, rest) = path.strip_prefix("..").and_then(|path| path.split_once('[')).expect(known);
    let (wanted, rest) = rest.split_once(']').expect(known);
    let wanted = match wanted {
        "*" => None,
        wanted => {
            Some(wanted.strip_prefix("?(@.name=='").and_then(|name| name.strip_suffix("')")).expect(known))
        }
    };
    let mut places = 0;
    if let Some(items) = node.get_mut(list).and_then(Value::as_array_mut) {
        for item in items.iter_mut().filter(|item| wanted.is_none_or(|wanted| item["name"] == wanted)) {
            let mut at = item;
            for step in rest.split('.').skip(1) {
                at = at.get_mut(step).unwrap_or_else(|| panic!("{path}: no {step}"));
            }
            at.as_object_mut().expect("an object").insert(name.to_owned(), value.clone());
            places += 1;
        }
    }
    let inside: Vec<_> = match node {
        Value::Object(fields) => fields.values_mut().collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    };
    places + inside.into_iter().map(|child| add(child, path, name, value)).sum::<usize>()
}
