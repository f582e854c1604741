//! Adapters as Paddle writes them: `lora_config.json`, and factors that lie the other way round.

use super::Model;
use super::adapter::Adapter;
use crate::error::{Error, Result};
use crate::values::{Held, Values, whole};
use planaria_layout::Shape;
use planaria_nn::lora::{LoraConfig, Names, PREFIX};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Fields that change what the factors mean.
const VARIANTS: [&str; 3] = ["loraga", "do_qat", "enable_lora_list"];

impl Adapter {
    /// An adapter of Paddle as one of peft: `x · A · B` there is `x · Aᵀ · Bᵀ` here.
    pub(super) fn of_paddle(mut folder: Model) -> Result<Adapter> {
        let name = folder.name.clone();
        let Some(given) = folder.json("lora_config.json")? else {
            let what =
                "there is neither an adapter_config.json nor a lora_config.json, so it is not an adapter";
            return Err(Error::model(&name, what));
        };
        let set = |field: &&&str| {
            let value = &given[**field];
            !(value.is_null() || *value == Value::Bool(false) || value.as_array().is_some_and(Vec::is_empty))
        };
        if let Some(field) = VARIANTS.iter().find(set) {
            return Err(Error::model(&name, format!("the adapter uses `{field}`, which is not implemented")));
        }
        let (mut tensors, mut modules) = (BTreeMap::new(), BTreeSet::new());
        for (key, values) in std::mem::take(&mut folder.tensors) {
            let factor = ["lora_A", "lora_B"].iter().find(|factor| key.ends_with(&format!(".{factor}")));
            match factor {
                Some(factor) => {
                    modules.insert(key[..key.len() - factor.len() - 1].to_string());
                    tensors.insert(format!("{PREFIX}{key}.weight"), turned(&name, &key, &values)?);
                }
                None => drop(tensors.insert(format!("{PREFIX}{key}"), values)),
            }
        }
        if modules.is_empty() {
            return Err(Error::model(&name, "there are no factors in it"));
        }
        folder.tensors = tensors;
        let number = |field: &str, default: f64| given[field].as_f64().unwrap_or(default);
        let config = LoraConfig {
            r: number("r", 8.0) as i64,
            lora_alpha: number("lora_alpha", 8.0),
            use_rslora: given["rslora"] == Value::Bool(true),
            target_modules: Some(Names::List(modules.into_iter().collect())),
            base_model_name_or_path: given["base_model_name_or_path"].as_str().map(str::to_string),
            lora_dropout: number("lora_dropout", 0.0),
            task_type: Some("CAUSAL_LM".into()),
            ..LoraConfig::default()
        };
        config.check().map_err(|error| Error::model(&name, error.to_string()))?;
        let adapter = Adapter { folder, config };
        adapter.check_ranks("lora_config.json", given["r"].is_number())?;
        Ok(adapter)
    }
}

/// A factor with its two dims changed over. Factors are small.
pub(crate) fn turned(name: &str, key: &str, values: &Arc<dyn Values>) -> Result<Arc<dyn Values>> {
    let [rows, columns] = values.shape()[..] else {
        let what =
            format!("'{key}' has the shape {}; stacked factors of experts are not read", values.shape());
        return Err(Error::model(name, what));
    };
    let read = whole(&**values)?;
    let values_turned = (0..columns)
        .flat_map(|column| (0..rows).map(move |row| row * columns + column))
        .map(|at| read[at])
        .collect();
    Ok(Arc::new(Held { values: values_turned, shape: Shape::new(&[columns, rows])?, dtype: values.dtype() }))
}
