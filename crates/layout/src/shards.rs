//! Flat shards: each rank's piece of a layout divided, element by element, over one more axis, as ZeRO does.

use crate::error::{Error, Result};
use crate::flat::{flat_boxes, flat_owners};
use crate::layout::Layout;
use crate::mesh::{AxisSet, Mesh, Rank};
use crate::placement::Placement;
use crate::region::Region;
use crate::shape::Shape;
use crate::share::Share;
use crate::tile::{Fixed, Found, GridReplicas, Owned, Tiling};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A layout whose pieces are flattened in row-major order and divided over an axis that the layout itself does not use.
/// Pieces of several tensors may lie end to end and be divided as one.
#[derive(Clone, Debug)]
pub struct FlatShards {
    /// The layouts of all tensors that are divided as one.
    members: Arc<[Layout]>,
    /// Which of them this is.
    place: usize,
    axis: usize,
}

impl FlatShards {
    /// Every piece in ceil chunks over the axis.
    pub fn even(base: &Layout, axis: &str) -> Result<FlatShards> {
        FlatShards::bundle(std::slice::from_ref(base), axis)?
            .pop()
            .ok_or(Error::Bug("a bundle of one is empty"))
    }

    /// The pieces of several tensors on one mesh, end to end, in ceil chunks over the axis: the shards of each.
    pub fn bundle(bases: &[Layout], axis: &str) -> Result<Vec<FlatShards>> {
        let Some(first) = bases.first() else { return Ok(Vec::new()) };
        let number = first.mesh().axis(axis)?;
        for base in bases {
            base.check_plain()?;
            let bad =
                |reason| Err(Error::BadFlat { layout: base.to_string(), axis: axis.to_string(), reason });
            if base.mesh() != first.mesh() {
                return bad("it is on another mesh than the tensors beside it");
            }
            if base.placements()[number] != Placement::Replicate {
                return bad("the axis is in use");
            }
            // Rows of sections lie one after the other when a piece is flattened; columns do not.
            if base.cuts().iter().skip(1).flatten().any(|split| split.sections > 1 && split.size > 1) {
                return bad("a dim after the first is cut in sections");
            }
        }
        let members: Arc<[Layout]> = bases.into();
        Ok((0..bases.len())
            .map(|place| FlatShards { members: members.clone(), place, axis: number })
            .collect())
    }

    /// How the flattened base piece of a rank is shared out over the axis.
    pub fn share(&self, rank: Rank) -> Result<Share> {
        Ok(self.share_at(&self.base().mesh().require(rank)?))
    }

    fn share_at(&self, coords: &[usize]) -> Share {
        let numel = |layout: &Layout| layout.numel_at(coords);
        let start: usize = self.members[..self.place].iter().map(numel).sum();
        let end = start + numel(self.base());
        let total = end + self.members[self.place + 1..].iter().map(numel).sum::<usize>();
        Share::within(start..end, total, self.base().mesh().axis_size(self.axis))
    }

    /// The elements of its flattened base piece that a rank has.
    pub fn range(&self, rank: Rank) -> Result<std::ops::Range<usize>> {
        let coords = self.base().mesh().require(rank)?;
        Ok(self.share_at(&coords).range(coords[self.axis]))
    }

    /// The layout that is divided.
    pub fn base(&self) -> &Layout {
        &self.members[self.place]
    }

    fn cut_axes(&self) -> AxisSet {
        self.base().sharded_axes().with(self.axis)
    }

    fn free_axes(&self, fixed: &Fixed) -> AxisSet {
        let copies = self.base().replicated_axes().without(self.axis);
        copies.iter().filter(|&a| !fixed.0.set.contains(a)).collect()
    }
}

impl Tiling for FlatShards {
    type Holder = Rank;

    fn shape(&self) -> &Shape {
        self.base().shape()
    }

    fn copies(&self) -> Option<(&Mesh, AxisSet)> {
        Some((self.base().mesh(), self.base().replicated_axes().without(self.axis)))
    }

    fn digest(&self, mut to: &mut dyn Hasher) {
        // What lies beside it shows in how it is shared out.
        let origin = vec![0; self.base().mesh().naxes()];
        (self.base(), self.axis, self.share_at(&origin)).hash(&mut to);
    }

    fn owned(&self, holder: &Rank, fixed: &Fixed) -> Result<Vec<Owned>> {
        let mesh = self.base().mesh();
        let coords = mesh.require(*holder)?;
        let (free, cut) = (self.free_axes(fixed), self.cut_axes());
        let turn = GridReplicas { mesh, coords: &coords, free, cut }.turn();
        let piece = self.base().piece_at(&coords);
        let boxes = flat_boxes(&piece.extents(), self.share_at(&coords).range(coords[self.axis]));
        let owned = boxes.iter().flat_map(|inner| piece.boxes_of(inner));
        Ok(owned.map(|(_, region)| Owned { region, turn }).collect())
    }

    fn lookup(&self, want: &Region, fixed: &Fixed, found: &mut Found<'_, Rank>) {
        let (free, cut, mesh) = (self.free_axes(fixed), self.cut_axes(), self.base().mesh());
        self.base().visit(want, &fixed.0, &mut |region, coords| {
            let piece = self.base().piece_at(coords);
            let Some(inner) = piece.locate(&region) else { return };
            let (chunk, offset) = self.share_at(coords).chunks();
            flat_owners(&piece.extents(), &inner, chunk, offset, &mut |part, owner| {
                if fixed.0.get(self.axis).is_some_and(|only| only != owner) {
                    return;
                }
                coords[self.axis] = owner;
                for (_, region) in piece.boxes_of(&part) {
                    found(region, &GridReplicas { mesh, coords, free, cut });
                }
            });
        });
    }
}
