//! Where the bytes of all tensors lie in files, and which ranks hold or want which boxes of them.

use planaria_layout::{Dims, Region, flat_boxes};
use std::ops::Range;

/// A box of a tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) tensor: usize,
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) region: Region,
    /// Bytes of one element.
    pub(crate) size: usize,
    /// The dims from the slowest to the fastest in the file; `None` for row-major.
    pub(crate) order: Option<Dims>,
}

impl Placed {
    pub(crate) fn len(&self) -> u64 {
        (self.region.numel() * self.size) as u64
    }

    /// Extents in the order of the file.
    fn stored_extents(&self) -> Dims {
        let extents = self.region.extents();
        self.order.as_ref().map_or(extents.clone(), |order| order.iter().map(|&d| extents[d]).collect())
    }

    /// Byte steps along the dims of the tensor.
    pub(crate) fn steps(&self) -> Vec<isize> {
        let dense = crate::strided::dense_steps(&self.stored_extents(), self.size);
        let Some(order) = &self.order else { return dense };
        let mut steps = vec![0; dense.len()];
        order.iter().zip(dense).for_each(|(&d, step)| steps[d] = step);
        steps
    }

    /// Place in the file of the first element of a part.
    pub(crate) fn byte_of(&self, part: &Region) -> u64 {
        let offsets = part.lo().iter().zip(self.region.lo()).zip(self.steps());
        self.offset + offsets.map(|((lo, origin), step)| (lo - origin) as u64 * step as u64).sum::<u64>()
    }

    /// From the first to the last byte of a part that is not empty.
    fn span(&self, part: &Region) -> Range<u64> {
        let start = self.byte_of(part);
        let reach: u64 =
            part.extents().iter().zip(self.steps()).map(|(len, s)| (len - 1) as u64 * s as u64).sum();
        start..start + reach + self.size as u64
    }

    /// The byte ranges of the file that hold a part: its runs where they are far apart, else all from the first to
    /// the last.
    pub(crate) fn byte_ranges(&self, part: &Region, gap: u64) -> Vec<Range<u64>> {
        let whole = self.span(part);
        let runs = part.runs(&self.region);
        let bytes = (part.numel() * self.size) as u64;
        let sparse =
            whole.end - whole.start > bytes + gap.saturating_mul(runs.len().saturating_sub(1) as u64);
        if self.order.is_some() || !sparse {
            return vec![whole];
        }
        let size = self.size as u64;
        let range = |(at, len): (usize, usize)| {
            let start = self.offset + at as u64 * size;
            start..start + len as u64 * size
        };
        runs.map(range).collect()
    }

    /// The elements that begin inside a byte range of the file.
    fn elements(&self, range: &Range<u64>) -> Range<usize> {
        let first = |at: u64| {
            let count = at.saturating_sub(self.offset).div_ceil(self.size as u64);
            usize::try_from(count).unwrap_or(usize::MAX).min(self.region.numel())
        };
        first(range.start)..first(range.end)
    }

    /// The boxes of the tensor whose elements begin inside a byte range of the file.
    fn boxes(&self, range: &Range<u64>) -> impl Iterator<Item = Region> + '_ {
        let boxes = flat_boxes(&self.stored_extents(), self.elements(range));
        boxes.into_iter().filter_map(move |inner| {
            let mut lo = Dims::from_slice(inner.lo());
            let mut hi = Dims::from_slice(inner.hi());
            for (stored, d) in self.order.iter().flatten().enumerate().map(|(s, &d)| (s, d)) {
                (lo[d], hi[d]) = (inner.lo()[stored], inner.hi()[stored]);
            }
            let origin = self.region.lo();
            lo.iter_mut().zip(origin).for_each(|(at, o)| *at += o);
            hi.iter_mut().zip(origin).for_each(|(at, o)| *at += o);
            // A part of a valid box.
            Region::new(&lo, &hi).ok()
        })
    }
}

/// A box of a tensor and the ranks concerned: each with the number of the box among its own.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) region: Region,
    pub(crate) holders: Vec<(usize, usize)>,
}

/// Files and ranks together.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// Size of each file.
    pub(crate) files: Vec<u64>,
    pub(crate) tiles: Vec<Placed>,
    /// Tiles of each file by offset, with the furthest byte that any of them so far reaches.
    by_file: Vec<Vec<(usize, u64)>>,
    /// By tensor, sorted by box.
    claims: Vec<Vec<Claim>>,
    /// For each claim the furthest index along the first dim that any claim so far reaches.
    reach: Vec<Vec<usize>>,
    /// Bytes that are read together: a block with a checksum.
    pub(crate) grain: Option<u64>,
}

/// Wanted bytes at most this far apart are read together.
const GAP: u64 = 16 << 10;
/// Storage is read and written directly in whole blocks of this size.
const BLOCK: u64 = planaria_store::BLOCK as u64;

impl Geometry {
    pub(crate) fn new(files: Vec<u64>, tiles: Vec<Placed>, claims: Vec<Vec<Claim>>) -> Geometry {
        let mut by_file: Vec<Vec<(usize, u64)>> = vec![Vec::new(); files.len()];
        let mut order: Vec<usize> = (0..tiles.len()).filter(|&t| tiles[t].len() > 0).collect();
        order.sort_by_key(|&t| (tiles[t].file, tiles[t].offset, t));
        for tile in order {
            let listed = &mut by_file[tiles[tile].file];
            let reach = listed.last().map_or(0, |(_, reach)| *reach);
            listed.push((tile, reach.max(tiles[tile].offset + tiles[tile].len())));
        }
        let reach = claims.iter().map(|claims| {
            let mut furthest = 0;
            let mut reach = |claim: &Claim| {
                furthest = claim.region.hi().first().map_or(1, |hi| *hi).max(furthest);
                furthest
            };
            claims.iter().map(&mut reach).collect()
        });
        Geometry { files, tiles, by_file, reach: reach.collect(), claims, grain: None }
    }

    /// The same, read in whole blocks of `grain` bytes.
    pub(crate) fn in_blocks(self, grain: Option<u64>) -> Geometry {
        Geometry { grain, ..self }
    }

    /// What to read of a part of a file: ascending, apart, and together all that is claimed in it.
    pub(crate) fn runs(&self, file: usize, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut wanted: Vec<Range<u64>> = Vec::new();
        let size = self.files[file];
        self.visit(file, range, &mut |tile, region, _| match self.grain {
            None => wanted.extend(self.tiles[tile].byte_ranges(&region, GAP)),
            Some(grain) => wanted.extend(
                self.tiles[tile]
                    .byte_ranges(&region, grain)
                    .into_iter()
                    .map(|r| r.start / grain * grain..r.end.next_multiple_of(grain).min(size)),
            ),
        });
        planaria_store::coalesce(wanted, if self.grain.is_some() { 0 } else { GAP })
    }

    /// Where one rank's bytes end and another's begin, at whole blocks of the storage, ascending. Boxes that are
    /// spread over the file, as columns are, have no such places.
    pub(crate) fn seams(&self, file: usize) -> Vec<u64> {
        let ranks = |claim: &Claim| -> Vec<usize> { claim.holders.iter().map(|(rank, _)| *rank).collect() };
        let mut held: Vec<(Range<u64>, Vec<usize>)> = Vec::new();
        for &(tile, _) in self.by_file[file].iter().filter(|(tile, _)| self.tiles[*tile].order.is_none()) {
            let tile = &self.tiles[tile];
            let regions =
                self.claims[tile.tensor].iter().map(|claim| (claim.region.intersect(&tile.region), claim));
            for (region, claim) in regions.filter_map(|(region, claim)| Some((region?, claim))) {
                let span = tile.span(&region);
                if span.end - span.start == (region.numel() * tile.size) as u64 {
                    held.push((span, ranks(claim)));
                }
            }
        }
        held.sort_by_key(|(span, _)| span.start);
        let mut seams: Vec<u64> = Vec::new();
        let mut before: Option<&(Range<u64>, Vec<usize>)> = None;
        for part in &held {
            if before.is_none_or(|before| before.1 != part.1) {
                seams.push(part.0.start / BLOCK * BLOCK);
            }
            before = Some(part);
        }
        seams.dedup();
        seams
    }

    /// Tiles that have bytes in a range of a file, by offset.
    pub(crate) fn tiles_in(&self, file: usize, range: &Range<u64>) -> impl Iterator<Item = usize> + '_ {
        let listed = &self.by_file[file];
        let first = listed.partition_point(|(_, reach)| *reach <= range.start);
        let (start, end) = (range.start, range.end);
        let near = listed[first..].iter().map(|(tile, _)| *tile);
        near.take_while(move |&t| self.tiles[t].offset < end)
            .filter(move |&t| self.tiles[t].offset + self.tiles[t].len() > start)
    }

    /// Calls `found` for every part of a claimed box whose elements begin in a range of a file, in an order that
    /// all ranks share.
    pub(crate) fn visit(
        &self,
        file: usize,
        range: &Range<u64>,
        found: &mut dyn FnMut(usize, Region, &Claim),
    ) {
        for tile in self.tiles_in(file, range) {
            let tensor = self.tiles[tile].tensor;
            for part in self.tiles[tile].boxes(range) {
                let low = part.lo().first().map_or(0, |lo| *lo);
                let first = self.reach[tensor].partition_point(|reach| *reach <= low);
                for claim in &self.claims[tensor][first..] {
                    if claim.region.ndim() > 0 && claim.region.lo()[0] >= part.hi()[0] {
                        break;
                    }
                    if let Some(region) = claim.region.intersect(&part) {
                        found(tile, region, claim);
                    }
                }
            }
        }
    }
}

/// Collects boxes of ranks into claims, one per distinct box, sorted.
pub(crate) fn claims(boxes: impl IntoIterator<Item = (Region, usize, usize)>) -> Vec<Claim> {
    let mut boxes: Vec<(Region, usize, usize)> =
        boxes.into_iter().filter(|(region, ..)| !region.is_empty()).collect();
    boxes.sort();
    let mut claims: Vec<Claim> = Vec::new();
    for (region, rank, slot) in boxes {
        match claims.last_mut() {
            Some(last) if last.region == region => last.holders.push((rank, slot)),
            _ => claims.push(Claim { region, holders: vec![(rank, slot)] }),
        }
    }
    claims
}
