//! Tables of patterns in the order of their file: the first that fits counts, and maps would sort them.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// Reads a table as a list of its entries; nothing is an empty one.
pub fn deserialize<'de, D, V>(from: D) -> Result<Vec<(String, V)>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    from.deserialize_any(Pairs(PhantomData))
}

/// Writes a list of entries as a table.
pub fn serialize<S, V>(pairs: &[(String, V)], to: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
    V: Serialize,
{
    to.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

struct Pairs<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
    type Value = Vec<(String, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of patterns")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut list: Vec<(String, V)> = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            // A key that is written twice means its last value, as in any JSON.
            list.retain(|(other, _)| *other != key);
            list.push((key, value));
        }
        Ok(list)
    }
}
