//! Rotary settings of a `config.json`, in its old form and in today's.

use super::config::DecoderConfig;
use crate::error::{Error, Result};
use crate::layers::RopeScaling;
use crate::models::json::Reader;
use serde_json::{Map, Value, json};

/// Base and scaling: in one object `rope_parameters`, or as `rope_theta` and `rope_scaling`.
pub(super) fn read(read: &Reader<'_>) -> Result<(f64, RopeScaling)> {
    let (map, prefix) = match read.object("rope_parameters")? {
        Some(map) => (Some(map), "rope_parameters."),
        None => (read.object("rope_scaling")?, "rope_scaling."),
    };
    let outer = read.number("rope_theta", 10_000.0)?;
    let Some(map) = map else { return Ok((outer, RopeScaling::Default)) };
    let inner = Reader::inside(map, prefix);
    let theta = inner.number("rope_theta", outer)?;
    if inner.number("partial_rotary_factor", 1.0)? != 1.0 {
        let key = format!("{prefix}partial_rotary_factor");
        let hint = "only whole heads are rotated; set it to 1".to_string();
        return Err(Error::Unsupported { key, found: "not 1".to_string(), hint });
    }
    let kind = inner.text("rope_type", inner.text("type", "default")?)?;
    let original = || match inner.get("original_max_position_embeddings") {
        Some(_) => inner.positive("original_max_position_embeddings"),
        None => read.positive("max_position_embeddings"),
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: inner.positive("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: inner.positive("factor")?,
            low_freq_factor: inner.positive("low_freq_factor")?,
            high_freq_factor: inner.positive("high_freq_factor")?,
            original: original()?,
        },
        "yarn" => {
            let factor = inner.positive("factor")?;
            let usual = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            RopeScaling::Yarn {
                factor,
                beta_fast: inner.number("beta_fast", 32.0)?,
                beta_slow: inner.number("beta_slow", 1.0)?,
                original: original()?,
                attention: inner.number("attention_factor", usual)?,
            }
        }
        other => {
            let (key, found) = (format!("{prefix}rope_type"), format!("\"{other}\""));
            return Err(Error::Unsupported {
                key,
                found,
                hint: "known are default, linear, llama3 and yarn".to_string(),
            });
        }
    };
    Ok((theta, scaling))
}

/// In the form it was read in; today's single object where there was none.
pub(super) fn write(map: &mut Map<String, Value>, config: &DecoderConfig) {
    let old = map.contains_key("rope_theta") || map.contains_key("rope_scaling");
    let split = old && !map.contains_key("rope_parameters");
    let key = if split { "rope_scaling" } else { "rope_parameters" };
    let mut inner = map.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
    let theta = json!(config.rope_theta);
    let kind = match config.rope_scaling {
        RopeScaling::Default => "default",
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Llama3 { .. } => "llama3",
        RopeScaling::Yarn { .. } => "yarn",
    };
    if let RopeScaling::Linear { factor }
    | RopeScaling::Llama3 { factor, .. }
    | RopeScaling::Yarn { factor, .. } = config.rope_scaling
    {
        inner.insert("factor".to_string(), json!(factor));
    }
    if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original, .. } = config.rope_scaling {
        inner.insert("low_freq_factor".to_string(), json!(low_freq_factor));
        inner.insert("high_freq_factor".to_string(), json!(high_freq_factor));
        inner.insert("original_max_position_embeddings".to_string(), json!(original as u64));
    }
    if let RopeScaling::Yarn { beta_fast, beta_slow, original, attention, .. } = config.rope_scaling {
        let values = [("beta_fast", beta_fast), ("beta_slow", beta_slow), ("attention_factor", attention)];
        inner.extend(values.map(|(key, value)| (key.to_string(), json!(value))));
        inner.insert("original_max_position_embeddings".to_string(), json!(original as u64));
    }
    if split {
        map.insert("rope_theta".to_string(), theta);
        if kind == "default" {
            map.entry(key).or_insert(Value::Null);
            return;
        }
    } else {
        inner.insert("rope_theta".to_string(), theta);
    }
    inner.insert("rope_type".to_string(), json!(kind));
    map.insert(key.to_string(), Value::Object(inner));
}
