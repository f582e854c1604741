//! Which tensor goes to which file: an ordinary folder of safetensors files with their index files.

use crate::error::Result;
use crate::files::Placed;
use crate::manifest::Derive;
use crate::options::{FileNames, SaveOptions};
use crate::outgoing::group_of;
use crate::state::Group;
use crate::union::Together;
use planaria_layout::Region;
use planaria_store::container::{Align, FileLayout, NewTensor};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A file to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewFile {
    pub(crate) name: String,
    pub(crate) group: Group,
    pub(crate) layout: FileLayout,
    /// The rank that writes it, where that is decided already.
    pub(crate) owner: Option<usize>,
}

/// The files of a save and the boxes in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub(crate) files: Vec<NewFile>,
    pub(crate) tiles: Vec<Placed>,
}

/// The one file of an adapter's weights.
const ADAPTER: &str = "adapter_model.safetensors";

/// `model-00001-of-00003.safetensors`.
fn numbered(group: Group, number: usize, total: usize) -> String {
    format!("{}-{number:05}-of-{total:05}.safetensors", group.stem())
}

/// Every tensor whole. Files are cut where they would pass `limit`; the cut depends on names, shapes and dtypes
/// alone, so that the same state makes the same files whatever its layout.
pub(crate) fn whole(tensors: &[Together], options: &SaveOptions, derive: Option<Derive>) -> Result<Files> {
    let mut files = Files::default();
    for group in Group::ALL {
        let of_group = |(_, tensor): &(usize, &Together)| group_of(&tensor.key.kind, derive) == group;
        let mine = tensors.iter().enumerate().filter(of_group);
        let one = options.names == FileNames::Adapter && group == Group::Model;
        let limit = if one { u64::MAX } else { options.max_file_size };
        let parts = cut(mine.map(|(number, tensor)| (number, Region::whole(&tensor.shape))), tensors, limit);
        let total = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let name = if one { ADAPTER.to_string() } else { numbered(group, number + 1, total) };
            files.add(name, group, None, tensors, part)?;
        }
    }
    Ok(files)
}

/// Every box in a file of one of the ranks that hold it: of several, the one with the least to write so far.
pub(crate) fn as_held(
    tensors: &[Together],
    limit: u64,
    derive: Option<Derive>,
    ranks: usize,
) -> Result<Files> {
    let mut load = vec![0u64; ranks];
    let mut boxes: BTreeMap<(Group, usize), Vec<(usize, Region)>> = BTreeMap::new();
    for (number, tensor) in tensors.iter().enumerate() {
        let group = group_of(&tensor.key.kind, derive);
        if tensor.shape.numel() == 0 {
            // Without elements, but with a shape to keep.
            boxes.entry((group, 0)).or_default().push((number, Region::whole(&tensor.shape)));
        }
        for (region, holders) in tensor.boxes() {
            let owner = holders.into_iter().min_by_key(|&rank| (load[rank], rank)).unwrap_or(0);
            load[owner] += (region.numel() * tensor.dtype.size()) as u64;
            boxes.entry((group, owner)).or_default().push((number, region));
        }
    }
    let mut files = Files::default();
    for ((group, owner), boxes) in boxes {
        for (number, part) in cut(boxes.into_iter(), tensors, limit).into_iter().enumerate() {
            let name = format!("{}-rank{owner:05}-{:05}.safetensors", group.stem(), number + 1);
            files.add(name, group, Some(owner), tensors, part)?;
        }
    }
    Ok(files)
}

/// Boxes in order, cut where a file would pass the limit.
fn cut(
    boxes: impl Iterator<Item = (usize, Region)>,
    tensors: &[Together],
    limit: u64,
) -> Vec<Vec<(usize, Region)>> {
    let mut parts: Vec<Vec<(usize, Region)>> = Vec::new();
    let mut filled = 0u64;
    for (number, region) in boxes {
        let len = (region.numel() * tensors[number].dtype.size()) as u64;
        if parts.is_empty() || filled > 0 && filled.saturating_add(len) > limit {
            parts.push(Vec::new());
            filled = 0;
        }
        filled += len;
        parts.last_mut().into_iter().for_each(|part| part.push((number, region.clone())));
    }
    parts
}

impl Files {
    /// Lays out one file with these boxes of tensors.
    fn add(
        &mut self,
        name: String,
        group: Group,
        owner: Option<usize>,
        tensors: &[Together],
        boxes: Vec<(usize, Region)>,
    ) -> Result<()> {
        let mut listed = Vec::with_capacity(boxes.len());
        for (tensor, region) in &boxes {
            let Together { key, dtype, shape, .. } = &tensors[*tensor];
            let whole = *region == Region::whole(shape);
            let name = if whole { key.in_file() } else { boxed(&key.in_file(), region) };
            let shape = planaria_layout::Shape::from_dims(region.extents())?;
            listed.push(NewTensor { name, dtype: *dtype, shape, foreign: None });
        }
        let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let layout = FileLayout::new(&name, listed, &metadata, Align::Block)?;
        let file = self.files.len();
        for (given, offset) in layout.placed() {
            let (tensor, region) = &boxes[given];
            let size = tensors[*tensor].dtype.size();
            self.tiles.push(Placed::new(*tensor, region.clone(), (file, offset), size));
        }
        self.files.push(NewFile { name, group, layout, owner });
        Ok(())
    }

    /// The index of each group of files: name, and text.
    pub(crate) fn indexes(&self, has_masters: bool) -> Vec<(String, String)> {
        let mut indexes = Vec::new();
        for group in Group::ALL {
            let of_group = || self.files.iter().filter(|file| file.group == group);
            if of_group().all(|file| file.name == ADAPTER) {
                continue;
            }
            let total: u64 = of_group().map(|file| file.layout.data_len()).sum();
            let weights: Map<String, Value> = of_group()
                .flat_map(|file| {
                    file.layout.tensors().map(|(tensor, ..)| (tensor.name.clone(), json!(file.name)))
                })
                .collect();
            let mut index = json!({"metadata": {"total_size": total}, "weight_map": weights});
            if group == Group::Optimizer {
                index["master_weights"] = json!(has_masters);
            }
            let name = format!("{}.safetensors.index.json", group.stem());
            indexes.push((name, format!("{index:#}\n")));
        }
        indexes
    }
}

/// The key of a box that is not the whole tensor.
fn boxed(key: &str, region: &Region) -> String {
    format!("{key}@{region}")
}
