//! Tensors in files, whoever wrote them, in the form that loading plans with.

use crate::error::{Error, Result};
use crate::files::Placed;
use crate::formats::roles::Roles;
use crate::formats::{Part, Source};
use crate::manifest::{Checkpoint, Derive, SUM_BLOCK};
use crate::naming::Files;
use crate::read::Data;
use crate::state::{Group, TensorKey, TensorKind};
use crate::union::Together;
use planaria_layout::{DType, Dims, Extent, Region, Shape, Tile};
use planaria_store::join;
use std::collections::{BTreeMap, HashMap};

/// Tensors in files.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    pub(crate) data: Data,
    pub(crate) tensors: Vec<Entry>,
    by_name: HashMap<(Group, String), usize>,
    tied: BTreeMap<String, String>,
    derive: Option<Derive>,
}

/// A tensor in files.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: TensorKey,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    tiles: Vec<(Region, Extent, Option<Dims>)>,
}

/// A tensor found for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) number: usize,
    /// It is of another kind and stands in for what was not stored: a change of dtype is meant.
    pub(crate) derived: bool,
}

impl Catalog {
    /// A checkpoint of ours.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Catalog {
        let data = Data {
            files: checkpoint.files.iter().map(|file| join(&checkpoint.folder, &file.name)).collect(),
            sizes: checkpoint.files.iter().map(|file| file.size).collect(),
            sums: Some(checkpoint.files.iter().map(|file| file.sums.clone()).collect()),
            block: checkpoint.block,
        };
        let entry = |(key, stored): (&TensorKey, &crate::manifest::Stored)| Entry {
            key: key.clone(),
            dtype: stored.dtype,
            shape: stored.shape.clone(),
            tiles: stored.tiles.iter().map(|tile| (tile.region.clone(), tile.holder, None)).collect(),
        };
        let tensors = checkpoint.tensors.iter().map(entry).collect();
        let (tied, derive) = (checkpoint.state.tied.clone(), checkpoint.derive);
        Catalog { data, by_name: HashMap::new(), tensors, tied, derive }.indexed()
    }

    /// What a save of these tensors would make.
    pub(crate) fn of_saved(tensors: &[Together], files: &Files) -> Catalog {
        let of_files = files.files.iter();
        let data = Data {
            files: of_files.clone().map(|file| file.name.clone()).collect(),
            sizes: of_files.map(|file| file.layout.file_len()).collect(),
            sums: Some(Vec::new()),
            block: SUM_BLOCK,
        };
        let entry = |tensor: &Together| Entry {
            key: tensor.key.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            tiles: Vec::new(),
        };
        let mut entries: Vec<Entry> = tensors.iter().map(entry).collect();
        for Placed { tensor, tile, .. } in &files.tiles {
            entries[*tensor].tiles.push((tile.region.clone(), tile.holder, None));
        }
        let (by_name, tied) = (HashMap::new(), BTreeMap::new());
        Catalog { data, by_name, tensors: entries, tied, derive: None }.indexed()
    }

    /// A checkpoint of others. Of several copies of a box the first is read.
    pub(crate) fn of_source(source: &Source, tied: &BTreeMap<String, String>) -> Result<Catalog> {
        let size = |file: &String| Ok(source.store.reader(file)?.size());
        let sizes = source.files.iter().map(size).collect::<Result<Vec<u64>>>()?;
        let (sums, block) = checksums(source).map_or((None, 0), |(sums, block)| (Some(sums), block));
        let data = Data { files: source.files.clone(), sizes, sums, block };
        let roles = Roles::of(source);
        let mut tensors = Vec::with_capacity(source.tensors.len());
        // Nothing here computes with the others, so nobody can ask for them.
        let known = || source.tensors.iter().filter(|(key, _)| !source.foreign.contains_key(key));
        for (key, entry) in known() {
            let mut tiles = Vec::new();
            for (region, extents) in entry.tiles.boxes() {
                let order = entry.strides.get(&extents[0]).map(|steps| dense_order(&region.extents(), steps));
                let Some(order) = order.map_or(Some(None), |order| order.map(Some)) else {
                    let file = source.files[extents[0].file].clone();
                    let what = format!("tensor '{key}' lies in it with gaps; write it contiguously");
                    return Err(Error::Unsupported { file, what });
                };
                tiles.push((region.clone(), extents[0], order));
            }
            tensors.push(Entry {
                key: roles.get(key),
                dtype: entry.dtype,
                shape: entry.shape.clone(),
                tiles,
            });
        }
        let catalog = Catalog { data, by_name: HashMap::new(), tensors, tied: tied.clone(), derive: None };
        let mut catalog = catalog.indexed();
        // Whoever asks for a tensor by the name in the files gets it, whatever it is to a training.
        for (number, (key, _)) in known().enumerate().filter(|(_, (key, _))| key.part == Part::Model) {
            catalog.by_name.entry((Group::Model, key.name.clone())).or_insert(number);
        }
        Ok(catalog)
    }

    fn indexed(mut self) -> Catalog {
        let names = self.tensors.iter().enumerate();
        self.by_name = names.map(|(n, entry)| ((entry.key.kind.group(), entry.key.in_file()), n)).collect();
        self
    }

    /// The tensor that holds the value of a key: itself, what it is tied to, what is tied to it, or what it is
    /// rebuilt from.
    pub(crate) fn find(&self, key: &TensorKey, rebuild: Option<Derive>) -> Option<Found> {
        if let Some(number) = self.find_kind(key) {
            return Some(Found { number, derived: false });
        }
        let from = match (&key.kind, self.derive.or(rebuild)?) {
            (TensorKind::Parameter, Derive::ParametersFromMasters) => TensorKind::Master,
            (TensorKind::Master, Derive::MastersFromParameters) => TensorKind::Parameter,
            _ => return None,
        };
        let number = self.find_kind(&TensorKey { kind: from, name: key.name.clone() })?;
        Some(Found { number, derived: true })
    }

    fn find_kind(&self, key: &TensorKey) -> Option<usize> {
        let named = |name: &str| {
            let key = TensorKey { kind: key.kind.clone(), name: name.to_string() };
            self.by_name.get(&(key.kind.group(), key.in_file())).copied()
        };
        let tied = || self.tied.get(&key.name).and_then(|name| named(name));
        let alias = || {
            let aliases = self.tied.iter().filter(|(_, target)| **target == key.name);
            aliases.filter_map(|(alias, _)| named(alias)).next()
        };
        named(&key.name).or_else(tied).or_else(alias)
    }

    /// Where the boxes of a tensor lie.
    pub(crate) fn placed(&self, tensor: usize) -> impl Iterator<Item = Placed> + '_ {
        let entry = &self.tensors[tensor];
        entry.tiles.iter().map(move |(region, extent, order)| {
            let tile = Tile { region: region.clone(), holder: *extent };
            Placed::ordered(tensor, tile, entry.dtype.size(), order.clone())
        })
    }
}

/// The checksums of all files, when there are some for each and they cover blocks of one size.
fn checksums(source: &Source) -> Option<(Vec<Vec<u32>>, u64)> {
    let sums: Vec<_> = source.files.iter().map(|file| source.sums.get(file)).collect::<Option<_>>()?;
    let block = sums.first()?.block;
    let same = sums.iter().all(|sums| sums.block == block);
    same.then(|| (sums.iter().map(|sums| sums.sums.clone()).collect(), block))
}

/// The dims from the slowest to the fastest, when elements with these steps lie without gaps.
fn dense_order(extents: &[usize], steps: &[usize]) -> Option<Dims> {
    let mut order: Dims = (0..extents.len()).collect();
    // Dims of one element may have any step; they come first.
    order.sort_by_key(|&d| (extents[d] > 1, std::cmp::Reverse(steps[d])));
    let mut expected = 1;
    for &d in order.iter().rev().filter(|&&d| extents[d] > 1) {
        if steps[d] != expected {
            return None;
        }
        expected *= extents[d];
    }
    Some(order)
}
