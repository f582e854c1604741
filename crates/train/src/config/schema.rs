//! The JSON schema of a configuration, which is also what unknown keys are found with.

use super::Config;
use serde_json::Value;
use std::sync::OnceLock;

/// The JSON schema of a configuration.
pub fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schemars::schema_for!(Config).to_value())
}

/// Stands in a path for any item of a list.
pub(super) const ITEM: &str = "[]";

/// The schema of a key, or the keys that its section has instead.
pub(super) fn find(path: &[&str]) -> Result<&'static Value, (usize, Vec<&'static str>)> {
    let mut at = schema();
    for (depth, key) in path.iter().enumerate() {
        if *key == ITEM {
            at = at.get("items").map_or(at, target);
            continue;
        }
        // A key behind a list is that of its items: of the only one, or of the one whose number stands before it.
        if let Some(items) = at.get("items") {
            at = target(items);
            if key.parse::<usize>().is_ok() {
                continue;
            }
        }
        let Some(properties) = properties(at) else {
            // A table whose keys are anybody's.
            return if is_open(at) { Ok(at) } else { Err((depth, Vec::new())) };
        };
        match properties.get(*key) {
            Some(next) => at = target(next),
            None => return Err((depth, properties.keys().map(String::as_str).collect())),
        }
    }
    Ok(at)
}

/// True when the value of this key may be of a type of JSON schema.
pub(super) fn takes(path: &[&str], name: &str) -> bool {
    find(path).is_ok_and(|schema| {
        let variants = ["oneOf", "anyOf"].iter().filter_map(|k| schema.get(k)?.as_array()).flatten();
        let types = std::iter::once(schema).chain(variants.map(target)).filter_map(|s| s.get("type"));
        types.flat_map(|t| t.as_array().cloned().unwrap_or_else(|| vec![t.clone()])).any(|t| t == name)
    })
}

/// The keys of a section; those of its table form where it has several.
fn properties(schema: &'static Value) -> Option<&'static serde_json::Map<String, Value>> {
    let own = schema.get("properties").and_then(Value::as_object);
    own.or_else(|| {
        let variants = schema.get("anyOf").or_else(|| schema.get("oneOf"))?.as_array()?;
        variants.iter().find_map(|v| target(v).get("properties")?.as_object())
    })
}

/// True for a table that takes any key.
fn is_open(schema: &Value) -> bool {
    schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false))
}

/// What a reference stands for.
fn target(schema: &'static Value) -> &'static Value {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
    name.and_then(|name| self::schema().get("$defs")?.get(name)).unwrap_or(schema)
}
