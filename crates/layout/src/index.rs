//! A bounding-box tree over many boxes, for tilings without arithmetic.

use crate::region::Region;
use crate::shape::Dims;

/// Boxes per leaf.
const LEAF: usize = 8;

/// Finds the boxes that overlap a region in time that grows with their number.
#[derive(Debug)]
pub(crate) struct BoxIndex {
    regions: Vec<Region>,
    order: Vec<usize>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    bounds: Region,
    /// Positions in `order`.
    start: usize,
    end: usize,
    /// Both children, when this is not a leaf.
    children: Option<(usize, usize)>,
}

impl BoxIndex {
    /// Indexes non-empty boxes with the same number of dims.
    pub(crate) fn new(regions: Vec<Region>) -> BoxIndex {
        let order = (0..regions.len()).collect();
        let mut index = BoxIndex { regions, order, nodes: Vec::new() };
        if !index.regions.is_empty() {
            index.build(0, index.regions.len());
        }
        index
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Makes the node over `order[start..end]`; halving keeps the depth logarithmic.
    fn build(&mut self, start: usize, end: usize) -> usize {
        let bounds = bounds(self.order[start..end].iter().map(|&i| &self.regions[i]));
        let longest = (0..bounds.ndim()).max_by_key(|&d| bounds.len(d));
        let node = self.nodes.len();
        self.nodes.push(Node { bounds, start, end, children: None });
        if let Some(dim) = longest.filter(|_| end - start > LEAF) {
            let middle = (start + end) / 2;
            let regions = &self.regions;
            let key = |&i: &usize| (regions[i].lo()[dim], i);
            self.order[start..end].select_nth_unstable_by_key(middle - start, key);
            let children = (self.build(start, middle), self.build(middle, end));
            self.nodes[node].children = Some(children);
        }
        node
    }

    /// The boxes that share elements with `want`, ascending.
    pub(crate) fn overlapping(&self, want: &Region) -> Vec<usize> {
        let mut found = Vec::new();
        let mut open: Vec<usize> = if self.nodes.is_empty() { Vec::new() } else { vec![0] };
        while let Some(node) = open.pop().map(|n| &self.nodes[n]) {
            if !meets(&node.bounds, want) {
                continue;
            }
            match node.children {
                Some((left, right)) => open.extend([left, right]),
                None => {
                    let leaf = &self.order[node.start..node.end];
                    found.extend(leaf.iter().copied().filter(|&i| meets(&self.regions[i], want)));
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Two boxes that share elements.
    pub(crate) fn find_overlap(&self) -> Option<(&Region, &Region)> {
        self.regions.iter().enumerate().find_map(|(i, region)| {
            let other = self.overlapping(region).into_iter().find(|&other| other != i)?;
            Some((region, &self.regions[other]))
        })
    }
}

fn meets(a: &Region, b: &Region) -> bool {
    (0..a.ndim()).all(|d| a.lo()[d].max(b.lo()[d]) < a.hi()[d].min(b.hi()[d]))
}

fn bounds<'a>(mut regions: impl Iterator<Item = &'a Region>) -> Region {
    let Some(first) = regions.next() else { return Region::from_bounds(Dims::new(), Dims::new()) };
    let (mut lo, mut hi) = (Dims::from_slice(first.lo()), Dims::from_slice(first.hi()));
    for region in regions {
        lo.iter_mut().zip(region.lo()).for_each(|(l, r)| *l = (*l).min(*r));
        hi.iter_mut().zip(region.hi()).for_each(|(h, r)| *h = (*h).max(*r));
    }
    Region::from_bounds(lo, hi)
}
