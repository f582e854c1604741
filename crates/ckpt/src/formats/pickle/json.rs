//! Values of a pickle as JSON from which the same values can be made again: for what is not a tensor.
//!
//! `None`, truth values, integers of 64 bits, finite floats, text, lists and dicts with text keys in ascending order are
//! themselves. Everything else is an object with one key that begins with `$`:
//!
//! | JSON | Python |
//! |---|---|
//! | `{"$float": "inf"}` | what is not a number in JSON, or not the same one when it is read |
//! | `{"$int": "..."}` | longer integers: two's complement, little-endian, in hexadecimal |
//! | `{"$bytes": "..."}`, `{"$bytearray": "..."}` | in hexadecimal |
//! | `{"$tuple": []}`, `{"$set": []}`, `{"$frozenset": []}` | |
//! | `{"$dict": [[key, value], ...]}` | other dicts |
//! | `{"$global": [module, name]}` | a class or function |
//! | `{"$call": callable, "args": ..., "state": ..., "items": ..., "pairs": ...}` | what a call made; `$new` without the constructor |
//! | `{"$stored": ...}` | a reference to something outside the pickle |

use super::tree::{Bytes, Id, Making, Node, Object, Tree};
use crate::error::Result;
use planaria_store::Reader;
use serde_json::{Map, Value, json};

/// Most values that are written out. Shared values are written each time they stand somewhere.
pub(crate) const VALUES: u64 = 8 << 20;
/// Most bytes of text and byte strings that are written out.
const BYTES: u64 = 256 << 20;
/// Levels of JSON that parsers follow, less what may stand around a value.
const DEPTH: u32 = 100;

impl Tree {
    /// A value as JSON; `None` when it is too large, nested too deeply or a part of itself. Long byte strings are read from
    /// `file`, which the pickle was read from.
    pub fn to_json(&self, id: Id, file: &dyn Reader) -> Result<Option<Value>> {
        match self.unwritable(id) {
            Some(_) => Ok(None),
            None => self.json(id, file).map(Some),
        }
    }

    /// Why a value cannot be written out as JSON, if it cannot.
    pub(crate) fn unwritable(&self, id: Id) -> Option<String> {
        let extent = self.extent(id);
        if extent.values == u64::MAX {
            Some("it is a part of itself, or shares its parts too often".to_string())
        } else if extent.values > VALUES {
            Some(format!("it has {} values, at most {VALUES} are carried", extent.values))
        } else if extent.bytes > BYTES {
            Some(format!("it has {} bytes of text, at most {BYTES} are carried", extent.bytes))
        } else if extent.depth > DEPTH {
            Some("it is nested too deeply".to_string())
        } else {
            None
        }
    }

    fn json(&self, id: Id, file: &dyn Reader) -> Result<Value> {
        let list = |items: &[Id]| items.iter().map(|&item| self.json(item, file)).collect::<Result<Value>>();
        Ok(match self.node(id) {
            Node::None => Value::Null,
            Node::Bool(value) => json!(value),
            Node::Int(value) => json!(value),
            Node::Big(bytes) => json!({ "$int": hex(bytes) }),
            Node::Float(value) if value.is_nan() => json!({ "$float": "nan" }),
            Node::Float(value) if !survives(*value) => json!({ "$float": format!("{value:?}") }),
            Node::Float(value) => json!(value),
            Node::Text(text) => json!(text),
            Node::Bytes(bytes) => bytes_json(bytes, file)?,
            Node::List(items) => list(items)?,
            Node::Tuple(items) => json!({ "$tuple": list(items)? }),
            Node::Set(items) => json!({ "$set": list(items)? }),
            Node::FrozenSet(items) => json!({ "$frozenset": list(items)? }),
            Node::Dict(pairs) if self.is_plain(pairs) => {
                let mut map = Map::new();
                for &(key, value) in pairs {
                    map.insert(self.text(key).unwrap_or_default().to_string(), self.json(value, file)?);
                }
                Value::Object(map)
            }
            Node::Dict(pairs) => json!({ "$dict": self.pairs_json(pairs, file)? }),
            Node::Global(global) => json!({ "$global": [global.0, global.1] }),
            Node::Persistent(inner) => json!({ "$stored": self.json(*inner, file)? }),
            Node::Object(object) => self.object_json(object, file)?,
        })
    }

    fn object_json(&self, object: &Object, file: &dyn Reader) -> Result<Value> {
        let tag = match object.making {
            Making::Call => "$call",
            Making::New => "$new",
            Making::NewNamed => "$new_named",
        };
        let mut made = Map::new();
        made.insert(tag.to_string(), self.json(object.callable, file)?);
        made.insert("args".to_string(), self.json(object.args, file)?);
        if let Some(state) = object.state {
            made.insert("state".to_string(), self.json(state, file)?);
        }
        if !object.items.is_empty() {
            let items = object.items.iter().map(|&item| self.json(item, file)).collect::<Result<Value>>()?;
            made.insert("items".to_string(), items);
        }
        if !object.pairs.is_empty() {
            made.insert("pairs".to_string(), self.pairs_json(&object.pairs, file)?);
        }
        Ok(Value::Object(made))
    }

    fn pairs_json(&self, pairs: &[(Id, Id)], file: &dyn Reader) -> Result<Value> {
        let pair = |&(key, value): &(Id, Id)| Ok(json!([self.json(key, file)?, self.json(value, file)?]));
        pairs.iter().map(pair).collect()
    }

    /// Whether a dict is the same as a JSON object, whose keys are text and have no order of their own.
    pub(super) fn is_plain(&self, pairs: &[(Id, Id)]) -> bool {
        let keys = || pairs.iter().map(|(key, _)| self.text(*key));
        keys().all(|key| key.is_some_and(|key| !key.starts_with('$'))) && keys().is_sorted_by(|a, b| a < b)
    }
}

/// Whether a number is the same when its JSON is read again: parsers may be off in the last digit.
fn survives(value: f64) -> bool {
    let text = serde_json::to_string(&value).unwrap_or_default();
    serde_json::from_str::<f64>(&text).is_ok_and(|read| read.to_bits() == value.to_bits())
}

fn bytes_json(bytes: &Bytes, file: &dyn Reader) -> Result<Value> {
    let text = match &bytes.kept {
        Some(kept) => hex(kept),
        None => hex(&file.read(bytes.span.offset, bytes.span.len as usize)?),
    };
    Ok(if bytes.mutable { json!({ "$bytearray": text }) } else { json!({ "$bytes": text }) })
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    digits.map(char::from).collect()
}
