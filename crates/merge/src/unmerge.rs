//! The way back from a merged adapter: what merging changed is kept beside the result, and put back bit for bit.
//!
//! Subtracting what was added does not give the bits back. [`originals`] keeps every tensor of the model that the merged one
//! does not have just so, with checksums of both; [`unmerge`] puts them back once all of it is found to be what it was.

use crate::error::{Error, Result};
use crate::merge::{Merge, Options};
use crate::model::Model;
use crate::result::{Outcome, companions, pretty};
use crate::values::Values;
use planaria_store::checksum;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The file that says what belongs where.
const RECORD: &str = "unmerge.json";
/// What the record is.
const FORMAT: &str = "planaria/unmerge/1";
/// Bytes that a thread looks at together.
const BLOCK: usize = 1 << 20;
/// Most threads.
const THREADS: usize = 8;

/// Tensors by name.
type Tensors = BTreeMap<String, Arc<dyn Values>>;

/// What a tensor holds, in few bytes.
fn described(values: &dyn Values, sum: u32) -> Value {
    let shape: Vec<usize> = values.shape().to_vec();
    json!({ "dtype": values.dtype().to_string(), "shape": shape, "crc32c": sum })
}

/// Every tensor of `model` that `merged` does not have bit for bit, to be written beside the result. Reads both.
pub fn originals(merged: &Merge, model: &str, options: &Options) -> Result<Merge> {
    let base = Model::open_path(model, &options.root)?;
    let after: Tensors = merged.computed().cloned().collect();
    let names: Vec<(&String, &Arc<dyn Values>)> = after.iter().collect();
    let sums = each(&names, |(_, values)| sum(&***values))?;
    let record: Map<String, Value> = names
        .iter()
        .zip(&sums)
        .map(|((name, values), sum)| ((*name).clone(), described(&***values, *sum)))
        .collect();
    let before: Vec<(&String, &Arc<dyn Values>)> = base.tensors.iter().collect();
    let before_sums = each(&before, |(name, values)| {
        let same = after.get(*name).map(|after| same_bits(&***values, &**after)).transpose()?;
        Ok(if same == Some(true) { None } else { Some(sum(&***values)?) })
    })?;
    let (mut tensors, mut kept) = (Vec::new(), Map::new());
    for ((name, values), sum) in before.into_iter().zip(before_sums) {
        if let Some(sum) = sum {
            kept.insert(name.clone(), described(&**values, sum));
            tensors.push((name.clone(), values.clone()));
        }
    }
    if tensors.is_empty() {
        return Err(Error::model(
            model,
            "the adapter changes none of its tensors, so there is nothing to keep",
        ));
    }
    let added: Vec<&String> = after.keys().filter(|name| !base.tensors.contains_key(*name)).collect();
    let record = json!({ "format": FORMAT, "merged": record, "kept": kept, "added": added });
    let mut files = companions(&base)?;
    files.extend(base.file("config.json")?.map(|bytes| ("config.json".to_string(), bytes)));
    files.insert(RECORD.to_string(), pretty(&record));
    finish(base, tensors, files, options)
}

/// The model that `merged` was made of, from what [`originals`] kept of it. Reads both, and refuses what is not what it was.
pub fn unmerge(merged: &str, kept: &str, options: &Options) -> Result<Merge> {
    let (merged, mut kept) =
        (Model::open_path(merged, &options.root)?, Model::open_path(kept, &options.root)?);
    let Some(record) = kept.json(RECORD)?.filter(|record| record["format"] == FORMAT) else {
        let what = format!(
            "there is no {RECORD}, so it does not hold originals; `lora merge --originals` keeps them"
        );
        return Err(Error::model(&kept.name, what));
    };
    for (model, part) in [(&merged, "merged"), (&kept, "kept")] {
        check(model, &record[part], &kept.name)?;
    }
    let added = record["added"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let added: Vec<&str> = added.collect();
    let mut tensors = merged.tensors.clone();
    tensors.retain(|name, _| !added.contains(&name.as_str()));
    tensors.append(&mut kept.tensors);
    let mut files = companions(&kept)?;
    files.extend(kept.file("config.json")?.map(|bytes| ("config.json".to_string(), bytes)));
    kept.inputs.extend(merged.inputs);
    finish(kept, tensors.into_iter().collect(), files, options)
}

/// Refuses a model whose tensors are not those of the record.
fn check(model: &Model, record: &Value, keeper: &str) -> Result<()> {
    let none = Map::new();
    let record = record.as_object().unwrap_or(&none);
    let wrong = |name: &str, what: &str| {
        Error::model(
            &model.name,
            format!("'{name}' {what}, so '{keeper}' cannot bring the model back; use the model itself"),
        )
    };
    if let Some(name) = record.keys().find(|name| !model.tensors.contains_key(*name)) {
        return Err(wrong(name, "is missing"));
    }
    if let Some(name) = model.tensors.keys().find(|name| !record.contains_key(*name)) {
        return Err(wrong(name, "was not there when the adapter was merged"));
    }
    let tensors: Vec<(&String, &Arc<dyn Values>)> = model.tensors.iter().collect();
    let sums = each(&tensors, |(_, values)| sum(&***values))?;
    for ((name, values), sum) in tensors.into_iter().zip(sums) {
        if described(&**values, sum) != record[name] {
            return Err(wrong(name, "is not what it was when the adapter was merged"));
        }
    }
    Ok(())
}

fn finish(
    donor: Model,
    tensors: Vec<(String, Arc<dyn Values>)>,
    files: BTreeMap<String, Vec<u8>>,
    options: &Options,
) -> Result<Merge> {
    let inputs = donor.inputs.clone();
    let outcome = Outcome { files, ..Outcome::new(tensors, Arc::new(donor)) };
    Merge::new(outcome, "model", inputs).finished(Vec::new(), options)
}

/// What `work` makes of each item, on several threads, in order.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let run = || -> Result<Vec<(usize, R)>> {
        let mut made = Vec::new();
        loop {
            let number = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(number) else { return Ok(made) };
            made.push((number, work(item)?));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let mut made: Vec<(usize, R)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined = running.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<Result<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
    })?;
    made.sort_by_key(|(number, _)| *number);
    Ok(made.into_iter().map(|(_, made)| made).collect())
}

/// Calls `see` with the first element and the number of elements of every block of a tensor until it says no.
fn blocks(values: &dyn Values, mut see: impl FnMut(usize, usize) -> Result<bool>) -> Result<()> {
    let (numel, step) = (values.shape().numel(), BLOCK / values.dtype().size());
    for first in (0..numel).step_by(step) {
        if !see(first, step.min(numel - first))? {
            break;
        }
    }
    Ok(())
}

/// The checksum of a tensor's bytes.
fn sum(values: &dyn Values) -> Result<u32> {
    let (mut sum, mut bytes) = (checksum::crc32c(&[]), Vec::new());
    blocks(values, |first, len| {
        bytes.resize(len * values.dtype().size(), 0);
        values.copy(first, &mut bytes)?;
        sum = checksum::append(sum, &bytes);
        Ok(true)
    })?;
    Ok(sum)
}

/// Whether two tensors hold the same bits.
fn same_bits(one: &dyn Values, other: &dyn Values) -> Result<bool> {
    if (one.dtype(), one.shape()) != (other.dtype(), other.shape()) {
        return Ok(false);
    }
    let (mut same, mut left, mut right) = (true, Vec::new(), Vec::new());
    blocks(one, |first, len| {
        left.resize(len * one.dtype().size(), 0);
        right.resize(left.len(), 0);
        one.copy(first, &mut left)?;
        other.copy(first, &mut right)?;
        same = left == right;
        Ok(same)
    })?;
    Ok(same)
}
