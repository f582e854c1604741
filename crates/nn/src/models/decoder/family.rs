//! What sets one family of decoders apart from the others.

use super::config::DecoderConfig;
use crate::error::Result;
use crate::models::json::Reader;
use serde_json::{Map, Value};
use std::fmt;

/// A family of decoders: its names, and what it reads and writes besides what all have.
pub struct Family {
    /// The value of `model_type`.
    pub model_type: &'static str,
    /// The entry of `architectures`.
    pub architecture: &'static str,
    /// Keys of `config.json` that only some families have.
    pub keys: &'static [&'static str],
    /// Reads them into a configuration without biases, windows and experts.
    pub read: fn(&Reader<'_>, &mut DecoderConfig) -> Result<()>,
    /// Writes them.
    pub write: fn(&DecoderConfig, &mut Map<String, Value>),
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.model_type == other.model_type
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}
