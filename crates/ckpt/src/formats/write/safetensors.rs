//! Folders of safetensors files with their index: Hugging Face and Paddle unified checkpoints.

use super::{Draft, Frame, NewFile, Slot, Wanted, cut_by_size};
use crate::convert::plain;
use crate::error::{Error, Result};
use crate::formats::Part;
use crate::union::natural;
use planaria_layout::{Region, Shape};
use planaria_store::container::{Align, FileLayout, NewTensor};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A Hugging Face folder of the tensors of the model: one file such as `model.safetensors`, or numbered files and an index.
/// All of them have `pairs` in their headers.
pub(crate) fn hugging_face(
    tensors: &[Wanted],
    stem: &str,
    limit: u64,
    pairs: &BTreeMap<String, String>,
) -> Result<Draft> {
    let mut draft = Draft::default();
    // No library reads an adapter of several files.
    let limit = if stem == "adapter_model" { u64::MAX } else { limit };
    let parts = parts_of(tensors, Part::Model, limit);
    // Paddle finds the files of an adapter by their index alone.
    if let [part] = &parts[..]
        && stem != "peft_model"
    {
        draft.files.push(whole_file(&format!("{stem}.safetensors"), tensors, part, pairs)?);
        return Ok(draft);
    }
    let index = numbered(&mut draft, stem, (tensors, &parts), pairs)?;
    draft.small.push((format!("{stem}.safetensors.index.json"), format!("{index:#}\n").into_bytes()));
    Ok(draft)
}

/// A Paddle unified checkpoint: numbered files with an index for the model, the master weights and the optimizer.
pub(crate) fn unified(tensors: &[Wanted], limit: u64) -> Result<Draft> {
    let mut draft = Draft::default();
    let has_masters = tensors.iter().any(|tensor| tensor.key.part == Part::MasterWeights);
    for part in [Part::Optimizer, Part::MasterWeights, Part::Model] {
        let parts = parts_of(tensors, part, limit);
        if parts.is_empty() {
            continue;
        }
        let mut index = numbered(&mut draft, part.name(), (tensors, &parts), &plain())?;
        if part == Part::Optimizer {
            index["master_weights"] = json!(has_masters);
            index["quant_ckpt_resume_times"] = json!(0);
        }
        draft.small.push((format!("{part}.safetensors.index.json"), format!("{index:#}\n").into_bytes()));
    }
    Ok(draft)
}

/// Our own folder, but for its manifest: numbered files with an index where every tensor is in one piece, else one
/// file for each part and writer.
pub(crate) fn planaria(tensors: &[Wanted], limit: u64) -> Result<Draft> {
    let mut draft = Draft::default();
    let whole =
        tensors.iter().all(|tensor| matches!(&tensor.boxes[..], [(0, region)] if is_whole(tensor, region)));
    let has_masters = tensors.iter().any(|tensor| tensor.key.part == Part::MasterWeights);
    for part in [Part::Model, Part::MasterWeights, Part::Optimizer, Part::Ema] {
        if !whole {
            held(&mut draft, tensors, part, limit)?;
            continue;
        }
        let parts = parts_of(tensors, part, limit);
        if parts.is_empty() {
            continue;
        }
        let mut index = numbered(&mut draft, part.name(), (tensors, &parts), &plain())?;
        if part == Part::Optimizer {
            index["master_weights"] = json!(has_masters);
        }
        draft.small.push((format!("{part}.safetensors.index.json"), format!("{index:#}\n").into_bytes()));
    }
    Ok(draft)
}

fn is_whole(tensor: &Wanted, region: &Region) -> bool {
    *region == Region::whole(&tensor.shape)
}

/// One file for each writer of a part, with the boxes that are its own.
fn held(draft: &mut Draft, tensors: &[Wanted], part: Part, limit: u64) -> Result<()> {
    let stem = part.name();
    let order: Vec<usize> = parts_of(tensors, part, u64::MAX).into_iter().flatten().collect();
    let mut writers: BTreeMap<usize, Vec<(usize, &Region)>> = BTreeMap::new();
    for number in order {
        for (writer, region) in &tensors[number].boxes {
            writers.entry(*writer).or_default().push((number, region));
        }
    }
    for (writer, boxes) in writers {
        for (number, part) in
            cut_by_size(boxes, limit, |(n, region)| tensors[*n].bytes_of(region)).iter().enumerate()
        {
            let name = format!("{stem}-rank{writer:05}-{:05}.safetensors", number + 1);
            draft.files.push(new_file(&name, tensors, part, &plain())?);
        }
    }
    Ok(())
}

fn parts_of(tensors: &[Wanted], part: Part, limit: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> =
        (0..tensors.len()).filter(|&number| tensors[number].key.part == part).collect();
    order.sort_by(|&a, &b| natural(&tensors[a].key.name, &tensors[b].key.name));
    cut_by_size(order, limit, |number| tensors[*number].bytes())
}

/// Lays out `stem-0000i-of-0000n.safetensors`; the index of them.
fn numbered(
    draft: &mut Draft,
    stem: &str,
    (tensors, parts): (&[Wanted], &[Vec<usize>]),
    pairs: &BTreeMap<String, String>,
) -> Result<Value> {
    let mut weights = Map::new();
    let mut total = 0;
    for (number, part) in parts.iter().enumerate() {
        let name = format!("{stem}-{:05}-of-{:05}.safetensors", number + 1, parts.len());
        for &tensor in part {
            weights.insert(tensors[tensor].key.name.clone(), json!(name));
            total += tensors[tensor].bytes();
        }
        draft.files.push(whole_file(&name, tensors, part, pairs)?);
    }
    Ok(json!({ "metadata": { "total_size": total }, "weight_map": weights }))
}

/// One file of whole tensors.
fn whole_file(
    name: &str,
    tensors: &[Wanted],
    part: &[usize],
    pairs: &BTreeMap<String, String>,
) -> Result<NewFile> {
    let regions: Vec<(usize, Region)> = part.iter().map(|&n| (n, Region::whole(&tensors[n].shape))).collect();
    let boxes: Vec<(usize, &Region)> = regions.iter().map(|(number, region)| (*number, region)).collect();
    new_file(name, tensors, &boxes, pairs)
}

/// One file of boxes; a box that is not the whole tensor has its region in its name.
fn new_file(
    name: &str,
    tensors: &[Wanted],
    boxes: &[(usize, &Region)],
    pairs: &BTreeMap<String, String>,
) -> Result<NewFile> {
    let mut by_name: BTreeMap<String, (usize, &Region)> = BTreeMap::new();
    let mut new = Vec::with_capacity(boxes.len());
    for &(number, region) in boxes {
        let Wanted { key, dtype, shape, foreign, .. } = &tensors[number];
        let whole = *region == Region::whole(shape);
        let in_file = if whole { key.name.clone() } else { format!("{}@{region}", key.name) };
        let shape = Shape::from_dims(region.extents())
            .map_err(|problem| Error::Tiles { tensor: key.to_string(), problem })?;
        new.push(NewTensor { name: in_file.clone(), dtype: *dtype, shape, foreign: *foreign });
        by_name.insert(in_file, (number, region));
    }
    let layout = FileLayout::new(name, new, pairs, Align::Block)?;
    let slots = layout.tensors().filter_map(|(placed, offset, len)| {
        let (tensor, region) = by_name.get(placed.name.as_str())?;
        Some(Slot { tensor: *tensor, region: (*region).clone(), offset, len })
    });
    Ok(NewFile {
        name: name.to_string(),
        len: layout.file_len(),
        slots: slots.collect(),
        frames: vec![Frame { offset: 0, bytes: layout.header().to_vec() }],
        tails: Vec::new(),
    })
}
