//! Irregular tilings: any list of disjoint tiles, found through an index built once.

use crate::error::{Error, Result};
use crate::index::BoxIndex;
use crate::mesh::Rank;
use crate::region::Region;
use crate::shape::Shape;
use crate::tile::{Fixed, Found, Holder, Owned, Replicas, Tile, Tiling};
use std::sync::Arc;

/// A tensor divided into listed tiles. Tiles with the same box are copies of it; different boxes
/// must not overlap, and together they must be the whole tensor. The index over the boxes is built
/// here once; clones share it.
#[derive(Clone, Debug)]
pub struct Listed<H> {
    inner: Arc<Inner<H>>,
    first_turn: usize,
}

#[derive(Debug)]
struct Inner<H> {
    shape: Shape,
    /// Holders of the copies of each box.
    boxes: Vec<Vec<H>>,
    /// Every holder with a box and its copy, sorted.
    by_holder: Vec<(H, usize, usize)>,
    index: BoxIndex,
}

impl<H: Holder> Listed<H> {
    /// Checks and indexes the tiles; tiles without elements are left out.
    pub fn new(shape: &Shape, tiles: impl IntoIterator<Item = Tile<H>>) -> Result<Listed<H>> {
        let whole = Region::whole(shape);
        let mut tiles: Vec<Tile<H>> = tiles.into_iter().filter(|tile| !tile.region.is_empty()).collect();
        if let Some(tile) =
            tiles.iter().find(|t| t.region.ndim() != shape.ndim() || !whole.contains(&t.region))
        {
            return Err(Error::TileOutside { tile: Box::new(tile.region.clone()), shape: shape.to_string() });
        }
        tiles.sort_by(|a, b| a.region.cmp(&b.region));
        let mut regions: Vec<Region> = Vec::new();
        let mut boxes: Vec<Vec<H>> = Vec::new();
        for tile in tiles {
            match boxes.last_mut() {
                Some(holders) if regions.last() == Some(&tile.region) => holders.push(tile.holder),
                _ => {
                    regions.push(tile.region);
                    boxes.push(vec![tile.holder]);
                }
            }
        }
        let covered = regions.iter().try_fold(0usize, |sum, region| sum.checked_add(region.numel()));
        let index = BoxIndex::new(regions);
        if let Some((first, second)) = index.find_overlap() {
            return Err(Error::Overlap { first: Box::new(first.clone()), second: Box::new(second.clone()) });
        }
        match covered {
            Some(covered) if covered == shape.numel() => {}
            covered => {
                return Err(Error::Hole { covered: covered.unwrap_or(usize::MAX), total: shape.numel() });
            }
        }
        let number_copies = |(number, holders): (usize, &Vec<H>)| {
            let copies = holders.iter().cloned().enumerate();
            copies.map(|(copy, holder)| (holder, number, copy)).collect::<Vec<_>>()
        };
        let mut by_holder: Vec<(H, usize, usize)> =
            boxes.iter().enumerate().flat_map(number_copies).collect();
        by_holder.sort();
        Ok(Listed { inner: Arc::new(Inner { shape: shape.clone(), boxes, by_holder, index }), first_turn: 0 })
    }

    /// The same tiling, whose holders choose among source copies starting from `turn`. Giving each
    /// tensor of a checkpoint another start spreads the reads (or writes) over the copies.
    pub fn starting_from(&self, turn: usize) -> Listed<H> {
        // Far from overflow, and the same for every holder.
        Listed { inner: self.inner.clone(), first_turn: turn % (1 << 32) }
    }

    /// Every box with its copies' holders, in ascending order.
    pub fn boxes(&self) -> impl Iterator<Item = (&Region, &[H])> {
        self.inner.index.regions().iter().zip(self.inner.boxes.iter().map(Vec::as_slice))
    }
}

struct ListedReplicas<'a, H> {
    holders: &'a [H],
    number: usize,
}

impl<H: Holder> Replicas<H> for ListedReplicas<'_, H> {
    fn count(&self) -> usize {
        self.holders.len()
    }

    fn get(&self, copy: usize) -> H {
        self.holders[copy].clone()
    }

    fn find(&self, holder: &H) -> Option<usize> {
        self.holders.iter().position(|h| h == holder)
    }

    fn find_rank(&self, rank: Rank) -> Option<usize> {
        self.holders.iter().position(|h| h.as_rank() == Some(rank))
    }

    fn number(&self) -> usize {
        self.number
    }
}

impl<H: Holder> Tiling for Listed<H> {
    type Holder = H;

    fn shape(&self) -> &Shape {
        &self.inner.shape
    }

    fn owned(&self, holder: &H, _: &Fixed) -> Result<Vec<Owned>> {
        let all = &self.inner.by_holder;
        let mine = all.partition_point(|(h, ..)| h < holder)..all.partition_point(|(h, ..)| h <= holder);
        let owned = all[mine].iter().map(|&(_, number, copy)| Owned {
            region: self.inner.index.regions()[number].clone(),
            turn: (self.first_turn + number) * self.inner.boxes[number].len() + copy,
        });
        Ok(owned.collect())
    }

    fn lookup(&self, want: &Region, _: &Fixed, found: &mut Found<'_, H>) {
        if want.ndim() != self.inner.shape.ndim() {
            return;
        }
        for number in self.inner.index.overlapping(want) {
            let Some(region) = self.inner.index.regions()[number].intersect(want) else { continue };
            let holders = self.inner.boxes[number].as_slice();
            found(region, &ListedReplicas { holders, number: self.first_turn + number });
        }
    }
}
