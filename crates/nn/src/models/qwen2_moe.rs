//! Qwen2 with experts: each token goes to the few its router likes best and to one that all share.

use super::decoder::{DecoderConfig, Experts, Family, windows};
use super::json::Reader;
use crate::error::Result;
use serde_json::{Map, Value, json};

/// `qwen2_moe`.
pub static QWEN2_MOE: Family = Family {
    model_type: "qwen2_moe",
    architecture: "Qwen2MoeForCausalLM",
    keys: &[
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
        "layer_types",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "norm_topk_prob",
        "router_aux_loss_coef",
        "decoder_sparse_step",
        "qkv_bias",
        "mlp_only_layers",
        "output_router_logits",
    ],
    read,
    write,
};

fn read(read: &Reader<'_>, config: &mut DecoderConfig) -> Result<()> {
    config.qkv_bias = read.flag("qkv_bias", true)?;
    let sliding = |layer: usize, first: usize| layer.is_multiple_of(2) && layer < first;
    config.windows = windows(read, config.layers, sliding)?;
    let shared = read.size("shared_expert_intermediate_size")?;
    config.experts = Some(experts(read, config.layers, shared)?);
    Ok(())
}

/// Experts by the keys of Qwen; `shared` is the inner width of the one that all share, 0 where there is none.
pub(super) fn experts(read: &Reader<'_>, layers: usize, shared: usize) -> Result<Experts> {
    let step = read.maybe_size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = read.list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |layer: usize| dense.iter().any(|l| l.as_u64() == Some(layer as u64));
    // Today's transformers write another name for the same.
    let count = if read.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
    Ok(Experts {
        count: read.size(count)?,
        choices: read.size("num_experts_per_tok")?,
        intermediate_size: read.size("moe_intermediate_size")?,
        shared_intermediate_size: shared,
        normalize: read.flag("norm_topk_prob", false)?,
        aux_loss: read.number("router_aux_loss_coef", 0.001)?,
        layers: (0..layers).map(|l| !is_dense(l) && (l + 1).is_multiple_of(step)).collect(),
    })
}

fn write(config: &DecoderConfig, map: &mut Map<String, Value>) {
    map.insert("qkv_bias".to_string(), json!(config.qkv_bias));
    if let Some(experts) = &config.experts {
        let shared = json!(experts.shared_intermediate_size);
        map.insert("shared_expert_intermediate_size".to_string(), shared);
    }
    write_experts(config, map);
}

/// What [`experts`] reads.
pub(super) fn write_experts(config: &DecoderConfig, map: &mut Map<String, Value>) {
    let Some(experts) = &config.experts else { return };
    let today = map.contains_key("num_local_experts") && !map.contains_key("num_experts");
    let mut set = |key: &str, value: Value| map.insert(key.to_string(), value);
    set(if today { "num_local_experts" } else { "num_experts" }, json!(experts.count));
    set("num_experts_per_tok", json!(experts.choices));
    set("moe_intermediate_size", json!(experts.intermediate_size));
    set("norm_topk_prob", json!(experts.normalize));
    set("router_aux_loss_coef", json!(experts.aux_loss));
    // The step is written as read; the list says what it does not.
    let step = map.get("decoder_sparse_step").and_then(Value::as_u64).unwrap_or(1).max(1);
    let by_step = |layer: usize| (layer as u64 + 1).is_multiple_of(step);
    let dense: Vec<usize> = (0..config.layers).filter(|&l| by_step(l) && !config.has_experts(l)).collect();
    map.insert("mlp_only_layers".to_string(), json!(dense));
}
