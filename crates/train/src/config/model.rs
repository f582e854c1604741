//! The `[model]` section: an architecture by its Hugging Face keys, or a `config.json`.

use super::rope::{self, RopeSection};
use crate::error::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// The architectures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Llama.
    Llama,
    /// Qwen2.
    #[default]
    Qwen2,
    /// Qwen2 with experts.
    Qwen2Moe,
}

/// The model. Keys other than the first three are those of a Hugging Face `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelSection {
    /// Architecture.
    pub kind: ModelKind,
    /// A `config.json`, or a folder with one; keys below change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// A folder with weights to start from instead of random ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Number of tokens; that of the tokenizer when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Width of the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_size: Option<usize>,
    /// Width inside the MLP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intermediate_size: Option<usize>,
    /// Number of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_hidden_layers: Option<usize>,
    /// Query heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_attention_heads: Option<usize>,
    /// Key and value heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Width of a head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Longest sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_position_embeddings: Option<usize>,
    /// Base of the rotary frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// Added to the mean square before its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rms_norm_eps: Option<f64>,
    /// The head uses the embedding's matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie_word_embeddings: Option<bool>,
    /// Standard deviation of initial weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer_range: Option<f64>,
    /// Dropout on what blocks add to the residual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_dropout: Option<f64>,
    /// Dropout on the weights that attention gives to values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_dropout: Option<f64>,
    /// Experts per block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_experts: Option<usize>,
    /// Experts that see each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_experts_per_tok: Option<usize>,
    /// Width inside an expert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moe_intermediate_size: Option<usize>,
    /// Width inside the shared expert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_expert_intermediate_size: Option<usize>,
    /// Weights of the chosen experts sum to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_topk_prob: Option<bool>,
    /// Factor on the balancing loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_aux_loss_coef: Option<f64>,
    /// Every n-th block has experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_sparse_step: Option<usize>,
    /// Activation inside the MLP: `silu`, `gelu` or `gelu_pytorch_tanh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_act: Option<String>,
    /// How the rotary embedding is stretched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeSection>,
    /// The rotary embedding in one object, as transformers 5 writes it; in place of `rope_theta` and `rope_scaling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<RopeSection>,
    /// Whether generation keeps keys and values; written as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_cache: Option<bool>,
    /// Token that begins a text; written as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos_token_id: Option<TokenIds>,
    /// Token or tokens that end a text; written as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eos_token_id: Option<TokenIds>,
    /// Token that fills; written as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<TokenIds>,
    /// Llama: biases on the attention's matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_bias: Option<bool>,
    /// Llama: biases on the MLP's matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_bias: Option<bool>,
    /// Llama: written as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretraining_tp: Option<usize>,
    /// Qwen2: some layers see only a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_sliding_window: Option<bool>,
    /// Qwen2: keys that a query sees there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<usize>,
    /// Qwen2: where layers with a window begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_window_layers: Option<usize>,
    /// Qwen2: `full_attention` or `sliding_attention` for each layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<String>>,
    /// Experts: biases on queries, keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Experts: layers that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_only_layers: Option<Vec<usize>>,
    /// Experts: written as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_router_logits: Option<bool>,
}

/// One token, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TokenIds {
    /// One.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

/// Keys that are ours, not the model's.
const OWN: [&str; 3] = ["kind", "config", "init"];

/// Keys that only some kinds have.
const ONLY: [(&[ModelKind], &[&str]); 3] = [
    (&[ModelKind::Llama], &["attention_bias", "mlp_bias", "pretraining_tp"]),
    (
        &[ModelKind::Qwen2, ModelKind::Qwen2Moe],
        &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
    ),
    (
        &[ModelKind::Qwen2Moe],
        &[
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
    ),
];

impl ModelSection {
    /// Refuses keys that this kind of model does not have. What a file says is not known here.
    pub(super) fn check(&self) -> Result<()> {
        if self.config.is_some() || self.init.is_some() {
            return Ok(());
        }
        let keys = self.keys();
        let name = |kind: &ModelKind| json!(kind).as_str().unwrap_or_default().to_string();
        for (kinds, only) in ONLY.iter().filter(|(kinds, _)| !kinds.contains(&self.kind)) {
            if let Some(key) = only.iter().find(|key| keys.contains_key(**key)) {
                let fit = kinds.iter().map(name).collect::<Vec<_>>().join(" or ");
                return Err(Error::Value {
                    key: format!("model.{key}"),
                    found: keys[*key].to_string(),
                    expected: format!(
                        "no such key in a {} model; kinds that have it: {fit}",
                        name(&self.kind)
                    ),
                });
            }
        }
        Ok(())
    }

    /// The keys that were given, as a `config.json` has them.
    fn keys(&self) -> Map<String, Value> {
        // Paths and numbers always have a JSON form.
        let Ok(Value::Object(keys)) = serde_json::to_value(self) else { return Map::new() };
        keys.into_iter().filter(|(key, _)| !OWN.contains(&key.as_str())).collect()
    }

    /// The `config.json` of this section: `base` (the file it names, if any) with the section's keys over it.
    pub fn to_json(&self, base: Option<Map<String, Value>>, vocab: Option<usize>) -> Value {
        let named = base.is_some();
        let mut json = base.unwrap_or_default();
        if !named {
            json.insert("model_type".into(), json!(self.kind));
        }
        if let Some(vocab) = vocab.filter(|_| !named) {
            json.insert("vocab_size".into(), json!(vocab));
        }
        let keys = self.keys();
        json.extend(keys.clone());
        rope::settle(&mut json, &keys);
        Value::Object(json)
    }
}
