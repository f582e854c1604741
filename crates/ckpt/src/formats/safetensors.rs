//! Folders of safetensors files: Hugging Face, Paddle unified checkpoints, and shards written by DCP.

use super::index::IndexFile;
use super::shards::{check_numbers, numbered};
use super::source::{Builder, Format, Key, Part, Skipped, Source, Stored};
use crate::error::{Error, Result};
use planaria_layout::{Region, Shape};
use planaria_store::container::{Header, Limits, TensorInfo};
use planaria_store::{Store, StoreExt, join};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Ending of a safetensors file.
const ENDING: &str = ".safetensors";
/// Behind the name of a file, where its free text pairs are kept.
const PAIRS: &str = "#metadata";
/// What DCP writes about the place of a shard.
const SHARDING: &str = "DCP_SHARDING_INFO";

impl Stored {
    /// A tensor of a safetensors file.
    pub(super) fn of(tensor: &TensorInfo) -> Stored {
        Stored {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            offset: tensor.offset,
            len: tensor.len,
            strides: None,
            foreign: tensor.foreign,
        }
    }
}

/// The part of a training state a set of files holds, by the start of their name.
fn part_of(stem: &str) -> Part {
    match stem {
        "optimizer" => Part::Optimizer,
        "master_weights" => Part::MasterWeights,
        _ => Part::Model,
    }
}

/// One file by itself.
pub(super) fn open_file(store: &Arc<dyn Store>, folder: &str, name: &str) -> Result<Source> {
    let mut builder = Builder::new(store, folder, Format::HuggingFace);
    let header = header(&builder, name, name)?;
    add_metadata(&mut builder, name, &header);
    let file = join(folder, name);
    for tensor in &header.tensors {
        builder.whole(Key::model(tensor.name.clone()), &file, &Stored::of(tensor))?;
    }
    builder.finish()
}

/// A folder; `names` are the files in it.
pub(super) fn open_folder(store: &Arc<dyn Store>, folder: &str, names: &[String]) -> Result<Source> {
    let mut sets = sets(names);
    let sharded = sharded(store, folder, names, &sets)?;
    if sharded {
        return open_sharded(store, folder, names);
    }
    let unified = sets.iter().any(|set| set.part != Part::Model);
    let format = if unified { Format::PaddleUnified } else { Format::HuggingFace };
    let mut builder = Builder::new(store, folder, format);
    let others = leave_out_others(&mut sets);
    let mut named = BTreeSet::new();
    for index in sets.iter().filter_map(|set| set.index.as_ref()) {
        let index = IndexFile::read(&**store, &join(folder, index))?;
        named.extend(index.files().into_iter().map(str::to_string));
    }
    for file in others.into_iter().filter(|file| !named.contains(file)) {
        skip(&mut builder, &file, "the model of this folder is in other files");
    }
    for set in &sets {
        match &set.index {
            Some(index) => add_indexed(&mut builder, set, index)?,
            None => add_unindexed(&mut builder, set)?,
        }
    }
    add_json(&mut builder, names);
    if builder.is_empty() && builder.skipped.is_empty() && sets.iter().all(|set| set.files.is_empty()) {
        return Err(Error::Torn { what: format!("'{folder}' has an index and none of its files") });
    }
    builder.finish()
}

/// Files that belong together: one index, or one name before the number.
#[derive(Debug)]
struct Set {
    stem: String,
    part: Part,
    index: Option<String>,
    files: Vec<String>,
}

/// The files of a folder by the start of their name.
fn sets(names: &[String]) -> Vec<Set> {
    let mut sets: BTreeMap<&str, Set> = BTreeMap::new();
    let new =
        |stem: &str| Set { stem: stem.to_string(), part: part_of(stem), index: None, files: Vec::new() };
    for name in names {
        if let Some(stem) = name.strip_suffix(".safetensors.index.json") {
            sets.entry(stem).or_insert_with(|| new(stem)).index = Some(name.clone());
        } else if name.ends_with(ENDING) || is_rank_file(name) {
            let stem = match (is_rank_file(name), numbered(name, ENDING)) {
                (true, _) => name.split('.').next().unwrap_or(name),
                (false, Some((stem, ..))) => stem,
                (false, None) => name.strip_suffix(ENDING).unwrap_or(name),
            };
            sets.entry(stem).or_insert_with(|| new(stem)).files.push(name.clone());
        }
    }
    sets.into_values().collect()
}

/// Some folders hold the model a second time under other names (`consolidated.safetensors`). Where one set is
/// clearly the model, the files of the others are left out.
fn leave_out_others(sets: &mut Vec<Set>) -> Vec<String> {
    let is_model = |set: &Set| set.part == Part::Model;
    let clear = |set: &Set| is_model(set) && (set.stem == "model" || set.index.is_some());
    if !sets.iter().any(clear) {
        return Vec::new();
    }
    let (kept, others) = sets.drain(..).partition(|set| !is_model(set) || clear(set));
    *sets = kept;
    others.into_iter().flat_map(|set: Set| set.files).collect()
}

/// `optimizer.tp00_pp01.safetensors`, perhaps cut further as `..._shard_0001`: one rank's own tensors.
fn is_rank_file(name: &str) -> bool {
    let cut = name.rsplit_once(".safetensors_shard_");
    let name = cut.map_or(name.strip_suffix(ENDING), |(stem, _)| Some(stem));
    let Some((stem, ranks)) = name.and_then(|name| name.split_once('.')) else { return false };
    let is_rank = |part: &str| {
        ["tp", "pp", "shard", "moe"].iter().any(|axis| {
            part.strip_prefix(axis).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    matches!(stem, "optimizer" | "master_weights") && ranks.split('_').all(is_rank)
}

fn header(builder: &Builder, name: &str, needed_by: &str) -> Result<Header> {
    let file = builder.open(name, needed_by)?;
    Ok(Header::read(&*file, &Limits::default())?)
}

fn add_metadata(builder: &mut Builder, name: &str, header: &Header) {
    if !header.metadata.is_empty() {
        builder.extra.insert(format!("{name}{PAIRS}"), json!(header.metadata));
    }
}

/// The free text pairs of each file of a source that has some, by the names of the files; without the places of shards, which
/// only that file has.
pub(crate) fn pairs_in(source: &Source) -> impl Iterator<Item = (&str, BTreeMap<String, String>)> {
    source.extra.iter().filter_map(|(name, value)| {
        let mut pairs: BTreeMap<String, String> = serde_json::from_value(value.clone()).ok()?;
        pairs.remove(SHARDING);
        Some((name.strip_suffix(PAIRS)?, pairs))
    })
}

/// The index decides which file holds a tensor; a file that lacks one it should hold is torn.
fn add_indexed(builder: &mut Builder, set: &Set, index: &str) -> Result<()> {
    let index = IndexFile::read(&*builder.store, &join(&builder.folder, index))?;
    builder.extra.insert(index.file.clone(), Value::Object(index.rest.clone()));
    let Some(weights) = &index.weights else {
        for file in &set.files {
            skip(builder, file, "each rank wrote its own slices, and nothing says where they belong");
        }
        return Ok(());
    };
    let files = index.files();
    for file in set.files.iter().filter(|file| !files.contains(file.as_str())) {
        skip(builder, file, "the index does not name it");
    }
    let mut bytes = 0;
    for file in files {
        let header = header(builder, file, &index.file)?;
        add_metadata(builder, file, &header);
        let held: BTreeMap<&str, &TensorInfo> = header.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let full = join(&builder.folder, file);
        for name in weights.iter().filter(|(_, in_file)| in_file.as_str() == file).map(|(name, _)| name) {
            let Some(tensor) = held.get(name.as_str()) else {
                let what = format!("'{full}' lacks tensor '{name}', which '{}' says it holds", index.file);
                return Err(Error::Torn { what });
            };
            builder.whole(Key { part: set.part, name: name.clone() }, &full, &Stored::of(tensor))?;
            bytes += tensor.len;
        }
        for name in held.keys().filter(|name| weights.get(**name).map(String::as_str) != Some(file)) {
            skip(builder, &format!("tensor '{name}' of {full}"), "the index does not place it there");
        }
    }
    // No reader needs the total, and known writers get it wrong, so a wrong one is told and refuses nothing.
    let total = &index.rest.get("metadata").unwrap_or(&Value::Null)["total_size"];
    if !total.is_null() && total.as_f64() != Some(bytes as f64) {
        let what =
            format!("'{}' gives a total_size of {total}, but its tensors have {bytes} bytes", index.file);
        builder.doubts.push(what);
    }
    Ok(())
}

/// Without an index the files say themselves what they hold, and their names how many there should be.
fn add_unindexed(builder: &mut Builder, set: &Set) -> Result<()> {
    let (ranks, whole): (Vec<&String>, Vec<&String>) = set.files.iter().partition(|name| is_rank_file(name));
    for file in ranks {
        skip(builder, file, "each rank wrote its own slices, and nothing says where they belong");
    }
    let one = whole.iter().copied().find(|name| *name == &format!("{}{ENDING}", set.stem));
    let (whole, parts): (Vec<&String>, Vec<&String>) =
        whole.into_iter().partition(|name| one.is_none_or(|one| *name == one));
    for part in parts {
        skip(builder, part, "the same model is in one file beside it");
    }
    check_numbers(&builder.folder, &whole.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ENDING)?;
    for name in whole {
        let header = header(builder, name, name)?;
        add_metadata(builder, name, &header);
        let file = join(&builder.folder, name);
        for tensor in &header.tensors {
            let key = Key { part: set.part, name: tensor.name.clone() };
            builder.whole(key, &file, &Stored::of(tensor))?;
        }
    }
    Ok(())
}

fn skip(builder: &mut Builder, what: &str, why: &str) {
    builder.skipped.push(Skipped { what: what.to_string(), why: why.to_string() });
}

/// Small JSON files beside the tensors belong to the model.
fn add_json(builder: &mut Builder, names: &[String]) {
    const CONFIG: u64 = 16 << 20;
    const NAMES: [&str; 5] = [
        "config.json",
        "generation_config.json",
        "lora_config.json",
        "adapter_config.json",
        "trainer_state.json",
    ];
    for name in NAMES {
        if !names.iter().any(|other| other == name) {
            continue;
        }
        let text = builder.store.read(&join(&builder.folder, name), CONFIG);
        let value = text.ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(value) = value {
            builder.extra.insert(name.to_string(), value);
        }
    }
}

/// Whether the files are DCP shards that say which part of a tensor they hold.
fn sharded(store: &Arc<dyn Store>, folder: &str, names: &[String], sets: &[Set]) -> Result<bool> {
    if sets.iter().any(|set| set.index.is_some()) {
        return Ok(false);
    }
    let Some(first) = names.iter().find(|name| name.ends_with(ENDING)) else { return Ok(false) };
    let builder = Builder::new(store, folder, Format::HuggingFaceSharded);
    Ok(header(&builder, first, first)?.metadata.contains_key(SHARDING))
}

/// Shards without an index: offsets stand in each file, and the whole shape follows from them.
fn open_sharded(store: &Arc<dyn Store>, folder: &str, names: &[String]) -> Result<Source> {
    let mut builder = Builder::new(store, folder, Format::HuggingFaceSharded);
    let mut shards: Vec<(String, TensorInfo, Vec<usize>)> = Vec::new();
    let mut shapes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for name in names.iter().filter(|name| name.ends_with(ENDING)) {
        let header = header(&builder, name, name)?;
        let file = join(folder, name);
        let mut offsets = shard_offsets(&file, &header)?;
        for tensor in header.tensors {
            let at = offsets.remove(&tensor.name).unwrap_or_else(|| vec![0; tensor.shape.ndim()]);
            let malformed = || Error::Malformed {
                file: file.clone(),
                what: format!(
                    "the offsets {at:?} of tensor '{}' do not fit its shape {}",
                    tensor.name, tensor.shape
                ),
            };
            let ends: Option<Vec<usize>> =
                at.iter().zip(&*tensor.shape).map(|(a, d)| a.checked_add(*d)).collect();
            let ends = ends.filter(|ends| ends.len() == tensor.shape.ndim() && at.len() == ends.len());
            let ends = ends.ok_or_else(malformed)?;
            let whole = shapes.entry(tensor.name.clone()).or_insert_with(|| ends.clone());
            if whole.len() != ends.len() {
                return Err(malformed());
            }
            whole.iter_mut().zip(&ends).for_each(|(whole, end)| *whole = (*whole).max(*end));
            shards.push((file.clone(), tensor, at));
        }
        if let Some(tensor) = offsets.into_keys().next() {
            return Err(Error::Torn {
                what: format!("'{file}' lacks tensor '{tensor}', which it should hold"),
            });
        }
    }
    for (file, tensor, at) in shards {
        let key = Key::model(tensor.name.clone());
        let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
        let shape = Shape::new(&shapes[&tensor.name]).map_err(wrong)?;
        let ends: Vec<usize> = at.iter().zip(&*tensor.shape).map(|(a, d)| a + d).collect();
        let region = Region::new(&at, &ends).map_err(wrong)?;
        builder.tile(key, &file, &shape, region, &Stored::of(&tensor))?;
    }
    builder.finish()
}

/// `saved_offsets` of every tensor of a file.
fn shard_offsets(file: &str, header: &Header) -> Result<BTreeMap<String, Vec<usize>>> {
    #[derive(serde::Deserialize)]
    struct Info {
        saved_offsets: Vec<usize>,
    }
    let Some(text) = header.metadata.get(SHARDING) else {
        let what = format!("it has no '{SHARDING}', the files beside it do");
        return Err(Error::Malformed { file: file.to_string(), what });
    };
    let infos: BTreeMap<String, Info> = serde_json::from_str(text)
        .map_err(|error| Error::Malformed { file: file.to_string(), what: format!("{SHARDING}: {error}") })?;
    Ok(infos.into_iter().map(|(name, info)| (name, info.saved_offsets)).collect())
}
