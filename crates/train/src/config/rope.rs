//! `rope_scaling` and `rope_parameters` of a model: the rotary embedding's own keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How the rotary embedding reaches past the positions it was trained on. The keys are those of Hugging Face.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RopeSection {
    /// `default`, `linear`, `llama3` or `yarn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_type: Option<String>,
    /// The same under its old name.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Base of the frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// How many times further it reaches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Longest sequence it was trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_max_position_embeddings: Option<usize>,
    /// `llama3`: wavelengths above the original length by this are stretched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_freq_factor: Option<f64>,
    /// `llama3`: wavelengths below the original length by this stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_freq_factor: Option<f64>,
    /// `yarn`: rotations above which a frequency stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_fast: Option<f64>,
    /// `yarn`: rotations below which it is stretched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_slow: Option<f64>,
    /// `yarn`: factor on cosines and sines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_factor: Option<f64>,
    /// Part of each head that is rotated; only 1 is supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_rotary_factor: Option<f64>,
}

/// Puts the section's rotary keys, already in `json`, in force: a `config.json` keeps them in one object, or base and scaling
/// apart, and the object wins over what stands beside it.
pub(super) fn settle(json: &mut Map<String, Value>, given: &Map<String, Value>) {
    let has = |key: &str| given.contains_key(key);
    if has("rope_parameters") {
        json.remove("rope_scaling");
    } else if has("rope_scaling") {
        let before = json.remove("rope_parameters");
        let theta = before.as_ref().and_then(|inner| inner.get("rope_theta"));
        if let Some(theta) = theta.filter(|_| !has("rope_theta")) {
            json.insert("rope_theta".into(), theta.clone());
        }
    }
    if let Some(theta) = given.get("rope_theta") {
        for key in ["rope_parameters", "rope_scaling"] {
            let inner = json.get_mut(key).and_then(Value::as_object_mut);
            // The section's own object has the last word.
            let own = given.get(key).is_some_and(|inner| inner.get("rope_theta").is_some());
            if let Some(inner) = inner.filter(|inner| inner.contains_key("rope_theta") && !own) {
                inner.insert("rope_theta".into(), theta.clone());
            }
        }
    }
}
