//! The `[model]` section: an architecture by its Hugging Face keys, or a `config.json`.

use super::require;
use super::rope::{self, RopeSection};
use crate::error::{Error, Result, nearest};
use planaria_nn::models::Models;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// The `model_type` of an architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ModelKind(pub String);

impl Default for ModelKind {
    fn default() -> ModelKind {
        ModelKind("qwen2".into())
    }
}

/// The model. Keys other than the first four are those of a Hugging Face `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelSection {
    /// Architecture, as `model_type` has it: `llama`, `qwen2`, `qwen2_moe`, `qwen3`, `qwen3_moe`, `mistral`, `gemma2`, `gemma3_text`, `phi3`, or
    /// one that a program of your own brings along. When absent, that of the file that `init` or `config` names, and `qwen2` without one; it must not contradict that file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ModelKind>,
    /// Keys of a model of your own, written to its `config.json` as they are.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub own: Map<String, Value>,
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
const OURS: [&str; 4] = ["kind", "own", "config", "init"];

impl ModelSection {
    /// Refuses a kind that is not known, and keys that it does not have. What a file says is not known here.
    pub(super) fn check(&self, models: &Models) -> Result<()> {
        let own = self.kind.clone().unwrap_or_default();
        let (kind, known) = (own.0.as_str(), models.known().collect::<Vec<_>>());
        let near = nearest(kind, &known).map(|near| format!("; did you mean `{near}`?"));
        let expected = format!("one of {}{}", known.join(", "), near.unwrap_or_default());
        require("model.kind", known.contains(&kind), format!("\"{kind}\""), &expected)?;
        if self.config.is_some() || self.init.is_some() {
            return Ok(());
        }
        for (key, value) in &self.keys() {
            let owners = models.owners_of(key, kind).filter(|_| !self.own.contains_key(key));
            if let Some(owners) = owners {
                let fit = owners.join(" or ");
                return Err(Error::Value {
                    key: format!("model.{key}"),
                    found: value.to_string(),
                    expected: format!("no such key in a {kind} model; kinds that have it: {fit}"),
                });
            }
        }
        Ok(())
    }

    /// The keys that were given, as a `config.json` has them.
    fn keys(&self) -> Map<String, Value> {
        // Paths and numbers always have a JSON form.
        let Ok(Value::Object(keys)) = serde_json::to_value(self) else { return Map::new() };
        keys.into_iter().filter(|(key, _)| !OURS.contains(&key.as_str())).chain(self.own.clone()).collect()
    }

    /// The `config.json` of this section: `base` (the file it names, if any) with the section's keys over it. Refuses a kind
    /// that is not that of the file.
    pub fn to_json(&self, base: Option<Map<String, Value>>, vocab: Option<usize>) -> Result<Value> {
        let named = base.is_some();
        let mut json = base.unwrap_or_default();
        if !named {
            json.insert("model_type".into(), json!(self.kind.clone().unwrap_or_default()));
        }
        if let (Some(ModelKind(kind)), Some(found)) =
            (&self.kind, json.get("model_type").and_then(Value::as_str))
            && kind != found
        {
            let path = self.config.as_ref().or(self.init.as_ref()).map(|path| path.display().to_string());
            let path = path.unwrap_or_default();
            return Err(Error::Value {
                key: "model.kind".into(),
                found: format!("\"{kind}\""),
                expected: format!("\"{found}\", which '{path}' holds, or no such key beside it"),
            });
        }
        if let Some(vocab) = vocab.filter(|_| !named) {
            json.insert("vocab_size".into(), json!(vocab));
        }
        let keys = self.keys();
        json.extend(keys.clone());
        rope::settle(&mut json, &keys);
        Ok(Value::Object(json))
    }
}
