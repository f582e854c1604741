//! Flat shards: each rank's piece of a layout divided evenly, element by element, over one more axis.

use crate::error::{Error, Result};
use crate::flat::{flat_boxes, flat_owners};
use crate::layout::Layout;
use crate::mesh::{AxisSet, Mesh, Rank};
use crate::placement::Placement;
use crate::region::Region;
use crate::shape::Shape;
use crate::tile::{Fixed, Found, GridReplicas, Owned, Tiling};
use std::ops::Range;

/// A layout whose pieces are flattened in row-major order and divided over an axis that the layout
/// itself does not use, as ZeRO optimizers do. Coordinate `q` of the axis has elements
/// `q * chunk - offset .. (q + 1) * chunk - offset` of the flattened piece.
#[derive(Clone, Debug)]
pub struct FlatShards {
    base: Layout,
    axis: usize,
    cut: Cut,
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Ceil chunks of each piece on its own.
    Even,
    /// The piece starts at `offset` in a buffer of many tensors that is cut every `chunk` elements.
    Fused { offset: usize, chunk: usize },
}

impl FlatShards {
    /// Every piece in ceil chunks over the axis.
    pub fn even(base: &Layout, axis: &str) -> Result<FlatShards> {
        FlatShards::checked(base, axis, Cut::Even)
    }

    /// The piece stands at `offset` in a fused buffer that is divided into `chunk` elements for
    /// each coordinate of the axis.
    pub fn fused(base: &Layout, axis: &str, offset: usize, chunk: usize) -> Result<FlatShards> {
        let shards = FlatShards::checked(base, axis, Cut::Fused { offset, chunk })?;
        // The piece at the origin is the largest one.
        let numel = base.piece_at(&vec![0; base.mesh().naxes()]).numel();
        let room = chunk.checked_mul(base.mesh().axis_size(shards.axis));
        match offset.checked_add(numel) {
            Some(end) if room.is_some_and(|room| end <= room) => Ok(shards),
            _ => Err(bad(base, axis, "the chunks end before the piece does")),
        }
    }

    fn checked(base: &Layout, name: &str, cut: Cut) -> Result<FlatShards> {
        let axis = base.mesh().axis(name)?;
        base.check_plain()?;
        if base.placements()[axis] != Placement::Replicate {
            return Err(bad(base, name, "the axis is in use"));
        }
        if base.cuts().iter().flatten().any(|split| split.sections > 1 && split.size > 1) {
            return Err(bad(base, name, "a dim is cut in sections"));
        }
        Ok(FlatShards { base: base.clone(), axis, cut })
    }

    /// The elements of its flattened base piece that a rank has.
    pub fn range(&self, rank: Rank) -> Result<Range<usize>> {
        let coords = self.base.mesh().require(rank)?;
        let numel = self.base.piece_at(&coords).numel();
        let (chunk, offset) = self.chunk(numel);
        let clip = |at: usize| at.saturating_sub(offset).min(numel);
        let start = coords[self.axis] * chunk;
        Ok(clip(start)..clip(start + chunk))
    }

    /// The layout that is divided.
    pub fn base(&self) -> &Layout {
        &self.base
    }

    fn chunk(&self, numel: usize) -> (usize, usize) {
        match self.cut {
            Cut::Even => (numel.div_ceil(self.base.mesh().axis_size(self.axis)), 0),
            Cut::Fused { offset, chunk } => (chunk, offset),
        }
    }

    fn cut_axes(&self) -> AxisSet {
        self.base.sharded_axes().with(self.axis)
    }

    fn free_axes(&self, fixed: &Fixed) -> AxisSet {
        let copies = self.base.replicated_axes().without(self.axis);
        copies.iter().filter(|&a| !fixed.0.set.contains(a)).collect()
    }
}

fn bad(base: &Layout, axis: &str, reason: &'static str) -> Error {
    Error::BadFlat { layout: base.to_string(), axis: axis.to_string(), reason }
}

impl Tiling for FlatShards {
    type Holder = Rank;

    fn shape(&self) -> &Shape {
        self.base.shape()
    }

    fn copies(&self) -> Option<(&Mesh, AxisSet)> {
        Some((self.base.mesh(), self.base.replicated_axes().without(self.axis)))
    }

    fn owned(&self, holder: &Rank, fixed: &Fixed) -> Result<Vec<Owned>> {
        let coords = self.base.mesh().require(*holder)?;
        let (free, cut) = (self.free_axes(fixed), self.cut_axes());
        let turn = GridReplicas { mesh: self.base.mesh(), coords: &coords, free, cut }.turn();
        let Some(piece) = self.base.piece_at(&coords).boxes().pop() else { return Ok(Vec::new()) };
        let boxes = flat_boxes(&piece.extents(), self.range(*holder)?);
        Ok(boxes.into_iter().map(|b| Owned { region: b.shifted(piece.lo()), turn }).collect())
    }

    fn lookup(&self, want: &Region, fixed: &Fixed, found: &mut Found<'_, Rank>) {
        let (free, cut, mesh) = (self.free_axes(fixed), self.cut_axes(), self.base.mesh());
        self.base.visit(want, &fixed.0, &mut |region, coords| {
            let Some(piece) = self.base.piece_at(coords).boxes().pop() else { return };
            let Some(inner) = region.relative_to(&piece) else { return };
            let (chunk, offset) = self.chunk(piece.numel());
            flat_owners(&piece.extents(), &inner, chunk, offset, &mut |part, owner| {
                if fixed.0.get(self.axis).is_some_and(|only| only != owner) {
                    return;
                }
                coords[self.axis] = owner;
                found(part.shifted(piece.lo()), &GridReplicas { mesh, coords, free, cut });
            });
        });
    }
}
