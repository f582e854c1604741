//! PyTorch distributed checkpoints: `.metadata` and `__{rank}_{n}.distcp`, archives one after the other.

use super::pickle::{self, Id, Tree};
use super::source::{Builder, Format, Key, Skipped, Source, Stored};
use super::torch::{Pickled, element, walk};
use super::zip::looks_like_zip;
use crate::error::{Error, Result};
use planaria_layout::{DType, Region, Shape};
use planaria_store::container::{Foreign, Header, Limits, TensorInfo};
use planaria_store::{Reader, Store, join};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A tensor as the metadata describes it.
struct Tensor {
    dtype: DType,
    foreign: Option<&'static Foreign>,
    size: Vec<usize>,
    chunks: Vec<Chunk>,
}

/// Offsets and sizes of a box.
type Chunk = (Vec<usize>, Vec<usize>);

/// Where an item is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Item {
    file: String,
    offset: u64,
    len: u64,
}

impl Item {
    fn place(&self, file: &str) -> (String, u64, u64) {
        (file.to_string(), self.offset, self.offset.saturating_add(self.len))
    }
}

/// A chunk: its tensor and its offsets. Objects, and tensors of some writers, have no offsets.
type Place = (String, Option<Vec<usize>>);

/// What one metadata file says; ranks that saved without collectives have one each.
#[derive(Default)]
struct Metadata {
    tensors: BTreeMap<String, Tensor>,
    objects: BTreeSet<String>,
    /// Tensors of element types that are not known, with these.
    unknown: BTreeMap<String, String>,
    /// Everything in `items`.
    stored: HashSet<(Place, Item)>,
    /// Ranks that saved alone may each have stored a copy.
    items: HashMap<Place, Vec<Item>>,
    /// Where names stand in what was saved, where it was nested.
    paths: BTreeMap<String, Vec<Value>>,
}

/// Whether a file is the metadata of one rank: `__3.metadata`.
pub(super) fn is_rank_metadata(name: &str) -> bool {
    let digits = name.strip_prefix("__").and_then(|rest| rest.strip_suffix(".metadata"));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Opens a folder; `names` are the files in it.
pub(super) fn open_folder(store: &Arc<dyn Store>, folder: &str, names: &[String]) -> Result<Source> {
    let mut builder = Builder::new(store, folder, Format::TorchDcp);
    let mut metadata = Metadata::default();
    let one = names.iter().filter(|name| *name == ".metadata");
    let many = names.iter().filter(|name| is_rank_metadata(name));
    let chosen: Vec<&String> = if one.clone().next().is_some() { one.collect() } else { many.collect() };
    for name in chosen {
        let file = builder.open(name, name)?;
        let tree = pickle::read(&*file, &pickle::Limits::default())?;
        metadata.read(&tree, file.name())?;
    }
    let mut archives = Archives { last: None };
    for (name, tensor) in &metadata.tensors {
        add_tensor(&mut builder, &mut archives, &metadata, name, tensor)?;
        builder.paths.insert(name.clone(), Value::Array(metadata.path(name)));
    }
    for (name, dtype) in &metadata.unknown {
        let (what, why) = (format!("tensor '{name}'"), format!("its element type {dtype} is not supported"));
        builder.skipped.push(Skipped { what, why });
    }
    for name in &metadata.objects {
        // Every rank has the same objects; one copy says it all.
        for item in &metadata.items(name, None)?[..1] {
            let full = join(&builder.folder, &item.file);
            let pickled = archives.open(&builder, item)?;
            builder.archives.insert(item.place(&full));
            walk(&mut builder, &pickled, &full, (name, &metadata.path(name)))?;
        }
    }
    builder.finish()
}

/// The file opened last: items of one file usually follow each other, and folders may hold more files than a
/// process may open.
struct Archives {
    last: Option<Opened>,
}

struct Opened {
    name: String,
    file: Box<dyn Reader>,
    /// Its tensors by name, where it is a safetensors file; none before somebody asks.
    tensors: Option<HashMap<String, TensorInfo>>,
}

impl Archives {
    fn open<'a>(&'a mut self, builder: &Builder, item: &Item) -> Result<Pickled<'a>> {
        let opened = self.file(builder, item)?;
        Pickled::open(&*opened.file, item.offset..item.offset.saturating_add(item.len))
    }

    /// The tensor of an item: a `torch.save` archive, or one of the tensors of a safetensors file, by name.
    fn tensor(&mut self, builder: &mut Builder, item: &Item, name: &str) -> Result<Option<Stored>> {
        let opened = self.file(builder, item)?;
        if looks_like_zip(&*opened.file)? {
            builder.archives.insert(item.place(&join(&builder.folder, &item.file)));
            let pickled = self.open(builder, item)?;
            return pickled.tensor(pickled.tree.root());
        }
        if opened.tensors.is_none() {
            let tensors = Header::read(&*opened.file, &Limits::default())?.tensors.into_iter();
            opened.tensors = Some(tensors.map(|tensor| (tensor.name.clone(), tensor)).collect());
        }
        let found = opened.tensors.as_ref().and_then(|tensors| tensors.get(name));
        Ok(found.filter(|tensor| tensor.len == item.len).map(Stored::of))
    }

    fn file(&mut self, builder: &Builder, item: &Item) -> Result<&mut Opened> {
        if self.last.as_ref().is_none_or(|last| last.name != item.file) {
            let file = builder.open(&item.file, ".metadata")?;
            self.last = Some(Opened { name: item.file.clone(), file, tensors: None });
        }
        self.last.as_mut().ok_or_else(|| Error::Torn { what: format!("'{}' is missing", item.file) })
    }
}

fn add_tensor(
    builder: &mut Builder,
    archives: &mut Archives,
    metadata: &Metadata,
    name: &str,
    tensor: &Tensor,
) -> Result<()> {
    let key = Key::model(name);
    let wrong = |problem| Error::Tiles { tensor: name.to_string(), problem };
    let shape = Shape::new(&tensor.size).map_err(wrong)?;
    builder.declare(&key, ".metadata", tensor.dtype, &shape)?;
    builder.carry(&key, ".metadata", tensor.foreign)?;
    for (offsets, sizes) in &tensor.chunks {
        let ends: Option<Vec<usize>> = offsets.iter().zip(sizes).map(|(o, s)| o.checked_add(*s)).collect();
        let fits = offsets.len() == sizes.len() && sizes.len() == tensor.size.len();
        let ends = ends.filter(|_| fits).ok_or_else(|| Error::Malformed {
            file: ".metadata".to_string(),
            what: format!("tensor '{name}' of shape {shape} has a chunk {sizes:?} at {offsets:?}"),
        })?;
        let region = Region::new(offsets, &ends).map_err(wrong)?;
        if region.is_empty() {
            continue;
        }
        let stored_at = tensor.foreign.map_or(&offsets[..], |foreign| foreign.extents(offsets));
        for item in metadata.items(name, Some(stored_at))? {
            let full = join(&builder.folder, &item.file);
            let stored = archives.tensor(builder, item, name)?.ok_or_else(|| Error::Malformed {
                file: full.clone(),
                what: format!("the item of tensor '{name}' at byte {} is not a tensor", item.offset),
            })?;
            builder.tile(key.clone(), &full, &shape, region.clone(), &stored)?;
        }
    }
    Ok(())
}

impl Metadata {
    /// Where a name stands in what was saved: by itself unless something else is said.
    fn path(&self, name: &str) -> Vec<Value> {
        self.paths.get(name).map_or_else(|| vec![name.into()], Clone::clone)
    }

    /// The copies of a chunk, or of an object. Writers leave the offset of some items out.
    fn items(&self, name: &str, offsets: Option<&[usize]>) -> Result<&[Item]> {
        let exact = self.items.get(&(name.to_string(), offsets.map(<[usize]>::to_vec)));
        let found = exact.or_else(|| match (offsets, self.tensors.get(name)) {
            (Some(_), Some(tensor)) if tensor.chunks.len() > 1 => None,
            _ => self.items.get(&(name.to_string(), None)),
        });
        let place = offsets.map_or(String::new(), |offsets| format!(" at {offsets:?}"));
        let what = format!("nothing is stored for '{name}'{place}");
        found.map(Vec::as_slice).ok_or(Error::Torn { what })
    }

    fn read(&mut self, tree: &Tree, file: &str) -> Result<()> {
        let malformed = |what: String| Error::Malformed { file: file.to_string(), what };
        let root = record(tree, tree.root(), "Metadata");
        let root = root.ok_or_else(|| malformed("it is not metadata of a torch checkpoint".to_string()))?;
        let missing = |name: &str| malformed(format!("it has no '{name}'"));
        let tensors = root.get("state_dict_metadata").and_then(|id| tree.pairs(*id));
        for &(name, about) in tensors.ok_or_else(|| missing("state_dict_metadata"))? {
            let name =
                tree.text(name).ok_or_else(|| malformed("an entry whose name is not text".to_string()))?;
            self.read_entry(tree, name, about).map_err(|what| malformed(format!("'{name}': {what}")))?;
        }
        let items = root.get("storage_data").and_then(|id| tree.pairs(*id));
        for &(index, info) in items.ok_or_else(|| missing("storage_data"))? {
            let (place, item) = read_item(tree, index, info).map_err(malformed)?;
            if is_transformed(tree, info) {
                let what = format!("'{}' is stored compressed; save it again without extensions", place.0);
                return Err(Error::Unsupported { file: file.to_string(), what });
            }
            if self.stored.insert((place.clone(), item.clone())) {
                self.items.entry(place).or_default().push(item);
            }
        }
        for &(name, path) in root.get("planner_data").and_then(|id| tree.pairs(*id)).unwrap_or_default() {
            if let Some((name, path)) = tree.text(name).zip(read_path(tree, path)) {
                self.paths.insert(name.to_string(), path);
            }
        }
        Ok(())
    }

    fn read_entry(&mut self, tree: &Tree, name: &str, about: Id) -> Result<(), String> {
        if record_class(tree, about) == Some("BytesStorageMetadata") {
            self.objects.insert(name.to_string());
            return Ok(());
        }
        let tensor = match read_tensor(tree, about)? {
            Read::Tensor(tensor) => tensor,
            Read::Unknown(dtype) => {
                self.unknown.insert(name.to_string(), dtype);
                return Ok(());
            }
        };
        match self.tensors.get_mut(name) {
            Some(known)
                if (&known.size, known.dtype, known.foreign)
                    != (&tensor.size, tensor.dtype, tensor.foreign) =>
            {
                Err("ranks disagree about its shape or dtype".to_string())
            }
            Some(known) => {
                let all = std::mem::take(&mut known.chunks).into_iter().chain(tensor.chunks);
                known.chunks = each_once(all);
                Ok(())
            }
            None => {
                self.tensors.insert(name.to_string(), tensor);
                Ok(())
            }
        }
    }
}

fn record_class(tree: &Tree, id: Id) -> Option<&str> {
    let (_, (module, name)) = tree.object(id)?;
    module.starts_with("torch.distributed.").then_some(name)
}

/// The attributes of an object of this class of torch's checkpoint package.
fn record<'t>(tree: &'t Tree, id: Id, class: &str) -> Option<HashMap<&'t str, Id>> {
    let (object, (module, name)) = tree.object(id)?;
    (module.starts_with("torch.distributed.") && name == class).then(|| tree.attributes(object)).flatten()
}

/// What an entry of the metadata says.
enum Read {
    Tensor(Tensor),
    /// An element type that is not known, by name.
    Unknown(String),
}

fn read_tensor(tree: &Tree, id: Id) -> Result<Read, String> {
    let about = record(tree, id, "TensorStorageMetadata").ok_or("an entry of an unknown kind")?;
    let properties = about.get("properties").and_then(|id| tree.object(*id)).map(|(object, _)| object);
    let properties = properties.ok_or("a tensor without properties")?;
    // The state is a tuple that starts with the dtype; a dict in some versions.
    let state = properties.state.ok_or("a tensor without properties")?;
    let element = match tree.items(state) {
        Some(items) => items.first().copied(),
        None => tree.dict(state).and_then(|fields| fields.get("dtype").copied()),
    };
    let named = element.ok_or("a tensor without a dtype")?;
    let Some((dtype, foreign)) = self::element(tree, named) else {
        let (module, name) = tree.global(named).ok_or("a tensor whose dtype has no name")?;
        return Ok(Read::Unknown(format!("{module}.{name}")));
    };
    let pair = foreign.filter(|foreign| foreign.per_element() > 1);
    let widened = |mut sizes: Vec<usize>, last: usize| {
        sizes.extend(pair.map(|_| last));
        sizes
    };
    let size = about.get("size").and_then(|id| tree.sizes(*id)).ok_or("a tensor without a size")?;
    let (size, per) =
        (widened(size, foreign.map_or(1, Foreign::per_element)), foreign.map_or(1, Foreign::per_element));
    let list = about.get("chunks").and_then(|id| tree.items(*id)).ok_or("a tensor without chunks")?;
    let mut chunks = Vec::with_capacity(list.len());
    for &chunk in list {
        let fields = record(tree, chunk, "ChunkStorageMetadata").ok_or("a chunk of an unknown kind")?;
        let sizes = |name: &str| fields.get(name).and_then(|id| tree.sizes(*id));
        let (Some(offsets), Some(sizes)) = (sizes("offsets"), sizes("sizes")) else {
            return Err("a chunk without offsets and sizes".to_string());
        };
        chunks.push((widened(offsets, 0), widened(sizes, per)));
    }
    Ok(Read::Tensor(Tensor { dtype, foreign, size, chunks: each_once(chunks) }))
}

/// A chunk that is listed again says nothing new.
fn each_once(chunks: impl IntoIterator<Item = Chunk>) -> Vec<Chunk> {
    let mut seen = HashSet::new();
    chunks.into_iter().filter(|chunk| seen.insert(chunk.clone())).collect()
}

/// Keys of dicts and numbers of list items, from the outermost on.
fn read_path(tree: &Tree, id: Id) -> Option<Vec<Value>> {
    let step = |&id: &Id| tree.text(id).map(Value::from).or_else(|| tree.size(id).map(Value::from));
    tree.items(id)?.iter().map(step).collect()
}

/// Whether the bytes of an item went through an extension such as a compressor.
fn is_transformed(tree: &Tree, info: Id) -> bool {
    let info = record(tree, info, "_StorageInfo");
    let transforms = info.and_then(|info| info.get("transform_descriptors").copied());
    transforms.is_some_and(|list| !tree.is_none(list) && tree.items(list).is_none_or(|list| !list.is_empty()))
}

fn read_item(tree: &Tree, index: Id, info: Id) -> Result<(Place, Item), String> {
    let index = record(tree, index, "MetadataIndex").ok_or("an item that is not a MetadataIndex")?;
    let name = index.get("fqn").and_then(|id| tree.text(*id)).ok_or("an item without a name")?;
    let offset = match index.get("offset") {
        Some(&offset) if !tree.is_none(offset) => {
            Some(tree.sizes(offset).ok_or_else(|| format!("the place of '{name}' is not a list of sizes"))?)
        }
        _ => None,
    };
    let broken = || format!("'{name}' is stored nowhere");
    let info = record(tree, info, "_StorageInfo").ok_or_else(broken)?;
    let file = info.get("relative_path").and_then(|id| tree.text(*id)).ok_or_else(broken)?.to_string();
    let number = |field: &str| info.get(field).and_then(|id| tree.size(*id)).map(|value| value as u64);
    let (Some(start), Some(len)) = (number("offset"), number("length")) else { return Err(broken()) };
    Ok(((name.to_string(), offset), Item { file, offset: start, len }))
}
