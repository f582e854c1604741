//! Adapters that the ranks of a tensor parallel run wrote apart: `lora_model_state_tp00.pdparams` and its like.

use super::{Model, Root};
use crate::error::{Error, Result};
use crate::values::{Held, Joined, Values, whole};
use planaria_layout::Shape;
use planaria_store::StoreExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const STEM: &str = "lora_model_state";
const ENDING: &str = ".pdparams";
/// Modules whose outputs are cut: the second factor lies on all ranks.
const COLUMNS: [&str; 5] = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];
/// Modules whose outputs are those of two that are cut each.
const HALVES: [&str; 3] = ["up_gate_proj", "gate_up_proj", "gate_up_fused_proj"];
/// Modules whose inputs are cut: the first factor does.
const ROWS: [&str; 2] = ["o_proj", "down_proj"];

/// The adapter of a folder that Paddle wrote by one rank or several; none where there is no such file.
pub(super) fn open(path: &str, root: &Root) -> Result<Option<Model>> {
    let (store, at) = planaria_store::locate(&root.find(path)?)?;
    // A single file is what it is.
    let names = store.file_names(&at).unwrap_or_default();
    let number = |name: &str| -> Option<usize> {
        name.strip_prefix(STEM)?.strip_prefix("_tp")?.strip_suffix(ENDING)?.parse().ok()
    };
    let mut ranks: Vec<(usize, &String)> =
        names.iter().filter_map(|name| Some((number(name)?, name))).collect();
    ranks.sort();
    let file = |name: &str| Model::open_path(&format!("{}/{name}", path.trim_end_matches('/')), root);
    if names.iter().any(|name| *name == format!("{STEM}{ENDING}")) {
        let model = file(&format!("{STEM}{ENDING}"))?;
        return Ok(Some(Model { name: path.to_string(), ..model }));
    }
    if ranks.is_empty() {
        return Ok(None);
    }
    if let Some(missing) = (0..ranks.len()).find(|rank| ranks[*rank].0 != *rank) {
        let what = format!("the file of rank {missing} is missing beside '{}'", ranks[0].1);
        return Err(Error::model(path, what));
    }
    let models: Vec<Model> = ranks.iter().map(|(_, name)| file(name)).collect::<Result<_>>()?;
    joined(path, models).map(Some)
}

/// The files of all ranks as one.
fn joined(path: &str, mut models: Vec<Model>) -> Result<Model> {
    let ranks = models.len();
    let said = models[0].json("lora_config.json")?.and_then(|it| it["tensor_model_parallel_size"].as_u64());
    if said.is_some_and(|said| said > 1 && said != ranks as u64) {
        let said = said.unwrap_or_default();
        let what = format!("`tensor_model_parallel_size` is {said}, and there are files of {ranks} ranks");
        return Err(Error::model(path, what));
    }
    let names: BTreeSet<String> = models.iter().flat_map(|model| model.tensors.keys().cloned()).collect();
    let mut tensors: BTreeMap<String, Arc<dyn Values>> = BTreeMap::new();
    for name in names {
        let parts: Vec<Arc<dyn Values>> =
            models.iter().map(|model| model.tensor(&name).cloned()).collect::<Result<_>>()?;
        let tensor = tensor(&name, parts).map_err(|what| Error::model(path, format!("'{name}': {what}")))?;
        tensors.insert(name, tensor);
    }
    let inputs = models.iter().flat_map(|model| model.inputs.clone()).collect();
    let first = models.swap_remove(0);
    Ok(Model { name: path.to_string(), tensors, inputs, ..first })
}

/// One tensor of the pieces that ranks have.
fn tensor(name: &str, parts: Vec<Arc<dyn Values>>) -> Result<Arc<dyn Values>> {
    let mut path = name.rsplit('.');
    let (factor, module) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
    let is_matrix = parts.iter().all(|part| part.shape().len() == 2);
    match factor {
        "lora_B" if is_matrix && COLUMNS.contains(&module) => side_by_side(&parts, 1),
        "lora_B" if is_matrix && HALVES.contains(&module) => side_by_side(&parts, 2),
        "lora_A" if is_matrix && ROWS.contains(&module) => below_each_other(parts),
        _ => same(parts),
    }
}

fn below_each_other(parts: Vec<Arc<dyn Values>>) -> Result<Arc<dyn Values>> {
    let (columns, dtype) = (parts[0].shape()[1], parts[0].dtype());
    if parts.iter().any(|part| part.shape()[1] != columns || part.dtype() != dtype) {
        return Err(Error::request("the ranks have different ranks of factors or element types"));
    }
    let rows = parts.iter().map(|part| part.shape()[0]).sum();
    Ok(Arc::new(Joined { parts, shape: Shape::new(&[rows, columns])?, dtype }))
}

/// The columns of all ranks; of each of the groups that follow each other on every rank. Factors are small.
fn side_by_side(parts: &[Arc<dyn Values>], groups: usize) -> Result<Arc<dyn Values>> {
    let (rows, dtype) = (parts[0].shape()[0], parts[0].dtype());
    if parts.iter().any(|part| part.shape()[0] != rows || part.dtype() != dtype) {
        return Err(Error::request("the ranks have different ranks of factors or element types"));
    }
    if let Some(odd) = parts.iter().map(|part| part.shape()[1]).find(|width| width % groups != 0) {
        return Err(Error::request(format!(
            "{odd} outputs are not {groups} times as many as each of its parts has"
        )));
    }
    let columns: usize = parts.iter().map(|part| part.shape()[1]).sum();
    let read: Vec<Vec<f64>> = parts.iter().map(|part| whole(&**part)).collect::<Result<_>>()?;
    let mut values = Vec::with_capacity(rows * columns);
    for (row, group) in (0..rows).flat_map(|row| (0..groups).map(move |group| (row, group))) {
        for (part, read) in parts.iter().zip(&read) {
            let width = part.shape()[1] / groups;
            let start = (row * groups + group) * width;
            values.extend_from_slice(&read[start..start + width]);
        }
    }
    Ok(Arc::new(Held { values, shape: Shape::new(&[rows, columns])?, dtype }))
}

/// What is not cut is the same on every rank.
fn same(parts: Vec<Arc<dyn Values>>) -> Result<Arc<dyn Values>> {
    let first = whole(&*parts[0])?;
    for other in &parts[1..] {
        if other.shape() != parts[0].shape() || whole(&**other)? != first {
            return Err(Error::request("the ranks have different values, and nothing says how it is cut"));
        }
    }
    Ok(parts[0].clone())
}
