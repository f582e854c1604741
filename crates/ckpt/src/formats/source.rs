//! The common answer of all formats: where the bytes of every tensor lie.

use super::archives::Checked;
use super::mapped::MappedFiles;
use super::ours::FileSums;
use super::pickle::{Id, Tree, VALUES};
use crate::error::{Error, Result};
use planaria_layout::{DType, Dims, Extent, Listed, Region, Shape, Tile};
use planaria_store::container::Foreign;
use planaria_store::{Reader, Store, check_name, join};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// Who wrote a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Safetensors files with or without an index: Hugging Face.
    HuggingFace,
    /// Safetensors shards that PyTorch DCP wrote, not consolidated.
    HuggingFaceSharded,
    /// Paddle flex checkpoint.
    PaddleFlex,
    /// Paddle unified checkpoint: Hugging Face files with optimizer and master weights beside them.
    PaddleUnified,
    /// `.pdparams` and `.pdopt` files.
    PaddleSave,
    /// PyTorch distributed checkpoint.
    TorchDcp,
    /// `torch.save` files.
    TorchSave,
    /// Our own: safetensors files with a manifest and a commit mark.
    Planaria,
}

impl Format {
    /// The short name, as in `torch-dcp`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::HuggingFace => "hugging-face",
            Format::HuggingFaceSharded => "hugging-face-sharded",
            Format::PaddleFlex => "paddle-flex",
            Format::PaddleUnified => "paddle-unified",
            Format::PaddleSave => "paddle-save",
            Format::TorchDcp => "torch-dcp",
            Format::Planaria => "planaria",
            Format::TorchSave => "torch-save",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Part {
    /// The short name, as in `master_weights`.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Model => "model",
            Part::MasterWeights => "master_weights",
            Part::Optimizer => "optimizer",
            Part::Ema => "ema",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which part of a training state a tensor belongs to, where the format says so by file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Parameters and buffers; everything in formats without parts.
    Model,
    /// Full-precision copies of the parameters.
    MasterWeights,
    /// Optimizer state.
    Optimizer,
    /// Moving averages.
    Ema,
}

/// Names a tensor of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The part.
    pub part: Part,
    /// The name in the files.
    pub name: String,
}

impl Key {
    /// A tensor of the model.
    pub fn model(name: impl Into<String>) -> Key {
        Key { part: Part::Model, name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Model => f.write_str(&self.name),
            part => write!(f, "{part}:{}", self.name),
        }
    }
}

/// One tensor: its boxes, and the file extents that store them. Several extents of one box are copies.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Shape,
    /// The boxes with their extents, checked to be the whole tensor without overlap.
    pub tiles: Listed<Extent>,
    /// Element strides of extents that are not row-major (Fortran order, strided views). The extent spans
    /// from the first to the last element then.
    pub strides: BTreeMap<Extent, Dims>,
    /// The box each extent stores.
    homes: HashMap<Extent, Region>,
}

/// Part of a tensor and the extent to read it from.
#[derive(Clone, Debug)]
pub struct Piece<'a> {
    /// The part wanted.
    pub region: Region,
    /// The box that holds it, and the extent that stores this box.
    pub tile: Tile<Extent>,
    /// Element strides of the extent, when it is not row-major.
    pub strides: Option<&'a Dims>,
}

impl Entry {
    /// What to read for the box `want`: pieces that together are exactly it. Of several copies each reader
    /// takes another, by its `turn`.
    pub fn pieces(&self, want: &Region, turn: usize) -> planaria_layout::Result<Vec<Piece<'_>>> {
        let parts = planaria_layout::fetch(&self.tiles, want, None, turn)?;
        let pieces = parts.into_iter().filter_map(|Tile { region, holder }| {
            let tile = Tile { region: self.homes.get(&holder)?.clone(), holder };
            Some(Piece { region, strides: self.strides.get(&holder), tile })
        });
        Ok(pieces.collect())
    }

    /// Where all of it lies in row-major order, the first of several copies; none where it is empty, cut or strided.
    pub(super) fn in_one_piece(&self) -> Option<Extent> {
        let mut boxes = self.tiles.boxes();
        let (Some((_, extents)), None) = (boxes.next(), boxes.next()) else { return None };
        extents.first().copied().filter(|extent| !self.strides.contains_key(extent))
    }
}

/// A file that was seen and not read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file, or the tensor in a file.
    pub what: String,
    /// Why.
    pub why: String,
}

/// A checkpoint that was opened.
#[derive(Clone, Debug)]
pub struct Source {
    /// Who wrote it.
    pub format: Format,
    /// Where it lies.
    pub store: Arc<dyn Store>,
    /// The files, numbered as in [`Extent::file`].
    pub files: Vec<String>,
    /// The tensors.
    pub tensors: BTreeMap<Key, Entry>,
    /// Tensors whose element type no array has: `dtype` and `shape` of their entries are those of bytes that stand for it.
    pub foreign: BTreeMap<Key, &'static Foreign>,
    /// What is not a tensor: Python values by name, configuration and index files.
    pub extra: BTreeMap<String, Value>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// What is wrong and does no harm to the tensors.
    pub doubts: Vec<String>,
    /// The folder, where a whole folder was opened.
    pub(crate) folder: Option<String>,
    /// Archives in the files, each with checksums of its own.
    pub(super) archives: BTreeSet<(String, u64, u64)>,
    pub(super) checked: Checked,
    pub(super) mapped: MappedFiles,
    /// Where names of tensors and values stand in the nested dicts and lists that torch saved: lists of keys and numbers.
    pub(crate) paths: BTreeMap<String, Value>,
    /// Checksums of files that were written with them.
    pub(crate) sums: BTreeMap<String, Arc<FileSums>>,
}

impl Source {
    /// A tensor by key.
    pub fn get(&self, key: &Key) -> Result<&Entry> {
        self.tensors.get(key).ok_or_else(|| Error::NoTensor { tensor: key.to_string() })
    }

    /// A tensor of the model by name.
    pub fn model(&self, name: &str) -> Result<&Entry> {
        self.get(&Key::model(name))
    }

    /// Element type and shape of a tensor as people read them, `f32[4,3]`; empty for one that is not there.
    pub fn spec(&self, key: &Key) -> String {
        let Some(entry) = self.tensors.get(key) else { return String::new() };
        let extents = self.extents(key);
        let shape = Shape::new(extents).unwrap_or_default();
        format!("{}{shape}", self.foreign.get(key).map_or(entry.dtype.name(), |foreign| foreign.name))
    }

    /// The true extents of a tensor.
    pub fn extents(&self, key: &Key) -> &[usize] {
        let shape = self.tensors.get(key).map_or(&[][..], |entry| &entry.shape[..]);
        self.foreign.get(key).map_or(shape, |foreign| foreign.extents(shape))
    }

    /// Bytes of all tensors, copies not counted.
    pub fn total_bytes(&self) -> u64 {
        let bytes = |entry: &Entry| (entry.shape.numel() * entry.dtype.size()) as u64;
        self.tensors.values().map(bytes).fold(0, u64::saturating_add)
    }
}

/// An array found in a file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) strides: Option<Dims>,
    /// What the bytes truly are.
    pub(super) foreign: Option<&'static Foreign>,
}

/// Most dims of a tensor, in every format: as many as safetensors files and numpy hold.
const DIMS: usize = 64;

/// Collects what the files say; [`Builder::finish`] checks that it makes whole tensors.
pub(super) struct Builder {
    pub(super) store: Arc<dyn Store>,
    pub(super) folder: String,
    format: Format,
    files: Vec<String>,
    numbers: HashMap<String, usize>,
    tensors: BTreeMap<Key, Pending>,
    pub(super) foreign: BTreeMap<Key, &'static Foreign>,
    pub(super) extra: BTreeMap<String, Value>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) doubts: Vec<String>,
    /// Python values that may still be kept.
    room: u64,
    /// File, first byte and one past the last.
    pub(super) archives: BTreeSet<(String, u64, u64)>,
    /// Where names stand in nested dicts and lists.
    pub(super) paths: BTreeMap<String, Value>,
}

struct Pending {
    dtype: DType,
    shape: Shape,
    /// The first file that spoke of this tensor.
    file: String,
    tiles: Vec<Tile<Extent>>,
    strides: BTreeMap<Extent, Dims>,
}

impl Builder {
    pub(super) fn new(store: &Arc<dyn Store>, folder: &str, format: Format) -> Builder {
        Builder {
            store: store.clone(),
            folder: folder.to_string(),
            format,
            files: Vec::new(),
            numbers: HashMap::new(),
            tensors: BTreeMap::new(),
            foreign: BTreeMap::new(),
            extra: BTreeMap::new(),
            skipped: Vec::new(),
            doubts: Vec::new(),
            room: VALUES,
            archives: BTreeSet::new(),
            paths: BTreeMap::new(),
        }
    }

    /// Keeps a Python value beside the tensors. One that cannot be written out is left out by name.
    pub(super) fn keep(&mut self, name: String, tree: &Tree, id: Id, file: &dyn Reader) -> Result<()> {
        let values = tree.values(id);
        let full = || format!("there are more than {VALUES} values beside the tensors");
        let why = tree.unwritable(id).or_else(|| (values > self.room).then(full));
        if let Some(why) = why {
            self.skipped.push(Skipped { what: format!("the value '{name}'"), why });
        } else if let Some(value) = tree.to_json(id, file)? {
            self.room -= values;
            self.extra.insert(name, value);
        }
        Ok(())
    }

    /// Opens a file of the folder by the name a foreign file gave it. A missing one means a torn save.
    pub(super) fn open(&self, name: &str, needed_by: &str) -> Result<Box<dyn Reader>> {
        check_name(name)?;
        self.store.reader(&join(&self.folder, name)).map_err(|error| match error {
            planaria_store::Error::NotFound { name } => {
                Error::Torn { what: format!("'{name}' is missing; '{needed_by}' names it") }
            }
            other => other.into(),
        })
    }

    fn number(&mut self, file: &str) -> usize {
        if let Some(&number) = self.numbers.get(file) {
            return number;
        }
        self.files.push(file.to_string());
        self.numbers.insert(file.to_string(), self.files.len() - 1);
        self.files.len() - 1
    }

    /// A tensor that lies whole in one place.
    pub(super) fn whole(&mut self, key: Key, file: &str, stored: &Stored) -> Result<()> {
        if let Some(known) = self.tensors.get(&key) {
            let (first, second) = (known.file.clone(), file.to_string());
            return Err(Error::Duplicate { tensor: key.to_string(), first, second });
        }
        let region = Region::whole(&stored.shape);
        self.tile(key, file, &stored.shape.clone(), region, stored)
    }

    /// A box of a tensor.
    pub(super) fn tile(
        &mut self,
        key: Key,
        file: &str,
        shape: &Shape,
        region: Region,
        stored: &Stored,
    ) -> Result<()> {
        self.declare(&key, file, stored.dtype, shape)?;
        if region.extents()[..] != stored.shape[..] {
            return Err(Error::Mismatch {
                tensor: key.to_string(),
                what: "the box",
                first: region.to_string(),
                first_file: "the metadata".to_string(),
                second: stored.shape.to_string(),
                second_file: file.to_string(),
            });
        }
        self.carry(&key, file, stored.foreign)?;
        let extent = Extent { file: self.number(file), offset: stored.offset, len: stored.len };
        if let Some(pending) = self.tensors.get_mut(&key) {
            if let Some(strides) = &stored.strides {
                pending.strides.insert(extent, strides.clone());
            }
            pending.tiles.push(Tile { region, holder: extent });
        }
        Ok(())
    }

    /// Says that a tensor exists; what was said before must agree.
    pub(super) fn declare(&mut self, key: &Key, file: &str, dtype: DType, shape: &Shape) -> Result<()> {
        if shape.ndim() > DIMS {
            let what = format!("tensor '{key}' has {} dims, at most {DIMS} are read", shape.ndim());
            return Err(Error::Unsupported { file: file.to_string(), what });
        }
        let Some(known) = self.tensors.get(key) else {
            let pending = Pending {
                dtype,
                shape: shape.clone(),
                file: file.to_string(),
                tiles: Vec::new(),
                strides: BTreeMap::new(),
            };
            self.tensors.insert(key.clone(), pending);
            return Ok(());
        };
        let differ = |what, first: String, second: String| Error::Mismatch {
            tensor: key.to_string(),
            what,
            first,
            first_file: known.file.clone(),
            second,
            second_file: file.to_string(),
        };
        if known.dtype != dtype {
            return Err(differ("the dtype", known.dtype.to_string(), dtype.to_string()));
        }
        if known.shape != *shape {
            return Err(differ("the shape", known.shape.to_string(), shape.to_string()));
        }
        Ok(())
    }

    /// Says which type the bytes of a tensor stand for; what was said before must agree.
    pub(super) fn carry(&mut self, key: &Key, file: &str, foreign: Option<&'static Foreign>) -> Result<()> {
        let known = self.foreign.get(key).copied();
        let first = self.tensors.get(key).filter(|first| known.is_some() || !first.tiles.is_empty());
        if let Some(first) = first.filter(|_| known != foreign) {
            let name = |foreign: Option<&Foreign>| foreign.map_or(first.dtype.name(), |foreign| foreign.name);
            return Err(Error::Mismatch {
                tensor: key.to_string(),
                what: "the dtype",
                first: name(known).to_string(),
                first_file: first.file.clone(),
                second: name(foreign).to_string(),
                second_file: file.to_string(),
            });
        }
        if let Some(foreign) = foreign {
            self.foreign.insert(key.clone(), foreign);
        }
        Ok(())
    }

    /// Number of tensors so far.
    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Checks that the tiles of every tensor are the whole of it.
    pub(super) fn finish(self) -> Result<Source> {
        let mut tensors = BTreeMap::new();
        for (key, pending) in self.tensors {
            let tiles = Listed::new(&pending.shape, pending.tiles)
                .map_err(|problem| Error::Tiles { tensor: key.to_string(), problem })?;
            let homes = homes(&tiles);
            let homes = homes.ok_or_else(|| Error::Malformed {
                file: pending.file.clone(),
                what: format!("two boxes of tensor '{key}' are said to be the same bytes"),
            })?;
            let (dtype, shape, strides) = (pending.dtype, pending.shape, pending.strides);
            tensors.insert(key, Entry { dtype, shape, tiles, strides, homes });
        }
        Ok(Source {
            format: self.format,
            store: self.store,
            files: self.files,
            tensors,
            foreign: self.foreign,
            extra: self.extra,
            skipped: self.skipped,
            doubts: self.doubts,
            folder: None,
            archives: self.archives,
            checked: Checked::default(),
            mapped: MappedFiles::default(),
            paths: self.paths,
            sums: BTreeMap::new(),
        })
    }
}

/// The box of every extent; `None` when one extent is to be two boxes.
fn homes(tiles: &Listed<Extent>) -> Option<HashMap<Extent, Region>> {
    let mut homes = HashMap::new();
    for (region, extents) in tiles.boxes() {
        for extent in extents {
            if homes.insert(*extent, region.clone()).is_some_and(|other| other != *region) {
                return None;
            }
        }
    }
    Some(homes)
}

/// The byte length of an array, checked.
pub(super) fn byte_len(shape: &Shape, dtype: DType) -> u64 {
    // Shapes are checked to fit in memory addresses together with the widest element.
    (shape.numel() * dtype.size()) as u64
}
