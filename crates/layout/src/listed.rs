//! Irregular tilings: any list of disjoint tiles, found through an index built once.

use crate::error::{Error, Result};
use crate::index::BoxIndex;
use crate::mesh::Rank;
use crate::region::Region;
use crate::shape::Shape;
use crate::tile::{Fixed, Found, Holder, Owned, Replicas, Tile, Tiling};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A tensor divided into listed tiles. Tiles with the same box are copies of it. The index over the
/// boxes is built here once; clones share it.
#[derive(Clone, Debug)]
pub struct Listed<H> {
    inner: Arc<Inner<H>>,
}

#[derive(Debug)]
struct Inner<H> {
    shape: Shape,
    /// Holders of the copies of each box.
    boxes: Vec<Vec<H>>,
    /// Every holder with a box and its copy, sorted.
    by_holder: Vec<(H, usize, usize)>,
    index: BoxIndex,
    /// Elements in some box.
    covered: usize,
}

impl<H: Holder> Listed<H> {
    /// Tiles whose distinct boxes do not overlap and together are the whole tensor; tiles without
    /// elements are left out.
    pub fn new(shape: &Shape, tiles: impl IntoIterator<Item = Tile<H>>) -> Result<Listed<H>> {
        let grouped = group(shape, tiles)?;
        let listed = Listed::indexed(shape, grouped);
        if let Some((first, second)) = listed.inner.index.find_overlap() {
            return Err(Error::Overlap { first: Box::new(first.clone()), second: Box::new(second.clone()) });
        }
        listed.check_plain()?;
        Ok(listed)
    }

    /// Any tiles, as readers ask for them: boxes that overlap are cut until they do not, and what nobody asks
    /// for is in no box. A holder that asks twice is listed once.
    pub fn wanted(shape: &Shape, tiles: impl IntoIterator<Item = Tile<H>>) -> Result<Listed<H>> {
        let mut grouped = group(shape, tiles)?;
        let regions = grouped.iter().map(|(region, _)| region.clone()).collect();
        if BoxIndex::new(regions).find_overlap().is_some() {
            grouped = cut_apart(grouped);
        }
        for (_, holders) in &mut grouped {
            holders.sort();
            holders.dedup();
        }
        Ok(Listed::indexed(shape, grouped))
    }

    fn indexed(shape: &Shape, grouped: Vec<(Region, Vec<H>)>) -> Listed<H> {
        let (regions, boxes): (Vec<Region>, Vec<Vec<H>>) = grouped.into_iter().unzip();
        let covered = regions.iter().fold(0usize, |sum, region| sum.saturating_add(region.numel()));
        let index = BoxIndex::new(regions);
        let number_copies = |(number, holders): (usize, &Vec<H>)| {
            let copies = holders.iter().cloned().enumerate();
            copies.map(|(copy, holder)| (holder, number, copy)).collect::<Vec<_>>()
        };
        let mut by_holder: Vec<(H, usize, usize)> =
            boxes.iter().enumerate().flat_map(number_copies).collect();
        by_holder.sort();
        let inner = Inner { shape: shape.clone(), boxes, by_holder, index, covered };
        Listed { inner: Arc::new(inner) }
    }

    /// Every box with its copies' holders, in ascending order.
    pub fn boxes(&self) -> impl Iterator<Item = (&Region, &[H])> {
        self.inner.index.regions().iter().zip(self.inner.boxes.iter().map(Vec::as_slice))
    }
}

/// Every box with its holders, in ascending order.
fn group<H: Holder>(
    shape: &Shape,
    tiles: impl IntoIterator<Item = Tile<H>>,
) -> Result<Vec<(Region, Vec<H>)>> {
    let whole = Region::whole(shape);
    let mut tiles: Vec<Tile<H>> = tiles.into_iter().filter(|tile| !tile.region.is_empty()).collect();
    if let Some(tile) = tiles.iter().find(|t| t.region.ndim() != shape.ndim() || !whole.contains(&t.region)) {
        return Err(Error::TileOutside { tile: Box::new(tile.region.clone()), shape: shape.to_string() });
    }
    tiles.sort_by(|a, b| a.region.cmp(&b.region));
    let mut grouped: Vec<(Region, Vec<H>)> = Vec::new();
    for Tile { region, holder } in tiles {
        match grouped.last_mut() {
            Some((last, holders)) if *last == region => holders.push(holder),
            _ => grouped.push((region, vec![holder])),
        }
    }
    Ok(grouped)
}

/// Cuts boxes where they overlap; the common part has the holders of both.
fn cut_apart<H: Holder>(boxes: Vec<(Region, Vec<H>)>) -> Vec<(Region, Vec<H>)> {
    let mut apart: Vec<(Region, Vec<H>)> = Vec::with_capacity(boxes.len());
    for (region, holders) in boxes {
        let mut left = vec![region.clone()];
        for (old, old_holders) in std::mem::take(&mut apart) {
            let Some(common) = old.intersect(&region) else {
                apart.push((old, old_holders));
                continue;
            };
            apart.extend(old.minus(&common).into_iter().map(|part| (part, old_holders.clone())));
            left = left.iter().flat_map(|part| part.minus(&common)).collect();
            apart.push((common, old_holders.into_iter().chain(holders.iter().cloned()).collect()));
        }
        apart.extend(left.into_iter().map(|part| (part, holders.clone())));
    }
    apart.sort();
    apart
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

    fn digest(&self, mut to: &mut dyn Hasher) {
        let inner = &*self.inner;
        (&inner.shape, inner.index.regions()).hash(&mut to);
        for holder in inner.boxes.iter().flatten() {
            holder.hash(&mut to);
        }
    }

    fn check_plain(&self) -> Result<()> {
        let (covered, total) = (self.inner.covered, self.inner.shape.numel());
        if covered == total { Ok(()) } else { Err(Error::Hole { covered, total }) }
    }

    fn owned(&self, holder: &H, _: &Fixed) -> Result<Vec<Owned>> {
        let all = &self.inner.by_holder;
        let mine = all.partition_point(|(h, ..)| h < holder)..all.partition_point(|(h, ..)| h <= holder);
        let owned = all[mine].iter().map(|&(_, number, copy)| Owned {
            region: self.inner.index.regions()[number].clone(),
            turn: number * self.inner.boxes[number].len() + copy,
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
            found(region, &ListedReplicas { holders, number });
        }
    }
}
