//! Tokenizers: ids of added tokens are free, so the rows of embeddings are compared through the tokens.

use anyhow::{Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Which row of ours belongs to which row that is expected.
pub(super) struct Rows(BTreeMap<usize, usize>);

/// Whether the rows of a tensor belong to tokens.
pub(super) fn is_vocabulary(name: &str) -> bool {
    name == "model.embed_tokens.weight" || name == "lm_head.weight"
}

impl Rows {
    /// Our values in the order of the expected rows.
    pub(super) fn reorder(&self, ours: &[f64], shape: &[usize]) -> Vec<f64> {
        let width: usize = shape[1..].iter().product();
        let row = |row: usize| {
            let at = self.0.get(&row).copied().unwrap_or(row);
            ours[at * width..(at + 1) * width].iter().copied()
        };
        (0..shape[0]).flat_map(row).collect()
    }
}

/// The tokens of a folder with their ids.
fn tokens(folder: &Path) -> Result<Option<BTreeMap<String, usize>>> {
    let path = folder.join("tokenizer.json");
    if !path.is_file() {
        return Ok(None);
    }
    let json: Value = serde_json::from_slice(&fs::read(path)?)?;
    let mut found = BTreeMap::new();
    for (token, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        found.insert(token.clone(), id.as_u64().unwrap_or(0) as usize);
    }
    for entry in json["added_tokens"].as_array().into_iter().flatten() {
        let id = entry["id"].as_u64().unwrap_or(0) as usize;
        found.insert(entry["content"].as_str().unwrap_or_default().to_string(), id);
    }
    Ok(Some(found))
}

/// Pairs the rows of two folders; nothing where the expected one has no tokenizer.
pub(super) fn rows(out: &Path, expected: &Path) -> Result<Option<Rows>> {
    let Some(wanted) = tokens(expected)? else { return Ok(None) };
    let ours = tokens(out)?.unwrap_or_default();
    let missing: Vec<&String> = wanted.keys().filter(|token| !ours.contains_key(*token)).collect();
    let more: Vec<&String> = ours.keys().filter(|token| !wanted.contains_key(*token)).collect();
    ensure!(missing.is_empty() && more.is_empty(), "tokens missing {missing:?}, not expected {more:?}");
    Ok(Some(Rows(wanted.iter().map(|(token, id)| (*id, ours[token])).collect())))
}
