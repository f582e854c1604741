//! The section `[lora]`: which modules are adapted and how, in the words of peft's `adapter_config.json`.

use super::require;
use crate::error::{Error, Result};
use planaria_nn::lora::narrow::Width;
use planaria_nn::lora::{Layers, LoraConfig, Names, Tokens, pairs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A text or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Modules {
    /// A regular expression of whole module paths, or `all-linear`.
    Pattern(String),
    /// Paths of modules, or their ends in whole parts.
    List(Vec<String>),
}

impl Modules {
    fn names(&self) -> Names {
        match self {
            Modules::Pattern(text) => Names::Pattern(text.clone()),
            Modules::List(list) => Names::List(list.clone()),
        }
    }
}

/// How the factors of an adapter start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoraInit {
    /// The first uniform, the second 0: the model is unchanged at first.
    #[default]
    Default,
    /// The first normal, the second 0.
    Gaussian,
    /// Both uniform.
    Random,
    /// From the largest singular values of each weight, which keeps the rest.
    Pissa,
    /// From the factors Q and R of each weight, which keeps the rest.
    Olora,
}

impl LoraInit {
    fn value(self) -> Value {
        match self {
            LoraInit::Default => Value::Bool(true),
            LoraInit::Random => Value::Bool(false),
            LoraInit::Gaussian => "gaussian".into(),
            LoraInit::Pissa => "pissa".into(),
            LoraInit::Olora => "olora".into(),
        }
    }
}

/// How the weights under an adapter are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BaseWidth {
    /// In the precision of the run.
    #[default]
    Full,
    /// Products inside blocks in 8 bits, with a scale for every 64 elements of a row.
    Int8,
    /// The same in the 4 bits of NF4.
    Nf4,
}

impl BaseWidth {
    pub(crate) fn width(self) -> Option<Width> {
        match self {
            BaseWidth::Full => None,
            BaseWidth::Int8 => Some(Width::Int8),
            BaseWidth::Nf4 => Some(Width::Nf4),
        }
    }
}

/// Trains small factors beside the weights of a model, which stay as they are. Checkpoints hold the adapter alone, as peft
/// reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LoraSection {
    /// Rank of the factors.
    pub r: usize,
    /// The product of the factors counts `alpha / r`.
    pub alpha: f64,
    /// The product counts `alpha / sqrt(r)`.
    pub rslora: bool,
    /// Probability that an input of the factors is set to 0 in training.
    pub dropout: f64,
    /// Which modules are adapted: a list of names or ends of paths, a regular expression of whole paths, or `all-linear`. When
    /// absent, queries and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_modules: Option<Modules>,
    /// Which are not, though they would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude_modules: Option<Modules>,
    /// Only these layers; empty for all.
    pub layers_to_transform: Vec<usize>,
    /// The name before the number of a layer, where that is not the first in a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers_pattern: Option<String>,
    /// Other ranks, by regular expressions of the ends of module paths; the first that fits counts.
    #[serde(with = "pairs")]
    #[schemars(with = "BTreeMap<String, usize>")]
    pub rank_pattern: Vec<(String, usize)>,
    /// Other values of alpha, likewise.
    #[serde(with = "pairs")]
    #[schemars(with = "BTreeMap<String, f64>")]
    pub alpha_pattern: Vec<(String, f64)>,
    /// Train lengths and directions of rows apart (DoRA).
    pub dora: bool,
    /// Biases of the model that are trained too: `none`, `all`, or `lora_only` for those of adapted modules.
    pub bias: String,
    /// The second factor has a bias.
    pub lora_bias: bool,
    /// Modules that are trained and saved whole.
    pub modules_to_save: Vec<String>,
    /// A tied head is trained with the token vectors where these are saved whole.
    pub ensure_weight_tying: bool,
    /// Tokens whose vectors are trained.
    pub trainable_token_indices: Vec<usize>,
    /// How the factors start.
    pub init: LoraInit,
    /// How the weights of the model are kept: `full`, `int8` or `nf4`. They are widened to the run's precision, block by block,
    /// whenever they are computed with; with `train.zero = 3` it is the few bits that are divided and brought together.
    pub base: BaseWidth,
    /// Continue training this adapter; its `adapter_config.json` says everything but `dropout` and `base`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<PathBuf>,
}

impl Default for LoraSection {
    fn default() -> LoraSection {
        LoraSection {
            r: 8,
            alpha: 8.0,
            rslora: false,
            dropout: 0.0,
            target_modules: None,
            exclude_modules: None,
            layers_to_transform: Vec::new(),
            layers_pattern: None,
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            dora: false,
            bias: "none".into(),
            lora_bias: false,
            modules_to_save: Vec::new(),
            ensure_weight_tying: false,
            trainable_token_indices: Vec::new(),
            init: LoraInit::Default,
            base: BaseWidth::Full,
            adapter: None,
        }
    }
}

impl LoraSection {
    pub(super) fn check(&self) -> Result<()> {
        require("lora.r", self.r > 0, self.r, "at least 1")?;
        require("lora.alpha", self.alpha.is_finite(), self.alpha, "a finite number")?;
        require("lora.dropout", (0.0..1.0).contains(&self.dropout), self.dropout, "from 0 to below 1")?;
        if let Some(adapter) = &self.adapter {
            let LoraSection { adapter: own, dropout, base, .. } = self.clone();
            let alone = LoraSection { adapter: own, dropout, base, ..LoraSection::default() };
            let expected =
                "nothing but `lora.dropout` and `lora.base` beside it: its adapter_config.json says the rest";
            require("lora.adapter", *self == alone, adapter.display(), expected)?;
            return Ok(());
        }
        Ok(self.written(None).check()?)
    }

    /// The adapter that is trained on the model at `base`.
    pub(crate) fn config(&self, base: Option<&Path>) -> Result<LoraConfig> {
        let base = base.map(|path| path.display().to_string());
        let Some(path) = &self.adapter else { return Ok(self.written(base)) };
        let mut config = read_adapter_config(path)?;
        config.lora_dropout = self.dropout;
        config.base_model_name_or_path = base.or(config.base_model_name_or_path);
        Ok(config)
    }

    fn written(&self, base: Option<String>) -> LoraConfig {
        let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let layers =
            (!self.layers_to_transform.is_empty()).then(|| Layers::Many(self.layers_to_transform.clone()));
        let tokens = &self.trainable_token_indices;
        LoraConfig {
            task_type: Some("CAUSAL_LM".into()),
            base_model_name_or_path: base,
            r: i64::try_from(self.r).unwrap_or(i64::MAX),
            lora_alpha: self.alpha,
            lora_dropout: self.dropout,
            target_modules: self.target_modules.as_ref().map(Modules::names),
            exclude_modules: self.exclude_modules.as_ref().map(Modules::names),
            bias: self.bias.clone(),
            use_rslora: self.rslora,
            use_dora: self.dora,
            lora_bias: self.lora_bias,
            modules_to_save: some(&self.modules_to_save),
            init_lora_weights: self.init.value(),
            layers_to_transform: layers,
            layers_pattern: self.layers_pattern.clone().map(Names::Pattern),
            rank_pattern: self.rank_pattern.iter().map(|(key, rank)| (key.clone(), *rank as i64)).collect(),
            alpha_pattern: self.alpha_pattern.clone(),
            trainable_token_indices: (!tokens.is_empty()).then(|| Tokens::Ids(tokens.clone())),
            ensure_weight_tying: self.ensure_weight_tying,
            ..LoraConfig::default()
        }
    }
}

/// The `adapter_config.json` of a folder.
pub(crate) fn read_adapter_config(path: &Path) -> Result<LoraConfig> {
    let found = crate::pretrained::Pretrained::find(path)?;
    let text = found.text("adapter_config.json")?.ok_or_else(|| Error::Run {
        what: format!("{} has no adapter_config.json, so it is not an adapter", path.display()),
    })?;
    let wrong = |error: planaria_nn::Error| Error::from(error).in_weights(&path.display().to_string());
    LoraConfig::parse(&text).map_err(wrong)
}
