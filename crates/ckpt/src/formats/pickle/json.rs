//! Values of a pickle as JSON: for what is not a tensor.

use super::tree::{Id, Node, Tree};
use serde_json::{Map, Value, json};

/// Values a single conversion may make. Shared values are written out each time they stand somewhere, so a
/// small pickle could otherwise make an endless text.
const BUDGET: usize = 1 << 20;
/// Nesting a conversion follows.
const DEPTH: usize = 64;

impl Tree {
    /// A value as JSON. Objects become `{"$class": "module.name", ...}`; byte strings and references their
    /// length and content; `None` when the value is too large or nested too deeply.
    pub fn to_json(&self, id: Id) -> Option<Value> {
        let mut budget = BUDGET;
        self.json(id, DEPTH, &mut budget)
    }

    fn json(&self, id: Id, depth: usize, budget: &mut usize) -> Option<Value> {
        *budget = budget.checked_sub(1)?;
        let depth = depth.checked_sub(1)?;
        let list = |items: &[Id], budget: &mut usize| {
            items.iter().map(|&item| self.json(item, depth, budget)).collect::<Option<Vec<Value>>>()
        };
        Some(match self.node(id) {
            Node::None => Value::Null,
            Node::Bool(value) => json!(value),
            Node::Int(value) => json!(value),
            Node::Big(bytes) => {
                json!({ "$int": bytes.iter().map(|b| format!("{b:02x}")).collect::<String>() })
            }
            // JSON has no infinities and no NaN.
            Node::Float(value) if !value.is_finite() => json!({ "$float": value.to_string() }),
            Node::Float(value) => json!(value),
            Node::Text(text) => json!(text),
            Node::Bytes(bytes) => match &bytes.kept {
                Some(kept) => {
                    json!({ "$bytes": kept.iter().map(|b| format!("{b:02x}")).collect::<String>() })
                }
                None => json!({ "$bytes_len": bytes.span.len }),
            },
            Node::List(items) | Node::Tuple(items) => Value::Array(list(items, budget)?),
            Node::Set(items) => json!({ "$set": list(items, budget)? }),
            Node::Dict(pairs) => self.json_pairs(pairs, depth, budget)?,
            Node::Global(global) => json!({ "$global": format!("{}.{}", global.0, global.1) }),
            Node::Persistent(inner) => json!({ "$stored": self.json(*inner, depth, budget)? }),
            Node::Object(object) => {
                if let Some(items) = self.items(id) {
                    return Some(Value::Array(list(items, budget)?));
                }
                if let Some(pairs) = self.pairs(id) {
                    return self.json_pairs(pairs, depth, budget);
                }
                let mut made = Map::new();
                let class = match self.global(object.callable) {
                    Some((module, name)) => json!(format!("{module}.{name}")),
                    None => self.json(object.callable, depth, budget)?,
                };
                made.insert("$class".to_string(), class);
                made.insert("args".to_string(), self.json(object.args, depth, budget)?);
                if let Some(state) = object.state {
                    made.insert("state".to_string(), self.json(state, depth, budget)?);
                }
                if !object.items.is_empty() {
                    made.insert("items".to_string(), Value::Array(list(&object.items, budget)?));
                }
                if !object.pairs.is_empty() {
                    made.insert("pairs".to_string(), self.json_pairs(&object.pairs, depth, budget)?);
                }
                Value::Object(made)
            }
        })
    }

    fn json_pairs(&self, pairs: &[(Id, Id)], depth: usize, budget: &mut usize) -> Option<Value> {
        let mut map = Map::new();
        for &(key, value) in pairs {
            let key = match self.json(key, depth, budget)? {
                Value::String(text) => text,
                other => other.to_string(),
            };
            map.insert(key, self.json(value, depth, budget)?);
        }
        Some(Value::Object(map))
    }
}
