//! Writing pickles: just what the metadata of others consists of, in protocol 2.

use serde_json::Value;

/// A Python value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Py {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Tuple(Vec<Py>),
    List(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// A name of a module.
    Global(&'static str, &'static str),
    /// The callable applied to the arguments.
    Call(Box<Py>, Vec<Py>),
    /// An object of a class, made without its constructor, with this state.
    Object(Box<Py>, Box<Py>),
    /// Something kept outside the pickle.
    Persistent(Box<Py>),
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

    /// An object whose state is its attributes.
    pub(super) fn record(class: (&'static str, &'static str), fields: Vec<(&str, Py)>) -> Py {
        let fields = fields.into_iter().map(|(name, value)| (Py::text(name), value)).collect();
        Py::Object(Box::new(Py::Global(class.0, class.1)), Box::new(Py::Dict(fields)))
    }

    pub(super) fn call(callable: (&'static str, &'static str), args: Vec<Py>) -> Py {
        Py::Call(Box::new(Py::Global(callable.0, callable.1)), args)
    }

    /// The same value as Python's `json` would make of it.
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
            Value::Object(fields) => Py::Dict(
                fields.iter().map(|(name, value)| (Py::text(name.as_str()), Py::from_json(value))).collect(),
            ),
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
                out.extend(b"](");
                items.iter().for_each(|item| item.write(out));
                out.push(b'e');
            }
            Py::Dict(pairs) => {
                out.extend(b"}(");
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
                out.push(b'u');
            }
            Py::Global(module, name) => out.extend(format!("c{module}\n{name}\n").into_bytes()),
            Py::Call(callable, args) => {
                callable.write(out);
                out.push(b'(');
                args.iter().for_each(|arg| arg.write(out));
                out.extend(b"tR");
            }
            Py::Object(class, state) => {
                class.write(out);
                out.extend([b')', 0x81]);
                state.write(out);
                out.push(b'b');
            }
            Py::Persistent(id) => {
                id.write(out);
                out.push(b'Q');
            }
        }
    }
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
            "n": null, "t": true, "f": false, "x": 1.5, "text": "ü\n", "list": [[], {}, 0],
            "ints": [0, 255, 256, 65535, 65536, -1, 2147483647, 2147483648i64, i64::MIN, i64::MAX],
        });
        let store = Object::memory();
        store.write("p", &Py::from_json(&value).pickled()).unwrap();
        let tree = read(&*store.reader("p").unwrap(), &Limits::default()).unwrap();
        assert_eq!(tree.to_json(tree.root()), Some(value));
    }
}
