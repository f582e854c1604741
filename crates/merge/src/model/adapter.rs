//! Adapters as peft writes them, applied to a model tensor by tensor.

use super::adapted::{Adapted, Direction, Rows, Shifted};
use super::{Model, Root, ranks, start};
use crate::architecture::{HEAD, embedding_of};
use crate::error::{Error, Result, nearest};
use crate::input::Input;
use crate::values::{Values, cast};
use planaria_nn::lora::{Factors, LoraConfig, PREFIX, Tokens};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An adapter that was opened.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(super) folder: Model,
    pub(super) config: LoraConfig,
}

/// What an adapter holds for one module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) down: Option<Arc<dyn Values>>,
    pub(crate) up: Option<Arc<dyn Values>>,
    pub(super) up_bias: Option<Arc<dyn Values>>,
    pub(crate) embedding: bool,
    pub(super) magnitude: Option<Arc<dyn Values>>,
    pub(crate) base: Option<Arc<dyn Values>>,
    pub(crate) rows: Option<Arc<dyn Values>>,
    /// Whole tensors by the last part of their names.
    pub(crate) whole: BTreeMap<String, Arc<dyn Values>>,
    /// The module that these are a part of, which is what the configuration speaks of.
    pub(crate) fused: Option<String>,
}

impl Parts {
    /// What there is beside the factors of a linear module, in words.
    pub(crate) fn beside_factors(&self) -> Option<&'static str> {
        match self {
            Parts { embedding: true, .. } => Some("factors of token vectors"),
            Parts { up_bias: Some(_), .. } => Some("a bias of its second factor"),
            Parts { magnitude: Some(_), .. } => Some("lengths of rows (DoRA)"),
            Parts { base: Some(_), .. } => Some("a copy of the weight"),
            Parts { rows: Some(_), .. } => Some("vectors of tokens"),
            Parts { whole, .. } if !whole.is_empty() => Some("a tensor that is saved whole"),
            _ => None,
        }
    }
}

/// Kinds of models whose products lie `[in, out]` (transformers' Conv1D).
const TURNED: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];

/// Puts a tensor into its place.
type Put = fn(&mut Parts, Arc<dyn Values>);

impl Adapter {
    pub(crate) fn open(path: &str, root: &Root) -> Result<Adapter> {
        if let Some(folder) = ranks::open(path, root)? {
            return Adapter::of_paddle(folder);
        }
        let folder = Model::open_path(path, root)?;
        let Some(text) = folder.text("adapter_config.json")? else {
            return Adapter::of_paddle(folder);
        };
        let config = LoraConfig::parse(&text).map_err(|error| Error::model(path, error.to_string()))?;
        let says_r = serde_json::from_str(&text).is_ok_and(|given: Value| given["r"].is_number());
        let adapter = Adapter { folder, config };
        adapter.check_ranks("adapter_config.json", says_r)?;
        Ok(adapter)
    }

    /// Checkpoints that are read.
    pub(crate) fn inputs(&self) -> Vec<Arc<Input>> {
        self.folder.inputs.clone()
    }

    pub(super) fn wrong(&self, what: impl Into<String>) -> Error {
        Error::model(&self.folder.name, what)
    }

    /// What its configuration says.
    pub(crate) fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// As it was named.
    pub(crate) fn name(&self) -> &str {
        &self.folder.name
    }

    /// Its folder, where the adapter itself is no longer needed.
    pub(crate) fn into_folder(self) -> Model {
        self.folder
    }

    /// Refuses what is more than factors: lengths and biases do not add up.
    pub(crate) fn check_plain(&self) -> Result<()> {
        self.start()?;
        let field = match &self.config {
            config if config.use_dora => "use_dora",
            config if config.lora_bias => "lora_bias",
            config if config.target_parameters.iter().flatten().next().is_some() => "target_parameters",
            config if config.factors().is_ok_and(Factors::changes_base) => "init_lora_weights",
            _ => return Ok(()),
        };
        Err(self.wrong(format!(
            "the adapter uses `{field}`, and such adapters are not combined; merge it into the model"
        )))
    }

    /// The start that was taken out of the weights of the model; one that cannot be found again is refused.
    pub(crate) fn start(&self) -> Result<Option<Factors>> {
        self.config.taken_out().map_err(|error| self.wrong(error.to_string()))
    }

    /// How much the product of the factors counts for a module.
    pub(crate) fn scale(&self, module: &str, rank: usize) -> Result<f64> {
        if rank == 0 {
            return Err(self.wrong(format!("'{module}' has rank 0")));
        }
        self.config.scale(module, rank).map_err(|error| self.wrong(error.to_string()))
    }

    /// The tensors by module.
    pub(crate) fn modules(&self) -> BTreeMap<String, Parts> {
        let mut modules: BTreeMap<String, Parts> = BTreeMap::new();
        for (name, values) in &self.folder.tensors {
            let name = name.strip_prefix(PREFIX).unwrap_or(name);
            let endings: [(&str, Put); 10] = [
                (".lora_A.weight", |parts, values| parts.down = Some(values)),
                (".lora_B.weight", |parts, values| parts.up = Some(values)),
                (".lora_B.bias", |parts, values| parts.up_bias = Some(values)),
                (".lora_embedding_A", |parts, values| (parts.down, parts.embedding) = (Some(values), true)),
                (".lora_embedding_B", |parts, values| (parts.up, parts.embedding) = (Some(values), true)),
                (".lora_magnitude_vector.weight", |parts, values| parts.magnitude = Some(values)),
                (".lora_magnitude_vector", |parts, values| parts.magnitude = Some(values)),
                (".token_adapter.trainable_tokens_delta", |parts, values| parts.rows = Some(values)),
                (".base_layer.weight", |parts, values| parts.base = Some(values)),
                (".base_layer.bias", |parts, values| drop(parts.whole.insert("bias".to_string(), values))),
            ];
            let found = endings.iter().find_map(|(ending, put)| Some((name.strip_suffix(ending)?, put)));
            match found {
                Some((module, put)) => put(modules.entry(module.to_string()).or_default(), values.clone()),
                None => {
                    let (module, last) = name.rsplit_once('.').unwrap_or((name, "weight"));
                    let parts = modules.entry(module.to_string()).or_default();
                    parts.whole.insert(last.to_string(), values.clone());
                }
            }
        }
        modules
    }

    /// Puts the adapter on top of a model. Nothing is computed before it is read.
    pub(crate) fn apply(&self, model: &mut Model) -> Result<()> {
        let start = self.start()?;
        let name = self.config.init_lora_weights.as_str().unwrap_or_default();
        if start.is_some() && name.to_lowercase().starts_with("pissa_niter") {
            model.warnings.push(format!(
                "{}: its start '{name}' was found with random numbers, and is found again without them: close, not the same",
                self.folder.name
            ));
        }
        let head = self.head_of(model);
        self.apply_stacks(model)?;
        for (module, parts) in self.modules_on(model)? {
            for (last, values) in &parts.whole {
                let name = format!("{module}.{last}");
                let base = self.base_of(model, &name)?;
                self.same_shape(&name, values.shape(), base.shape())?;
                let values = cast(values.clone(), base.dtype());
                model.tensors.insert(name, values);
            }
            let name = format!("{module}.weight");
            if parts.down.is_some() || parts.rows.is_some() {
                let stored = self.base_of(model, &name)?;
                let turned = parts.embedding || self.lies_turned(model, &module);
                // A copy beside the factors is what they were trained on, the start taken out already.
                let (base, start) = match &parts.base {
                    Some(own) if own.shape() == stored.shape() => (cast(own.clone(), stored.dtype()), None),
                    _ => (stored, start.filter(|_| !parts.embedding)),
                };
                let values = self.adapted(&module, &parts, base, (turned, start))?;
                model.tensors.insert(name, values);
            }
            if let Some(shift) = &parts.up_bias {
                let name = format!("{module}.bias");
                let Some(base) = model.tensors.get(&name).cloned() else {
                    return Err(self.wrong(format!("it shifts the bias of '{module}', which has none")));
                };
                let rank = parts.down.as_ref().map_or(0, |down| down.shape()[0]);
                let factor = self.scale(parts.fused.as_ref().unwrap_or(&module), rank)?;
                model.tensors.insert(name, Arc::new(Shifted { base, shift: shift.clone(), factor }));
            }
        }
        if let Some(values) = head.filter(|_| !model.tensors.contains_key(HEAD)) {
            model.tensors.insert(HEAD.to_string(), values);
        }
        Ok(())
    }

    /// What the head of a tied model scores by, where the adapter changes the embedding alone: it is no longer the embedding.
    /// New vectors of single tokens count for both.
    fn head_of(&self, model: &Model) -> Option<Arc<dyn Values>> {
        let class = model.config["architectures"][0].as_str().unwrap_or_default();
        let tied = match model.config["tie_word_embeddings"].as_bool() {
            Some(tied) => tied,
            None => class.ends_with("ForCausalLM"),
        };
        let embedding = embedding_of(model)?;
        let parts = self.modules().remove(embedding.strip_suffix(".weight")?)?;
        let together = !parts.whole.is_empty() && self.config.ensure_weight_tying;
        let changes = parts.down.is_some() || parts.whole.contains_key("weight");
        let apart = tied && changes && !together && !model.tensors.contains_key(HEAD);
        apart.then(|| model.tensors.get(embedding).cloned()).flatten()
    }

    /// Whether a weight lies `[in, out]`. The model knows it better than the adapter, which is put right and told.
    pub(crate) fn lies_turned(&self, model: &mut Model, module: &str) -> bool {
        let said = self.config.fan_in_fan_out;
        let kind = model.model_type();
        if kind.is_empty() {
            return said;
        }
        let last = module.rsplit('.').next().unwrap_or(module);
        let turned = TURNED.contains(&kind) && ["c_attn", "q_attn", "c_proj", "c_fc"].contains(&last);
        if turned != said {
            let lies = if turned { "[in, out]" } else { "[out, in]" };
            let warning = format!(
                "{}: `fan_in_fan_out` is {said}, and weights such as '{module}' lie {lies} in {}; it is taken as {turned}",
                self.folder.name, model.name
            );
            let begins = warning.split('\'').next().unwrap_or_default();
            if !model.warnings.iter().any(|other| other.starts_with(begins)) {
                model.warnings.push(warning);
            }
        }
        turned
    }

    /// The factors that the start of a module took out of its weight.
    pub(crate) fn first_factors(
        &self,
        model: &mut Model,
        module: &str,
        rank: usize,
        start: Factors,
    ) -> Result<(Arc<dyn Values>, Arc<dyn Values>)> {
        let weight = self.base_of(model, &format!("{module}.weight"))?;
        if weight.shape().len() != 2 {
            return Err(
                self.wrong(format!("'{module}' has the shape {}, not that of a matrix", weight.shape()))
            );
        }
        let turned = self.lies_turned(model, module);
        start::first_factors(weight, turned, (rank, self.scale(module, rank)?), start)
    }

    /// The weight of the model that an adapter changes. A head that is tied to the embedding gets values of its own.
    fn base_of(&self, model: &Model, name: &str) -> Result<Arc<dyn Values>> {
        if let Some(values) = model.tensors.get(name) {
            return Ok(values.clone());
        }
        let tied = embedding_of(model).filter(|_| name == HEAD);
        if let Some(values) = tied.and_then(|embedding| model.tensors.get(embedding)) {
            return Ok(values.clone());
        }
        let near = nearest(name, model.tensors.keys().map(String::as_str));
        Err(self.wrong(format!("it changes '{name}', which {} does not have{near}", model.name)))
    }

    fn same_shape(&self, name: &str, own: &[usize], base: &[usize]) -> Result<()> {
        if own == base {
            return Ok(());
        }
        Err(self.wrong(format!("'{name}' has the shape {own:?}, and the model's has {base:?}")))
    }

    /// The weight of a module with its adapter; without the start, where that was taken out of it.
    pub(super) fn adapted(
        &self,
        module: &str,
        parts: &Parts,
        base: Arc<dyn Values>,
        (turned, start): (bool, Option<Factors>),
    ) -> Result<Arc<dyn Values>> {
        if let Some(new) = &parts.rows {
            let indices = self.token_indices(module)?;
            return Ok(Arc::new(Rows::new(base, new.clone(), indices)?));
        }
        let (Some(down), Some(up)) = (&parts.down, &parts.up) else {
            return Err(self.wrong(format!("'{module}' has one factor without the other")));
        };
        let (rank, [rows, columns]) = match (&down.shape()[..], &up.shape()[..], &base.shape()[..]) {
            ([rank, inner], [outer, other], [rows, columns]) if rank == other => {
                let expected = if turned { [*inner, *outer] } else { [*outer, *inner] };
                self.same_shape(module, &expected, &[*rows, *columns])?;
                (*rank, [*rows, *columns])
            }
            (down, up, base) => {
                let what =
                    format!("'{module}': factors of the shapes {down:?} and {up:?} do not fit {base:?}");
                return Err(self.wrong(what));
            }
        };
        let direction = match (&parts.magnitude, turned) {
            (None, _) => Direction::None,
            (Some(magnitude), false) => Direction::rows(magnitude.clone()),
            (Some(magnitude), true) => Direction::columns(magnitude.clone()),
        };
        let factor = self.scale(parts.fused.as_deref().unwrap_or(module), rank)?;
        let sizes = (rows, columns, rank);
        let base: Arc<dyn Values> = match start {
            None => base,
            Some(start) => {
                let first = start::first_factors(base.clone(), turned, (rank, factor), start)?;
                Arc::new(Adapted::new(base, first, sizes, turned, -factor, Direction::None))
            }
        };
        let factors = (down.clone(), up.clone());
        Ok(Arc::new(Adapted::new(base, factors, sizes, turned, factor, direction)))
    }

    fn token_indices(&self, module: &str) -> Result<Vec<usize>> {
        let found = match &self.config.trainable_token_indices {
            None => None,
            Some(Tokens::Ids(ids)) => Some(ids),
            Some(Tokens::ByModule(map)) => {
                map.iter().find(|(name, _)| module.ends_with(name.as_str())).map(|(_, ids)| ids)
            }
        };
        found.cloned().ok_or_else(|| self.wrong("`trainable_token_indices` does not say which rows"))
    }
}
