//! Qwen3: Qwen2 without biases, with a norm on the queries and keys of every head.

use super::decoder::{DecoderConfig, Family, windows};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value};

/// `qwen3`.
pub static QWEN3: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    keys: &["attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    config.head_dim = read.maybe_size("head_dim")?.unwrap_or(128);
    config.windows = windows(read, config.layers, |layer, first| layer >= first)?;
    heads(read, config)
}

/// What Qwen3 does to heads, with experts and without.
pub(super) fn heads(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    let bias = read.flag("attention_bias", false)?;
    (config.qkv_bias, config.output_bias) = (bias, bias);
    config.variations.head_norms = true;
    Ok(())
}

pub(super) fn write(config: &DecoderConfig, map: &mut Map<String, Value>) {
    map.insert("attention_bias".to_string(), config.qkv_bias.into());
    map.insert("head_dim".to_string(), config.head_dim.into());
}
