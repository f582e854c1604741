//! Paddle flex checkpoints: `{uid}.metadata` and one `.distcp` or `.safetensors` file per rank.

use super::numpy::NdArray;
use super::paddle::{Flat, Found, Saved, add_flat, dtype_named};
use super::pickle::{self, Id, Tree};
use super::source::{Builder, Key, Part, Stored};
use crate::error::{Error, Result};
use planaria_layout::{DType, Region, Shape};
use planaria_store::container::{Header, Limits};
use planaria_store::join;
use std::collections::{BTreeMap, HashMap};

/// The save number in `7.metadata`.
pub(super) fn uid_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".metadata")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// A shard as the metadata describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    offset: Vec<usize>,
    /// Elements of the flattened local box, for flat shards.
    flat: Option<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Shard {
    local_shape: Vec<usize>,
    global_shape: Vec<usize>,
    dtype: DType,
}

/// One line of the storage table.
struct Stock {
    key: String,
    place: Place,
    local_shape: Option<Vec<usize>>,
    file: String,
}

struct Metadata {
    file: String,
    shards: HashMap<(String, Place), Shard>,
    stock: Vec<Stock>,
}

/// Adds the save `uid` of the builder's folder.
pub(super) fn add(builder: &mut Builder, uid: u64, part: Part) -> Result<()> {
    let name = format!("{uid}.metadata");
    let file = builder.open(&name, &name)?;
    let tree = pickle::read(&*file, &pickle::Limits::default())?;
    let metadata = Metadata::read(&tree, file.name())?;
    metadata.check_stock()?;
    let mut stock: BTreeMap<&str, Vec<&Stock>> = BTreeMap::new();
    for line in &metadata.stock {
        stock.entry(&line.file).or_default().push(line);
    }
    for (file, lines) in stock {
        add_file(builder, &metadata, part, file, &lines)?;
    }
    // Tensors without elements may have no shard at all.
    for ((key, _), shard) in &metadata.shards {
        let shape = metadata.shape(key, &shard.global_shape)?;
        let key = Key { part, name: key.clone() };
        builder.declare(&key, &metadata.file, shard.dtype, &shape)?;
    }
    Ok(())
}

/// What a data file holds, whichever of the two kinds it is.
enum Data {
    Pickle(BTreeMap<String, Found>),
    Container(BTreeMap<String, Stored>),
}

fn add_file(
    builder: &mut Builder,
    metadata: &Metadata,
    part: Part,
    name: &str,
    lines: &[&Stock],
) -> Result<()> {
    let file = builder.open(name, &metadata.file)?;
    let data = if name.ends_with(".safetensors") {
        let tensors = Header::read(&*file, &Limits::default())?.tensors;
        Data::Container(
            tensors.into_iter().map(|tensor| (tensor.name.clone(), Stored::of(&tensor))).collect(),
        )
    } else {
        let saved = Saved::read(&*file)?;
        let (arrays, rest) = saved.arrays()?;
        for (key, value) in rest {
            builder.keep(format!("{name}#{key}"), &saved.tree, value, &*file)?;
        }
        Data::Pickle(arrays)
    };
    let full = join(&builder.folder, name);
    for line in lines {
        let shard = metadata.shard(line)?;
        let shape = metadata.shape(&line.key, &shard.global_shape)?;
        let within = metadata.region(line, shard)?;
        let key = Key { part, name: line.key.clone() };
        if within.is_empty() {
            continue;
        }
        let pieces = data.pieces(line, shard, &full)?;
        let [whole] = &pieces[..] else {
            add_run(builder, &key, &full, &Flat { shape: &shape, within: &within, start: 0 }, &pieces, None)?;
            continue;
        };
        match line.place.flat {
            None => builder.tile(key, &full, &shape, within, whole)?,
            Some((start, stop)) => {
                let place = Flat { shape: &shape, within: &within, start };
                add_run(builder, &key, &full, &place, &pieces, Some(stop))?;
            }
        }
    }
    Ok(())
}

/// Pieces that follow each other in the flattened box; together they must reach `stop`, or the end of the box.
fn add_run(
    builder: &mut Builder,
    key: &Key,
    file: &str,
    place: &Flat<'_>,
    pieces: &[Stored],
    stop: Option<usize>,
) -> Result<()> {
    let mut start = place.start;
    for piece in pieces {
        let place = Flat { shape: place.shape, within: place.within, start };
        add_flat(builder, key, file, &place, piece)?;
        start += piece.shape.numel();
    }
    let stop = stop.unwrap_or(place.within.numel());
    if start == stop {
        return Ok(());
    }
    let what = format!("tensor '{key}' has elements {}..{start}, not ..{stop}", place.start);
    Err(Error::Malformed { file: file.to_string(), what })
}

impl Data {
    /// The arrays of a line with the element type the metadata gives them: one, or the pieces of a large one.
    fn pieces(&self, line: &Stock, shard: &Shard, file: &str) -> Result<Vec<Stored>> {
        let lacks = || Error::Torn {
            what: format!("'{file}' lacks tensor '{}', which the metadata says it holds", line.key),
        };
        let pieces = match self {
            Data::Container(tensors) => vec![tensors.get(&line.key).ok_or_else(lacks)?.clone()],
            Data::Pickle(arrays) => match arrays.get(&line.key).ok_or_else(lacks)? {
                Found::Array(array) => vec![array.stored(true_dtype(array, shard.dtype))],
                Found::Cut(arrays, _) => {
                    arrays.iter().map(|array| array.stored(true_dtype(array, shard.dtype))).collect()
                }
            },
        };
        match pieces.iter().find(|piece| piece.dtype != shard.dtype) {
            None => Ok(pieces),
            Some(other) => Err(Error::Mismatch {
                tensor: line.key.clone(),
                what: "the dtype",
                first: shard.dtype.to_string(),
                first_file: "the metadata".to_string(),
                second: other.dtype.to_string(),
                second_file: file.to_string(),
            }),
        }
    }
}

/// Numpy carries bfloat16 as `u2` and both 8-bit floats as `i1` (`u1` in older writers).
fn true_dtype(array: &NdArray, said: DType) -> DType {
    match (array.dtype, said) {
        (DType::U16, DType::BF16) | (DType::I8 | DType::U8, DType::F8E4M3 | DType::F8E5M2) => said,
        (held, _) => held,
    }
}

impl Metadata {
    fn read(tree: &Tree, file: &str) -> Result<Metadata> {
        let malformed = |what: &str| Error::Malformed { file: file.to_string(), what: what.to_string() };
        let root =
            record(tree, tree.root(), "Metadata").ok_or_else(|| malformed("it is not flex metadata"))?;
        let missing = |name: &str| malformed(&format!("it has no '{name}'"));
        let tensors = root.get("state_dict_metadata").and_then(|id| tree.pairs(*id));
        let mut shards = HashMap::new();
        for (key, list) in tensors.ok_or_else(|| missing("state_dict_metadata"))? {
            let key = tree.text(*key).ok_or_else(|| malformed("a tensor whose name is not text"))?;
            let list = tree.items(*list).ok_or_else(|| malformed("a tensor without a list of shards"))?;
            if let Some(dtype) = list.iter().find_map(|&item| unknown_dtype(tree, item)) {
                let what = format!(
                    "tensor '{key}' has the element type '{dtype}', which is not read from this format; save it \
                             in another type, or leave it out"
                );
                return Err(Error::Unsupported { file: file.to_string(), what });
            }
            let read = list.iter().map(|&item| read_shard(tree, item)).collect::<Result<Vec<_>, String>>();
            let mut read = read.map_err(|what| malformed(&format!("tensor '{key}': {what}")))?;
            restore_shape(&mut read);
            shards.extend(read.into_iter().map(|(place, shard)| ((key.to_string(), place), shard)));
        }
        let lines = root.get("storage_metadata").and_then(|id| tree.pairs(*id));
        let mut stock = Vec::new();
        for &(index, name) in lines.ok_or_else(|| missing("storage_metadata"))? {
            let line = read_stock(tree, index, name).map_err(|what| malformed(&what))?;
            stock.push(line);
        }
        Ok(Metadata { file: file.to_string(), shards, stock })
    }

    /// Every shard must be in some file.
    fn check_stock(&self) -> Result<()> {
        let stocked: std::collections::HashSet<(&str, &Place)> =
            self.stock.iter().map(|line| (line.key.as_str(), &line.place)).collect();
        for ((key, place), shard) in &self.shards {
            let empty = shard.local_shape.contains(&0) || place.flat.is_some_and(|(a, b)| a >= b);
            if !empty && !stocked.contains(&(key.as_str(), place)) {
                let what = format!("no file holds the shard of '{key}' at {:?}", place.offset);
                return Err(Error::Torn { what });
            }
        }
        Ok(())
    }

    fn shard(&self, line: &Stock) -> Result<&Shard> {
        let found = self.shards.get(&(line.key.clone(), line.place.clone()));
        let what = format!("a file is said to hold a shard of '{}' that is not described", line.key);
        found.ok_or_else(|| Error::Malformed { file: self.file.clone(), what })
    }

    fn shape(&self, key: &str, dims: &[usize]) -> Result<Shape> {
        Shape::new(dims).map_err(|problem| Error::Tiles { tensor: key.to_string(), problem })
    }

    /// The box of a shard; scalars are written with an offset of one dim too many.
    fn region(&self, line: &Stock, shard: &Shard) -> Result<Region> {
        let local = line.local_shape.as_ref().unwrap_or(&shard.local_shape);
        let mut offset = line.place.offset.clone();
        if local.is_empty() && offset.iter().all(|o| *o == 0) {
            offset.clear();
        }
        let ends: Option<Vec<usize>> = offset.iter().zip(local).map(|(o, d)| o.checked_add(*d)).collect();
        let region = ends.filter(|ends| ends.len() == local.len() && offset.len() == local.len());
        let region = region.and_then(|ends| Region::new(&offset, &ends).ok());
        let what = format!("the shard of '{}' at {offset:?} has the shape {local:?}", line.key);
        region.ok_or_else(|| Error::Malformed { file: self.file.clone(), what })
    }
}

/// Early versions did not write the global shape; it is then what the shards reach.
fn restore_shape(shards: &mut [(Place, Shard)]) {
    let reach = |(place, shard): &(Place, Shard)| -> Vec<usize> {
        place.offset.iter().zip(&shard.local_shape).map(|(o, d)| o.saturating_add(*d)).collect()
    };
    if shards.iter().any(|(_, shard)| !shard.global_shape.is_empty() || shard.local_shape.is_empty()) {
        return;
    }
    let longest = |mut all: Vec<usize>, one: Vec<usize>| {
        all.resize(all.len().max(one.len()), 0);
        one.into_iter().enumerate().for_each(|(dim, end)| all[dim] = all[dim].max(end));
        all
    };
    let shape = shards.iter().map(reach).fold(Vec::new(), longest);
    for (_, shard) in shards {
        shard.global_shape.clone_from(&shape);
    }
}

/// The attributes of an object of this class, whatever module it came from.
fn record<'t>(tree: &'t Tree, id: Id, class: &str) -> Option<HashMap<&'t str, Id>> {
    let (object, (module, name)) = tree.object(id)?;
    (module.starts_with("paddle.") && name == class).then(|| tree.attributes(object)).flatten()
}

fn read_place(tree: &Tree, about: &HashMap<&str, Id>) -> Option<Place> {
    let offset = tree.sizes(*about.get("global_offset")?)?;
    let flat = match about.get("flattened_range") {
        Some(&range) if !tree.is_none(range) => {
            let range = tree.sizes(range)?;
            Some((*range.first()?, *range.get(1)?))
        }
        _ => None,
    };
    let flattened = about.get("is_flattened").and_then(|id| tree.bool(*id)).unwrap_or(false);
    // A flag without a range, or a range without its flag, says two things at once.
    (flattened == flat.is_some()).then_some(Place { offset, flat })
}

/// An element type that Paddle has and we do not read.
fn unknown_dtype(tree: &Tree, id: Id) -> Option<String> {
    let about = record(tree, id, "LocalTensorMetadata")?;
    let name = tree.text(*about.get("dtype")?)?;
    dtype_named(name).is_none().then(|| name.to_string())
}

fn read_shard(tree: &Tree, id: Id) -> Result<(Place, Shard), String> {
    let about = record(tree, id, "LocalTensorMetadata").ok_or("a shard that is not a LocalTensorMetadata")?;
    let place = read_place(tree, &about).ok_or("a shard without offset and range")?;
    let sizes = |name: &str| about.get(name).and_then(|id| tree.sizes(*id));
    let local_shape = sizes("local_shape").ok_or("a shard without a shape")?;
    let dtype = about.get("dtype").and_then(|id| tree.text(*id)).ok_or("a shard without a dtype")?;
    let dtype = dtype_named(dtype).ok_or_else(|| format!("the unknown dtype '{dtype}'"))?;
    // Early versions did not write the global shape; it is then what the offsets reach.
    let global_shape =
        sizes("global_shape").ok_or("a shard without a global shape; the writer is too old")?;
    Ok((place, Shard { local_shape, global_shape, dtype }))
}

fn read_stock(tree: &Tree, index: Id, name: Id) -> Result<Stock, String> {
    let about = record(tree, index, "LocalTensorIndex").ok_or("a place that is not a LocalTensorIndex")?;
    let key = about.get("tensor_key").and_then(|id| tree.text(*id)).ok_or("a place without a tensor")?;
    let place =
        read_place(tree, &about).ok_or_else(|| format!("a place of '{key}' without offset and range"))?;
    let local_shape = about.get("local_shape").and_then(|id| tree.sizes(*id));
    let file = tree.text(name).ok_or_else(|| format!("a place of '{key}' without a file"))?;
    Ok(Stock { key: key.to_string(), place, local_shape, file: file.to_string() })
}
