//! Gemma 3 (text): Gemma 2 without caps, with a norm on the queries and keys of every head, and rotary positions of their own in
//! layers that see only a window.

use super::decoder::{DecoderConfig, Family, read_scaling, windows_of, write_scaling};
use super::gemma2::{common, write_common};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value, json};

/// `gemma3_text`.
pub static GEMMA3: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    keys: &[
        "attention_bias",
        "hidden_activation",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
    ],
    read,
    write,
};

/// The keys of `rope_parameters`: of layers that see everything, and of those that see a window.
const KINDS: [(&str, &str); 2] = [
    ("full_attention", "rope_parameters.full_attention."),
    ("sliding_attention", "rope_parameters.sliding_attention."),
];

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    common(read, config)?;
    config.variations.head_norms = true;
    let window = read.maybe_size("sliding_window")?.unwrap_or(4096);
    let pattern = match read.maybe_size("sliding_window_pattern")? {
        Some(pattern) => pattern,
        None => read.maybe_size("_sliding_window_pattern")?.unwrap_or(6),
    };
    let sliding = |layer: usize| !(layer + 1).is_multiple_of(pattern.max(1));
    config.windows = windows_of(read, config.layers, Some(window), sliding)?;
    // Two objects in today's form; a base of its own for windows in the old one.
    let both = read.object("rope_parameters")?;
    let of = |(kind, prefix): (&str, &'static str), base: f64| {
        let inner = both.and_then(|both| both.get(kind)).and_then(Value::as_object);
        inner.map(|inner| read_scaling(read, inner, prefix, base)).transpose()
    };
    if let Some((theta, scaling)) = of(KINDS[0], 1e6)? {
        (config.rope_theta, config.rope_scaling) = (theta, scaling);
    } else if read.get("rope_theta").is_none() {
        config.rope_theta = 1e6;
    }
    let base = read.number("rope_local_base_freq", 1e4)?;
    let windowed = of(KINDS[1], base)?.unwrap_or((base, crate::layers::RopeScaling::Default));
    config.variations.window_rope = Some(windowed);
    Ok(())
}

fn write(config: &DecoderConfig, map: &mut Map<String, Value>) {
    write_common(config, map);
    let Some((theta, scaling)) = &config.variations.window_rope else { return };
    let split = map.contains_key("rope_theta") && !map.contains_key("rope_parameters");
    if split {
        map.insert("rope_local_base_freq".to_string(), json!(theta));
        return;
    }
    let entry = |theta: f64, scaling: &crate::layers::RopeScaling| {
        let mut inner = Map::new();
        let kind = write_scaling(&mut inner, scaling);
        inner.insert("rope_type".to_string(), json!(kind));
        inner.insert("rope_theta".to_string(), json!(theta));
        inner
    };
    let both = json!({
        "full_attention": entry(config.rope_theta, &config.rope_scaling),
        "sliding_attention": entry(*theta, scaling),
    });
    map.insert("rope_parameters".to_string(), both);
}
