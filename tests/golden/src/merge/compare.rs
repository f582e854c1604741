//! A written folder against the expected one: names, shapes, element types, values, index, configuration.

use super::tokens;
use crate::checkpoints::{Expected, read_expected};
use anyhow::{Context, Result, bail, ensure};
use planaria_array::{Array, DType};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Keys of the configuration that count.
const CONFIG: [&str; 7] = [
    "architectures",
    "model_type",
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "tie_word_embeddings",
    "dtype",
];

/// What is compared beside tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tokens {
    /// The recipe makes a vocabulary.
    Made,
    /// Whatever files stand beside the tensors are those of an input.
    Copied,
}

/// Compares what was written at `out`. `reference` is the folder with `reference.safetensors`, if the values are there.
/// Whether the expected configuration holds for the tensors beside it.
pub(super) fn folders(
    out: &Path,
    reference: &Path,
    expected: &Path,
    about: &Value,
    made: Tokens,
) -> Result<bool> {
    let tolerance = &about["tolerance"];
    let ours = weights(out)?;
    let against = tolerance["against"].as_str().unwrap_or("expected");
    let file = reference.join("reference.safetensors");
    let wanted =
        if against == "reference" && file.is_file() { read_expected(&file)? } else { weights(expected)? };
    if against == "product" {
        products(&ours, &wanted, tolerance["rel_max"].as_f64().unwrap_or(1e-5))?;
        return Ok(true);
    }
    let rows = if made == Tokens::Made { tokens::rows(out, expected)? } else { None };
    names(&ours, &wanted)?;
    for (name, (dtype, shape, bytes)) in &wanted {
        let (our_dtype, our_shape, our_bytes) = &ours[name];
        ensure!(our_dtype == dtype, "{name}: {our_dtype}, expected {dtype}");
        ensure!(our_shape == shape, "{name}: {our_shape:?}, expected {shape:?}");
        let (mut found, wanted) = (numbers(our_bytes, our_dtype)?, numbers(bytes, dtype)?);
        if let (true, Some(rows)) = (tokens::is_vocabulary(name), &rows) {
            found = rows.reorder(&found, shape);
        }
        values(name, dtype, &found, &wanted, tolerance)?;
    }
    index(out, &ours)?;
    template(out, expected)?;
    config(out, expected, about, &wanted)
}

/// Every tensor of the safetensors files of a folder, read without the code under test.
fn weights(folder: &Path) -> Result<Expected> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            for (name, tensor) in read_expected(&path)? {
                ensure!(all.insert(name.clone(), tensor).is_none(), "{name} is in two files");
            }
        }
    }
    Ok(all)
}

fn names(ours: &Expected, wanted: &Expected) -> Result<()> {
    let missing: Vec<&String> = wanted.keys().filter(|name| !ours.contains_key(*name)).collect();
    let more: Vec<&String> = ours.keys().filter(|name| !wanted.contains_key(*name)).collect();
    ensure!(missing.is_empty() && more.is_empty(), "missing {missing:?}, not expected {more:?}");
    Ok(())
}

fn dtype_of(name: &str) -> Result<DType> {
    Ok(match name {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F64" => DType::F64,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "U8" => DType::U8,
        other => bail!("the element type {other} is not compared"),
    })
}

pub(crate) fn numbers(bytes: &[u8], dtype: &str) -> Result<Vec<f64>> {
    let dtype = dtype_of(dtype)?;
    let array = Array::from_bytes(bytes, &[bytes.len() / dtype.size()], dtype)?;
    Ok(array.cast(DType::F64)?.to_vec()?)
}

fn values(name: &str, dtype: &str, found: &[f64], wanted: &[f64], tolerance: &Value) -> Result<()> {
    let largest = wanted.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let ulp = tolerance["ulp"].as_f64();
    let step = match dtype {
        "BF16" => Some(2f64.powi(-7)),
        "F16" => Some(2f64.powi(-10)),
        _ => None,
    };
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let allowed = match (ulp, step) {
            (Some(0.0), _) => 0.0,
            (Some(ulp), Some(step)) => ulp * step * wanted.abs() + 4e-6 * largest,
            (Some(_), None) => 4e-6 * largest,
            (None, _) => tolerance["rel_max"].as_f64().unwrap_or(4e-6) * largest,
        };
        let off = (found - wanted).abs();
        ensure!(
            off <= allowed,
            "{name}: element {at} is {found}, expected {wanted}; off by {off:e}, allowed {allowed:e}"
        );
    }
    Ok(())
}

/// Signs of singular vectors are free: the products of the factors are compared, and whole tensors as they are.
fn products(ours: &Expected, wanted: &Expected, allowed: f64) -> Result<()> {
    names(ours, wanted)?;
    for (name, (dtype, shape, bytes)) in wanted {
        let (our_dtype, our_shape, our_bytes) = &ours[name];
        ensure!(our_dtype == dtype, "{name}: {our_dtype}, expected {dtype}");
        ensure!(our_shape == shape, "{name}: {our_shape:?}, expected {shape:?}");
        let up = name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B");
        let (found, expected) = match up == *name {
            true if name.contains("lora_B") || name.contains("lora_embedding_B") => continue,
            true => (numbers(our_bytes, our_dtype)?, numbers(bytes, dtype)?),
            false => (product(ours, name, &up)?, product(wanted, name, &up)?),
        };
        let tolerance = serde_json::json!({ "rel_max": allowed });
        values(name, dtype, &found, &expected, &tolerance)?;
    }
    Ok(())
}

fn product(all: &Expected, down: &str, up: &str) -> Result<Vec<f64>> {
    let get = |name: &str| all.get(name).with_context(|| format!("{name} is missing"));
    let ((a_type, a_shape, a), (b_type, b_shape, b)) = (get(down)?, get(up)?);
    let (a, b) = (numbers(a, a_type)?, numbers(b, b_type)?);
    let (rank, inner, outer) = (a_shape[0], a_shape[1], b_shape[0]);
    let entry = |i: usize, j: usize| (0..rank).map(|k| b[i * rank + k] * a[k * inner + j]).sum();
    Ok((0..outer).flat_map(|i| (0..inner).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect())
}

/// With an index, its size is that of the tensors and it names every one.
fn index(out: &Path, ours: &Expected) -> Result<()> {
    let path = out.join("model.safetensors.index.json");
    let files = fs::read_dir(out)?.flatten();
    let shards =
        files.filter(|file| file.path().extension().is_some_and(|ending| ending == "safetensors")).count();
    ensure!(shards == 1 || path.is_file(), "several files have no index");
    if !path.is_file() {
        return Ok(());
    }
    let index: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let total: usize = ours.values().map(|(_, _, bytes)| bytes.len()).sum();
    ensure!(
        index["metadata"]["total_size"] == total,
        "total_size {}, the tensors have {total}",
        index["metadata"]
    );
    let map = index["weight_map"].as_object().context("no weight_map")?;
    ensure!(
        map.len() == ours.len() && ours.keys().all(|name| map.contains_key(name)),
        "the index misses tensors"
    );
    Ok(())
}

/// Compares configurations. Where the expected one tells another element type or another number of rows than the tensors
/// beside it have, ours must tell what the tensors have; whether that was not so.
fn config(out: &Path, expected: &Path, about: &Value, tensors: &Expected) -> Result<bool> {
    let read = |folder: &Path| -> Result<Value> {
        let path = folder.join("config.json");
        if path.is_file() { Ok(serde_json::from_slice(&fs::read(path)?)?) } else { Ok(Value::Null) }
    };
    let (ours, wanted) = (read(out)?, read(expected)?);
    let mut consistent = true;
    for key in CONFIG {
        let given = &about["config"][key];
        let mut wanted = if given.is_null() { wanted[key].clone() } else { given.clone() };
        if let (true, false, Some(stored)) = (given.is_null(), wanted.is_null(), stored(key, tensors))
            && stored != wanted
        {
            (wanted, consistent) = (stored, false);
        }
        ensure!(
            wanted.is_null() || ours[key] == wanted,
            "config.json: {key} is {}, expected {wanted}",
            ours[key]
        );
    }
    Ok(consistent)
}

/// What the tensors say about a key of the configuration.
fn stored(key: &str, tensors: &Expected) -> Option<Value> {
    match key {
        "vocab_size" => tensors.get("model.embed_tokens.weight").map(|(_, shape, _)| shape[0].into()),
        "dtype" => {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            tensors.values().for_each(|(dtype, shape, _)| {
                *counts.entry(dtype).or_default() += shape.iter().product::<usize>()
            });
            let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
            let name = match most {
                "F32" => "float32",
                "F16" => "float16",
                "BF16" => "bfloat16",
                "F64" => "float64",
                _ => return None,
            };
            Some(name.into())
        }
        _ => None,
    }
}

fn template(out: &Path, expected: &Path) -> Result<()> {
    let read = |folder: &Path| fs::read_to_string(folder.join("chat_template.jinja")).ok();
    let wanted = read(expected);
    ensure!(wanted.is_none() || read(out) == wanted, "chat_template.jinja differs");
    Ok(())
}
