//! Layouts: which part of a tensor each rank of a mesh has.

use crate::cut::{self, Spans, Split, Splits};
use crate::error::{Error, Result};
use crate::mesh::{AxisSet, Coords, Mesh, Rank};
use crate::placement::{Placement, Reduce, Shard};
use crate::region::Region;
use crate::shape::{Dims, Shape};
use smallvec::SmallVec;
use std::fmt;

/// Most sections one dim may be cut into.
const MAX_SECTIONS: usize = 1 << 16;

/// A tensor shape on a mesh, with one placement per mesh axis.
///
/// Text form: `[4096,1024] @ dp:R tp:S1 on dp=2 tp=4`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    mesh: Mesh,
    shape: Shape,
    placements: SmallVec<[Placement; 4]>,
    cuts: SmallVec<[Splits; 4]>,
}

/// Coordinates already decided for some axes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    pub(crate) set: AxisSet,
    pub(crate) at: Coords,
}

impl Pins {
    pub(crate) fn new(set: AxisSet, at: &[usize]) -> Pins {
        Pins { set, at: Coords::from_slice(at) }
    }

    pub(crate) fn get(&self, axis: usize) -> Option<usize> {
        self.set.contains(axis).then(|| self.at[axis])
    }
}

impl Layout {
    /// Checks one placement per mesh axis against the shape and brings their order to normal form.
    pub fn new(mesh: &Mesh, shape: &Shape, placements: &[Placement]) -> Result<Layout> {
        if placements.len() != mesh.naxes() {
            return Err(Error::PlacementCount { placements: placements.len(), axes: mesh.naxes() });
        }
        check_partials(placements)?;
        let mut cuts: SmallVec<[Splits; 4]> = (0..shape.ndim()).map(|_| Splits::new()).collect();
        for (axis, shard) in in_order(placements) {
            let Some(cut) = cuts.get_mut(shard.dim) else {
                let axis = mesh.axes()[axis].name.clone();
                return Err(Error::DimOutOfRange { axis, dim: shard.dim, ndim: shape.ndim() });
            };
            cut.push(Split { axis, size: mesh.axis_size(axis), sections: shard.sections });
            let sections = cut.iter().fold(1, |all: usize, s| all.saturating_mul(s.sections));
            if !(1..=MAX_SECTIONS).contains(&sections) {
                return Err(Error::BadSections { dim: shard.dim, sections });
            }
        }
        let placements = normal_order(placements, &cuts);
        Ok(Layout { mesh: mesh.clone(), shape: shape.clone(), placements, cuts })
    }

    /// Every rank has everything.
    pub fn replicated(mesh: &Mesh, shape: &Shape) -> Layout {
        let cuts = (0..shape.ndim()).map(|_| Splits::new()).collect();
        let placements = SmallVec::from_elem(Placement::Replicate, mesh.naxes());
        Layout { mesh: mesh.clone(), shape: shape.clone(), placements, cuts }
    }

    /// From cuts already known to suit the shape, and pending reductions known to stand together.
    pub(crate) fn from_cuts(
        mesh: &Mesh,
        shape: &Shape,
        cuts: SmallVec<[Splits; 4]>,
        pending: impl Fn(usize) -> Option<Reduce>,
    ) -> Layout {
        let whole = |axis| pending(axis).map_or(Placement::Replicate, Placement::Partial);
        let mut placements: SmallVec<[Placement; 4]> = (0..mesh.naxes()).map(whole).collect();
        for (dim, splits) in cuts.iter().enumerate() {
            let in_mesh_order = splits.windows(2).all(|pair| pair[0].axis < pair[1].axis);
            for (place, split) in splits.iter().enumerate() {
                let order = if in_mesh_order { 0 } else { place };
                placements[split.axis] = Placement::Shard(Shard { dim, sections: split.sections, order });
            }
        }
        Layout { mesh: mesh.clone(), shape: shape.clone(), placements, cuts }
    }

    /// The same mesh and shape with one axis placed otherwise.
    pub fn with(&self, axis: usize, placement: Placement) -> Result<Layout> {
        let mut placements = self.placements.clone();
        let unknown = || Error::UnknownAxis { axis: axis.to_string(), mesh: self.mesh.to_string() };
        *placements.get_mut(axis).ok_or_else(unknown)? = placement;
        Layout::new(&self.mesh, &self.shape, &placements)
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The global shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// One placement per mesh axis.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The axes that cut each dim, major first.
    pub(crate) fn cuts(&self) -> &[Splits] {
        &self.cuts
    }

    /// The axes that cut a dim, major first.
    pub fn axes_on(&self, dim: usize) -> impl Iterator<Item = usize> + '_ {
        self.cuts[dim].iter().map(|split| split.axis)
    }

    /// The axes that hold copies.
    pub fn replicated_axes(&self) -> AxisSet {
        self.axes_where(|p| matches!(p, Placement::Replicate))
    }

    /// The axes that cut some dim.
    pub fn sharded_axes(&self) -> AxisSet {
        self.axes_where(|p| matches!(p, Placement::Shard(_)))
    }

    /// The axes with a pending reduction.
    pub fn partial_axes(&self) -> AxisSet {
        self.axes_where(|p| matches!(p, Placement::Partial(_)))
    }

    fn axes_where(&self, test: impl Fn(&Placement) -> bool) -> AxisSet {
        self.placements.iter().enumerate().filter(|(_, p)| test(p)).map(|(axis, _)| axis).collect()
    }

    /// The pending reduction of an axis.
    pub fn reduce(&self, axis: usize) -> Option<Reduce> {
        match self.placements.get(axis) {
            Some(Placement::Partial(reduce)) => Some(*reduce),
            _ => None,
        }
    }

    /// What one rank has.
    pub fn piece(&self, rank: Rank) -> Result<Piece> {
        Ok(self.piece_at(&self.mesh.require(rank)?))
    }

    /// What the rank at these coordinates has; the coordinates must be in range.
    pub(crate) fn piece_at(&self, coords: &[usize]) -> Piece {
        let spans = self.shape.iter().zip(&self.cuts);
        Piece { spans: spans.map(|(&len, splits)| cut::spans(len, splits, coords)).collect() }
    }

    /// How many elements the rank at these coordinates has.
    pub(crate) fn numel_at(&self, coords: &[usize]) -> usize {
        self.shape.iter().zip(&self.cuts).map(|(&len, splits)| cut::held(len, splits, coords)).product()
    }

    /// How many different coordinates along the axes of one dim hold indices of a piece.
    pub(crate) fn sources(&self, dim: usize, piece: &Piece) -> usize {
        let mut hits = cut::Hits::new();
        for &(lo, hi) in &piece.spans[dim] {
            cut::hits(self.shape[dim], &self.cuts[dim], lo..hi, &|_| None, &mut hits);
        }
        let mut coords: Vec<_> = hits.into_iter().map(|hit| hit.coords).collect();
        coords.sort_unstable();
        coords.dedup();
        coords.len()
    }

    /// Calls `found` for boxes that together are `want`, each with coordinates that hold it.
    /// Coordinates of axes that do not cut the tensor are as pinned, or 0.
    pub(crate) fn visit(&self, want: &Region, pins: &Pins, found: &mut dyn FnMut(Region, &mut Coords)) {
        if want.ndim() != self.shape.ndim() {
            return;
        }
        let pinned = |axis| pins.get(axis);
        // The hits of all dims one after the other, and where those of each begin.
        let (mut hits, mut starts, mut counts) = (cut::Hits::new(), Dims::new(), Dims::new());
        for (dim, splits) in self.cuts.iter().enumerate() {
            let (len, start) = (self.shape[dim], hits.len());
            cut::hits(len, splits, want.lo()[dim]..want.hi()[dim].min(len), &pinned, &mut hits);
            starts.push(start);
            counts.push(hits.len() - start);
        }
        let mut coords = Coords::from_elem(0, self.mesh.naxes());
        pins.set.iter().for_each(|axis| coords[axis] = pins.at[axis]);
        let (mut lo, mut hi) = (Dims::from_slice(want.lo()), Dims::from_slice(want.hi()));
        each_index(&counts, |index| {
            for (dim, splits) in self.cuts.iter().enumerate() {
                let hit = &hits[starts[dim] + index[dim]];
                (lo[dim], hi[dim]) = (hit.lo, hit.hi);
                hit.coords.iter().zip(splits).for_each(|(&coord, split)| coords[split.axis] = coord);
            }
            let region = Region::from_bounds(Dims::from_slice(&lo), Dims::from_slice(&hi));
            found(region, &mut coords);
        });
    }
}

/// Calls `visit` with every index below `counts`, the last dim fastest.
pub(crate) fn each_index(counts: &[usize], mut visit: impl FnMut(&[usize])) {
    if counts.contains(&0) {
        return;
    }
    let mut index = Dims::from_elem(0, counts.len());
    loop {
        visit(&index);
        let Some(dim) = (0..counts.len()).rev().find(|&d| index[d] + 1 < counts[d]) else { return };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

fn check_partials(placements: &[Placement]) -> Result<()> {
    let partial = |p: &Placement| if let Placement::Partial(reduce) = p { Some(*reduce) } else { None };
    let mut reduces = placements.iter().filter_map(partial);
    let Some(first) = reduces.next() else { return Ok(()) };
    match reduces.find(|r| !r.commutes_with(first)) {
        None => Ok(()),
        Some(second) => Err(Error::MixedPartial {
            first: Placement::Partial(first).to_string(),
            second: Placement::Partial(second).to_string(),
        }),
    }
}

/// The sharding axes, major first within each dim.
fn in_order(placements: &[Placement]) -> Vec<(usize, Shard)> {
    let shard =
        |(axis, p): (usize, &Placement)| if let Placement::Shard(s) = p { Some((axis, *s)) } else { None };
    let mut shards: Vec<(usize, Shard)> = placements.iter().enumerate().filter_map(shard).collect();
    shards.sort_by_key(|(_, shard)| shard.order);
    shards
}

/// Order 0 everywhere where mesh order is meant, otherwise places 0, 1, 2, ...
fn normal_order(placements: &[Placement], cuts: &[Splits]) -> SmallVec<[Placement; 4]> {
    let mut placements: SmallVec<[Placement; 4]> = SmallVec::from_slice(placements);
    for splits in cuts {
        let in_mesh_order = splits.windows(2).all(|pair| pair[0].axis < pair[1].axis);
        for (place, split) in splits.iter().enumerate() {
            if let Placement::Shard(shard) = &mut placements[split.axis] {
                shard.order = if in_mesh_order { 0 } else { place };
            }
        }
    }
    placements
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What one rank has of a tensor: along each dim some index ranges, held side by side in one
/// row-major buffer. Without sections this is a single box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    spans: SmallVec<[Spans; 4]>,
}

impl From<&Region> for Piece {
    /// A single box.
    fn from(region: &Region) -> Piece {
        let span = |(&lo, &hi): (&usize, &usize)| Spans::from_elem((lo, hi), 1);
        Piece { spans: region.lo().iter().zip(region.hi()).map(span).collect() }
    }
}

impl Piece {
    /// Extents of the local buffer.
    pub fn extents(&self) -> Dims {
        self.spans.iter().map(|spans| spans.iter().map(|(lo, hi)| hi - lo).sum()).collect()
    }

    /// Number of elements of the local buffer.
    pub fn numel(&self) -> usize {
        self.extents().iter().product()
    }

    /// The boxes of the tensor that make up this piece; none when it is empty.
    pub fn boxes(&self) -> Vec<Region> {
        let counts: Dims = self.spans.iter().map(|spans| spans.len()).collect();
        let mut boxes = Vec::with_capacity(counts.iter().product());
        each_index(&counts, |index| {
            let chosen = || index.iter().zip(&self.spans).map(|(&i, spans)| spans[i]);
            boxes.push(Region::from_bounds(chosen().map(|s| s.0).collect(), chosen().map(|s| s.1).collect()));
        });
        boxes
    }

    /// Where a box of the tensor lies in the local buffer; `None` unless it lies inside one of
    /// [`Piece::boxes`].
    pub fn locate(&self, region: &Region) -> Option<Region> {
        if region.ndim() != self.spans.len() || region.is_empty() {
            return None;
        }
        let (mut low, mut high) = (Dims::new(), Dims::new());
        for (dim, spans) in self.spans.iter().enumerate() {
            let (want_lo, want_hi) = (region.lo()[dim], region.hi()[dim]);
            let mut before = 0;
            let home = spans.iter().find(|(lo, hi)| {
                let inside = *lo <= want_lo && want_hi <= *hi;
                before += if inside { 0 } else { hi - lo };
                inside
            })?;
            low.push(before + want_lo - home.0);
            high.push(before + want_hi - home.0);
        }
        Some(Region::from_bounds(low, high))
    }

    /// The boxes of the tensor that a box of the local buffer holds, each behind its place in the buffer.
    pub fn boxes_of(&self, local: &Region) -> Vec<(Region, Region)> {
        // Along each dim: from and to in the buffer, and where that begins in the tensor.
        type Parts = SmallVec<[(usize, usize, usize); 2]>;
        let mut parts: SmallVec<[Parts; 4]> = SmallVec::new();
        for (spans, (&low, &high)) in self.spans.iter().zip(local.lo().iter().zip(local.hi())) {
            let (mut before, mut found) = (0, SmallVec::new());
            for &(lo, hi) in spans {
                let (from, to) = (low.max(before), high.min(before + hi - lo));
                if from < to {
                    found.push((from, to, lo + from - before));
                }
                before += hi - lo;
            }
            parts.push(found);
        }
        let counts: Dims = parts.iter().map(|found| found.len()).collect();
        let mut boxes = Vec::with_capacity(counts.iter().product());
        each_index(&counts, |index| {
            let chosen = || index.iter().zip(&parts).map(|(&i, found)| found[i]);
            let inner = Region::from_bounds(chosen().map(|p| p.0).collect(), chosen().map(|p| p.1).collect());
            let outer = Region::from_bounds(
                chosen().map(|p| p.2).collect(),
                chosen().map(|p| p.2 + p.1 - p.0).collect(),
            );
            boxes.push((inner, outer));
        });
        boxes
    }

    /// Where in the tensor an element of the flattened local buffer stands, and how many from it on stand one after the other there.
    pub fn element(&self, flat: usize) -> Option<(Dims, usize)> {
        let (mut index, mut rest, mut run) = (Dims::from_elem(0, self.spans.len()), flat, 1);
        for (dim, spans) in self.spans.iter().enumerate().rev() {
            let extent: usize = spans.iter().map(|(lo, hi)| hi - lo).sum();
            let mut at = rest.checked_rem(extent)?;
            rest /= extent;
            let home = spans.iter().find(|(lo, hi)| {
                let inside = at < hi - lo;
                at -= if inside { 0 } else { hi - lo };
                inside
            })?;
            index[dim] = home.0 + at;
            if dim + 1 == self.spans.len() {
                run = home.1 - index[dim];
            }
        }
        (rest == 0).then_some((index, run))
    }

    /// Number of elements two pieces of one tensor share.
    pub fn overlap(&self, other: &Piece) -> usize {
        self.spans.iter().zip(&other.spans).map(|(a, b)| shared(a, b)).product()
    }
}

/// Number of indices in both lists.
fn shared(a: &[(usize, usize)], b: &[(usize, usize)]) -> usize {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        count += a[i].1.min(b[j].1).saturating_sub(a[i].0.max(b[j].0));
        if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
    }
    count
}
