//! Mistral: Llama without biases; with `sliding_window` every layer sees only that many tokens.

use super::decoder::{DecoderConfig, Family};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value};

/// `mistral`.
pub static MISTRAL: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    keys: &["sliding_window"],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    let window = read.maybe_size("sliding_window")?.filter(|&window| window > 0);
    config.windows = vec![window; config.layers];
    Ok(())
}

/// The window is written as it was read.
fn write(_: &DecoderConfig, _: &mut Map<String, Value>) {}
