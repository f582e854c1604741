//! Tensors to be written, and where their values come from: one tensor of the source, or a mapping over several.

use super::clock::{Face, Steps};
use super::computed::{self, Values};
use super::range::beyond;
use crate::error::{Error, Result};
use crate::formats::{Key, Source};
use crate::outgoing::rearranged;
use crate::stream::{Feed, row_strides};
use crate::strided::{At, copy_box};
use planaria_aoa::{Mapping, Piece};
use planaria_array::Array;
use planaria_layout::{DType, Region, Shape, flat_boxes};
use planaria_store::container::Foreign;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) key: Key,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) from: Origin,
}

/// Where its values come from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The same tensor of the source, perhaps under another name and with a cast.
    Same(Key),
    /// What the mapping makes under the name `target` of the tensors that stand in `keys` for its sources.
    Mapped { mapping: Arc<Mapping>, target: String, keys: Arc<BTreeMap<String, Key>>, casts: Casts },
    /// Computed when it is written.
    Computed(Arc<dyn Values>),
    /// The value that all of these hold.
    Agreed(Vec<Key>),
    /// The steps a weight has taken, as another framework keeps them.
    Clock(Steps, Face),
}

/// Whether the casts of a mapping apply: full-precision copies keep their precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Casts {
    Apply,
    Skip,
}

/// Memory one thread uses again and again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    reads: Vec<u8>,
    /// Values that had no room in the element type they were cast to, since this was last taken.
    pub(super) beyond: u64,
}

impl Made {
    /// Bytes of values in the source that stand behind one byte as written; 0 where they are the same.
    pub(crate) fn widening(&self, source: &Source) -> usize {
        let dtype = |key: &Key| source.tensors.get(key).map_or(self.dtype, |entry| entry.dtype);
        let ratio =
            |stored: DType| if stored == self.dtype { 0 } else { stored.size().div_ceil(self.dtype.size()) };
        match &self.from {
            Origin::Same(key) => ratio(dtype(key)),
            Origin::Mapped { mapping, target, keys, .. } => {
                let names = mapping.sources_of(target).unwrap_or_default();
                let keys = names.into_iter().filter_map(|name| keys.get(name));
                keys.map(|key| ratio(dtype(key))).max().unwrap_or(0)
            }
            Origin::Computed(_) | Origin::Agreed(_) | Origin::Clock(..) => 0,
        }
    }

    /// The tensor of the source that holds its values as they are, or one of several that agree.
    pub(crate) fn only_source(&self) -> Option<&Key> {
        match &self.from {
            Origin::Same(key) => Some(key),
            Origin::Agreed(keys) => keys.first(),
            _ => None,
        }
    }

    /// The true element type, where dtype and shape are those of bytes that stand for it.
    pub(crate) fn foreign(&self, source: &Source) -> Option<&'static Foreign> {
        source.foreign.get(self.only_source()?).copied()
    }

    /// Whether rows of it are spread over the source, so that large pieces save reading.
    pub(crate) fn is_rearranged(&self) -> bool {
        let Origin::Mapped { mapping, target, .. } = &self.from else { return false };
        let pieces = mapping.pieces(target, &Region::whole(&self.shape));
        pieces.is_ok_and(|pieces| pieces.iter().any(|piece| !piece.steps.is_empty()))
    }

    /// Puts one box of it, in row-major order, into `out`.
    pub(crate) fn fill(
        &self,
        feed: &Feed<'_>,
        want: &Region,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        match &self.from {
            Origin::Same(key) => self.copy(feed, key, want, out, scratch),
            Origin::Computed(values) => computed::fill(self, &**values, want, out),
            Origin::Mapped { mapping, target, keys, casts } => {
                for piece in mapping.pieces(target, want)? {
                    let missing = || Error::NoTensor { tensor: piece.source.to_string() };
                    let key = keys.get(piece.source).ok_or_else(missing)?;
                    self.put(feed, (&piece, key, *casts), want, out, scratch)?;
                }
                Ok(())
            }
            Origin::Agreed(keys) => {
                let Some(first) = keys.first() else { return Ok(()) };
                self.copy(feed, first, want, out, scratch)?;
                let mut other = vec![0; out.len()];
                for key in &keys[1..] {
                    let whole = Region::whole(&feed.source().get(key)?.shape);
                    self.copy(feed, key, &whole, &mut other, scratch)?;
                    if other != out {
                        return Err(self.disagree(first, key));
                    }
                }
                Ok(())
            }
            Origin::Clock(steps, face) => {
                let value = Array::from_slice(&[steps.value(feed, *face)?], &[1])?.cast(self.dtype)?;
                out.copy_from_slice(&value.bytes()?);
                Ok(())
            }
        }
    }

    /// Tensors that become one have taken the same steps, or nothing is right about what they would have in common.
    fn disagree(&self, first: &Key, second: &Key) -> Error {
        let (first, second) = (first.to_string(), second.to_string());
        Error::Disagree { tensor: self.key.to_string(), first, second }
    }

    /// A box of a tensor of the source, with a cast where it is needed.
    fn copy(
        &self,
        feed: &Feed<'_>,
        key: &Key,
        want: &Region,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let stored = feed.source().get(key)?.dtype;
        if stored == self.dtype {
            return feed.region(key, want, out, &mut scratch.reads);
        }
        scratch.bytes.resize(want.numel() * stored.size(), 0);
        feed.region(key, want, &mut scratch.bytes, &mut scratch.reads)?;
        scratch.beyond += cast((&scratch.bytes, stored), &[self.dtype], (want, want), out)?;
        Ok(())
    }

    /// One piece of a mapped tensor: rearranged while it is read where that is possible.
    fn put(
        &self,
        feed: &Feed<'_>,
        (piece, key, casts): (&Piece<'_>, &Key, Casts),
        want: &Region,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let stored = feed.source().get(key)?.dtype;
        let mut chain: Vec<DType> = if casts == Casts::Apply { piece.casts.to_vec() } else { Vec::new() };
        chain.push(self.dtype);
        let plain = chain.iter().all(|dtype| *dtype == stored);
        let order = piece.permutation();
        if let (true, Some(order)) = (plain, &order) {
            let strides = row_strides(&want.extents(), stored.size());
            let to: usize = (0..want.ndim()).map(|d| (piece.to.lo()[d] - want.lo()[d]) * strides[d]).sum();
            let strides = turned(order, &strides);
            return feed.place(key, &piece.from, out, (to, &strides), &mut scratch.reads);
        }
        // As a block of its own first: rearranged, then cast to where it belongs.
        scratch.bytes.resize(piece.from.numel() * stored.size(), 0);
        if let Some(order) = &order {
            let strides = turned(order, &row_strides(&piece.to.extents(), stored.size()));
            feed.place(key, &piece.from, &mut scratch.bytes, (0, &strides), &mut scratch.reads)?;
        } else {
            feed.region(key, &piece.from, &mut scratch.bytes, &mut scratch.reads)?;
            let block = Array::from_bytes(&scratch.bytes, &piece.from.extents(), stored)?;
            let block = rearranged(&block, &piece.steps)?.contiguous()?;
            scratch.beyond += cast((&block.bytes()?, stored), &chain, (&piece.to, want), out)?;
            return Ok(());
        }
        scratch.beyond += cast((&scratch.bytes, stored), &chain, (&piece.to, want), out)?;
        Ok(())
    }
}

/// Strides of the source's dims, from those of the target's, where target dim `d` is source dim `order[d]`.
fn turned(order: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut turned = vec![0; order.len()];
    order.iter().zip(strides).for_each(|(&dim, &stride)| turned[dim] = stride);
    turned
}

/// Elements that are cast together: few, so that the memory for it does not count.
const CAST: usize = 64 << 10;

/// The values of the box `part` through these element types, one after the other, to its place in the row-major box `whole`
/// that `out` is; how many had no room on the way.
fn cast(
    (bytes, stored): (&[u8], DType),
    chain: &[DType],
    (part, whole): (&Region, &Region),
    out: &mut [u8],
) -> Result<u64> {
    let mut lost = 0;
    let (extents, size) = (part.extents(), chain.last().unwrap_or(&stored).size());
    let origin = Region::whole(&Shape::from_dims(extents.clone())?);
    let to = At::dense(&whole.extents(), size, 0);
    let to = to.of_part(whole, part);
    for (number, values) in bytes.chunks(CAST * stored.size()).enumerate() {
        let count = values.len() / stored.size();
        let before = Array::from_bytes(values, &[count], stored)?;
        let array = chain.iter().try_fold(before.clone(), |array, dtype| array.cast(*dtype))?;
        lost += beyond(&before, &array, chain)?;
        let (values, mut start) = (array.bytes()?, 0);
        for inner in flat_boxes(&extents, number * CAST..number * CAST + count) {
            let extents = inner.extents();
            let from = At::dense(&extents, size, start);
            copy_box(&extents, size, (&values, &from), (out, &to.of_part(&origin, &inner)))?;
            start += inner.numel() * size;
        }
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cast_to_their_places_where_parts_that_are_cast_together_end_within_rows() {
        let whole = Region::new(&[2, 3, 5], &[4, 203, 306]).unwrap();
        let part = Region::new(&[2, 10, 7], &[4, 190, 297]).unwrap();
        assert!(part.numel() > CAST && !CAST.is_multiple_of(part.len(2)));
        let values: Vec<i32> = (1..=part.numel() as i32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut out = vec![0; whole.numel() * 8];
        cast((&bytes, DType::I32), &[DType::I64, DType::F64], (&part, &whole), &mut out).unwrap();
        let mut expected = vec![0.0; whole.numel()];
        let places = part.runs(&whole).flat_map(|(start, len)| start..start + len);
        places.zip(&values).for_each(|(place, value)| expected[place] = f64::from(*value));
        let found = out.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        assert!(found.eq(expected));
    }
}
