//! Adapters from one layout to the other: peft's and Paddle's.

use crate::error::{Error, Result};
use crate::merge::{Merge, Options};
use crate::model::adapter::{Adapter, Parts};
use crate::model::turned;
use crate::result::{Outcome, pretty};
use crate::values::Values;
use planaria_nn::lora::PREFIX;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How an adapter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterLayout {
    /// `adapter_config.json` and factors `[r, in]` and `[out, r]`.
    Peft,
    /// `lora_config.json` and factors `[in, r]` and `[r, out]`.
    Paddle,
}

/// An adapter of either layout in the one that is asked for, value by value. Only factors are in both.
pub fn convert_adapter(path: &str, to: AdapterLayout, options: &Options) -> Result<Merge> {
    let adapter = Adapter::open(path, &options.root)?;
    let modules = adapter.modules();
    let mut tensors: Vec<(String, Arc<dyn Values>)> = Vec::new();
    for (module, parts) in &modules {
        let (down, up) = factors(&adapter, module, parts)?;
        if to == AdapterLayout::Paddle {
            one_strength(&adapter, module, down)?;
        }
        for (factor, values) in [("lora_A", down), ("lora_B", up)] {
            tensors.push(match to {
                AdapterLayout::Peft => (format!("{PREFIX}{module}.{factor}.weight"), values.clone()),
                AdapterLayout::Paddle => {
                    let name = format!("{module}.{factor}");
                    let values = turned(adapter.name(), &name, values)?;
                    (name, values)
                }
            });
        }
    }
    let (file, config, stem) = match to {
        AdapterLayout::Peft => ("adapter_config.json", adapter.config().to_value(), "adapter_model"),
        AdapterLayout::Paddle => {
            ("lora_config.json", paddle_config(&adapter, &modules, &tensors), "peft_model")
        }
    };
    let inputs = adapter.inputs();
    let files = BTreeMap::from([(file.to_string(), pretty(&config))]);
    let outcome = Outcome { files, ..Outcome::new(tensors, Arc::new(adapter.into_folder())) };
    Merge::new(outcome, stem, inputs).finished(Vec::new(), options)
}

/// One factor of a module.
type Factor = Arc<dyn Values>;

/// The two factors of a module that has nothing else.
fn factors<'p>(adapter: &Adapter, module: &str, parts: &'p Parts) -> Result<(&'p Factor, &'p Factor)> {
    match (parts.beside_factors(), &parts.down, &parts.up) {
        (None, Some(down), Some(up)) => Ok((down, up)),
        (what, ..) => {
            let what = what.unwrap_or("one factor without the other");
            let what = format!(
                "'{module}' has {what}, and only factors have a place in both layouts; merge the adapter into its model"
            );
            Err(Error::model(adapter.name(), what))
        }
    }
}

/// Paddle knows one rank and one alpha for all modules.
fn one_strength(adapter: &Adapter, module: &str, down: &Arc<dyn Values>) -> Result<()> {
    let config = adapter.config();
    let (rank, all) = (down.shape()[0], config.r as usize);
    let plain = match config.use_rslora {
        true => config.lora_alpha / (all as f64).sqrt(),
        false => config.lora_alpha / all as f64,
    };
    if rank == all && adapter.scale(module, rank)? == plain {
        return Ok(());
    }
    let what = format!(
        "'{module}' has a rank or an alpha of its own, and Paddle knows one for all modules; `lora combine ADAPTER --method cat` \
         makes an adapter of one rank"
    );
    Err(Error::model(adapter.name(), what))
}

fn paddle_config(
    adapter: &Adapter,
    modules: &BTreeMap<String, Parts>,
    tensors: &[(String, Arc<dyn Values>)],
) -> Value {
    let config = adapter.config();
    let patterns: Vec<String> = modules.keys().map(|module| regex::escape(module)).collect();
    let dtype = tensors.first().map_or("float32", |(_, values)| crate::result::torch_name(values.dtype()));
    json!({
        "base_model_name_or_path": config.base_model_name_or_path,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "rslora": config.use_rslora,
        "target_modules": patterns,
        "trainable_modules": null,
        "trainable_bias": null,
        "tensor_model_parallel_size": -1,
        "dtype": dtype,
    })
}
