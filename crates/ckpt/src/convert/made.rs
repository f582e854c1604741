//! Tensors to be written, and where their values come from: one tensor of the source, or a mapping over several.

use crate::error::{Error, Result};
use crate::formats::{Key, Part, Source};
use crate::stream::{Feed, row_strides};
use planaria_aoa::{Mapping, Piece};
use planaria_array::Array;
use planaria_layout::{DType, Region, Shape};
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

fn wrong(error: impl std::fmt::Display) -> Error {
    Error::Request { what: error.to_string() }
}

impl Made {
    /// Bytes of the widest element its values pass through, relative to one element as written.
    pub(crate) fn widening(&self, source: &Source) -> usize {
        let size = |key: &Key| source.tensors.get(key).map_or(1, |entry| entry.dtype.size());
        let widest = match &self.from {
            Origin::Same(key) if source.tensors.get(key).is_some_and(|entry| entry.dtype == self.dtype) => {
                return 0;
            }
            Origin::Same(key) => size(key),
            Origin::Mapped { .. } => 8,
        };
        widest.div_ceil(self.dtype.size())
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
                cast(&scratch.bytes, stored, &[self.dtype], out)
            }
            Origin::Mapped { mapping, target, part, casts } => {
                for piece in mapping.pieces(target, want).map_err(wrong)? {
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
        // As a block of its own first: rearranged, then cast, then put where it belongs.
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
        let size = self.dtype.size();
        let mut block = vec![0; piece.to.numel() * size];
        cast(&scratch.bytes, stored, &chain, &mut block)?;
        let mut rest = &block[..];
        for (at, len) in piece.to.runs(want) {
            let (now, later) = rest.split_at(len * size);
            out[at * size..][..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }
}

/// Strides of the source's dims, from those of the target's, where target dim `d` is source dim `order[d]`.
fn turned(order: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut turned = vec![0; order.len()];
    order.iter().zip(strides).for_each(|(&dim, &stride)| turned[dim] = stride);
    turned
}

/// Values through these element types, one after the other.
fn cast(bytes: &[u8], from: DType, chain: &[DType], out: &mut [u8]) -> Result<()> {
    let numel = bytes.len() / from.size();
    let mut array = Array::from_bytes(bytes, &[numel], from).map_err(wrong)?;
    for dtype in chain {
        array = array.cast(*dtype).map_err(wrong)?;
    }
    out.copy_from_slice(&array.bytes().map_err(wrong)?);
    Ok(())
}
