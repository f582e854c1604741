//! `*.index.json`: which file holds which tensor.

use crate::error::{Error, Result};
use planaria_store::{Store, StoreExt, check_name};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Largest index that is read.
const INDEX: u64 = 512 << 20;

/// An index file.
#[derive(Debug)]
pub(super) struct IndexFile {
    pub(super) file: String,
    /// Tensor to file; `None` when the index has no such table.
    pub(super) weights: Option<BTreeMap<String, String>>,
    /// Everything else in it.
    pub(super) rest: Map<String, Value>,
}

/// A map that refuses a key that appears twice.
struct Weights(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Weights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Weights, D::Error> {
        deserializer.deserialize_map(WeightsVisitor)
    }
}

struct WeightsVisitor;

impl<'de> Visitor<'de> for WeightsVisitor {
    type Value = Weights;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Weights, A::Error> {
        let mut weights = BTreeMap::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if weights.insert(tensor.clone(), file).is_some() {
                return Err(serde::de::Error::custom(format!("tensor '{tensor}' appears twice")));
            }
        }
        Ok(Weights(weights))
    }
}

#[derive(serde::Deserialize)]
struct Raw {
    weight_map: Option<Weights>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl IndexFile {
    /// Reads an index; file names that lead out of the folder are refused.
    pub(super) fn read(store: &dyn Store, file: &str) -> Result<IndexFile> {
        let bytes = store.read(file, INDEX)?;
        let malformed = |what: String| Error::Malformed { file: file.to_string(), what };
        let raw: Raw = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        let weights = raw.weight_map.map(|weights| weights.0);
        for (tensor, name) in weights.iter().flatten() {
            if check_name(name).is_err() || name.contains('/') {
                let what =
                    format!("it places tensor '{tensor}' in '{name}', which is not a file of this folder");
                return Err(malformed(what));
            }
        }
        Ok(IndexFile { file: file.to_string(), weights, rest: raw.rest })
    }

    /// The files it names.
    pub(super) fn files(&self) -> BTreeSet<&str> {
        self.weights.iter().flat_map(BTreeMap::values).map(String::as_str).collect()
    }
}
