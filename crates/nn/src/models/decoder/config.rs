//! The configuration of a decoder model, read from and written to a Hugging Face `config.json`.

use super::family::Family;
use super::rope;
use super::variations::Variations;
use crate::error::{Error, Result};
use crate::layers::{Parts, RmsNorm, RopeScaling};
use crate::models::json::Reader;
use crate::models::registry::FAMILIES;
use planaria_array::ops::Gate;
use serde_json::{Map, Value, json};

/// The mixture of experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// `num_experts`.
    pub count: usize,
    /// `num_experts_per_tok`.
    pub choices: usize,
    /// `moe_intermediate_size`.
    pub intermediate_size: usize,
    /// `shared_expert_intermediate_size`; 0 where no expert is shared.
    pub shared_intermediate_size: usize,
    /// `norm_topk_prob`: the weights of the chosen experts add up to 1.
    pub normalize: bool,
    /// `router_aux_loss_coef`: what the loss of uneven routing counts; 0 leaves it out.
    pub aux_loss: f64,
    /// Per layer: true where it has experts.
    pub layers: Vec<bool>,
}

/// A decoder model. Keys that are not known here are kept as they were read.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// What sets it apart from other decoders.
    pub family: &'static Family,
    /// `vocab_size`.
    pub vocab_size: usize,
    /// `hidden_size`.
    pub hidden_size: usize,
    /// `intermediate_size`.
    pub intermediate_size: usize,
    /// `num_hidden_layers`.
    pub layers: usize,
    /// `num_attention_heads`.
    pub heads: usize,
    /// `num_key_value_heads`.
    pub kv_heads: usize,
    /// `head_dim`.
    pub head_dim: usize,
    /// `hidden_act`.
    pub act: Gate,
    /// `max_position_embeddings`.
    pub max_positions: usize,
    /// `rms_norm_eps`.
    pub rms_norm_eps: f64,
    /// `rope_theta`.
    pub rope_theta: f64,
    /// `rope_scaling` or `rope_parameters`.
    pub rope_scaling: RopeScaling,
    /// `tie_word_embeddings`.
    pub tie_word_embeddings: bool,
    /// Biases on queries, keys and values: `attention_bias`, `qkv_bias`, always for Qwen2.
    pub qkv_bias: bool,
    /// A bias on the attention's output: `attention_bias` of Llama.
    pub output_bias: bool,
    /// `mlp_bias`.
    pub mlp_bias: bool,
    /// `initializer_range`.
    pub initializer_range: f64,
    /// `hidden_dropout`: of what blocks add to the residual, in training.
    pub hidden_dropout: f64,
    /// `attention_dropout`: of the weights that attention gives to values, in training.
    pub attention_dropout: f64,
    /// Per layer: how many keys a query sees, its own the last; absent where it sees all before it.
    pub windows: Vec<Option<usize>>,
    /// Experts, in families that have them.
    pub experts: Option<Experts>,
    /// What the family does differently.
    pub variations: Variations,
    /// The object as it was read.
    other: Map<String, Value>,
}

/// Layers past this are a damaged file.
const MAX_LAYERS: usize = 1 << 16;

impl DecoderConfig {
    /// Reads the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<DecoderConfig> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Error::Json { reason: error.to_string() })?;
        DecoderConfig::from_value(value)
    }

    /// Reads a parsed `config.json`.
    pub fn from_value(value: Value) -> Result<DecoderConfig> {
        let Value::Object(map) = value else {
            return Err(Error::Json { reason: "it has the wrong type".to_string() });
        };
        let found = map.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let Some(family) = FAMILIES.into_iter().find(|family| family.model_type == found) else {
            return Err(Error::Unsupported {
                key: "model_type".to_string(),
                found: format!("\"{found}\""),
                hint: format!("decoders are {}", FAMILIES.map(|family| family.model_type).join(", ")),
            });
        };
        DecoderConfig::read(map, family)
    }

    /// Reads the object of a `config.json` as one of this family.
    pub fn read(map: Map<String, Value>, family: &'static Family) -> Result<DecoderConfig> {
        let read = Reader::new(&map);
        let (hidden_size, heads) = (read.size("hidden_size")?, read.size("num_attention_heads")?);
        let layers = read.size("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(Error::Sizes {
                what: format!("num_hidden_layers is {layers}, more than {MAX_LAYERS}"),
            });
        }
        let (rope_theta, rope_scaling) = rope::read(&read)?;
        let mut config = DecoderConfig {
            family,
            vocab_size: read.size("vocab_size")?,
            hidden_size,
            intermediate_size: read.size("intermediate_size")?,
            layers,
            heads,
            kv_heads: read.maybe_size("num_key_value_heads")?.unwrap_or(heads),
            head_dim: read.maybe_size("head_dim")?.unwrap_or(hidden_size / heads),
            act: act(&read, "hidden_act", "silu")?,
            max_positions: read.maybe_size("max_position_embeddings")?.unwrap_or(2048),
            rms_norm_eps: read.number("rms_norm_eps", 1e-6)?,
            rope_theta,
            rope_scaling,
            tie_word_embeddings: read.flag("tie_word_embeddings", false)?,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            initializer_range: read.number("initializer_range", 0.02)?,
            hidden_dropout: read.number("hidden_dropout", 0.0)?,
            attention_dropout: read.number("attention_dropout", 0.0)?,
            windows: vec![None; layers],
            experts: None,
            variations: Variations::default(),
            other: map.clone(),
        };
        (family.read)(&read, &mut config)?;
        config.variations.headless = is_base(&read)? && !config.tie_word_embeddings;
        config.variations.valued = is_valued(&read)?;
        config.variations.bidirectional = !read.flag("is_causal", true)?;
        config.check(&read)?;
        Ok(config)
    }

    fn check(&self, read: &Reader<'_>) -> Result<()> {
        let refuse = |what: String| Err(Error::Sizes { what });
        let DecoderConfig { heads, kv_heads, head_dim, hidden_size, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return refuse(format!(
                "num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            ));
        }
        if head_dim == 0 || (read.get("head_dim").is_none() && !hidden_size.is_multiple_of(heads)) {
            return refuse(format!(
                "hidden_size {hidden_size} does not divide into {heads} heads; give head_dim"
            ));
        }
        if heads.checked_mul(head_dim).is_none() {
            return refuse(format!("{heads} heads of {head_dim} elements are too many"));
        }
        for (key, p) in self.dropouts() {
            if !(0.0..1.0).contains(&p) {
                return refuse(format!("{key} must be at least 0 and below 1, got {p}"));
            }
        }
        if self.variations.bidirectional && self.windows.iter().any(Option::is_some) {
            return refuse("is_causal is false, but some layers see only a window".to_string());
        }
        if let Some(Experts { count, choices, .. }) = self.experts.as_ref()
            && (*choices == 0 || choices > count)
        {
            return refuse(format!("num_experts_per_tok {choices} is not between 1 and num_experts {count}"));
        }
        Ok(())
    }

    fn dropouts(&self) -> [(&'static str, f64); 2] {
        [("hidden_dropout", self.hidden_dropout), ("attention_dropout", self.attention_dropout)]
    }

    /// The entry of `architectures`: a model without a head, or with one of values, keeps the name it was read with.
    fn architecture(&self) -> String {
        let read = self.other.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        match read.filter(|_| self.variations.headless || self.variations.valued) {
            Some(name) => name.to_string(),
            None => self.family.architecture.to_string(),
        }
    }

    /// The name of what comes after the last norm.
    pub(super) fn head_name(&self) -> &'static str {
        if self.variations.valued { "score" } else { "lm_head" }
    }

    /// How many numbers it gives.
    pub(super) fn head_size(&self) -> usize {
        if self.variations.valued { 1 } else { self.vocab_size }
    }

    /// What stands before the names of all parameters but the head's.
    pub(super) fn prefix(&self) -> &'static str {
        if self.variations.headless { "" } else { "model." }
    }

    /// The object to write: what was read, with the values of today.
    pub fn to_value(&self) -> Value {
        let mut map = self.other.clone();
        let mut set = |key: &str, value: Value| map.insert(key.to_string(), value);
        set("model_type", json!(self.family.model_type));
        set("architectures", json!([self.architecture()]));
        set("vocab_size", json!(self.vocab_size));
        set("hidden_size", json!(self.hidden_size));
        set("intermediate_size", json!(self.intermediate_size));
        set("num_hidden_layers", json!(self.layers));
        set("num_attention_heads", json!(self.heads));
        set("num_key_value_heads", json!(self.kv_heads));
        set("hidden_act", json!(act_name(self.act)));
        set("max_position_embeddings", json!(self.max_positions));
        set("rms_norm_eps", json!(self.rms_norm_eps));
        set("initializer_range", json!(self.initializer_range));
        set("tie_word_embeddings", json!(self.tie_word_embeddings));
        if self.head_dim * self.heads != self.hidden_size || self.other.contains_key("head_dim") {
            set("head_dim", json!(self.head_dim));
        }
        for (key, p) in self.dropouts() {
            if p != 0.0 || self.other.contains_key(key) {
                set(key, json!(p));
            }
        }
        rope::write(&mut map, self);
        (self.family.write)(self, &mut map);
        Value::Object(map)
    }

    /// The text of a `config.json`.
    pub fn to_json(&self) -> String {
        let mut text = format!("{:#}", self.to_value());
        text.push('\n');
        text
    }

    /// A norm by its name, as the family has them.
    pub(super) fn norm(&self, parts: &Parts, name: &str) -> Result<RmsNorm> {
        let from_one = self.variations.norms_from_one;
        Ok(RmsNorm { from_one, ..parts.rms_norm(name, self.rms_norm_eps)? })
    }

    /// True where a layer has experts in place of one MLP.
    pub fn has_experts(&self, layer: usize) -> bool {
        self.experts.as_ref().is_some_and(|e| e.layers.get(layer).copied().unwrap_or(false))
    }
}

/// Whether `architectures` names a model without a head, as `Qwen2Model` is.
fn is_base(read: &Reader<'_>) -> Result<bool> {
    let name = read.list("architectures")?.and_then(|list| list.first()).and_then(Value::as_str);
    Ok(name.is_some_and(|name| name.ends_with("Model") && !name.contains("For")))
}

/// Whether `architectures` names a model that gives every token a value; one of several classes is refused.
fn is_valued(read: &Reader<'_>) -> Result<bool> {
    let name = read.list("architectures")?.and_then(|list| list.first()).and_then(Value::as_str);
    if !name.is_some_and(|name| name.ends_with("ForSequenceClassification")) {
        return Ok(false);
    }
    let named = read.get("id2label").and_then(Value::as_object).map(|labels| labels.len() as u64);
    let labels = read.get("num_labels").and_then(Value::as_u64).or(named).unwrap_or(1);
    if labels != 1 {
        return Err(Error::Sizes { what: format!("a model of {labels} labels; one label is a value") });
    }
    Ok(true)
}

/// The function that a key names.
pub(in crate::models) fn act(read: &Reader<'_>, key: &str, otherwise: &'static str) -> Result<Gate> {
    match read.text(key, otherwise)? {
        "silu" | "swish" => Ok(Gate::Silu),
        "gelu" => Ok(Gate::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Gate::GeluTanh),
        other => Err(Error::Unsupported {
            key: key.to_string(),
            found: format!("\"{other}\""),
            hint: "supported are silu, gelu and gelu_pytorch_tanh".to_string(),
        }),
    }
}

pub(in crate::models) fn act_name(act: Gate) -> &'static str {
    match act {
        Gate::Silu => "silu",
        Gate::Gelu => "gelu",
        Gate::GeluTanh => "gelu_pytorch_tanh",
    }
}

/// Reads which layers see only a window: as `layer_types` says, else by a family's rule, which is asked for a layer and
/// `max_window_layers`.
pub(in crate::models) fn windows(
    read: &Reader<'_>,
    layers: usize,
    is_sliding: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let window = read.maybe_size("sliding_window")?.filter(|&window| window > 0);
    let wanted = read.flag("use_sliding_window", false)?;
    let first = read.maybe_size("max_window_layers")?.unwrap_or(28);
    windows_of(read, layers, window.filter(|_| wanted), |layer| is_sliding(layer, first))
}

/// The same for a window that is known.
pub(in crate::models) fn windows_of(
    read: &Reader<'_>,
    layers: usize,
    window: Option<usize>,
    is_sliding: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let Some(window) = window else { return Ok(vec![None; layers]) };
    if let Some(types) = read.list("layer_types")? {
        if types.len() != layers {
            let what = format!("layer_types has {} entries for {layers} layers", types.len());
            return Err(Error::Sizes { what });
        }
        let sliding = |kind: &Value| kind.as_str() == Some("sliding_attention");
        return Ok(types.iter().map(|kind| sliding(kind).then_some(window)).collect());
    }
    Ok((0..layers).map(|layer| is_sliding(layer).then_some(window)).collect())
}
