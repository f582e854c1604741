//! Tensors to be written, and where their values come from: one tensor of the source, or a mapping over several.

use crate::error::Result;
use crate::formats::{Key, Part, Source};
use crate::stream::{Feed, row_strides};
use planaria_aoa::{Mapping, Piece};
use planaria_array::Array;
use planaria_layout::{DType, Region, Runs, Shape};
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
    /// What the mapping makes under the name `target` of the tensors of one part.
    Mapped { mapping: Arc<Mapping>, target: String, part: Part, casts: Casts },
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
}

impl Made {
    /// Bytes of values in the source that stand behind one byte as written; 0 where they are the same.
    pub(crate) fn widening(&self, source: &Source) -> usize {
        let dtype = |key: &Key| source.tensors.get(key).map_or(self.dtype, |entry| entry.dtype);
        let ratio =
            |stored: DType| if stored == self.dtype { 0 } else { stored.size().div_ceil(self.dtype.size()) };
        match &self.from {
            Origin::Same(key) => ratio(dtype(key)),
            Origin::Mapped { mapping, target, part, .. } => {
                let names = mapping.sources_of(target).unwrap_or_default();
                let keys = names.into_iter().map(|name| Key { part: *part, name: name.to_string() });
                keys.map(|key| ratio(dtype(&key))).max().unwrap_or(0)
            }
        }
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
            Origin::Same(key) => {
                let stored = feed.source().get(key)?.dtype;
                if stored == self.dtype {
                    return feed.region(key, want, out, &mut scratch.reads);
                }
                scratch.bytes.resize(want.numel() * stored.size(), 0);
                feed.region(key, want, &mut scratch.bytes, &mut scratch.reads)?;
                let mut at = 0;
                cast(&scratch.bytes, stored, &[self.dtype], |bytes| {
                    out[at..at + bytes.len()].copy_from_slice(bytes);
                    at += bytes.len();
                })
            }
            Origin::Mapped { mapping, target, part, casts } => {
                for piece in mapping.pieces(target, want)? {
                    self.put(feed, (&piece, *part, *casts), want, out, scratch)?;
                }
                Ok(())
            }
        }
    }

    /// One piece of a mapped tensor: rearranged while it is read where that is possible.
    fn put(
        &self,
        feed: &Feed<'_>,
        (piece, part, casts): (&Piece<'_>, Part, Casts),
        want: &Region,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let key = Key { part, name: piece.source.to_string() };
        let stored = feed.source().get(&key)?.dtype;
        let mut chain: Vec<DType> = if casts == Casts::Apply { piece.casts.to_vec() } else { Vec::new() };
        chain.push(self.dtype);
        let plain = chain.iter().all(|dtype| *dtype == stored);
        let order = piece.permutation();
        if let (true, Some(order)) = (plain, &order) {
            let strides = row_strides(&want.extents(), stored.size());
            let to: usize = (0..want.ndim()).map(|d| (piece.to.lo()[d] - want.lo()[d]) * strides[d]).sum();
            let strides = turned(order, &strides);
            return feed.place(&key, &piece.from, out, (to, &strides), &mut scratch.reads);
        }
        // As a block of its own first: rearranged, then cast to where it belongs.
        scratch.bytes.resize(piece.from.numel() * stored.size(), 0);
        if let Some(order) = &order {
            let strides = turned(order, &row_strides(&piece.to.extents(), stored.size()));
            feed.place(&key, &piece.from, &mut scratch.bytes, (0, &strides), &mut scratch.reads)?;
        } else {
            let mut block = vec![0; scratch.bytes.len()];
            feed.region(&key, &piece.from, &mut block, &mut scratch.reads)?;
            let size = stored.size();
            for (to, from) in piece.order().into_iter().enumerate() {
                scratch.bytes[to * size..][..size].copy_from_slice(&block[from * size..][..size]);
            }
        }
        let mut target = Target { runs: piece.to.runs(want), at: 0, left: 0, size: self.dtype.size(), out };
        cast(&scratch.bytes, stored, &chain, |bytes| target.put(bytes))
    }
}

/// Where the elements of a box stand in a larger one, filled from its first to its last element.
struct Target<'a> {
    runs: Runs,
    /// Next byte and bytes left of the current run.
    at: usize,
    left: usize,
    size: usize,
    out: &'a mut [u8],
}

impl Target<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let Some((start, count)) = self.runs.next() else { return };
                (self.at, self.left) = (start * self.size, count * self.size);
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.left));
            self.out[self.at..self.at + now.len()].copy_from_slice(now);
            self.at += now.len();
            self.left -= now.len();
            bytes = later;
        }
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

/// Values through these element types, one after the other, handed on in pieces.
fn cast(bytes: &[u8], from: DType, chain: &[DType], mut put: impl FnMut(&[u8])) -> Result<()> {
    for part in bytes.chunks(CAST * from.size()) {
        let mut array = Array::from_bytes(part, &[part.len() / from.size()], from)?;
        for dtype in chain {
            array = array.cast(*dtype)?;
        }
        put(&array.bytes()?);
    }
    Ok(())
}
