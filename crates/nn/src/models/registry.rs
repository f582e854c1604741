//! The table of models by `model_type`.

use super::architecture::Architecture;
use super::decoder::{DecoderConfig, Family};
use super::gpt2::Gpt2;
use super::latent::{self, Latent};
use super::qwen2_vl::{QWEN2_5_VL, QWEN2_VL, Qwen2VlConfig};
use super::{GEMMA2, GEMMA3, LLAMA, MISTRAL, PHI3, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE};
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

/// The decoders that come with this crate.
pub(super) static FAMILIES: [&Family; 9] =
    [&LLAMA, &QWEN2, &QWEN2_MOE, &QWEN3, &QWEN3_MOE, &MISTRAL, &GEMMA2, &GEMMA3, &PHI3];

/// Makes a model of a parsed `config.json`.
type OpenModel = dyn Fn(Map<String, Value>) -> Result<Arc<dyn Architecture>> + Send + Sync;

/// The known models. A program that has one of its own adds it and hands the table to whatever reads a `config.json`.
#[derive(Clone)]
pub struct Models {
    rows: Vec<Row>,
}

#[derive(Clone)]
struct Row {
    model_type: String,
    keys: &'static [&'static str],
    open: Arc<OpenModel>,
}

impl Default for Models {
    /// Those that come with this crate.
    fn default() -> Models {
        let decoders = FAMILIES.into_iter().fold(Models { rows: Vec::new() }, Models::family);
        let seeing = [&QWEN2_VL, &QWEN2_5_VL].into_iter().fold(decoders, Models::seeing);
        seeing.with("gpt2", Gpt2::open)
    }
}

impl Models {
    /// With a model of one's own. One of the same `model_type` is replaced.
    #[must_use]
    pub fn with(
        self,
        model_type: &str,
        open: impl Fn(Map<String, Value>) -> Result<Arc<dyn Architecture>> + Send + Sync + 'static,
    ) -> Models {
        self.row(Row { model_type: model_type.to_string(), keys: &[], open: Arc::new(open) })
    }

    /// With another family of decoders.
    #[must_use]
    pub fn family(self, family: &'static Family) -> Models {
        let open = move |map| Ok(Arc::new(DecoderConfig::read(map, family)?) as Arc<dyn Architecture>);
        let model_type = family.model_type.to_string();
        self.row(Row { model_type, keys: family.keys, open: Arc::new(open) })
    }

    /// With a family that sees pictures.
    fn seeing(self, family: &'static Family) -> Models {
        let open = move |map| Ok(Arc::new(Qwen2VlConfig::read(map, family)?) as Arc<dyn Architecture>);
        let model_type = family.model_type.to_string();
        self.row(Row { model_type, keys: family.keys, open: Arc::new(open) })
    }

    fn row(mut self, row: Row) -> Models {
        self.rows.retain(|known| known.model_type != row.model_type);
        self.rows.push(row);
        self
    }

    /// Every known `model_type`.
    pub fn known(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.model_type.as_str())
    }

    /// Keys of `config.json` that only some families have: `None` where this `model_type` has the key, or nobody says
    /// whose it is; else those that have it.
    pub fn owners_of(&self, key: &str, model_type: &str) -> Option<Vec<&str>> {
        let owners =
            self.rows.iter().filter(|row| row.keys.contains(&key)).map(|row| row.model_type.as_str());
        let owners: Vec<&str> = owners.collect();
        (!owners.is_empty() && !owners.contains(&model_type)).then_some(owners)
    }

    /// The model of a parsed `config.json`.
    pub fn open(&self, config: Value) -> Result<Arc<dyn Architecture>> {
        let Value::Object(mut map) = config else {
            return Err(Error::Json { reason: "it has the wrong type".to_string() });
        };
        if let Some(about) = latent::entry(&mut map) {
            return Latent::open(self.open(map.into())?, &about);
        }
        let found = map.get("model_type").and_then(Value::as_str).unwrap_or_default();
        match self.rows.iter().find(|row| row.model_type == found) {
            Some(row) => (row.open)(map),
            None => Err(Error::Unsupported {
                key: "model_type".to_string(),
                found: format!("\"{found}\""),
                hint: self.hint(found),
            }),
        }
    }

    /// The known types, and the one whose name is nearest.
    fn hint(&self, found: &str) -> String {
        let near = |known: &&str| strsim::jaro_winkler(known, found);
        let nearest =
            self.known().max_by(|a, b| near(a).total_cmp(&near(b))).filter(|known| near(known) > 0.8);
        let advice = nearest.map(|near| format!("; where only the name differs, set it to `{near}`"));
        format!("supported are {}{}", self.known().collect::<Vec<_>>().join(", "), advice.unwrap_or_default())
    }

    /// The model of the text of a `config.json`.
    pub fn open_json(&self, text: &str) -> Result<Arc<dyn Architecture>> {
        let value = serde_json::from_str(text).map_err(|error| Error::Json { reason: error.to_string() })?;
        self.open(value)
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.known()).finish()
    }
}
