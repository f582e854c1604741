//! Adapters as peft writes them, applied to a model tensor by tensor.

use super::adapted::{Adapted, Direction, Rows, Shifted};
use super::{Model, Root};
use crate::error::{Error, Result, nearest};
use crate::values::Values;
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What stands before the names of modules.
const PREFIX: &str = "base_model.model.";

/// Variants of LoRA that compute something else.
const VARIANTS: [&str; 9] = [
    "use_qalora",
    "alora_invocation_tokens",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "use_bdlora",
    "arrow_config",
    "megatron_config",
    "target_parameters",
];

/// An adapter that was opened.
#[derive(Debug)]
pub(crate) struct Adapter {
    folder: Model,
    config: Value,
}

/// What an adapter holds for one module.
#[derive(Clone, Debug, Default)]
struct Parts {
    down: Option<Arc<dyn Values>>,
    up: Option<Arc<dyn Values>>,
    up_bias: Option<Arc<dyn Values>>,
    embedding: bool,
    magnitude: Option<Arc<dyn Values>>,
    base: Option<Arc<dyn Values>>,
    rows: Option<Arc<dyn Values>>,
    /// Whole tensors by the last part of their names.
    whole: BTreeMap<String, Arc<dyn Values>>,
}

/// Puts a tensor into its place.
type Put = fn(&mut Parts, Arc<dyn Values>);

impl Adapter {
    pub(crate) fn open(path: &str, root: &Root) -> Result<Adapter> {
        let folder = Model::open_path(path, root)?;
        let config = folder.json("adapter_config.json")?;
        let config = config
            .ok_or_else(|| Error::model(path, "there is no adapter_config.json, so it is no adapter"))?;
        let adapter = Adapter { folder, config };
        adapter.check()?;
        Ok(adapter)
    }

    /// Paths that are read.
    pub(crate) fn places(&self) -> Vec<String> {
        self.folder.places.clone()
    }

    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::model(&self.folder.name, what)
    }

    fn check(&self) -> Result<()> {
        if let Some(other) = self.config["peft_type"].as_str().filter(|kind| *kind != "LORA") {
            return Err(self.wrong(format!("the adapter is of type {other}; only LORA can be applied")));
        }
        let set = |field: &&&str| {
            let value = &self.config[**field];
            !(value.is_null() || *value == Value::Bool(false) || value.as_array().is_some_and(Vec::is_empty))
        };
        if let Some(variant) = VARIANTS.iter().find(set) {
            return Err(self.wrong(format!("the adapter uses `{variant}`, which is not implemented")));
        }
        Ok(())
    }

    fn number(&self, field: &str, default: f64) -> f64 {
        self.config[field].as_f64().unwrap_or(default)
    }

    fn truth(&self, field: &str) -> bool {
        self.config[field].as_bool().unwrap_or(false)
    }

    /// The value of a pattern table for a module, if one of its keys matches.
    fn pattern(&self, table: &str, module: &str) -> Result<Option<f64>> {
        for (key, value) in self.config[table].as_object().into_iter().flatten() {
            let regex = Regex::new(&format!("^(.*\\.)?({key})$"))
                .map_err(|error| self.wrong(format!("`{table}` has a bad pattern '{key}': {error}")))?;
            if regex.is_match(module) {
                return Ok(value.as_f64());
            }
        }
        Ok(None)
    }

    /// How much the product of the factors counts for a module.
    fn scale(&self, module: &str, rank: usize) -> Result<f64> {
        let alpha = self.pattern("alpha_pattern", module)?.unwrap_or_else(|| self.number("lora_alpha", 8.0));
        if rank == 0 {
            return Err(self.wrong(format!("'{module}' has rank 0")));
        }
        let rank = rank as f64;
        Ok(if self.truth("use_rslora") { alpha / rank.sqrt() } else { alpha / rank })
    }

    /// The tensors by module.
    fn modules(&self) -> BTreeMap<String, Parts> {
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
        for (module, parts) in self.modules() {
            for (last, values) in &parts.whole {
                let name = format!("{module}.{last}");
                let base = self.base_of(model, &name)?;
                self.same_shape(&name, values.shape(), base.shape())?;
                let values = crate::values::cast(values.clone(), base.dtype());
                model.tensors.insert(name, values);
            }
            let name = format!("{module}.weight");
            if parts.down.is_some() || parts.rows.is_some() {
                let stored = self.base_of(model, &name)?;
                let base = match &parts.base {
                    Some(own) if own.shape() == stored.shape() => own.clone(),
                    _ => stored,
                };
                let values = self.adapted(&module, &parts, base)?;
                model.tensors.insert(name, values);
            }
            if let Some(shift) = &parts.up_bias {
                let name = format!("{module}.bias");
                let Some(base) = model.tensors.get(&name).cloned() else {
                    return Err(self.wrong(format!("it shifts the bias of '{module}', which has none")));
                };
                let rank = parts.down.as_ref().map_or(0, |down| down.shape()[0]);
                let factor = self.scale(&module, rank)?;
                model.tensors.insert(name, Arc::new(Shifted { base, shift: shift.clone(), factor }));
            }
        }
        Ok(())
    }

    /// The weight of the model that an adapter changes. A head that is tied to the embedding gets values of its own.
    fn base_of(&self, model: &Model, name: &str) -> Result<Arc<dyn Values>> {
        if let Some(values) = model.tensors.get(name) {
            return Ok(values.clone());
        }
        if name == "lm_head.weight"
            && let Some(values) = model.tensors.get("model.embed_tokens.weight")
        {
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

    /// The weight of a module with its adapter.
    fn adapted(&self, module: &str, parts: &Parts, base: Arc<dyn Values>) -> Result<Arc<dyn Values>> {
        if let Some(new) = &parts.rows {
            let indices = self.token_indices(module)?;
            return Ok(Arc::new(Rows::new(base, new.clone(), indices)?));
        }
        let (Some(down), Some(up)) = (&parts.down, &parts.up) else {
            return Err(self.wrong(format!("'{module}' has one factor without the other")));
        };
        let turned = parts.embedding || self.truth("fan_in_fan_out");
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
        let factor = self.scale(module, rank)?;
        let (down, up) = (down.clone(), up.clone());
        Ok(Arc::new(Adapted::new(base, (down, up), (rows, columns, rank), turned, factor, direction)))
    }

    fn token_indices(&self, module: &str) -> Result<Vec<usize>> {
        let given = &self.config["trainable_token_indices"];
        let list = match given {
            Value::Object(map) => {
                let own = map.iter().find(|(name, _)| module.ends_with(name.as_str()));
                own.map_or(&Value::Null, |(_, list)| list)
            }
            other => other,
        };
        let list =
            list.as_array().ok_or_else(|| self.wrong("`trainable_token_indices` does not say which rows"))?;
        Ok(list.iter().filter_map(Value::as_u64).map(|index| index as usize).collect())
    }
}
