//! Where the bytes of tensors lie in files.

use crate::strided::{Steps, dense_steps};
use planaria_layout::{Dims, Extent, Region, Tile, flat_boxes};
use std::ops::Range;

/// A box of a tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) tensor: usize,
    pub(crate) tile: Tile<Extent>,
    /// Bytes of one element.
    pub(crate) size: usize,
    /// The dims from the slowest to the fastest in the file; `None` for row-major.
    pub(crate) order: Option<Dims>,
    /// Byte steps along the dims of the tensor.
    pub(crate) steps: Steps,
}

impl Placed {
    /// A row-major box at a place of a file.
    pub(crate) fn new(tensor: usize, region: Region, (file, offset): (usize, u64), size: usize) -> Placed {
        let len = (region.numel() * size) as u64;
        Placed::ordered(tensor, Tile { region, holder: Extent { file, offset, len } }, size, None)
    }

    /// A box whose dims have some order in the file.
    pub(crate) fn ordered(tensor: usize, tile: Tile<Extent>, size: usize, order: Option<Dims>) -> Placed {
        let extents = tile.region.extents();
        let steps = match &order {
            None => dense_steps(&extents, size),
            Some(order) => {
                let stored: Dims = order.iter().map(|&d| extents[d]).collect();
                let mut steps = vec![0; extents.len()];
                order.iter().zip(dense_steps(&stored, size)).for_each(|(&d, step)| steps[d] = step);
                steps
            }
        };
        Placed { tensor, tile, size, order, steps }
    }

    fn region(&self) -> &Region {
        &self.tile.region
    }

    pub(crate) fn offset(&self) -> u64 {
        self.tile.holder.offset
    }

    pub(crate) fn len(&self) -> u64 {
        (self.region().numel() * self.size) as u64
    }

    /// Extents in the order of the file.
    fn stored_extents(&self) -> Dims {
        let extents = self.region().extents();
        self.order.as_ref().map_or(extents.clone(), |order| order.iter().map(|&d| extents[d]).collect())
    }

    /// Place in the file of the first element of a part.
    pub(crate) fn byte_of(&self, part: &Region) -> u64 {
        let offsets = part.lo().iter().zip(self.region().lo()).zip(&self.steps);
        self.offset() + offsets.map(|((lo, origin), step)| (lo - origin) as u64 * *step as u64).sum::<u64>()
    }

    /// From the first to the last byte of a part that is not empty.
    pub(crate) fn span(&self, part: &Region) -> Range<u64> {
        let start = self.byte_of(part);
        let lens = part.lo().iter().zip(part.hi()).map(|(lo, hi)| hi - lo);
        let reach: u64 = lens.zip(&self.steps).map(|(len, step)| (len - 1) as u64 * *step as u64).sum();
        start..start + reach + self.size as u64
    }

    /// Adds the byte ranges of the file that hold a part: its runs where they are far apart, else all from the first to
    /// the last.
    pub(crate) fn add_ranges(&self, part: &Region, gap: u64, ranges: &mut Vec<Range<u64>>) {
        let (whole, bytes) = (self.span(part), (part.numel() * self.size) as u64);
        let sparse = || {
            let gaps = self.runs_of(part).saturating_sub(1) as u64;
            whole.end - whole.start > bytes + gap.saturating_mul(gaps)
        };
        if self.order.is_some() || !sparse() {
            return ranges.push(whole);
        }
        ranges.extend(self.tile.byte_runs(part, self.size).map(|(at, len)| at..at + len));
    }

    /// How many runs a part has in a row-major file: dims behind the last that is cut are whole.
    fn runs_of(&self, part: &Region) -> usize {
        let cut = (0..part.ndim()).rfind(|&dim| part.len(dim) != self.region().len(dim));
        (0..cut.unwrap_or(0)).map(|dim| part.len(dim)).product()
    }

    /// The elements that begin inside a byte range of the file.
    fn elements(&self, range: &Range<u64>) -> Range<usize> {
        let first = |at: u64| {
            let count = at.saturating_sub(self.offset()).div_ceil(self.size as u64);
            usize::try_from(count).unwrap_or(usize::MAX).min(self.region().numel())
        };
        first(range.start)..first(range.end)
    }

    /// The boxes of the tensor whose elements begin inside a byte range of the file.
    pub(crate) fn boxes(&self, range: &Range<u64>) -> impl Iterator<Item = Region> + '_ {
        let boxes = flat_boxes(&self.stored_extents(), self.elements(range));
        boxes.into_iter().filter_map(move |inner| {
            let mut lo = Dims::from_slice(inner.lo());
            let mut hi = Dims::from_slice(inner.hi());
            for (stored, d) in self.order.iter().flatten().enumerate().map(|(s, &d)| (s, d)) {
                (lo[d], hi[d]) = (inner.lo()[stored], inner.hi()[stored]);
            }
            let origin = self.region().lo();
            lo.iter_mut().zip(origin).for_each(|(at, o)| *at += o);
            hi.iter_mut().zip(origin).for_each(|(at, o)| *at += o);
            // A part of a valid box.
            Region::new(&lo, &hi).ok()
        })
    }
}

/// Files and the boxes of tensors in them.
#[derive(Clone, Debug)]
pub(crate) struct FileMap {
    /// Size of each file.
    pub(crate) sizes: Vec<u64>,
    pub(crate) tiles: Vec<Placed>,
    /// Tiles of each file by offset, with the furthest byte that any of them so far reaches.
    by_file: Vec<Vec<(usize, u64)>>,
}

impl FileMap {
    pub(crate) fn new(sizes: Vec<u64>, tiles: Vec<Placed>) -> FileMap {
        let mut by_file: Vec<Vec<(usize, u64)>> = vec![Vec::new(); sizes.len()];
        let mut order: Vec<usize> = (0..tiles.len()).filter(|&t| tiles[t].len() > 0).collect();
        order.sort_by_key(|&t| (tiles[t].tile.holder.file, tiles[t].offset(), t));
        for tile in order {
            let listed = &mut by_file[tiles[tile].tile.holder.file];
            let reach = listed.last().map_or(0, |(_, reach)| *reach);
            listed.push((tile, reach.max(tiles[tile].offset() + tiles[tile].len())));
        }
        FileMap { sizes, tiles, by_file }
    }

    /// Tiles that have bytes in a range of a file, by offset.
    pub(crate) fn tiles_in(&self, file: usize, range: &Range<u64>) -> impl Iterator<Item = usize> + '_ {
        let listed = &self.by_file[file];
        let first = listed.partition_point(|(_, reach)| *reach <= range.start);
        let (start, end) = (range.start, range.end);
        let near = listed[first..].iter().map(|(tile, _)| *tile);
        near.take_while(move |&t| self.tiles[t].offset() < end)
            .filter(move |&t| self.tiles[t].offset() + self.tiles[t].len() > start)
    }

    /// From the first to the last byte of tensors in a file; at its start where there are none.
    pub(crate) fn held_bytes(&self, file: usize) -> Range<u64> {
        let first = self.by_file[file].first().map_or(0, |&(tile, _)| self.tiles[tile].offset());
        first..self.by_file[file].last().map_or(0, |&(_, reach)| reach)
    }

    /// The tile with most bytes of a file.
    pub(crate) fn largest(&self, file: usize) -> Option<usize> {
        let tiles = self.by_file[file].iter().map(|&(tile, _)| tile);
        tiles.max_by_key(|&tile| (self.tiles[tile].len(), std::cmp::Reverse(tile)))
    }
}
