//! Gemma 2: norms before and after each layer, whose weights count from 1; scores capped; every other layer sees a window.

use super::decoder::{DecoderConfig, Family, act, act_name, windows_of};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value, json};

/// `gemma2`.
pub static GEMMA2: Family = Family {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    keys: &[
        "attention_bias",
        "hidden_activation",
        "sliding_window",
        "layer_types",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    common(read, config)?;
    let window = read.maybe_size("sliding_window")?.unwrap_or(4096);
    config.windows = windows_of(read, config.layers, Some(window), |layer| layer.is_multiple_of(2))?;
    // Null takes a cap away, a missing key does not.
    let cap = |key: &str, otherwise: f64| match (read.has(key), read.get(key)) {
        (true, None) => Ok(None),
        _ => read.number(key, otherwise).map(Some),
    };
    config.variations.attention_cap = cap("attn_logit_softcapping", 50.0)?;
    config.variations.logit_cap = cap("final_logit_softcapping", 30.0)?;
    Ok(())
}

/// What Gemma 2 and 3 have in common.
pub(super) fn common(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    let bias = read.flag("attention_bias", false)?;
    (config.qkv_bias, config.output_bias) = (bias, bias);
    config.act = act(read, "hidden_activation", "gelu_pytorch_tanh")?;
    config.head_dim = read.maybe_size("head_dim")?.unwrap_or(256);
    config.tie_word_embeddings = read.flag("tie_word_embeddings", true)?;
    let vary = &mut config.variations;
    (vary.norms_from_one, vary.post_norms) = (true, true);
    vary.embedding_scale = Some((config.hidden_size as f64).sqrt());
    vary.attention_scale = Some(read.number("query_pre_attn_scalar", 256.0)?.powf(-0.5));
    Ok(())
}

/// Writes what [`common`] reads.
pub(super) fn write_common(config: &DecoderConfig, map: &mut Map<String, Value>) {
    map.remove("hidden_act");
    map.insert("hidden_activation".to_string(), json!(act_name(config.act)));
    map.insert("attention_bias".to_string(), config.qkv_bias.into());
    map.insert("head_dim".to_string(), config.head_dim.into());
}

fn write(config: &DecoderConfig, map: &mut Map<String, Value>) {
    write_common(config, map);
    map.insert("attn_logit_softcapping".to_string(), json!(config.variations.attention_cap));
    map.insert("final_logit_softcapping".to_string(), json!(config.variations.logit_cap));
}
