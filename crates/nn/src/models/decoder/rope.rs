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
    match map {
        Some(map) => read_scaling(read, map, prefix, outer),
        None => Ok((outer, RopeScaling::Default)),
    }
}

/// Base and scaling of one object of rotary settings; `outer` is the base where it has none.
pub(in crate::models) fn read_scaling(
    read: &Reader<'_>,
    map: &Map<String, Value>,
    prefix: &'static str,
    outer: f64,
) -> Result<(f64, RopeScaling)> {
    let inner = Reader::inside(map, prefix);
    let theta = inner.number("rope_theta", outer)?;
    if read.get("model_type").and_then(Value::as_str) != Some("phi3")
        && inner.number("partial_rotary_factor", 1.0)? != 1.0
    {
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
        // Sections of axes do not change frequencies.
        "default" | "mrope" => RopeScaling::Default,
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
        "longrope" | "su" => long(read, &inner)?,
        other => {
            let (key, found) = (format!("{prefix}rope_type"), format!("\"{other}\""));
            return Err(Error::Unsupported {
                key,
                found,
                hint: "supported are default, linear, llama3, yarn and longrope".to_string(),
            });
        }
    };
    Ok((theta, scaling))
}

/// A factor for each pair of elements; scores are sharpened by how much longer sequences may be than the first ones were.
fn long(read: &Reader<'_>, inner: &Reader<'_>) -> Result<RopeScaling> {
    let list = |key: &str| -> Result<Vec<f64>> {
        let values = inner.list(key)?.unwrap_or_default();
        Ok(values.iter().filter_map(Value::as_f64).collect())
    };
    let longest = read.positive("max_position_embeddings")?;
    let original = match inner.get("original_max_position_embeddings") {
        Some(_) => inner.positive("original_max_position_embeddings")?,
        None => read.number("original_max_position_embeddings", longest)?,
    };
    // A logarithm is divided by.
    let original = original.max(2.0);
    let factor = inner.number("factor", longest / original)?;
    let usual = if factor > 1.0 { (1.0 + factor.ln() / original.ln()).sqrt() } else { 1.0 };
    let attention = inner.number("attention_factor", usual)?;
    let (short, long) = (list("short_factor")?, list("long_factor")?);
    Ok(RopeScaling::Long { short, long, original: original as usize, attention })
}

/// In the form it was read in; today's single object where there was none.
pub(super) fn write(map: &mut Map<String, Value>, config: &DecoderConfig) {
    let old = map.contains_key("rope_theta") || map.contains_key("rope_scaling");
    let split = old && !map.contains_key("rope_parameters");
    let key = if split { "rope_scaling" } else { "rope_parameters" };
    let mut inner = map.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
    let kind = write_scaling(&mut inner, &config.rope_scaling);
    let theta = json!(config.rope_theta);
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

/// Writes what a scaling is made of; gives the name of its kind.
pub(in crate::models) fn write_scaling(
    inner: &mut Map<String, Value>,
    scaling: &RopeScaling,
) -> &'static str {
    let kind = match scaling {
        RopeScaling::Default => "default",
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Llama3 { .. } => "llama3",
        RopeScaling::Yarn { .. } => "yarn",
        // Its factors are written as they were read.
        RopeScaling::Long { .. } => "longrope",
    };
    if let RopeScaling::Linear { factor }
    | RopeScaling::Llama3 { factor, .. }
    | RopeScaling::Yarn { factor, .. } = *scaling
    {
        inner.insert("factor".to_string(), json!(factor));
    }
    if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original, .. } = *scaling {
        inner.insert("low_freq_factor".to_string(), json!(low_freq_factor));
        inner.insert("high_freq_factor".to_string(), json!(high_freq_factor));
        inner.insert("original_max_position_embeddings".to_string(), json!(original as u64));
    }
    if let RopeScaling::Yarn { beta_fast, beta_slow, original, attention, .. } = *scaling {
        let values = [("beta_fast", beta_fast), ("beta_slow", beta_slow), ("attention_factor", attention)];
        inner.extend(values.map(|(key, value)| (key.to_string(), json!(value))));
        inner.insert("original_max_position_embeddings".to_string(), json!(original as u64));
    }
    kind
}
