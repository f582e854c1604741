//! Answering a question: from a box of a node down to boxes of sources.

use crate::mapping::Rearrange;
use crate::node::{Filled, Make, NodeId, Nodes, Segment, inverse};
use crate::reshape::{TooMany, pairs};
use planaria_layout::{DType, Dims, Fixed, Region, Tiling};
use smallvec::SmallVec;

/// Most pieces one answer may have.
pub(crate) const LIMIT: usize = 1 << 20;

/// A piece whose source is still a number and whose target box is in the node's coordinates.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) source: usize,
    pub(crate) from: Region,
    pub(crate) to: Region,
    pub(crate) steps: SmallVec<[Rearrange; 1]>,
    pub(crate) casts: SmallVec<[DType; 1]>,
}

impl Raw {
    /// Adds a step and melts it with the one before.
    fn push(&mut self, step: Rearrange) {
        let melted = match (self.steps.last_mut(), &step) {
            (Some(Rearrange::Permute(before)), Rearrange::Permute(order)) => {
                *before = order.iter().map(|&d| before[d]).collect();
                true
            }
            (Some(Rearrange::Reshape(before)), Rearrange::Reshape(to)) => {
                *before = to.clone();
                true
            }
            _ => false,
        };
        if !melted {
            self.steps.push(step);
        }
        let idle = match &self.steps[..] {
            [.., Rearrange::Permute(order)] => order.iter().enumerate().all(|(to, from)| to == *from),
            [Rearrange::Reshape(to)] => *to == self.from.extents(),
            [.., Rearrange::Permute(order), Rearrange::Reshape(to)] if self.steps.len() == 2 => {
                let extents = self.from.extents();
                order.iter().map(|&d| extents[d]).eq(to.iter().copied())
            }
            _ => false,
        };
        if idle {
            self.steps.pop();
        }
    }
}

type Answer = Result<Vec<Raw>, TooMany>;

/// Walks down from a node.
pub(crate) struct Query<'m> {
    pub(crate) nodes: &'m Nodes,
}

impl Query<'_> {
    /// The pieces of a box of a node; the box is inside it and not empty.
    pub(crate) fn visit(&self, node: NodeId, want: &Region) -> Answer {
        match &self.nodes.get(node).kind {
            Make::Source(index) => Ok(vec![Raw {
                source: *index,
                from: want.clone(),
                to: want.clone(),
                steps: SmallVec::new(),
                casts: SmallVec::new(),
            }]),
            Make::Join { axis, segments } => self.join(*axis, segments, want),
            Make::Permute { of, order } => {
                let back = inverse(order);
                let mut found = self.visit(*of, &reordered(want, &back))?;
                for raw in &mut found {
                    raw.to = reordered(&raw.to, order);
                    raw.push(Rearrange::Permute(order.clone()));
                }
                Ok(found)
            }
            Make::Cast { of, to } => {
                let mut found = self.visit(*of, want)?;
                found.iter_mut().for_each(|raw| raw.casts.push(*to));
                Ok(found)
            }
            Make::Cut { of, lo } => {
                let mut found = self.visit(*of, &moved(want, |d, at| at + lo[d]))?;
                found.iter_mut().for_each(|raw| raw.to = moved(&raw.to, |d, at| at - lo[d]));
                Ok(found)
            }
            Make::Reshape { of } => self.reshape(node, *of, want),
            Make::Tiles { tiles } => {
                let mut parts: Vec<(Region, Filled)> = Vec::new();
                tiles.lookup(want, &Fixed::default(), &mut |region, copies| {
                    parts.push((region, copies.get(0)))
                });
                self.tiles(parts)
            }
        }
    }

    fn join(&self, axis: usize, segments: &[Segment], want: &Region) -> Answer {
        let (low, high) = (want.lo()[axis], want.hi()[axis]);
        let mut found = Vec::new();
        let first = segments.partition_point(|segment| segment.end <= low);
        for (number, segment) in segments.iter().enumerate().skip(first) {
            let begin = if number == 0 { 0 } else { segments[number - 1].end };
            if begin >= high {
                break;
            }
            let (from, to) = (low.max(begin), high.min(segment.end));
            let (mut lo, mut hi) = (Dims::from_slice(want.lo()), Dims::from_slice(want.hi()));
            lo[axis] = from - begin + segment.start;
            hi[axis] = to - begin + segment.start;
            let inner = Region::new(&lo, &hi).map_err(|_| TooMany)?;
            for mut raw in self.visit(segment.of, &inner)? {
                raw.to = moved(&raw.to, |d, at| if d == axis { at - segment.start + begin } else { at });
                found.push(raw);
            }
            if found.len() > LIMIT {
                return Err(TooMany);
            }
        }
        Ok(found)
    }

    fn tiles(&self, parts: Vec<(Region, Filled)>) -> Answer {
        let mut found = Vec::new();
        for (region, filled) in parts {
            for mut raw in self.visit(filled.node, &moved(&region, |d, at| at - filled.lo[d]))? {
                raw.to = moved(&raw.to, |d, at| at + filled.lo[d]);
                found.push(raw);
            }
            if found.len() > LIMIT {
                return Err(TooMany);
            }
        }
        Ok(found)
    }

    /// Boxes on both sides of a reshape; where a box falls into several pieces, each is asked for again.
    fn reshape(&self, node: NodeId, of: NodeId, want: &Region) -> Answer {
        let (after, before) = (self.nodes.shape(node), self.nodes.shape(of));
        let mut found = Vec::new();
        for (new, old) in pairs(before, after, want, LIMIT)? {
            let mut inner = self.visit(of, &old)?;
            if let [raw] = &mut inner[..] {
                raw.to = new;
                let extents = raw.to.extents();
                raw.push(Rearrange::Reshape(extents));
                found.append(&mut inner);
            } else {
                for raw in inner {
                    for (_, smaller) in pairs(after, before, &raw.to, LIMIT)? {
                        found.extend(self.reshape(node, of, &smaller)?);
                    }
                }
            }
            if found.len() > LIMIT {
                return Err(TooMany);
            }
        }
        Ok(found)
    }
}

/// A region with its dims in another order.
fn reordered(region: &Region, order: &[usize]) -> Region {
    let pick = |bounds: &[usize]| -> Dims { order.iter().map(|&d| bounds[d]).collect() };
    // The extents of a valid region in another order are valid.
    Region::new(&pick(region.lo()), &pick(region.hi())).unwrap_or_else(|_| region.clone())
}

/// A region with its bounds changed dim by dim.
fn moved(region: &Region, shift: impl Fn(usize, usize) -> usize) -> Region {
    let bounds = |at: &[usize]| -> Dims { at.iter().enumerate().map(|(d, &at)| shift(d, at)).collect() };
    // Boxes move inside shapes that were checked when their nodes were made.
    Region::new(&bounds(region.lo()), &bounds(region.hi())).unwrap_or_else(|_| region.clone())
}
