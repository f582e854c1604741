//! Tensors of a file as numbers, and how close they must be.

use crate::checkpoints::read_expected;
use crate::merge::numbers;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor as numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Numbers {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f64>,
}

/// The tensors of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors(BTreeMap<String, Numbers>);

impl Tensors {
    pub(super) fn read(file: &Path) -> Result<Tensors> {
        let mut all = BTreeMap::new();
        for (name, (dtype, shape, bytes)) in read_expected(file)? {
            all.insert(name, Numbers { values: numbers(&bytes, &dtype)?, shape });
        }
        Ok(Tensors(all))
    }

    pub(super) fn get(&self, name: &str) -> Result<&Numbers> {
        self.0.get(name).with_context(|| format!("no tensor `{name}`"))
    }

    /// Those whose names begin so, without the beginning.
    pub(super) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Numbers)> {
        self.0.iter().filter_map(move |(name, tensor)| Some((name.strip_prefix(prefix)?, tensor)))
    }

    pub(super) fn ids(&self, name: &str) -> Result<(Vec<i64>, Vec<usize>)> {
        let tensor = self.get(name)?;
        Ok((tensor.values.iter().map(|&id| id as i64).collect(), tensor.shape.clone()))
    }
}

/// Compares a tensor of a kind by the case's rule.
pub(super) fn close(
    kind: &str,
    name: &str,
    found: &[f64],
    wanted: &Numbers,
    tolerance: &Value,
) -> Result<()> {
    ensure!(
        found.len() == wanted.values.len(),
        "{kind}.{name}: {} elements, expected {:?}",
        found.len(),
        wanted.shape
    );
    let largest = wanted.values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let bound = |expected: f64| match tolerance["rule"].as_str() {
        Some("ulp") => {
            let steps = tolerance["ulp"].as_f64().unwrap_or(1.0);
            steps * 2f64.powi(-7) * expected.abs() + 4e-6 * largest
        }
        _ => tolerance[kind].as_f64().unwrap_or(1e-6) * largest,
    };
    for (place, (a, b)) in found.iter().zip(&wanted.values).enumerate() {
        let apart = (a - b).abs();
        // Not `>`: what is not a number is not close.
        ensure!(
            apart <= bound(*b),
            "{kind}.{name}: {a} instead of {b} at {place}, {:.1e} of the largest",
            apart / largest
        );
    }
    Ok(())
}
