//! One index of the first dim of a tensor, as a tensor of its own: experts that are one parameter in memory and a tensor
//! each in files.

use crate::error::{Error, Result};
use crate::mesh::{AxisSet, Mesh};
use crate::region::Region;
use crate::shape::{Dims, Shape};
use crate::tile::{Fixed, Found, Owned, Tiling};
use std::hash::{Hash, Hasher};

/// What the holders of a tensor have of index `index` of its first dim.
#[derive(Clone, Debug)]
pub struct Slice<T> {
    base: T,
    index: usize,
    shape: Shape,
}

impl<T: Tiling> Slice<T> {
    /// Refuses an index past the end.
    pub fn new(base: T, index: usize) -> Result<Slice<T>> {
        match base.shape().split_first() {
            Some((&len, rest)) if index < len => Ok(Slice { shape: Shape::new(rest)?, base, index }),
            _ => {
                let tile = Region::new(&[index], &[index.saturating_add(1)])?;
                Err(Error::TileOutside { tile: Box::new(tile), shape: base.shape().to_string() })
            }
        }
    }

    /// A box of the slice as a box of the whole.
    fn raised(&self, region: &Region) -> Region {
        let side = |first: usize, rest: &[usize]| -> Dims {
            std::iter::once(first).chain(rest.iter().copied()).collect()
        };
        Region::from_bounds(side(self.index, region.lo()), side(self.index + 1, region.hi()))
    }
}

/// A box of the whole that lies in the slice, as a box of the slice.
fn lowered(region: &Region) -> Region {
    Region::from_bounds(Dims::from_slice(&region.lo()[1..]), Dims::from_slice(&region.hi()[1..]))
}

impl<T: Tiling> Tiling for Slice<T> {
    type Holder = T::Holder;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn copies(&self) -> Option<(&Mesh, AxisSet)> {
        self.base.copies()
    }

    fn digest(&self, mut to: &mut dyn Hasher) {
        self.index.hash(&mut to);
        self.base.digest(to);
    }

    fn check_plain(&self) -> Result<()> {
        self.base.check_plain()
    }

    fn owned(&self, holder: &T::Holder, fixed: &Fixed) -> Result<Vec<Owned>> {
        let own = self.raised(&Region::whole(&self.shape));
        let inside = |owned: Owned| {
            let region = lowered(&owned.region.intersect(&own)?);
            Some(Owned { region, ..owned })
        };
        Ok(self.base.owned(holder, fixed)?.into_iter().filter_map(inside).collect())
    }

    fn lookup(&self, want: &Region, fixed: &Fixed, found: &mut Found<'_, T::Holder>) {
        if want.ndim() == self.shape.ndim() {
            let mut found = |region: Region, copies: &dyn crate::tile::Replicas<T::Holder>| {
                found(lowered(&region), copies);
            };
            self.base.lookup(&self.raised(want), fixed, &mut found);
        }
    }
}
