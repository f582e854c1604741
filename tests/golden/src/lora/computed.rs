//! Cases that compute: logits, gradients and steps of training, several adapters, starts out of the weights.

use super::Case;
use super::compare::close;
use super::matching::model;
use crate::cases::Verdict;
use anyhow::{Context, Result, ensure};
use planaria_array::{Array, DType};
use planaria_comm::alone;
use planaria_nn::lora::{Adapted, LoraConfig, starts};
use planaria_nn::models::{Architecture, Models, Network, Run};
use planaria_nn::optim::{AdamW, OptimState, Rule, Shard};
use planaria_nn::{Init, Param, ParamKind};
use planaria_tensor::Tensor;
use planaria_train::Opened;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

fn numbers(array: &Array) -> Result<Vec<f64>> {
    Ok(array.contiguous()?.cast(DType::F64)?.to_vec::<f64>()?)
}

fn tokens(case: &Case<'_>, name: &str) -> Result<Tensor> {
    let (ids, shape) = case.tensors.ids(name)?;
    Ok(Tensor::from_slice(&ids, &shape)?)
}

fn logits(network: &dyn Network, ids: &Tensor) -> Result<Vec<f64>> {
    let end = network.forward(ids.into(), &Run::default())?;
    numbers(network.logits(&end.hidden)?.local())
}

fn open(case: &Case<'_>, adapters: &[PathBuf]) -> Result<Opened> {
    Ok(Opened::open(&case.model()?, adapters, &Models::default())?)
}

/// The trained parameters by their names in the adapter's files.
fn trained(network: &dyn Network) -> Vec<(String, Param)> {
    let own = network.params().into_iter().filter(|param| param.is_trainable() && param.tied().is_none());
    own.filter_map(|param| Some((param.spec().role.in_adapter()?.to_string(), param.clone()))).collect()
}

pub(super) fn train(case: &Case<'_>) -> Result<Verdict> {
    let opened = open(case, &[case.path("adapter")?])?;
    let network = opened.load(&alone(), &Init::default())?;
    let ids = tokens(case, "input_ids")?;
    let tolerance = &case.about["tolerance"];
    close("logits", "all", &logits(&*network, &ids)?, case.tensors.get("logits")?, tolerance)?;

    let params = trained(&*network);
    let optimizer = &case.about["optimizer"];
    ensure!(optimizer["name"] == "adamw", "unknown optimizer {}", optimizer["name"]);
    let number = |field: &str| optimizer[field].as_f64().with_context(|| format!("no {field}"));
    let lr = number("lr")?;
    let rule = Rule::AdamW(AdamW {
        lr,
        beta1: optimizer["betas"][0].as_f64().context("no betas")?,
        beta2: optimizer["betas"][1].as_f64().context("no betas")?,
        eps: number("eps")?,
        weight_decay: number("weight_decay")?,
        ..AdamW::default()
    });
    let states = params
        .iter()
        .map(|(_, param)| Ok(rule.state(param.leaf().local())?))
        .collect::<Result<Vec<OptimState>>>()?;
    let labels = shifted(case)?;
    for step in 1..=case.about["steps"].as_u64().unwrap_or(3) {
        let loss = network.loss(&network.forward((&ids).into(), &Run::default())?, &labels)?;
        loss.total()?.backward()?;
        let mean = loss.sum.item()?.as_f64() / loss.count as f64;
        close("loss", &step.to_string(), &[mean], case.tensors.get(&format!("loss.{step}"))?, tolerance)?;
        let scale = 1.0 / loss.count as f64;
        let mut grads = Vec::new();
        for (name, param) in &params {
            let grad = param.take_grad()?.with_context(|| format!("no gradient of {name}"))?;
            if step == 1 {
                let found: Vec<f64> = numbers(grad.local())?.into_iter().map(|x| x * scale).collect();
                close("grad", name, &found, case.tensors.get(&format!("grad.{name}"))?, tolerance)?;
            }
            grads.push(grad.local().clone());
        }
        // One group: everything decays.
        let shards = params.iter().zip(&grads).zip(&states).map(|(((_, param), grad), state)| Shard {
            param: param.leaf().local(),
            grad,
            state,
            kind: ParamKind::Matrix,
        });
        rule.step(step, lr, scale, &shards.collect::<Vec<_>>())?;
        for (name, wanted) in case.tensors.under(&format!("step{step}.")) {
            let param = params.iter().find(|(known, _)| known == name);
            let (_, param) = param.with_context(|| format!("`{name}` is not trained"))?;
            close(&format!("step{step}"), name, &numbers(param.leaf().local())?, wanted, tolerance)?;
        }
    }
    let expected = case.tensors.under("grad.").count();
    ensure!(expected == params.len(), "{} parameters are trained, expected {expected}", params.len());
    Ok(Verdict::Passed)
}

/// Label `i` is the token after `i`, as the model wants it; the case has the tokens themselves.
fn shifted(case: &Case<'_>) -> Result<Tensor> {
    let (labels, shape) = case.tensors.ids("labels")?;
    let length = *shape.last().context("labels without positions")?;
    let row = |row: &[i64]| row[1..].iter().copied().chain([planaria_nn::IGNORED]).collect::<Vec<i64>>();
    let moved: Vec<i64> = labels.chunks(length).flat_map(row).collect();
    Ok(Tensor::from_slice(&moved, &shape)?)
}

pub(super) fn forward(case: &Case<'_>) -> Result<Verdict> {
    let opened = open(case, &[case.path("adapter")?])?;
    let network = opened.load(&alone(), &Init { dtype: DType::BF16, ..Init::default() })?;
    let found = logits(&*network, &tokens(case, "input_ids")?)?;
    // The same weights in f64 are what both try to compute.
    let exact = case.tensors.get("exact_logits").or_else(|_| case.tensors.get("logits"))?;
    close("logits", "exact", &found, exact, &case.about["tolerance"])?;
    Ok(Verdict::Passed)
}

pub(super) fn several(case: &Case<'_>) -> Result<Verdict> {
    let named = case.about["adapters"].as_object().context("no adapters")?;
    let names: Vec<&String> = named.keys().collect();
    let paths: Vec<PathBuf> =
        named.values().map(|path| case.root.join(path.as_str().unwrap_or_default())).collect();
    let opened = open(case, &paths)?;
    let network = opened.load(&alone(), &Init::default())?;
    let adapted = opened.model().adapted().context("there are adapters")?;
    let ids = tokens(case, "input_ids")?;
    let only = |active: &[&str]| -> Result<Vec<f64>> {
        for (number, name) in names.iter().enumerate() {
            adapted.switch(number).set(active.contains(&name.as_str()));
        }
        logits(&*network, &ids)
    };
    let tolerance = &case.about["tolerance"];
    for (what, wanted) in case.tensors.under("logits.").filter(|(what, _)| *what != "mixed") {
        let active: Vec<&str> = match what {
            "both" => names.iter().map(|name| name.as_str()).collect(),
            "none" => Vec::new(),
            one => vec![one],
        };
        close("logits", what, &only(&active)?, wanted, tolerance)?;
    }
    let Some(rows) = case.about["mixed"].as_array() else { return Ok(Verdict::Passed) };
    let mut mixed = Vec::new();
    for (row, name) in rows.iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        let all = only(if name == "__base__" { &[] } else { std::slice::from_ref(&name) })?;
        let each = all.len() / ids.shape()[0];
        mixed.extend_from_slice(&all[row * each..(row + 1) * each]);
    }
    close("logits", "mixed", &mixed, case.tensors.get("logits.mixed")?, tolerance)?;
    Ok(Verdict::Passed)
}

pub(super) fn init(case: &Case<'_>) -> Result<Verdict> {
    let about = &case.about;
    let name = about["model"].as_str().context("no model")?;
    let config = json!({
        "r": about["r"], "lora_alpha": about["lora_alpha"], "target_modules": about["target_modules"],
        "init_lora_weights": about["init"],
    });
    let config = LoraConfig::parse(&config.to_string())?;
    let adapted: Arc<dyn Architecture> = Arc::new(Adapted::new(model(case.root, name)?, config.clone())?);
    // The base is loaded as a model without an adapter is; the start is then taken out of it.
    let base = Opened::open(&case.model()?, &[], &Models::default())?.load(&alone(), &Init::default())?;
    let stage = planaria_nn::models::Stage::whole(&*adapted);
    let mut network = adapted.build(&stage, None, &Init::default())?;
    let loaded = base.params();
    for param in network.params() {
        if let Some(from) = loaded.iter().find(|from| from.name() == param.name()) {
            param.leaf().local().copy_from(from.leaf().local())?;
        }
    }
    for (name, values) in starts::values(&mut *network, config.factors()?)? {
        let params = network.params();
        let param = params.iter().find(|param| param.name() == name).context("a start of no parameter")?;
        param.leaf().local().copy_from(&values)?;
    }
    let params = network.params();
    let of =
        |name: &str| params.iter().find(|param| param.name() == name).with_context(|| format!("no `{name}`"));
    let targets = planaria_nn::lora::find(&config, &**adapted.adapted().context("it is adapted")?.base())?;
    for (name, wanted) in case.tensors.under("base.") {
        let weight = if name.ends_with(".weight") { name.to_string() } else { format!("{name}.weight") };
        close("base", name, &numbers(of(&weight)?.leaf().local())?, wanted, &about["tolerance"])?;
    }
    for (name, wanted) in case.tensors.under("delta.") {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let scale = targets.of(module).with_context(|| format!("{module} is not adapted"))?.scale;
        let (down, up) = (of(&format!("{module}.lora_A.weight"))?, of(&format!("{module}.lora_B.weight"))?);
        let delta = up.leaf().matmul(down.leaf())?.local().clone();
        let delta: Vec<f64> = numbers(&delta)?.into_iter().map(|x| x * scale).collect();
        close("delta", name, &delta, wanted, &about["tolerance"])?;
    }
    Ok(Verdict::Passed)
}
