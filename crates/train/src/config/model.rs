//! The `[model]` section: an architecture by its Hugging Face keys, or a `config.json`.

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
}

/// Keys that are ours, not the model's.
const OWN: [&str; 3] = ["kind", "config", "init"];

impl ModelSection {
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
        // Paths and numbers always have a JSON form.
        if let Ok(Value::Object(keys)) = serde_json::to_value(self) {
            json.extend(keys.into_iter().filter(|(key, _)| !OWN.contains(&key.as_str())));
        }
        Value::Object(json)
    }
}
