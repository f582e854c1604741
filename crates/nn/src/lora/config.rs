//! `adapter_config.json` as peft writes it: which modules are adapted, how strongly, and how the factors start.

use crate::error::{Error, Result};
use regex::Regex;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Fields of variants that compute something else, and are not implemented.
const VARIANTS: [&str; 8] = [
    "use_qalora",
    "alora_invocation_tokens",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "use_bdlora",
    "arrow_config",
    "megatron_config",
];

/// One text, or a list of them: a text is a regular expression of whole names where modules are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Names {
    /// A regular expression, or a word that stands for several modules.
    Pattern(String),
    /// Names of modules or their last parts.
    List(Vec<String>),
}

/// One number or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Layers {
    /// One layer.
    One(usize),
    /// Several.
    Many(Vec<usize>),
}

impl Layers {
    /// Whether a layer is among them. An empty list names none, and so chooses nothing.
    pub(super) fn has(&self, layer: usize) -> bool {
        match self {
            Layers::One(one) => *one == layer,
            Layers::Many(many) => many.contains(&layer),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Layers::Many(many) if many.is_empty())
    }
}

/// Tokens whose vectors are trained: of the token vectors of the model, or of modules by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Tokens {
    /// Of the token vectors.
    Ids(Vec<usize>),
    /// By module.
    ByModule(BTreeMap<String, Vec<usize>>),
}

/// Which biases of the model are trained beside the factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// None.
    None,
    /// All.
    All,
    /// Those of the adapted modules.
    Adapted,
}

/// How factors start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// The first uniform, the second 0: nothing is changed at first.
    Default,
    /// The first normal with a deviation of one over the rank, the second 0.
    Gaussian,
    /// Both uniform.
    Random,
    /// The largest singular values of the weight, which keeps the rest.
    Pissa,
    /// The first columns and rows of the weight's factors Q and R; the weight keeps the rest.
    Olora,
}

impl Factors {
    /// Whether the weight of the model loses what the factors begin with.
    pub fn changes_base(self) -> bool {
        matches!(self, Factors::Pissa | Factors::Olora)
    }
}

/// An adapter as its `adapter_config.json` describes it. What peft leaves out has peft's default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoraConfig {
    /// Kind of adapter; only `LORA`.
    pub peft_type: String,
    /// What the model is for.
    pub task_type: Option<String>,
    /// The model it was made for.
    pub base_model_name_or_path: Option<String>,
    /// Rank of the factors.
    pub r: i64,
    /// Numerator of the factor on their product.
    pub lora_alpha: f64,
    /// Probability that an input of the first factor is set to 0 in training.
    pub lora_dropout: f64,
    /// Which modules are adapted; by the kind of model where nothing is said.
    pub target_modules: Option<Names>,
    /// Which are not.
    pub exclude_modules: Option<Names>,
    /// `none`, `all` or `lora_only`: see [`LoraConfig::biases`].
    pub bias: String,
    /// Weights lie `[in, out]`.
    pub fan_in_fan_out: bool,
    /// The factor is over the root of the rank.
    pub use_rslora: bool,
    /// Lengths of the rows are trained apart from their directions.
    pub use_dora: bool,
    /// The second factor has a bias.
    pub lora_bias: bool,
    /// Modules that are trained and saved whole.
    pub modules_to_save: Option<Vec<String>>,
    /// How factors start: see [`LoraConfig::factors`].
    pub init_lora_weights: Value,
    /// Only layers of these numbers.
    pub layers_to_transform: Option<Layers>,
    /// The name before the number of a layer.
    pub layers_pattern: Option<Names>,
    /// Other ranks, by regular expressions of module names; the first that fits counts.
    #[serde(with = "super::pairs")]
    pub rank_pattern: Vec<(String, i64)>,
    /// Other numerators, likewise.
    #[serde(with = "super::pairs")]
    pub alpha_pattern: Vec<(String, f64)>,
    /// Tokens whose vectors are trained.
    pub trainable_token_indices: Option<Tokens>,
    /// A saved embedding takes its tied head along.
    pub ensure_weight_tying: bool,
    /// Parameters that are adapted themselves, by the ends of their names: those of experts that lie in one tensor.
    pub target_parameters: Option<Vec<String>>,
    /// What else the file says.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for LoraConfig {
    fn default() -> LoraConfig {
        LoraConfig {
            peft_type: "LORA".into(),
            task_type: None,
            base_model_name_or_path: None,
            r: 8,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            target_modules: None,
            exclude_modules: None,
            bias: "none".into(),
            fan_in_fan_out: false,
            use_rslora: false,
            use_dora: false,
            lora_bias: false,
            modules_to_save: None,
            init_lora_weights: Value::Bool(true),
            layers_to_transform: None,
            layers_pattern: None,
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            trainable_token_indices: None,
            ensure_weight_tying: false,
            target_parameters: None,
            rest: Map::new(),
        }
    }
}

fn refuse(key: &str, found: impl fmt::Display, hint: &str) -> Error {
    Error::Adapter { what: format!("`{key}` is {found}; {hint}") }
}

impl LoraConfig {
    /// Reads the text of an `adapter_config.json`, and refuses what is not implemented by name.
    pub fn parse(text: &str) -> Result<LoraConfig> {
        let config: LoraConfig = serde_json::from_str(text)
            .map_err(|error| Error::Adapter { what: format!("adapter_config.json: {error}") })?;
        config.check()?;
        Ok(config)
    }

    /// Refuses values outside their ranges, and variants that compute something else.
    pub fn check(&self) -> Result<()> {
        if self.peft_type != "LORA" {
            return Err(refuse("peft_type", &self.peft_type, "only LORA is supported"));
        }
        let set = |field: &&&str| {
            let value = self.rest.get(**field).unwrap_or(&Value::Null);
            !(value.is_null() || *value == Value::Bool(false) || value.as_array().is_some_and(Vec::is_empty))
        };
        if let Some(variant) = VARIANTS.iter().find(set) {
            let what =
                format!("it uses `{variant}`, a variant of LoRA that is not implemented; leave it out");
            return Err(Error::Adapter { what });
        }
        if self.rest.get("layer_replication").is_some_and(|value| !value.is_null()) {
            let what = "it uses `layer_replication`; make the larger model by a merge of slices first";
            return Err(Error::Adapter { what: what.into() });
        }
        let ranks = std::iter::once(("r", self.r));
        let ranks = ranks.chain(self.rank_pattern.iter().map(|(key, rank)| (key.as_str(), *rank)));
        if let Some((key, rank)) = ranks.into_iter().find(|(_, rank)| *rank <= 0) {
            return Err(refuse(key, rank, "a rank is a whole number of at least 1"));
        }
        if !(0.0..1.0).contains(&self.lora_dropout) {
            return Err(refuse("lora_dropout", self.lora_dropout, "a probability is from 0 to below 1"));
        }
        let alphas =
            std::iter::once(self.lora_alpha).chain(self.alpha_pattern.iter().map(|(_, alpha)| *alpha));
        if let Some(alpha) = alphas.into_iter().find(|alpha| !alpha.is_finite()) {
            return Err(refuse("lora_alpha", alpha, "it is a finite number"));
        }
        let parameters = self.target_parameters.as_ref().is_some_and(|names| !names.is_empty());
        if parameters && (self.use_dora || self.lora_bias || self.fan_in_fan_out || self.lora_dropout > 0.0) {
            let hint = "not with `use_dora`, `lora_bias`, `fan_in_fan_out` or `lora_dropout`, as in peft";
            return Err(refuse("target_parameters", "given", hint));
        }
        if self.lora_bias && self.use_dora {
            return Err(refuse("lora_bias", true, "not with `use_dora`, as in peft"));
        }
        if self.lora_bias && self.factors()? != Factors::Default && self.factors()? != Factors::Random {
            let hint = "not with a start other than true or false, as in peft";
            return Err(refuse("lora_bias", true, hint));
        }
        self.biases()?;
        let texts = |names: &Option<Names>| match names {
            Some(Names::Pattern(text)) => vec![text.clone()],
            _ => Vec::new(),
        };
        for text in [&self.target_modules, &self.exclude_modules].into_iter().flat_map(texts) {
            regex(&format!("^(?:{text})$"), &text)?;
        }
        let keys =
            self.rank_pattern.iter().map(|(key, _)| key).chain(self.alpha_pattern.iter().map(|(key, _)| key));
        keys.into_iter().try_for_each(|key| regex(&format!("^(.*\\.)?({key})$"), key).map(drop))
    }

    /// Which biases of the model are trained.
    pub fn biases(&self) -> Result<Biases> {
        match self.bias.as_str() {
            "none" => Ok(Biases::None),
            "all" => Ok(Biases::All),
            "lora_only" => Ok(Biases::Adapted),
            other => Err(refuse("bias", format!("\"{other}\""), "use none, all or lora_only")),
        }
    }

    /// How factors start.
    pub fn factors(&self) -> Result<Factors> {
        match &self.init_lora_weights {
            Value::Bool(true) | Value::Null => Ok(Factors::Default),
            Value::Bool(false) => Ok(Factors::Random),
            Value::String(text) => match text.to_lowercase().as_str() {
                "gaussian" => Ok(Factors::Gaussian),
                "olora" => Ok(Factors::Olora),
                "pissa" => Ok(Factors::Pissa),
                // The randomised way finds the same values, less exactly.
                more if more.strip_prefix("pissa_niter_").is_some_and(|n| n.parse::<u32>().is_ok()) => {
                    Ok(Factors::Pissa)
                }
                other => {
                    let hint = "use true, false, gaussian, pissa or olora";
                    Err(refuse("init_lora_weights", format!("\"{other}\""), hint))
                }
            },
            other => Err(refuse("init_lora_weights", other, "use true, false, gaussian, pissa or olora")),
        }
    }

    /// The start that was taken out of the model's weights, if it was. Refuses one that cannot be found again from the weights,
    /// and one that is not known: nobody can say which weights the adapter fits.
    pub fn taken_out(&self) -> Result<Option<Factors>> {
        let Some(name) = self.init_lora_weights.as_str().map(str::to_lowercase) else { return Ok(None) };
        // These begin with a product of 0, however they find their factors.
        if ["eva", "orthogonal", "mica"].contains(&name.as_str()) {
            return Ok(None);
        }
        if ["corda", "lora_ga", "loftq"].contains(&name.as_str()) {
            let hint = "it changed the model's weights by data that is not here; let peft convert it when it saves \
                        (`path_initial_model_for_weight_conversion`)";
            return Err(refuse("init_lora_weights", format!("\"{name}\""), hint));
        }
        Ok(Some(self.factors()?).filter(|factors| factors.changes_base()))
    }

    /// The rank of a module.
    pub fn rank(&self, module: &str) -> Result<usize> {
        Ok(fitting(&self.rank_pattern, module)?.unwrap_or(self.r) as usize)
    }

    /// The numerator of a module's factor.
    pub fn alpha(&self, module: &str) -> Result<f64> {
        Ok(fitting(&self.alpha_pattern, module)?.unwrap_or(self.lora_alpha))
    }

    /// How much the product of factors of this rank counts for a module.
    pub fn scale(&self, module: &str, rank: usize) -> Result<f64> {
        let (alpha, rank) = (self.alpha(module)?, rank as f64);
        Ok(if self.use_rslora { alpha / rank.sqrt() } else { alpha / rank })
    }

    /// The text to write as `adapter_config.json`.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(&Written(self)).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Every field but the patterns, which have an order.
    fn fields(&self) -> Value {
        let names = |names: &Option<Names>| match names {
            None => Value::Null,
            Some(Names::Pattern(text)) => json!(text),
            Some(Names::List(list)) => json!(list),
        };
        let layers = match &self.layers_to_transform {
            None => Value::Null,
            Some(Layers::One(one)) => json!(one),
            Some(Layers::Many(many)) => json!(many),
        };
        let tokens = match &self.trainable_token_indices {
            None => Value::Null,
            Some(Tokens::Ids(ids)) => json!(ids),
            Some(Tokens::ByModule(map)) => json!(map),
        };
        json!({
            "peft_type": self.peft_type,
            "task_type": self.task_type,
            "base_model_name_or_path": self.base_model_name_or_path,
            "inference_mode": true,
            "r": self.r,
            "lora_alpha": number(self.lora_alpha),
            "lora_dropout": self.lora_dropout,
            "target_modules": names(&self.target_modules),
            "exclude_modules": names(&self.exclude_modules),
            "bias": self.bias,
            "fan_in_fan_out": self.fan_in_fan_out,
            "use_rslora": self.use_rslora,
            "use_dora": self.use_dora,
            "lora_bias": self.lora_bias,
            "modules_to_save": self.modules_to_save,
            "init_lora_weights": self.init_lora_weights,
            "layers_to_transform": layers,
            "layers_pattern": names(&self.layers_pattern),
            "trainable_token_indices": tokens,
            "ensure_weight_tying": self.ensure_weight_tying,
            "target_parameters": self.target_parameters,
        })
    }
}

/// A configuration on its way into a file.
struct Written<'a>(&'a LoraConfig);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let config = self.0;
        let mut map = to.serialize_map(None)?;
        for (key, value) in config.fields().as_object().into_iter().flatten() {
            map.serialize_entry(key, value)?;
        }
        let ranks = config.rank_pattern.iter().map(|(key, rank)| (key.clone(), json!(rank)));
        let alphas = config.alpha_pattern.iter().map(|(key, alpha)| (key.clone(), number(*alpha)));
        map.serialize_entry("rank_pattern", &Table(ranks.collect()))?;
        map.serialize_entry("alpha_pattern", &Table(alphas.collect()))?;
        map.end()
    }
}

/// Patterns in their order.
#[derive(Serialize)]
struct Table(#[serde(with = "super::pairs")] Vec<(String, Value)>);

/// A whole number is written as one.
fn number(value: f64) -> Value {
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => json!(value as i64),
        false => json!(value),
    }
}

/// The value of the first pattern that fits a module.
fn fitting<V: Copy>(patterns: &[(String, V)], module: &str) -> Result<Option<V>> {
    for (key, value) in patterns {
        if regex(&format!("^(.*\\.)?({key})$"), key)?.is_match(module) {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

/// A regular expression; `text` is what the file has.
pub(super) fn regex(pattern: &str, text: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| {
        let why = error.to_string().lines().last().unwrap_or_default().to_string();
        Error::Adapter { what: format!("'{text}' is not a regular expression that is known here: {why}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_keep_the_order_of_the_file_and_the_first_that_fits_counts() {
        let text =
            r#"{"rank_pattern": {"q_proj": 3, ".*": 5}, "alpha_pattern": {"z|v_proj": 2, "v_proj": 4.5}}"#;
        let config = LoraConfig::parse(text).unwrap();
        assert_eq!((config.rank("a.q_proj").unwrap(), config.rank("a.v_proj").unwrap()), (3, 5));
        assert_eq!(config.alpha("a.v_proj").unwrap(), 2.0);
        let written = config.to_text();
        assert!(written.find("\"q_proj\": 3").unwrap() < written.find("\".*\": 5").unwrap(), "{written}");
        assert_eq!(LoraConfig::parse(&written).unwrap().rank_pattern, config.rank_pattern);
        assert_eq!(LoraConfig::parse(&written).unwrap().alpha_pattern, config.alpha_pattern);
    }
}
