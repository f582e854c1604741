//! Tiles and tilings: boxes with holders, whatever a holder is.

use crate::error::{Error, Result};
use crate::layout::{Layout, Pins};
use crate::mesh::{AxisSet, Coords, Mesh, Rank};
use crate::region::Region;
use crate::shape::Shape;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A box of a tensor and who has it, or who gets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile<H> {
    /// The box.
    pub region: Region,
    /// A rank, a file extent, ...
    pub holder: H,
}

/// A byte range of a file that stores one tile in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// Which file, in the caller's numbering.
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Tile<Extent> {
    /// The byte ranges `(offset, len)` of the file that store `part` of this tile, ascending;
    /// `size` is the bytes of one element.
    pub fn byte_runs(&self, part: &Region, size: usize) -> impl Iterator<Item = (u64, u64)> + use<> {
        let start = self.holder.offset;
        let bytes = move |elements: usize| elements.saturating_mul(size) as u64;
        part.runs(&self.region).map(move |(at, len)| (start.saturating_add(bytes(at)), bytes(len)))
    }
}

/// Something that can hold a tile.
pub trait Holder: Clone + Ord + Hash + fmt::Debug + Send + Sync {
    /// The rank this holder is, if it is one: a rank reads its own tiles from itself.
    fn as_rank(&self) -> Option<Rank>;
}

impl Holder for Rank {
    fn as_rank(&self) -> Option<Rank> {
        Some(*self)
    }
}

impl Holder for Extent {
    fn as_rank(&self) -> Option<Rank> {
        None
    }
}

/// The holders of equal copies of one box, described without listing them.
pub trait Replicas<H> {
    /// How many copies there are, at least one.
    fn count(&self) -> usize;
    /// The holder of one copy, below [`Replicas::count`].
    fn get(&self, copy: usize) -> H;
    /// Which copy a holder has.
    fn find(&self, holder: &H) -> Option<usize>;
    /// Which copy a rank has.
    fn find_rank(&self, rank: Rank) -> Option<usize>;
    /// Number of the box among the boxes of the tiling.
    fn number(&self) -> usize;
}

/// Called for each box of a lookup with the copies of it.
pub type Found<'a, H> = dyn FnMut(Region, &dyn Replicas<H>) + 'a;

/// Axes of a mesh decided before a lookup.
#[derive(Clone, Debug, Default)]
pub struct Fixed(pub(crate) Pins);

impl Fixed {
    /// The axes that cut a tiling, at the coordinates of a rank: a lookup finds the boxes that the rank has, with all
    /// their copies. `None` for a rank that has nothing; nothing is fixed where the holders are not a mesh.
    pub fn at<T: Tiling + ?Sized>(tiling: &T, rank: Rank) -> Option<Fixed> {
        let Some((mesh, copies)) = tiling.copies() else { return Some(Fixed::default()) };
        let cut = (0..mesh.naxes()).filter(|&axis| !copies.contains(axis)).collect();
        Some(Fixed(Pins::new(cut, &mesh.coords(rank)?)))
    }
}

/// A box a holder has, and its place in the order in which holders choose among copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The box.
    pub region: Region,
    /// Copy `turn % copies` of each source box serves this one.
    pub turn: usize,
}

/// A way to divide a tensor into boxes with holders. Distinct boxes never overlap and together
/// they are the whole tensor.
pub trait Tiling: fmt::Debug + Send + Sync {
    /// Who holds the boxes.
    type Holder: Holder;

    /// Shape of the tensor.
    fn shape(&self) -> &Shape;

    /// The mesh and the axes along which its ranks hold copies, if the holders are a mesh.
    fn copies(&self) -> Option<(&Mesh, AxisSet)> {
        None
    }

    /// Tells a hasher what this tiling is, so that ranks can see whether they mean the same one.
    fn digest(&self, to: &mut dyn Hasher);

    /// Refuses tilings whose boxes are not plain values.
    fn check_plain(&self) -> Result<()> {
        Ok(())
    }

    /// The boxes of one holder.
    fn owned(&self, holder: &Self::Holder, fixed: &Fixed) -> Result<Vec<Owned>>;

    /// Calls `found` for boxes that together are `want` and lie in one box of the tiling each.
    /// The work done grows with the number of calls, not with the number of holders.
    fn lookup(&self, want: &Region, fixed: &Fixed, found: &mut Found<'_, Self::Holder>);
}

/// Any tiling whose holders are ranks.
pub type RankTiling = Arc<dyn Tiling<Holder = Rank>>;

/// Copies along the free axes of a mesh.
pub(crate) struct GridReplicas<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) coords: &'a Coords,
    pub(crate) free: AxisSet,
    pub(crate) cut: AxisSet,
}

impl Replicas<Rank> for GridReplicas<'_> {
    fn count(&self) -> usize {
        self.mesh.span(self.free)
    }

    fn get(&self, copy: usize) -> Rank {
        // Plans ask for the first copy of every box.
        if let (0, Some((start, strides))) = (copy, self.mesh.strides()) {
            let held = self.coords.iter().zip(strides).enumerate().filter(|(a, _)| !self.free.contains(*a));
            return start + held.map(|(_, (coord, stride))| coord * stride).sum::<usize>();
        }
        let mut coords = Coords::from_slice(self.coords);
        self.mesh.spread(copy, self.free, &mut coords);
        self.mesh.rank_at(&coords)
    }

    fn find(&self, holder: &Rank) -> Option<usize> {
        self.find_rank(*holder)
    }

    fn find_rank(&self, rank: Rank) -> Option<usize> {
        let coords = self.mesh.coords(rank)?;
        let same = (0..coords.len()).all(|a| self.free.contains(a) || coords[a] == self.coords[a]);
        same.then(|| self.mesh.position(self.free, &coords))
    }

    fn number(&self) -> usize {
        self.mesh.position(self.cut, self.coords)
    }
}

impl GridReplicas<'_> {
    /// Place of the rank at `coords` in the order of choosing.
    pub(crate) fn turn(&self) -> usize {
        self.number() * self.count() + self.mesh.position(self.free, self.coords)
    }
}

impl Layout {
    /// Axes along which copies may be chosen, given that some are fixed.
    fn free_axes(&self, fixed: &Fixed) -> AxisSet {
        let cut = self.sharded_axes();
        (0..self.mesh().naxes()).filter(|&a| !cut.contains(a) && !fixed.0.set.contains(a)).collect()
    }
}

impl Tiling for Layout {
    type Holder = Rank;

    fn shape(&self) -> &Shape {
        Layout::shape(self)
    }

    fn copies(&self) -> Option<(&Mesh, AxisSet)> {
        Some((self.mesh(), self.replicated_axes()))
    }

    fn digest(&self, mut to: &mut dyn Hasher) {
        self.hash(&mut to);
    }

    fn check_plain(&self) -> Result<()> {
        let plain = self.partial_axes().is_empty();
        if plain { Ok(()) } else { Err(Error::PartialNotAllowed { layout: self.to_string() }) }
    }

    fn owned(&self, holder: &Rank, fixed: &Fixed) -> Result<Vec<Owned>> {
        let coords = self.mesh().require(*holder)?;
        let (free, cut) = (self.free_axes(fixed), self.sharded_axes());
        let turn = GridReplicas { mesh: self.mesh(), coords: &coords, free, cut }.turn();
        Ok(self.piece_at(&coords).boxes().into_iter().map(|region| Owned { region, turn }).collect())
    }

    fn lookup(&self, want: &Region, fixed: &Fixed, found: &mut Found<'_, Rank>) {
        let (free, cut) = (self.free_axes(fixed), self.sharded_axes());
        self.visit(want, &fixed.0, &mut |region, coords| {
            found(region, &GridReplicas { mesh: self.mesh(), coords, free, cut });
        });
    }
}
