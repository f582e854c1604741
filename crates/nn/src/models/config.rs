//! The configuration of a decoder model, read from and written to a Hugging Face `config.json`.

use super::json::Reader;
use crate::error::{Error, Result};
use crate::layers::RopeScaling;
use planaria_array::ops::Gate;
use serde_json::{Map, Value, json};

/// Which architecture it is, as `model_type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `llama`.
    Llama,
    /// `qwen2`.
    Qwen2,
    /// `qwen2_moe`.
    Qwen2Moe,
}

impl Family {
    /// The value of `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen2Moe => "qwen2_moe",
        }
    }

    /// The entry of `architectures`.
    pub fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen2Moe => "Qwen2MoeForCausalLM",
        }
    }
}

/// The mixture of experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// `num_experts`.
    pub count: usize,
    /// `num_experts_per_tok`.
    pub choices: usize,
    /// `moe_intermediate_size`.
    pub intermediate_size: usize,
    /// `shared_expert_intermediate_size`.
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
pub struct Config {
    /// Architecture.
    pub family: Family,
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
    /// The object as it was read.
    other: Map<String, Value>,
}

/// Layers past this are a damaged file.
const MAX_LAYERS: usize = 1 << 16;

impl Config {
    /// Reads the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<Config> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| Error::Json { reason: error.to_string() })?;
        Config::from_value(value)
    }

    /// Reads a parsed `config.json`.
    pub fn from_value(value: Value) -> Result<Config> {
        let Value::Object(map) = value else {
            return Err(Error::Json { reason: "it is another kind of value".to_string() });
        };
        let read = Reader { map: &map, prefix: "" };
        let family = family(&read)?;
        let (hidden_size, heads) = (read.size("hidden_size")?, read.size("num_attention_heads")?);
        let layers = read.size("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(Error::Sizes {
                what: format!("num_hidden_layers is {layers}, more than {MAX_LAYERS}"),
            });
        }
        let (rope_theta, rope_scaling) = rope(&read)?;
        let attention_bias = read.flag("attention_bias", false)?;
        let config = Config {
            family,
            vocab_size: read.size("vocab_size")?,
            hidden_size,
            intermediate_size: read.size("intermediate_size")?,
            layers,
            heads,
            kv_heads: read.maybe_size("num_key_value_heads")?.unwrap_or(heads),
            head_dim: read.maybe_size("head_dim")?.unwrap_or(hidden_size / heads),
            act: act(&read)?,
            max_positions: read.maybe_size("max_position_embeddings")?.unwrap_or(2048),
            rms_norm_eps: read.number("rms_norm_eps", 1e-6)?,
            rope_theta,
            rope_scaling,
            tie_word_embeddings: read.flag("tie_word_embeddings", false)?,
            qkv_bias: match family {
                Family::Llama => attention_bias,
                Family::Qwen2 => true,
                Family::Qwen2Moe => read.flag("qkv_bias", true)?,
            },
            output_bias: family == Family::Llama && attention_bias,
            mlp_bias: family == Family::Llama && read.flag("mlp_bias", false)?,
            initializer_range: read.number("initializer_range", 0.02)?,
            hidden_dropout: read.number("hidden_dropout", 0.0)?,
            attention_dropout: read.number("attention_dropout", 0.0)?,
            windows: windows(&read, family, layers)?,
            experts: experts(&read, family, layers)?,
            other: map.clone(),
        };
        config.check(&read)?;
        Ok(config)
    }

    fn check(&self, read: &Reader<'_>) -> Result<()> {
        let refuse = |what: String| Err(Error::Sizes { what });
        let Config { heads, kv_heads, head_dim, hidden_size, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return refuse(format!(
                "num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
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

    /// The object to write: what was read, with the values of today.
    pub fn to_value(&self) -> Value {
        let mut map = self.other.clone();
        let mut set = |key: &str, value: Value| map.insert(key.to_string(), value);
        set("model_type", json!(self.family.model_type()));
        set("architectures", json!([self.family.architecture()]));
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
        match self.family {
            Family::Llama => {
                set("attention_bias", json!(self.qkv_bias));
                set("mlp_bias", json!(self.mlp_bias));
            }
            Family::Qwen2 => {}
            Family::Qwen2Moe => {
                set("qkv_bias", json!(self.qkv_bias));
            }
        }
        write_rope(&mut map, self);
        write_experts(&mut map, self);
        Value::Object(map)
    }

    /// The text of a `config.json`.
    pub fn to_json(&self) -> String {
        let mut text = format!("{:#}", self.to_value());
        text.push('\n');
        text
    }

    /// True where a layer has experts in place of one MLP.
    pub fn has_experts(&self, layer: usize) -> bool {
        self.experts.as_ref().is_some_and(|e| e.layers.get(layer).copied().unwrap_or(false))
    }
}

fn family(read: &Reader<'_>) -> Result<Family> {
    let found = read.text("model_type", "")?;
    let known = [Family::Llama, Family::Qwen2, Family::Qwen2Moe];
    known.into_iter().find(|f| f.model_type() == found).ok_or_else(|| Error::Unsupported {
        key: "model_type".to_string(),
        found: format!("\"{found}\""),
        hint: "known are llama, qwen2 and qwen2_moe",
    })
}

fn act(read: &Reader<'_>) -> Result<Gate> {
    match read.text("hidden_act", "silu")? {
        "silu" | "swish" => Ok(Gate::Silu),
        "gelu" => Ok(Gate::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Gate::GeluTanh),
        other => Err(Error::Unsupported {
            key: "hidden_act".to_string(),
            found: format!("\"{other}\""),
            hint: "known are silu, gelu and gelu_pytorch_tanh",
        }),
    }
}

fn act_name(act: Gate) -> &'static str {
    match act {
        Gate::Silu => "silu",
        Gate::Gelu => "gelu",
        Gate::GeluTanh => "gelu_pytorch_tanh",
    }
}

/// Base and scaling: in one object `rope_parameters`, or as `rope_theta` and `rope_scaling`.
fn rope(read: &Reader<'_>) -> Result<(f64, RopeScaling)> {
    let (map, prefix) = match read.object("rope_parameters")? {
        Some(map) => (Some(map), "rope_parameters."),
        None => (read.object("rope_scaling")?, "rope_scaling."),
    };
    let outer = read.number("rope_theta", 10_000.0)?;
    let Some(map) = map else { return Ok((outer, RopeScaling::Default)) };
    let inner = Reader { map, prefix };
    let theta = inner.number("rope_theta", outer)?;
    if inner.number("partial_rotary_factor", 1.0)? != 1.0 {
        let (key, hint) =
            (format!("{prefix}partial_rotary_factor"), "only whole heads are rotated; set it to 1");
        return Err(Error::Unsupported { key, found: "not 1".to_string(), hint });
    }
    let kind = inner.text("rope_type", inner.text("type", "default")?)?;
    let original = || match inner.get("original_max_position_embeddings") {
        Some(_) => inner.positive("original_max_position_embeddings"),
        None => read.positive("max_position_embeddings"),
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: inner.positive("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: inner.positive("factor")?,
            low_freq_factor: inner.positive("low_freq_factor")?,
            high_freq_factor: inner.positive("high_freq_factor")?,
            original: original()?,
        },
        "yarn" => {
            let factor = inner.positive("factor")?;
            let usual = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            RopeScaling::Yarn {
                factor,
                beta_fast: inner.number("beta_fast", 32.0)?,
                beta_slow: inner.number("beta_slow", 1.0)?,
                original: original()?,
                attention: inner.number("attention_factor", usual)?,
            }
        }
        other => {
            let (key, found) = (format!("{prefix}rope_type"), format!("\"{other}\""));
            return Err(Error::Unsupported {
                key,
                found,
                hint: "known are default, linear, llama3 and yarn",
            });
        }
    };
    Ok((theta, scaling))
}

/// In the form it was read in; today's single object where there was none.
fn write_rope(map: &mut Map<String, Value>, config: &Config) {
    let old = map.contains_key("rope_theta") || map.contains_key("rope_scaling");
    let split = old && !map.contains_key("rope_parameters");
    let key = if split { "rope_scaling" } else { "rope_parameters" };
    let mut inner = map.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
    let theta = json!(config.rope_theta);
    let kind = match config.rope_scaling {
        RopeScaling::Default => "default",
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Llama3 { .. } => "llama3",
        RopeScaling::Yarn { .. } => "yarn",
    };
    if let RopeScaling::Linear { factor }
    | RopeScaling::Llama3 { factor, .. }
    | RopeScaling::Yarn { factor, .. } = config.rope_scaling
    {
        inner.insert("factor".to_string(), json!(factor));
    }
    if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original, .. } = config.rope_scaling {
        inner.insert("low_freq_factor".to_string(), json!(low_freq_factor));
        inner.insert("high_freq_factor".to_string(), json!(high_freq_factor));
        inner.insert("original_max_position_embeddings".to_string(), json!(original as u64));
    }
    if let RopeScaling::Yarn { beta_fast, beta_slow, original, attention, .. } = config.rope_scaling {
        let values = [("beta_fast", beta_fast), ("beta_slow", beta_slow), ("attention_factor", attention)];
        inner.extend(values.map(|(key, value)| (key.to_string(), json!(value))));
        inner.insert("original_max_position_embeddings".to_string(), json!(original as u64));
    }
    if split {
        map.insert("rope_theta".to_string(), theta);
        if kind == "default" {
            map.entry(key).or_insert(Value::Null);
            return;
        }
    } else {
        inner.insert("rope_theta".to_string(), theta);
    }
    inner.insert("rope_type".to_string(), json!(kind));
    map.insert(key.to_string(), Value::Object(inner));
}

/// Which layers see only a window: as `layer_types` says, else by the family's rule.
fn windows(read: &Reader<'_>, family: Family, layers: usize) -> Result<Vec<Option<usize>>> {
    let window = read.maybe_size("sliding_window")?.filter(|&window| window > 0);
    if family == Family::Llama || !read.flag("use_sliding_window", false)? {
        return Ok(vec![None; layers]);
    }
    let Some(window) = window else { return Ok(vec![None; layers]) };
    if let Some(types) = read.list("layer_types")? {
        if types.len() != layers {
            let what = format!("layer_types has {} entries for {layers} layers", types.len());
            return Err(Error::Sizes { what });
        }
        let sliding = |kind: &Value| kind.as_str() == Some("sliding_attention");
        return Ok(types.iter().map(|kind| sliding(kind).then_some(window)).collect());
    }
    let first = read.maybe_size("max_window_layers")?.unwrap_or(28);
    let sliding = |layer: usize| match family {
        Family::Qwen2Moe => layer.is_multiple_of(2) && layer < first,
        _ => layer >= first,
    };
    Ok((0..layers).map(|layer| sliding(layer).then_some(window)).collect())
}

fn experts(read: &Reader<'_>, family: Family, layers: usize) -> Result<Option<Experts>> {
    if family != Family::Qwen2Moe {
        return Ok(None);
    }
    let count = read.size("num_experts")?;
    let step = read.maybe_size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = read.list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |layer: usize| dense.iter().any(|l| l.as_u64() == Some(layer as u64));
    Ok(Some(Experts {
        count,
        choices: read.size("num_experts_per_tok")?,
        intermediate_size: read.size("moe_intermediate_size")?,
        shared_intermediate_size: read.size("shared_expert_intermediate_size")?,
        normalize: read.flag("norm_topk_prob", false)?,
        aux_loss: read.number("router_aux_loss_coef", 0.001)?,
        layers: (0..layers).map(|l| !is_dense(l) && (l + 1).is_multiple_of(step)).collect(),
    }))
}

fn write_experts(map: &mut Map<String, Value>, config: &Config) {
    let Some(experts) = &config.experts else { return };
    let mut set = |key: &str, value: Value| map.insert(key.to_string(), value);
    set("num_experts", json!(experts.count));
    set("num_experts_per_tok", json!(experts.choices));
    set("moe_intermediate_size", json!(experts.intermediate_size));
    set("shared_expert_intermediate_size", json!(experts.shared_intermediate_size));
    set("norm_topk_prob", json!(experts.normalize));
    set("router_aux_loss_coef", json!(experts.aux_loss));
    // The step is written as read; the list says what it does not.
    let step = map.get("decoder_sparse_step").and_then(Value::as_u64).unwrap_or(1).max(1);
    let by_step = |layer: usize| (layer as u64 + 1).is_multiple_of(step);
    let dense: Vec<usize> = (0..config.layers).filter(|&l| by_step(l) && !config.has_experts(l)).collect();
    map.insert("mlp_only_layers".to_string(), json!(dense));
}
