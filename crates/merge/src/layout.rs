//! Adapters from one layout to the other: peft's and Paddle's.

use crate::error::{Error, Result};
use crate::merge::{Merge, Options};
use crate::model::adapter::{Adapter, Parts};
use crate::model::{Model, turned};
use crate::result::{Outcome, pretty};
use crate::values::{Held, Values, whole};
use planaria_array::promote;
use planaria_layout::{DType, Shape};
use planaria_nn::lora::{LoraConfig, Names, PREFIX};
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

/// An adapter of either layout in the one that is asked for, value by value. Only factors are in both. One whose start was taken
/// out of the weights of `model` becomes one of twice the rank that fits the model as it is.
pub fn convert_adapter(
    path: &str,
    to: AdapterLayout,
    model: Option<&str>,
    options: &Options,
) -> Result<Merge> {
    let adapter = Adapter::open(path, &options.root)?;
    let mut config = adapter.config().clone();
    let start = adapter.start()?;
    let mut base = match start {
        Some(_) => Some(started_from(path, &config, model, options)?),
        None => model.map(|model| Model::open_path(model, &options.root)).transpose()?,
    };
    if to == AdapterLayout::Paddle || base.is_some() {
        adapter.check_apart(base.as_ref())?;
    }
    // Fused modules stay so unless a model is named that has them in parts.
    let modules = base.as_ref().map_or_else(|| Ok(adapter.modules()), |base| adapter.modules_on(base))?;
    if modules.keys().ne(adapter.modules().keys()) {
        config.target_modules = Some(Names::List(modules.keys().cloned().collect()));
        config.target_parameters = None;
        keep_strengths(&mut config, adapter.name(), &modules)?;
    }
    let mut all: Vec<(&String, Pair)> = Vec::new();
    for (module, parts) in &modules {
        let pair = factors(&adapter, module, parts)?;
        all.push(match (&mut base, start) {
            (Some(base), Some(start)) => {
                let first = adapter.first_factors(base, module, pair.0.shape()[0], start)?;
                (module, beside(&pair, &first)?)
            }
            _ => (module, pair),
        });
    }
    if start.is_some() {
        config = doubled(config);
    }
    let tensors = tensors(&adapter, to, &config, &all)?;
    let (file, written, stem) = match to {
        AdapterLayout::Peft => ("adapter_config.json", config.to_text().into_bytes(), "adapter_model"),
        AdapterLayout::Paddle => {
            ("lora_config.json", pretty(&paddle_config(&config, &modules, &tensors)), "peft_model")
        }
    };
    let inputs =
        adapter.inputs().into_iter().chain(base.iter().flat_map(|base| base.inputs.clone())).collect();
    let warnings = base.map(|base| base.warnings).unwrap_or_default();
    let files = BTreeMap::from([(file.to_string(), written)]);
    let outcome = Outcome { files, warnings, ..Outcome::new(tensors, Arc::new(adapter.into_folder())) };
    Merge::new(outcome, stem, inputs).finished(Vec::new(), options)
}

/// Gives the parts of a fused module the rank and the alpha that patterns gave the whole, by their own names. They come before the
/// patterns of the file, of which one may fit a part too.
fn keep_strengths(config: &mut LoraConfig, name: &str, modules: &BTreeMap<String, Parts>) -> Result<()> {
    let wrong = |error: planaria_nn::Error| Error::model(name, error.to_string());
    let (mut ranks, mut alphas) = (Vec::new(), Vec::new());
    for (module, parts) in modules {
        let Some(fused) = &parts.fused else { continue };
        let (rank, alpha) = (config.rank(fused).map_err(wrong)?, config.alpha(fused).map_err(wrong)?);
        if rank != config.rank(module).map_err(wrong)? {
            ranks.push((regex::escape(module), rank as i64));
        }
        if alpha != config.alpha(module).map_err(wrong)? {
            alphas.push((regex::escape(module), alpha));
        }
    }
    config.rank_pattern.splice(0..0, ranks);
    config.alpha_pattern.splice(0..0, alphas);
    Ok(())
}

/// Factors by their names in a layout.
fn tensors(
    adapter: &Adapter,
    to: AdapterLayout,
    config: &LoraConfig,
    all: &[(&String, Pair)],
) -> Result<Vec<(String, Arc<dyn Values>)>> {
    let mut tensors: Vec<(String, Arc<dyn Values>)> = Vec::new();
    for (module, (down, up)) in all {
        if to == AdapterLayout::Paddle {
            one_strength(config, adapter.name(), module, down.shape()[0])?;
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
    Ok(tensors)
}

/// The model whose weights an adapter's start was taken out of.
fn started_from(path: &str, config: &LoraConfig, model: Option<&str>, options: &Options) -> Result<Model> {
    let Some(model) = model else {
        let what = format!(
            "its start {} was taken out of the model's weights; name the model with --model",
            config.init_lora_weights
        );
        return Err(Error::model(path, what));
    };
    Model::open_path(model, &options.root)
}

/// The two factors of a module.
type Pair = (Arc<dyn Values>, Arc<dyn Values>);

/// The two factors of a module that has nothing else.
fn factors(adapter: &Adapter, module: &str, parts: &Parts) -> Result<Pair> {
    match (parts.beside_factors(), &parts.down, &parts.up) {
        (None, Some(down), Some(up)) => Ok((down.clone(), up.clone())),
        (what, ..) => {
            let what = what.unwrap_or("one factor without the other");
            let what = format!(
                "'{module}' has {what}, and only factors have a place in both layouts; merge the adapter into its model"
            );
            Err(Error::model(adapter.name(), what))
        }
    }
}

/// Factors whose product is that of the first pair without that of the second. They are small.
fn beside((down, up): &Pair, (first_down, first_up): &Pair) -> Result<Pair> {
    let (&[rank, inner], &[out, _]) = (&down.shape()[..], &up.shape()[..]) else {
        let what = format!("factors of the shapes {} and {} are no matrices", down.shape(), up.shape());
        return Err(Error::request(what));
    };
    if first_down.shape()[..] != [rank, inner] || first_up.shape()[..] != [out, rank] {
        let what = format!(
            "factors of the shapes {} and {} do not fit a weight of {out} by {}",
            down.shape(),
            up.shape(),
            first_down.shape()[1]
        );
        return Err(Error::request(what));
    }
    // What was taken out was kept in f32.
    let dtype = promote("convert", down.dtype(), DType::F32)?;
    let downs = [whole(&**down)?, whole(&**first_down)?].concat();
    let (ups, first_ups) = (whole(&**up)?, whole(&**first_up)?);
    let row = |(own, first): (&[f64], &[f64])| -> Vec<f64> {
        own.iter().copied().chain(first.iter().map(|value| -value)).collect()
    };
    let ups: Vec<f64> = ups.chunks(rank).zip(first_ups.chunks(rank)).flat_map(row).collect();
    let held = |values: Vec<f64>, shape: [usize; 2]| -> Result<Arc<dyn Values>> {
        Ok(Arc::new(Held { values, shape: Shape::new(&shape)?, dtype }))
    };
    Ok((held(downs, [2 * rank, inner])?, held(ups, [out, 2 * rank])?))
}

/// Twice the rank with the same factor on the product.
fn doubled(config: LoraConfig) -> LoraConfig {
    let more = if config.use_rslora { std::f64::consts::SQRT_2 } else { 2.0 };
    LoraConfig {
        r: 2 * config.r,
        lora_alpha: more * config.lora_alpha,
        rank_pattern: config.rank_pattern.iter().map(|(key, rank)| (key.clone(), 2 * rank)).collect(),
        alpha_pattern: config.alpha_pattern.iter().map(|(key, alpha)| (key.clone(), more * alpha)).collect(),
        init_lora_weights: Value::Bool(true),
        ..config
    }
}

/// Paddle knows one rank and one alpha for all modules.
fn one_strength(config: &LoraConfig, name: &str, module: &str, rank: usize) -> Result<()> {
    let all = config.r as usize;
    let plain = match config.use_rslora {
        true => config.lora_alpha / (all as f64).sqrt(),
        false => config.lora_alpha / all as f64,
    };
    let own = config.scale(module, rank).map_err(|error| Error::model(name, error.to_string()))?;
    if rank == all && own == plain {
        return Ok(());
    }
    let what = format!(
        "'{module}' has a rank or an alpha of its own, and Paddle knows one for all modules; `lora combine ADAPTER --method exact` \
         makes an adapter of one rank"
    );
    Err(Error::model(name, what))
}

fn paddle_config(
    config: &LoraConfig,
    modules: &BTreeMap<String, Parts>,
    tensors: &[(String, Arc<dyn Values>)],
) -> Value {
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
