//! `paddle.save` files: `.pdparams`, `.pdopt`, and the pickles inside flex checkpoints.

use super::numpy::{self, NdArray};
use super::pickle::{self, Id, Node, Tree, VALUES};
use super::source::{Builder, Format, Key, Part, Source, Stored};
use crate::error::{Error, Result};
use planaria_layout::{DType, Region, Shape, flat_boxes};
use planaria_store::{Reader, Store, join};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parameter names of structured names; not a tensor.
const NAME_TABLE: &str = "StructuredToParameterName@@";
/// Large arrays that old pickle protocols had to cut.
const CUT_TABLE: &str = "UnpackBigParamInfor@@";
/// Nesting of containers that is followed when looking for arrays.
const DEPTH: usize = 32;

/// Element type by Paddle's name.
pub(super) fn dtype_named(name: &str) -> Option<DType> {
    let name = name.rsplit('.').next().unwrap_or(name);
    Some(match name {
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        _ => return None,
    })
}

/// A pickle of arrays.
pub(super) struct Saved {
    file: String,
    pub(super) tree: Tree,
}

/// What a name stands for in such a pickle.
pub(super) enum Found {
    Array(NdArray),
    /// Consecutive pieces of the flattened array.
    Cut(Vec<NdArray>, Shape),
}

impl Saved {
    pub(super) fn read(file: &dyn Reader) -> Result<Saved> {
        let tree = pickle::read(file, &pickle::Limits::default())?;
        Ok(Saved { file: file.name().to_string(), tree })
    }

    fn refuse(&self, name: &str, what: &str) -> Error {
        Error::Unsupported { file: self.file.clone(), what: format!("'{name}': {what}") }
    }

    /// The array at a node, however Paddle wrapped it: bare, as `(name, array)`, or as a call of `eval`.
    fn array(&self, id: Id, name: &str) -> Result<Option<NdArray>> {
        let tree = &self.tree;
        let mut at = id;
        if let Some((object, ("builtins" | "__builtin__", "eval"))) = tree.object(id) {
            // `eval('data', {'data': array})`; only this very text is understood.
            let args = tree.items(object.args).unwrap_or_default();
            if let [code, names] = args
                && tree.text(*code) == Some("data")
                && let Some(data) = tree.dict(*names).and_then(|names| names.get("data").copied())
            {
                at = data;
            }
        } else if let Some([first, second]) = tree.items(id)
            && tree.text(*first).is_some()
        {
            at = *second;
        }
        match numpy::find(tree, at) {
            None => Ok(None),
            Some(Ok(array)) => Ok(Some(array)),
            Some(Err(what)) => Err(self.refuse(name, &what)),
        }
    }

    /// Every array of the file by its path. Parts of a cut array stand under its name once.
    pub(super) fn arrays(&self) -> Result<(BTreeMap<String, Found>, BTreeMap<String, Id>)> {
        let mut walk = Walk { saved: self, arrays: BTreeMap::new(), rest: BTreeMap::new() };
        let root = self.tree.root();
        if self.tree.values(root) > VALUES {
            return Err(walk.unsupported("its values share their parts too often, or are too many"));
        }
        // `paddle.save(tensor)`, as in torch files of a single tensor.
        if let Some(array) = self.array(root, "tensor")? {
            walk.arrays.insert("tensor".to_string(), Found::Array(array));
        } else if self.tree.pairs(root).is_some() {
            walk.dict(root, "", DEPTH)?;
        } else {
            return Err(walk.unsupported("it holds neither a tensor nor a dict of tensors"));
        }
        Ok((walk.arrays, walk.rest))
    }
}

struct Walk<'a> {
    saved: &'a Saved,
    arrays: BTreeMap<String, Found>,
    rest: BTreeMap<String, Id>,
}

impl Walk<'_> {
    fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported { file: self.saved.file.clone(), what: what.to_string() }
    }

    fn malformed(&self, what: String) -> Error {
        Error::Malformed { file: self.saved.file.clone(), what }
    }

    fn dict(&mut self, id: Id, path: &str, depth: usize) -> Result<()> {
        let tree = &self.saved.tree;
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.unsupported("its dicts are nested too deeply"));
        };
        let named = tree.dict(id).unwrap_or_default();
        let cuts = named.get(CUT_TABLE).map(|&table| self.cut_arrays(&named, table, path)).transpose()?;
        let taken = cuts.unwrap_or_default();
        for &(key, value) in tree.pairs(id).unwrap_or_default() {
            let key = match tree.node(key) {
                Node::Text(text) => text.to_string(),
                Node::Int(number) => number.to_string(),
                _ => return Err(self.malformed("a key that is not text".to_string())),
            };
            let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if key == CUT_TABLE || taken.contains(&key) {
                continue;
            }
            if key == NAME_TABLE {
                self.rest.insert(name, value);
            } else if let Some(array) = self.saved.array(value, &name)? {
                self.insert(name, Found::Array(array))?;
            } else if tree.pairs(value).is_some() {
                self.dict(value, &name, depth)?;
            } else {
                self.rest.insert(name, value);
            }
        }
        Ok(())
    }

    fn insert(&mut self, name: String, found: Found) -> Result<()> {
        if self.arrays.insert(name.clone(), found).is_some() {
            return Err(self.malformed(format!("tensor '{name}' appears twice")));
        }
        Ok(())
    }

    /// `{key: {"OriginShape": ..., "slices": [names of the pieces]}}`; the names of all pieces.
    fn cut_arrays(
        &mut self,
        named: &std::collections::HashMap<&str, Id>,
        table: Id,
        path: &str,
    ) -> Result<Vec<String>> {
        let tree = &self.saved.tree;
        let mut taken = Vec::new();
        for (key, about) in tree.dict(table).unwrap_or_default() {
            let broken = || self.malformed(format!("the pieces of '{key}' are not described"));
            let about = tree.dict(about).ok_or_else(broken)?;
            let shape = about.get("OriginShape").and_then(|id| tree.sizes(*id)).ok_or_else(broken)?;
            let shape = Shape::new(&shape).map_err(|_| broken())?;
            let slices = about.get("slices").and_then(|id| tree.items(*id)).ok_or_else(broken)?;
            let mut pieces = Vec::new();
            for slice in slices {
                let name = tree.text(*slice).ok_or_else(broken)?;
                let value = *named.get(name).ok_or_else(broken)?;
                let piece = self.saved.array(value, name)?.ok_or_else(broken)?;
                taken.push(name.to_string());
                pieces.push(piece);
            }
            let name = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            self.insert(name, Found::Cut(pieces, shape))?;
        }
        Ok(taken)
    }
}

/// A 16-bit unsigned array is how numpy carries bfloat16; Paddle has no other use for it.
fn true_dtype(dtype: DType) -> DType {
    if dtype == DType::U16 { DType::BF16 } else { dtype }
}

/// Whole files of one process. `names` are the files, each a part of the state.
pub(super) fn open_files(store: &Arc<dyn Store>, folder: &str, names: &[String]) -> Result<Source> {
    let mut builder = Builder::new(store, folder, Format::PaddleSave);
    for name in names {
        let file = builder.open(name, name)?;
        let saved = Saved::read(&*file)?;
        let part = part_of(name);
        let full = join(folder, name);
        let (arrays, rest) = saved.arrays()?;
        for (tensor, found) in arrays {
            add(&mut builder, Key { part, name: tensor }, &full, &found)?;
        }
        for (key, value) in rest {
            builder.keep(format!("{name}#{key}"), &saved.tree, value, &*file)?;
        }
    }
    builder.finish()
}

fn part_of(name: &str) -> Part {
    if name.starts_with("master_weights") {
        Part::MasterWeights
    } else if name.starts_with("ema") {
        Part::Ema
    } else if name.ends_with(".pdopt") {
        Part::Optimizer
    } else {
        Part::Model
    }
}

fn add(builder: &mut Builder, key: Key, file: &str, found: &Found) -> Result<()> {
    match found {
        Found::Array(array) => builder.whole(key, file, &array.stored(true_dtype(array.dtype))),
        Found::Cut(pieces, shape) => {
            let mut start = 0;
            for piece in pieces {
                let stored = piece.stored(true_dtype(piece.dtype));
                let place = Flat { shape, within: &Region::whole(shape), start };
                add_flat(builder, &key, file, &place, &stored)?;
                start += stored.shape.numel();
            }
            Ok(())
        }
    }
}

/// Where a flat run of elements belongs: from element `start` of the box `within` of a tensor of `shape`.
pub(super) struct Flat<'a> {
    pub(super) shape: &'a Shape,
    pub(super) within: &'a Region,
    pub(super) start: usize,
}

/// A one-dimensional array whose elements are a run of a box: at most `2n - 1` boxes, one after the other.
pub(super) fn add_flat(
    builder: &mut Builder,
    key: &Key,
    file: &str,
    place: &Flat<'_>,
    stored: &Stored,
) -> Result<()> {
    let (count, size) = (stored.shape.numel(), stored.dtype.size());
    let end = place.start.checked_add(count).filter(|end| *end <= place.within.numel());
    let Some(end) = end.filter(|_| stored.strides.is_none()) else {
        return Err(Error::Mismatch {
            tensor: key.to_string(),
            what: "elements",
            first: format!("{}..", place.start),
            first_file: "the metadata".to_string(),
            second: format!("{count} of {}", place.within.numel()),
            second_file: file.to_string(),
        });
    };
    builder.declare(key, file, stored.dtype, place.shape)?;
    let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
    let mut offset = stored.offset;
    for part in flat_boxes(&place.within.extents(), place.start..end) {
        let shift =
            |at: &[usize]| -> Vec<usize> { at.iter().zip(place.within.lo()).map(|(a, o)| a + o).collect() };
        let region = Region::new(&shift(part.lo()), &shift(part.hi())).map_err(wrong)?;
        let shape = Shape::new(&part.extents()).map_err(wrong)?;
        let len = (part.numel() * size) as u64;
        let piece =
            Stored { dtype: stored.dtype, shape, offset, len, strides: None, foreign: stored.foreign };
        builder.tile(key.clone(), file, place.shape, region, &piece)?;
        offset += len;
    }
    Ok(())
}
