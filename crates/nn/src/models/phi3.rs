//! Phi-3: fused matrices, a part of every head rotated, and frequencies that are stretched pair by pair (LongRoPE).

use super::decoder::{DecoderConfig, Family};
use super::json::Reader;
use crate::error::{Error, Result};
use crate::layers::RopeScaling;
use serde_json::{Map, Value};

/// `phi3`.
pub static PHI3: Family = Family {
    model_type: "phi3",
    architecture: "Phi3ForCausalLM",
    keys: &[
        "sliding_window",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "resid_pdrop",
        "embd_pdrop",
    ],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    config.rms_norm_eps = read.number("rms_norm_eps", 1e-5)?;
    for key in ["resid_pdrop", "embd_pdrop"] {
        if read.number(key, 0.0)? != 0.0 {
            let hint = "dropout between blocks is `hidden_dropout` here; set this to 0".to_string();
            return Err(Error::Unsupported { key: key.to_string(), found: "not 0".to_string(), hint });
        }
    }
    let window = read.maybe_size("sliding_window")?.filter(|&window| window > 0);
    config.windows = vec![window; config.layers];
    config.variations.fused = true;
    let inside = read.object("rope_parameters")?.map(|map| Reader::inside(map, "rope_parameters."));
    let outer = read.number("partial_rotary_factor", 1.0)?;
    let share = inside.map_or(Ok(outer), |inside| inside.number("partial_rotary_factor", outer))?;
    let rotated = (config.head_dim as f64 * share) as usize;
    if let RopeScaling::Long { short, long, .. } = &config.rope_scaling
        && (short.len() != rotated / 2 || long.len() != rotated / 2)
    {
        let what = format!("{} and {} factors for {} rotated pairs", short.len(), long.len(), rotated / 2);
        return Err(Error::Sizes { what });
    }
    config.variations.rotated = Some(rotated);
    Ok(())
}

/// All of it is written as it was read.
fn write(_: &DecoderConfig, _: &mut Map<String, Value>) {}
