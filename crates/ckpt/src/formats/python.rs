//! Python values as JSON (`pickle::json` says how), looked at: what is a list, what is a dict.

use serde_json::Value;

/// The items of a list or tuple.
pub(crate) fn items(value: &Value) -> Option<&[Value]> {
    value.as_array().or_else(|| value.get("$tuple")?.as_array()).map(Vec::as_slice)
}

/// Keys and values of a dict whose keys are text, in its order.
pub(crate) fn fields(value: &Value) -> Option<Vec<(&str, &Value)>> {
    if let Some(pairs) = pairs(value) {
        return pairs.iter().map(|pair| pair.get(0)?.as_str().zip(pair.get(1))).collect();
    }
    let map = value.as_object().filter(|map| map.keys().all(|key| !key.starts_with('$')))?;
    Some(map.iter().map(|(key, value)| (key.as_str(), value)).collect())
}

/// The value under a key of a dict; of equal keys the last counts.
pub(crate) fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    fields(value)?.into_iter().rev().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// The pairs of a dict that is not a JSON object, also of an `OrderedDict` or the like.
fn pairs(value: &Value) -> Option<&Vec<Value>> {
    const CLASSES: [&str; 2] = ["OrderedDict", "defaultdict"];
    let of = value.get("$call").map(|callable| &callable["$global"]);
    match of {
        Some(global) if global[0] == "collections" && CLASSES.iter().any(|class| global[1] == *class) => {
            value.get("pairs")?.as_array()
        }
        _ => value.get("$dict")?.as_array(),
    }
}
