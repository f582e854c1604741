//! Llama: no biases unless asked for, every layer sees all that came before it.

use super::decoder::{DecoderConfig, Family};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value};

/// `llama`.
pub static LLAMA: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    keys: &["attention_bias", "mlp_bias", "pretraining_tp"],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    let bias = read.flag("attention_bias", false)?;
    (config.qkv_bias, config.output_bias) = (bias, bias);
    config.mlp_bias = read.flag("mlp_bias", false)?;
    Ok(())
}

fn write(config: &DecoderConfig, map: &mut Map<String, Value>) {
    map.insert("attention_bias".to_string(), config.qkv_bias.into());
    map.insert("mlp_bias".to_string(), config.mlp_bias.into());
}
