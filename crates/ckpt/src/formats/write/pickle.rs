//! Writing pickles in protocol 2: the metadata of others, and Python values that were kept as JSON.

use crate::formats::pickle::Making;
use serde_json::Value;
use std::borrow::Cow;

/// A Python value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Py {
    None,
    Bool(bool),
    Int(i64),
    /// A longer integer: two's complement, little-endian.
    Big(Vec<u8>),
    Float(f64),
    Text(String),
    Tuple(Vec<Py>),
    List(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// A name of a module.
    Global(Cow<'static, str>, Cow<'static, str>),
    /// What a callable makes of arguments.
    Made(Box<Made>),
    /// Something kept outside the pickle.
    Persistent(Box<Py>),
}

/// A call, and what is done to its result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Made {
    making: Making,
    callable: Py,
    args: Py,
    state: Option<Py>,
    items: Vec<Py>,
    pairs: Vec<(Py, Py)>,
}

impl Py {
    pub(super) fn text(text: impl Into<String>) -> Py {
        Py::Text(text.into())
    }

    /// A tuple of sizes.
    pub(super) fn sizes(sizes: &[usize]) -> Py {
        Py::Tuple(sizes.iter().map(|&size| Py::size(size as u64)).collect())
    }

    /// Sizes of anything that exists are below 2^63.
    pub(super) fn size(size: u64) -> Py {
        Py::Int(i64::try_from(size).unwrap_or(i64::MAX))
    }

    pub(super) fn global(module: &'static str, name: &'static str) -> Py {
        Py::Global(module.into(), name.into())
    }

    /// An object of a class, made without its constructor, with this state.
    pub(super) fn object(class: (&'static str, &'static str), state: Py) -> Py {
        let made = Py::plain(Making::New, Py::global(class.0, class.1), Py::Tuple(Vec::new()));
        Py::Made(Box::new(Made { state: Some(state), ..made }))
    }

    /// An object whose state is its attributes.
    pub(super) fn record(class: (&'static str, &'static str), fields: Vec<(&str, Py)>) -> Py {
        let fields = fields.into_iter().map(|(name, value)| (Py::text(name), value)).collect();
        Py::object(class, Py::Dict(fields))
    }

    pub(super) fn call(callable: (&'static str, &'static str), args: Vec<Py>) -> Py {
        let made = Py::plain(Making::Call, Py::global(callable.0, callable.1), Py::Tuple(args));
        Py::Made(Box::new(made))
    }

    fn plain(making: Making, callable: Py, args: Py) -> Made {
        Made { making, callable, args, state: None, items: Vec::new(), pairs: Vec::new() }
    }

    /// A byte string, as protocol 2 has it: text of which every character is one byte.
    fn bytes(bytes: &[u8]) -> Py {
        let text = bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
        Py::call(("_codecs", "encode"), vec![Py::Text(text), Py::text("latin1")])
    }

    /// The value that was kept as JSON. What no pickle of ours has left there is a dict.
    pub(super) fn from_json(value: &Value) -> Py {
        match value {
            Value::Null => Py::None,
            Value::Bool(value) => Py::Bool(*value),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Py::Int(number),
                None => Py::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Py::text(text.as_str()),
            Value::Array(items) => Py::List(items.iter().map(Py::from_json).collect()),
            Value::Object(fields) => tagged(value).unwrap_or_else(|| {
                let pair = |(name, value): (&String, &Value)| (Py::text(name.as_str()), Py::from_json(value));
                Py::Dict(fields.iter().map(pair).collect())
            }),
        }
    }

    /// The pickle.
    pub(super) fn pickled(&self) -> Vec<u8> {
        let mut out = vec![0x80, 2];
        self.write(&mut out);
        out.push(b'.');
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Py::None => out.push(b'N'),
            Py::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
            Py::Int(value) => int(*value, out),
            Py::Big(bytes) => {
                match u8::try_from(bytes.len()) {
                    Ok(len) => out.extend([0x8a, len]),
                    Err(_) => {
                        out.push(0x8b);
                        out.extend((bytes.len() as u32).to_le_bytes());
                    }
                }
                out.extend(bytes);
            }
            Py::Float(value) => {
                out.push(b'G');
                out.extend(value.to_be_bytes());
            }
            Py::Text(text) => {
                out.push(b'X');
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
            Py::Tuple(items) => {
                out.push(b'(');
                items.iter().for_each(|item| item.write(out));
                out.push(b't');
            }
            Py::List(items) => {
                out.push(b']');
                fill(out, items, b'e', Py::write);
            }
            Py::Dict(pairs) => {
                out.push(b'}');
                fill(out, pairs, b'u', write_pair);
            }
            // A line holds any name but one of two lines.
            Py::Global(module, name) if module.contains('\n') || name.contains('\n') => {
                Py::text(module.as_ref()).write(out);
                Py::text(name.as_ref()).write(out);
                out.push(0x93);
            }
            Py::Global(module, name) => out.extend(format!("c{module}\n{name}\n").into_bytes()),
            Py::Made(made) => made.write(out),
            Py::Persistent(id) => {
                id.write(out);
                out.push(b'Q');
            }
        }
    }
}

impl Made {
    fn write(&self, out: &mut Vec<u8>) {
        self.callable.write(out);
        match (self.making, &self.args) {
            (Making::NewNamed, Py::Tuple(parts)) => {
                parts.iter().for_each(|part| part.write(out));
                out.push(0x92);
            }
            (making, args) => {
                args.write(out);
                out.push(if making == Making::Call { b'R' } else { 0x81 });
            }
        }
        if !self.items.is_empty() {
            fill(out, &self.items, b'e', Py::write);
        }
        if !self.pairs.is_empty() {
            fill(out, &self.pairs, b'u', write_pair);
        }
        if let Some(state) = &self.state {
            state.write(out);
            out.push(b'b');
        }
    }
}

/// Values behind a mark, and the opcode that puts them into what stands before it.
fn fill<T>(out: &mut Vec<u8>, values: &[T], opcode: u8, write: impl Fn(&T, &mut Vec<u8>)) {
    out.push(b'(');
    values.iter().for_each(|value| write(value, out));
    out.push(opcode);
}

fn write_pair((key, value): &(Py, Py), out: &mut Vec<u8>) {
    key.write(out);
    value.write(out);
}

/// A value that JSON has no form for; `None` where the object is a dict.
fn tagged(value: &Value) -> Option<Py> {
    let list = |tag: &str| Some(value.get(tag)?.as_array()?.iter().map(Py::from_json).collect::<Vec<Py>>());
    let bytes = |tag: &str| unhex(value.get(tag)?.as_str()?);
    let set = |name: &'static str, items: Vec<Py>| Py::call(("__builtin__", name), vec![Py::List(items)]);
    let (tag, inner) = value.as_object()?.iter().find(|(key, _)| key.starts_with('$'))?;
    Some(match tag.as_str() {
        "$float" => Py::Float(inner.as_str()?.parse().ok()?),
        "$int" => Py::Big(bytes(tag)?),
        "$bytes" => Py::bytes(&bytes(tag)?),
        "$bytearray" => Py::call(("__builtin__", "bytearray"), vec![Py::bytes(&bytes(tag)?)]),
        "$tuple" => Py::Tuple(list(tag)?),
        "$set" => set("set", list(tag)?),
        "$frozenset" => set("frozenset", list(tag)?),
        "$dict" => Py::Dict(pairs(inner)?),
        "$global" => {
            Py::Global(inner.get(0)?.as_str()?.to_string().into(), inner.get(1)?.as_str()?.to_string().into())
        }
        "$stored" => Py::Persistent(Box::new(Py::from_json(inner))),
        "$call" => made(Making::Call, inner, value)?,
        "$new" => made(Making::New, inner, value)?,
        "$new_named" => made(Making::NewNamed, inner, value)?,
        _ => return None,
    })
}

fn made(making: Making, callable: &Value, value: &Value) -> Option<Py> {
    let part = |name: &str| value.get(name).map(Py::from_json);
    let items = match value.get("items") {
        Some(items) => items.as_array()?.iter().map(Py::from_json).collect(),
        None => Vec::new(),
    };
    let pairs = value.get("pairs").map_or(Some(Vec::new()), pairs)?;
    let (callable, args) = (Py::from_json(callable), part("args")?);
    Some(Py::Made(Box::new(Made { making, callable, args, state: part("state"), items, pairs })))
}

fn pairs(value: &Value) -> Option<Vec<(Py, Py)>> {
    let pair = |pair: &Value| Some((Py::from_json(pair.get(0)?), Py::from_json(pair.get(1)?)));
    value.as_array()?.iter().map(pair).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect()
}

fn int(value: i64, out: &mut Vec<u8>) {
    match value {
        0..=0xff => out.extend([b'K', value as u8]),
        0x100..=0xffff => {
            out.push(b'M');
            out.extend((value as u16).to_le_bytes());
        }
        _ if i32::try_from(value).is_ok() => {
            out.push(b'J');
            out.extend((value as i32).to_le_bytes());
        }
        _ => {
            out.extend([0x8a, 8]);
            out.extend(value.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::pickle::{Limits, read};
    use planaria_store::{Object, Store, StoreExt};
    use serde_json::json;

    #[test]
    fn what_is_written_is_read_back() {
        let value = json!({
            "f": false, "int": { "$int": "000000000000000001" }, "list": [[], {}, 0], "n": null, "t": true,
            "odd": { "$float": "inf" }, "text": "ü\n", "tuple": { "$tuple": [1, { "$tuple": [] }] }, "x": 1.5,
            "ints": [0, 255, 256, 65535, 65536, -1, 2147483647, 2147483648i64, i64::MIN, i64::MAX],
            "dict": { "$dict": [["z", 1], ["a", { "$float": "nan" }], [3, { "$dict": [["$tuple", []]] }]] },
            "size": { "$call": { "$global": ["torch", "Size"] }, "args": { "$tuple": [{ "$tuple": [2, 3] }] } },
            "new": { "$new": { "$global": ["a.b\nc", "C"] }, "args": { "$tuple": [] }, "items": [1], "pairs": [["k", 2]],
                "state": { "s": 1 } },
            "named": { "$new_named": { "$global": ["m", "C"] }, "args": { "$tuple": [{ "$tuple": [1] }, { "k": 2 }] } },
        });
        let store = Object::memory();
        store.write("p", &Py::from_json(&value).pickled()).unwrap();
        let file = store.reader("p").unwrap();
        let tree = read(&*file, &Limits::default()).unwrap();
        assert_eq!(tree.to_json(tree.root(), &*file).unwrap(), Some(value));
    }
}
