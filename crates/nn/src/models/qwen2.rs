//! Qwen2: biases on queries, keys and values; layers from `max_window_layers` on may see only a window.

use super::decoder::{DecoderConfig, Family, windows};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value};

/// `qwen2`.
pub static QWEN2: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    keys: &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    config.qkv_bias = true;
    config.windows = windows(read, config.layers, |layer, first| layer >= first)?;
    Ok(())
}

/// Windows are written as they were read.
fn write(_: &DecoderConfig, _: &mut Map<String, Value>) {}
