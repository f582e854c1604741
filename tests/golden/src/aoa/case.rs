//! One mapping case as the file holds it, and element numbers to compare answers by.

use anyhow::{Context, Result, ensure};
use planaria_aoa::{Catalog, Mapping, Tensor, split_slot};
use planaria_layout::{DType, Region, Shape};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Deserialize)]
pub(super) struct Case {
    pub(super) group: String,
    pub(super) statements: Vec<String>,
    pub(super) reverse: bool,
    pub(super) source: Vec<Shard>,
    pub(super) destination: Option<Vec<Shard>>,
    pub(super) error: Option<Refusal>,
    #[serde(default)]
    pub(super) expanded: Vec<String>,
    #[serde(default)]
    pub(super) outputs: BTreeMap<String, Option<Output>>,
    #[serde(default)]
    pub(super) queries: Vec<Query>,
    pub(super) numpy_reference_error: Option<String>,
    #[serde(default)]
    pub(super) statement_count: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Shard {
    pub(super) key: String,
    pub(super) local_shape: Vec<usize>,
    pub(super) global_shape: Vec<usize>,
    pub(super) global_offset: Vec<usize>,
    pub(super) dtype: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) message: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Output {
    pub(super) shape: Vec<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Query {
    pub(super) target: Shard,
    pub(super) result: Option<Vec<Entry>>,
    pub(super) error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) source: Shard,
    pub(super) target: Shard,
    pub(super) postprocess: Option<Vec<String>>,
}

impl Shard {
    pub(super) fn region(&self) -> Result<Region> {
        ensure!(self.local_shape.len() == self.global_offset.len(), "'{}': odd offsets", self.key);
        let ends = self.global_offset.iter().zip(&self.local_shape).map(|(o, l)| o + l);
        Ok(Region::new(&self.global_offset, &ends.collect::<Vec<_>>())?)
    }

    pub(super) fn dtype(&self) -> Result<DType> {
        dtype(&self.dtype)
    }
}

pub(super) fn dtype(name: &str) -> Result<DType> {
    Ok(match name {
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        "bool" => DType::Bool,
        other => other.replace("uint", "u").replace("int", "i").parse()?,
    })
}

/// Slots that hold one number whatever the shape of the tensor.
pub(super) fn is_scalar_slot(slot: Option<&str>) -> bool {
    slot.is_some_and(|slot| slot.contains("pow_acc"))
}

/// The tensors behind a list of shards: optimizer slots belong to their tensor and are cut like it.
pub(super) fn catalog(shards: &[Shard]) -> Result<Catalog> {
    let mut tensors: BTreeMap<&str, Vec<&Shard>> = BTreeMap::new();
    for shard in shards {
        let (name, slot) = split_slot(&shard.key);
        if !is_scalar_slot(slot) {
            tensors.entry(name).or_default().push(shard);
        }
    }
    let mut catalog = Catalog::new();
    for (name, shards) in tensors {
        let own = shards.iter().find(|shard| shard.key == name);
        let first = own.unwrap_or(&shards[0]);
        let offsets =
            shards.iter().filter(|shard| shard.key == first.key).map(|s| s.global_offset.as_slice());
        let tensor = Tensor::new(Shape::new(&first.global_shape)?, first.dtype()?).with_offsets(offsets);
        catalog.insert(name, if own.is_some() { tensor } else { tensor.without_dtype() });
    }
    Ok(catalog)
}

/// Numbers the elements of all source tensors, keys in sorted order.
pub(super) struct Numbers {
    first: BTreeMap<String, (i64, Vec<usize>)>,
}

impl Numbers {
    pub(super) fn new<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize])>) -> Numbers {
        let shapes: BTreeMap<&str, &[usize]> = tensors.collect();
        let mut next = 0i64;
        let mut first = BTreeMap::new();
        for (key, shape) in shapes {
            first.insert(key.to_string(), (next, shape.to_vec()));
            next += shape.iter().product::<usize>() as i64;
        }
        Numbers { first }
    }

    pub(super) fn of_shards(shards: &[Shard]) -> Numbers {
        Numbers::new(shards.iter().map(|s| (s.key.as_str(), s.global_shape.as_slice())))
    }

    /// Whether a box is inside a source that exists: the reference does not look.
    pub(super) fn hold(&self, shard: &Shard) -> bool {
        let Some((_, shape)) = self.first.get(&shard.key) else { return false };
        let ends = shard.global_offset.iter().zip(&shard.local_shape).map(|(at, len)| at + len);
        let dims = [shard.global_offset.len(), shard.local_shape.len()];
        dims == [shape.len(); 2] && ends.zip(shape).all(|(end, &extent)| end <= extent)
    }

    /// The numbers of a box, in row-major order.
    pub(super) fn block(&self, key: &str, region: &Region) -> Result<Vec<i64>> {
        let (first, shape) = self.first.get(key).with_context(|| format!("unknown source '{key}'"))?;
        let whole = Region::whole(&Shape::new(shape)?);
        Ok(region.runs(&whole).flat_map(|(at, len)| (at..at + len).map(|i| first + i as i64)).collect())
    }
}

/// Writes a block into an answer; parts outside the wanted region are cut off.
fn place(answer: &mut [i64], wanted: &Region, to: &Region, block: &[i64]) -> Result<()> {
    ensure!(block.len() == to.numel(), "a block of {} elements for {to}", block.len());
    let extents = to.extents();
    'elements: for (i, value) in block.iter().enumerate() {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for d in (0..extents.len()).rev() {
            let coordinate = to.lo()[d] + rest % extents[d];
            rest /= extents[d];
            if coordinate < wanted.lo()[d] || coordinate >= wanted.hi()[d] {
                continue 'elements;
            }
            at += (coordinate - wanted.lo()[d]) * stride;
            stride *= wanted.len(d);
        }
        answer[at] = *value;
    }
    Ok(())
}

/// A step that reorders dims; the others are casts.
pub(super) fn is_permutation(step: &str) -> bool {
    step.contains(['[', '('])
}

/// The reference's answer as element numbers; -1 where it leaves something out.
pub(super) fn their_numbers(numbers: &Numbers, query: &Query) -> Result<Vec<i64>> {
    let wanted = query.target.region()?;
    let mut answer = vec![-1; wanted.numel()];
    for entry in query.result.iter().flatten() {
        ensure!(numbers.hold(&entry.source), "it reads outside of '{}'", entry.source.key);
        let from = entry.source.region()?;
        let mut block = numbers.block(&entry.source.key, &from)?;
        let mut extents = from.extents();
        for step in entry.postprocess.iter().flatten().filter(|step| is_permutation(step)) {
            let list = step.replace('(', "[").replace(')', "]");
            let order: Vec<i64> = serde_json::from_str(&list).with_context(|| format!("step '{step}'"))?;
            let ndim = extents.len() as i64;
            let order: Vec<usize> =
                order.iter().map(|d| (if *d < 0 { d + ndim } else { *d }) as usize).collect();
            let mut dims = order.clone();
            dims.sort_unstable();
            ensure!(dims.iter().copied().eq(0..extents.len()), "step '{step}' permutes nothing");
            block = transposed(&block, &extents, &order);
            extents = order.iter().map(|&d| extents[d]).collect();
        }
        place(&mut answer, &wanted, &entry.target.region()?, &block)?;
    }
    Ok(answer)
}

fn transposed(block: &[i64], extents: &[usize], order: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; extents.len()];
    for d in (1..extents.len()).rev() {
        strides[d - 1] = strides[d] * extents[d];
    }
    let shape: Vec<usize> = order.iter().map(|&d| extents[d]).collect();
    let numel: usize = shape.iter().product();
    let value = |i: usize| {
        let (mut rest, mut at) = (i, 0);
        for d in (0..shape.len()).rev() {
            at += rest % shape[d] * strides[order[d]];
            rest /= shape[d];
        }
        block[at]
    };
    (0..numel).map(value).collect()
}

/// Our answer as element numbers; -1 where a target is not loaded.
pub(super) fn our_numbers(
    numbers: &Numbers,
    mapping: &Mapping,
    key: &str,
    wanted: &Region,
) -> Result<Vec<i64>> {
    let (name, slot) = split_slot(key);
    let mut answer = vec![-1; wanted.numel()];
    for piece in mapping.pieces(name, wanted)? {
        let block = numbers.block(&format!("{}{}", piece.source, slot.unwrap_or("")), &piece.from)?;
        let moved: Vec<i64> = piece.order().into_iter().map(|i| block[i]).collect();
        place(&mut answer, wanted, &piece.to, &moved)?;
    }
    Ok(answer)
}

/// Names of the sources behind one target.
pub(super) fn source_names(mapping: &Mapping, name: &str) -> Result<BTreeSet<String>> {
    Ok(mapping.sources_of(name)?.into_iter().map(str::to_string).collect())
}
