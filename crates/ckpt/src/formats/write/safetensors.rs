//! Folders of safetensors files with their index: Hugging Face and Paddle unified checkpoints.

use super::{Draft, Frame, NewFile, Slot, Wanted, cut_by_size, natural};
use crate::error::Result;
use crate::formats::Part;
use planaria_layout::Region;
use planaria_store::container::{Align, FileLayout, NewTensor};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A Hugging Face folder of the tensors of the model: one `model.safetensors`, or numbered files and an index.
pub(crate) fn hugging_face(tensors: &[Wanted], limit: u64) -> Result<Draft> {
    let mut draft = Draft::default();
    let parts = parts_of(tensors, Part::Model, limit);
    if let [part] = &parts[..] {
        draft.files.push(new_file("model.safetensors", tensors, part)?);
        return Ok(draft);
    }
    let index = numbered(&mut draft, "model", tensors, &parts)?;
    draft.small.push(("model.safetensors.index.json".to_string(), format!("{index:#}\n").into_bytes()));
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
        let mut index = numbered(&mut draft, part.name(), tensors, &parts)?;
        if part == Part::Optimizer {
            index["master_weights"] = json!(has_masters);
            index["quant_ckpt_resume_times"] = json!(0);
        }
        draft.small.push((format!("{part}.safetensors.index.json"), format!("{index:#}\n").into_bytes()));
    }
    Ok(draft)
}

fn parts_of(tensors: &[Wanted], part: Part, limit: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> =
        (0..tensors.len()).filter(|&number| tensors[number].key.part == part).collect();
    order.sort_by(|&a, &b| natural(&tensors[a].key.name, &tensors[b].key.name));
    cut_by_size(tensors, &order, limit)
}

/// Lays out `stem-0000i-of-0000n.safetensors`; the index of them.
fn numbered(draft: &mut Draft, stem: &str, tensors: &[Wanted], parts: &[Vec<usize>]) -> Result<Value> {
    let mut weights = Map::new();
    let mut total = 0;
    for (number, part) in parts.iter().enumerate() {
        let name = format!("{stem}-{:05}-of-{:05}.safetensors", number + 1, parts.len());
        for &tensor in part {
            weights.insert(tensors[tensor].key.name.clone(), json!(name));
            total += tensors[tensor].bytes();
        }
        draft.files.push(new_file(&name, tensors, part)?);
    }
    Ok(json!({ "metadata": { "total_size": total }, "weight_map": weights }))
}

/// One file of whole tensors.
fn new_file(name: &str, tensors: &[Wanted], part: &[usize]) -> Result<NewFile> {
    let numbers: BTreeMap<&str, usize> = part.iter().map(|&n| (tensors[n].key.name.as_str(), n)).collect();
    let new = part.iter().map(|&number| {
        let Wanted { key, dtype, shape, .. } = &tensors[number];
        NewTensor { name: key.name.clone(), dtype: *dtype, shape: shape.clone() }
    });
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let layout = FileLayout::new(name, new, &metadata, Align::Block)?;
    let slots = layout.tensors().filter(|(_, _, len)| *len > 0).filter_map(|(tensor, offset, len)| {
        let region = Region::whole(&tensor.shape);
        Some(Slot { tensor: *numbers.get(tensor.name.as_str())?, region, offset, len })
    });
    Ok(NewFile {
        name: name.to_string(),
        len: layout.file_len(),
        slots: slots.collect(),
        frames: vec![Frame { offset: 0, bytes: layout.header().to_vec() }],
        tails: Vec::new(),
    })
}
