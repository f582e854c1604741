//! Qwen3 with experts: each token goes to the few its router likes best, none is shared.

use super::decoder::{DecoderConfig, Family, windows};
use super::json::Reader;
use super::{qwen2_moe, qwen3};
use crate::error::Result;
use serde_json::{Map, Value};

/// `qwen3_moe`.
pub static QWEN3_MOE: Family = Family {
    model_type: "qwen3_moe",
    architecture: "Qwen3MoeForCausalLM",
    keys: &[
        "attention_bias",
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "router_aux_loss_coef",
        "decoder_sparse_step",
        "mlp_only_layers",
        "output_router_logits",
    ],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    // A window holds for all layers.
    config.windows = windows(read, config.layers, |_, _| true)?;
    config.experts = Some(qwen2_moe::experts(read, config.layers, 0)?);
    qwen3::heads(read, config)
}

fn write(config: &DecoderConfig, map: &mut Map<String, Value>) {
    qwen2_moe::write_experts(config, map);
    qwen3::write(config, map);
}
