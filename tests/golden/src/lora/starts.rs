//! Statistics of random starts: the same bounds and deviations, not the same draws.

use crate::cases::Verdict;
use anyhow::{Context, Result, ensure};
use planaria_nn::Init;
use planaria_nn::lora::{Adapted, LoraConfig};
use planaria_nn::models::{Architecture, Models, Stage};
use serde_json::{Value, json};

pub(super) fn check(row: &Value) -> Result<Verdict> {
    let tensor = row["tensor"].as_str().context("no tensor")?;
    let shape: Vec<usize> = serde_json::from_value(row["shape"].clone())?;
    let is_table = tensor.contains("embedding");
    let [first, second] = shape[..] else { return Ok(Verdict::Skipped("a start of another shape")) };
    let down = tensor.contains("_A");
    let rank = if down { first } else { second };
    let extent = if down { second } else { first };
    // A table has as many rows as tokens, a product as many as columns: one model has both.
    let (vocab, width) = if is_table && down { (extent, 8) } else { (16, extent) };
    let config = json!({
        "model_type": "llama", "vocab_size": vocab, "hidden_size": width, "intermediate_size": width,
        "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": width,
    });
    let model = Models::default().open(config)?;
    let target = if is_table { "embed_tokens" } else { "o_proj" };
    let lora = json!({ "r": rank, "target_modules": [target], "init_lora_weights": row["init"] });
    let adapted = Adapted::new(model, LoraConfig::parse(&lora.to_string())?)?;
    let network = adapted.build(&Stage::whole(&adapted), None, &Init::default())?;
    let part = if down { "_A" } else { "_B" };
    let params = network.params();
    let param =
        params.iter().find(|p| p.name().contains("lora") && p.name().contains(part)).context("no factor")?;
    ensure!(param.spec().shape[..] == shape[..], "{} instead of {shape:?}", param.spec().shape);
    let values = param.leaf().to_vec::<f32>()?;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
    let std =
        (values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    let wanted = row["std"].as_f64().context("no deviation")?;
    ensure!((std - wanted).abs() <= 0.05 * wanted, "a deviation of {std} instead of {wanted}");
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), &x| (low.min(x.into()), high.max(x.into())));
    let (min, max) = (row["min"].as_f64().context("no min")?, row["max"].as_f64().context("no max")?);
    // Bounds of uniform draws are sharp, those of normal ones are not.
    let room = 0.4 * (max - min);
    ensure!((low - min).abs() <= room && (high - max).abs() <= room, "{low}..{high} instead of {min}..{max}");
    Ok(Verdict::Passed)
}
