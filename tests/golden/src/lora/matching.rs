//! Which modules a configuration reaches, and what its files hold.

use crate::cases::Verdict;
use anyhow::{Context, Result, ensure};
use planaria_nn::lora::{Adapted, LoraConfig};
use planaria_nn::models::{Architecture, Models, Stage};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(super) fn model(root: &Path, name: &str) -> Result<Arc<dyn Architecture>> {
    let text = std::fs::read_to_string(root.join(name).join("config.json"))?;
    Ok(Models::default().open_json(&text)?)
}

/// The configuration as its line has it: of patterns the first that fits counts, and maps of values would sort them.
#[derive(Deserialize)]
struct Given {
    config: LoraConfig,
}

fn adapted(model: Arc<dyn Architecture>, line: &str) -> Result<Adapted> {
    let Given { config } = serde_json::from_str(line)?;
    config.check()?;
    Ok(Adapted::new(model, config)?)
}

pub(super) fn check(root: &Path, line: &str) -> Result<Verdict> {
    let row: Value = serde_json::from_str(line)?;
    let adapted = adapted(model(root, row["model"].as_str().context("no model")?)?, line);
    if let Some(why) = row["error"].as_str() {
        return Ok(match adapted {
            Err(_) => Verdict::Passed,
            Ok(_) => Verdict::Failed(format!("accepted, though peft says: {why}")),
        });
    }
    let adapted = adapted?;
    let modules: Map<String, Value> = adapted
        .targets(0)
        .adapted
        .iter()
        .map(|target| {
            (
                target.module.clone(),
                json!({ "r": target.rank, "alpha": target.alpha, "scaling": target.scale }),
            )
        })
        .collect();
    let wanted = row["modules"].as_object().context("no modules")?;
    let names = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
    ensure!(names(&modules) == names(wanted), "{:?} instead of {:?}", names(&modules), names(wanted));
    for (module, values) in wanted {
        for field in ["r", "alpha", "scaling"] {
            let (ours, theirs) = (modules[module][field].as_f64(), values[field].as_f64());
            ensure!(ours == theirs, "{module}: {field} {ours:?} instead of {theirs:?}");
        }
    }
    let (mut trainable, mut files) = (0, BTreeMap::new());
    for spec in adapted.parameters(&Stage::whole(&adapted))? {
        if spec.role.is_trained() && spec.tied.is_none() {
            trainable += spec.shape.numel();
        }
        for name in spec.adapter_files().into_iter().flatten() {
            let skip = usize::from(spec.is_stacked());
            files.insert(name, spec.shape[skip..].to_vec());
        }
    }
    let wanted: BTreeMap<String, Vec<usize>> = serde_json::from_value(row["file"].clone())?;
    ensure!(files == wanted, "files {files:?} instead of {wanted:?}");
    ensure!(row["trainable"] == json!(trainable), "{trainable} trained instead of {}", row["trainable"]);
    Ok(Verdict::Passed)
}
