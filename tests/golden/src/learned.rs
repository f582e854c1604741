//! What runs of the trainer learned in whole updates, beside what a case says.

use crate::checkpoints::{read_all, read_expected};
use crate::values::{Tolerance, field, list, number};
use anyhow::{Context, Result, ensure};
use planaria_ckpt::formats::Key;
use planaria_train::Trainer;
use planaria_train::config::Sources;
use planaria_train::event::{Event, Observer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// An optimizer that takes the gradient away from the weights as it is.
pub(crate) const PLAIN: &str =
    "kind = 'sgd'\nlr = 1.0\nmomentum = 0.0\nweight_decay = 0.0\nclip = 0.0\nschedule = 'constant'\n";

/// The keys of `[optim]` for the optimizer of a case.
pub(crate) fn optimizer(given: &Value) -> Result<String> {
    let betas = list(given, "betas")?;
    let clip = given.get("max_grad_norm").filter(|clip| !clip.is_null()).map(number).transpose()?;
    Ok(format!(
        "lr = {:e}\nbeta1 = {}\nbeta2 = {}\neps = {:e}\nweight_decay = {}\nclip = {}\nschedule = 'constant'\n",
        number(field(given, "lr")?)?,
        number(&betas[0])?,
        number(&betas[1])?,
        number(field(given, "eps")?)?,
        number(field(given, "weight_decay")?)?,
        clip.unwrap_or(0.0)
    ))
}

/// The meshes of these that a model can be divided over.
pub(crate) fn fitting<'a>(model: &Path, meshes: &[&'a str]) -> Result<Vec<&'a str>> {
    let config: Value = serde_json::from_str(&std::fs::read_to_string(model.join("config.json"))?)?;
    let has = |name: &str| config.get(name).and_then(Value::as_u64).unwrap_or(1);
    let (layers, heads) = (has("num_hidden_layers"), has("num_attention_heads"));
    let fits = |mesh: &&&str| {
        (!mesh.contains("pp=2") || layers >= 2) && (!mesh.contains("tp=2") || heads.is_multiple_of(2))
    };
    Ok(meshes.iter().filter(fits).copied().collect())
}

/// The figures of every step by name.
#[derive(Default, Debug)]
pub(crate) struct Seen(Mutex<Vec<BTreeMap<String, f64>>>);

impl Observer for Seen {
    fn event(&self, event: &Event) {
        let Ok(mut steps) = self.0.lock() else { return };
        match event {
            Event::Step(step) => steps.push(
                [("loss".into(), step.loss), ("grad_norm".into(), step.grad_norm)].into_iter().collect(),
            ),
            Event::Figures { values, .. } => {
                if let Some(last) = steps.last_mut() {
                    last.extend(values.iter().cloned());
                }
            }
            _ => {}
        }
    }
}

/// A run named `run` in a folder, up to a step: the figures of its steps, and its newest checkpoint.
pub(crate) fn train(
    config: &str,
    work: &Path,
    until: Option<u64>,
) -> Result<(Vec<BTreeMap<String, f64>>, PathBuf)> {
    let seen = Arc::new(Seen::default());
    let config = Sources::text("case.toml", config).resolve()?.config;
    let mut trainer = Trainer::new(config).observer(seen.clone());
    if let Some(step) = until {
        trainer = trainer.until(step);
    }
    let outcome = trainer.run(None)?;
    let found = seen.0.lock().map_err(|_| anyhow::anyhow!("the listener failed"))?.clone();
    Ok((found, work.join("run").join(outcome.checkpoint.context("nothing was saved")?)))
}

/// A tokenizer for a model's folder that nothing is tokenised with: rows are ids.
pub(crate) fn no_tokenizer(model: &Path) -> Result<String> {
    let config = std::fs::read_to_string(model.join("config.json"))?;
    let config: Value = serde_json::from_str(&config)?;
    let vocab = number(field(&config, "vocab_size")?)? as usize;
    let words: serde_json::Map<String, Value> = (0..vocab).map(|id| (format!("w{id}"), json!(id))).collect();
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" },
    })
    .to_string())
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
}

/// Every expected tensor of a file is in a checkpoint, within a bound; names in the checkpoint begin with a prefix.
pub(crate) fn same_weights(prefix: &str, saved: &Path, expected: &Path, bound: f64) -> Result<()> {
    let (source, tensors) = read_all(saved)?;
    for (name, (_, shape, bytes)) in read_expected(expected)? {
        let key = Key::model(format!("{prefix}{name}").as_str());
        let found = tensors.get(&key).with_context(|| format!("{name} was not saved"))?;
        ensure!(source.get(&key)?.shape[..] == shape[..], "{name} has another shape");
        for (found, expected) in floats(found).zip(floats(&bytes)) {
            let apart = (found - expected).abs();
            ensure!(apart <= bound, "a weight of {name} is {found}, expected {expected}");
        }
    }
    Ok(())
}

/// The gradients of a file are what a step of [`PLAIN`] has taken away from the weights of a folder.
pub(crate) fn same_gradients(
    prefix: &str,
    (before, after): (&Path, &Path),
    expected: &Path,
    tolerance: &Tolerance,
) -> Result<()> {
    let (_, old) = read_all(before)?;
    let (_, new) = read_all(after)?;
    for (name, (_, _, bytes)) in read_expected(expected)? {
        let old = old.get(&Key::model(name.as_str())).with_context(|| format!("{name} is not there"))?;
        let new = new.get(&Key::model(format!("{prefix}{name}").as_str()));
        let new = new.with_context(|| format!("{name} was not saved"))?;
        let moved: Vec<f64> = floats(old).zip(floats(new)).map(|(old, new)| old - new).collect();
        tolerance.same_all(
            &format!("the gradient of {name}"),
            &moved,
            &floats(&bytes).collect::<Vec<_>>(),
        )?;
    }
    Ok(())
}
