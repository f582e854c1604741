//! Cases that make files: adapters merged into models, and combined with each other.

use super::Case;
use super::compare::{Tensors, close};
use crate::cases::Verdict;
use anyhow::{Context, Result, bail, ensure};
use planaria_ckpt::convert::{ConvertOptions, To};
use planaria_merge::{CombineOptions, Merge, Options, Root, plan_adapted};
use planaria_store::Local;
use serde_json::Value;
use std::path::Path;

/// Writes what was planned.
fn write(merge: &Merge, target: &Path) -> Result<()> {
    std::fs::create_dir_all(target)?;
    let conversion = merge.conversion(To::HuggingFace, &ConvertOptions::default())?;
    Ok(conversion.run(&Local::new(target), "", &())?)
}

pub(super) fn merge(case: &Case<'_>) -> Result<Verdict> {
    let text = |field: &str| case.about[field].as_str().with_context(|| format!("no {field}"));
    let options = Options { root: Root::new(case.root), ..Options::default() };
    let merge = plan_adapted(text("model")?, text("adapter")?, &options)?;
    let out = tempfile::tempdir()?;
    write(&merge, out.path())?;
    let ours = Tensors::read(&out.path().join("model.safetensors"))?;
    let mut compared = 0;
    for (name, wanted) in case.tensors.under("merged.") {
        close("merged", name, &ours.get(name)?.values, wanted, &case.about["tolerance"])?;
        compared += 1;
    }
    ensure!(compared > 0, "nothing was compared");
    Ok(Verdict::Passed)
}

/// What a case asks for; words that are not known are refused here.
fn asked(about: &Value) -> Result<CombineOptions> {
    let word = |field: &str, default: &'static str| match &about[field] {
        Value::Null => Ok(default.to_string()),
        value => value.as_str().map(str::to_string).with_context(|| format!("{field} is {value}")),
    };
    Ok(CombineOptions {
        combination: word("combination_type", "svd")?.parse()?,
        density: about["density"].as_f64().unwrap_or(1.0),
        majority: word("majority_sign_method", "total")?.parse()?,
        rank: about["svd_rank"].as_u64().map(|rank| rank as usize),
        clamp: about["svd_clamp"].as_f64(),
        seed: 0,
    })
}

pub(super) fn combine(case: &Case<'_>) -> Result<Verdict> {
    let about = &case.about;
    let list = |field: &str| about[field].as_array().with_context(|| format!("no {field}"));
    let names = list("adapters")?.iter().map(|name| name.as_str().unwrap_or_default().to_string());
    let weights = list("weights")?.iter().map(|weight| weight.as_f64().unwrap_or(f64::NAN));
    let adapters: Vec<(String, f64)> = names.zip(weights).collect();
    let options = Options { root: Root::new(case.root), ..Options::default() };
    let out = tempfile::tempdir()?;
    let made = asked(about).and_then(|asked| {
        let merge = planaria_merge::combine(&adapters, &asked, &options)?;
        write(&merge, out.path())
    });
    if let Some(why) = about["error"].as_str() {
        return Ok(match made {
            Err(_) => Verdict::Passed,
            Ok(()) => Verdict::Failed(format!("accepted, though peft says: {why}")),
        });
    }
    made?;
    let config: Value = serde_json::from_slice(&std::fs::read(out.path().join("adapter_config.json"))?)?;
    for field in ["r", "lora_alpha", "use_rslora", "target_modules"] {
        ensure!(config[field] == about[field], "{field} is {} instead of {}", config[field], about[field]);
    }
    let ours = Tensors::read(&out.path().join("adapter_model.safetensors"))?;
    let factor = |name: &str, factor: &str| {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        ours.get(&format!("{module}.{factor}.weight"))
    };
    let tolerance = &about["tolerance"];
    for kind in ["lora_A", "lora_B"] {
        for (name, wanted) in case.tensors.under(&format!("{kind}.")) {
            let found = factor(name, kind)?;
            ensure!(found.shape == wanted.shape, "{name}: {:?} instead of {:?}", found.shape, wanted.shape);
            close(kind, name, &found.values, wanted, tolerance)?;
        }
    }
    let scale = about["scaling"].as_f64().unwrap_or(1.0);
    for (name, wanted) in case.tensors.under("delta.") {
        let (down, up) = (factor(name, "lora_A")?, factor(name, "lora_B")?);
        let ([rank, inner], [out, _]) = (&down.shape[..], &up.shape[..]) else {
            bail!("{name} has no factors")
        };
        let entry = |row: usize, column: usize| -> f64 {
            (0..*rank).map(|k| up.values[row * rank + k] * down.values[k * inner + column]).sum()
        };
        let places = (0..*out).flat_map(|row| (0..*inner).map(move |column| (row, column)));
        let product: Vec<f64> = places.map(|(row, column)| scale * entry(row, column)).collect();
        close("delta", name, &product, wanted, tolerance)?;
    }
    Ok(Verdict::Passed)
}
