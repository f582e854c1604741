//! Reading keys of a JSON object, with errors that name the key.

use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// A JSON object and where it stands, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    map: &'a Map<String, Value>,
    prefix: &'static str,
}

impl<'a> Reader<'a> {
    /// The keys of an object.
    pub fn new(map: &'a Map<String, Value>) -> Reader<'a> {
        Reader { map, prefix: "" }
    }

    /// Those of an object inside another; `prefix` stands before its keys in messages.
    pub fn inside(map: &'a Map<String, Value>, prefix: &'static str) -> Reader<'a> {
        Reader { map, prefix }
    }

    /// Whether the key is there, be it null.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// A key's value; null is as good as nothing.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &'static str) -> Error {
        let found = self.map.get(key).map_or("missing".to_string(), Value::to_string);
        Error::Key { key: format!("{}{key}", self.prefix), found, expected }
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &'static str,
        as_type: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => as_type(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }

    /// A positive integer that must be there.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.maybe_size(key)?.filter(|&n| n > 0).ok_or_else(|| self.wrong(key, "a positive integer"))
    }

    /// An integer that may be missing.
    pub fn maybe_size(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "an integer of at least 0", |v| usize::try_from(v.as_u64()?).ok())
    }

    /// A finite number.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        let found = self.read(key, "a finite number", |v| v.as_f64().filter(|x| x.is_finite()))?;
        Ok(found.unwrap_or(default))
    }

    /// A number that must be there and above 0.
    pub fn positive(&self, key: &str) -> Result<f64> {
        let found = self.number(key, 0.0)?;
        if found > 0.0 { Ok(found) } else { Err(self.wrong(key, "a number above 0")) }
    }

    /// True or false.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A string.
    pub fn text(&self, key: &str, default: &'a str) -> Result<&'a str> {
        Ok(self.read(key, "a string", Value::as_str)?.unwrap_or(default))
    }

    /// A list, if it is there.
    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        self.read(key, "a list", |v| v.as_array().map(Vec::as_slice))
    }

    /// An object, if it is there.
    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.read(key, "an object", Value::as_object)
    }
}
