//! Mappings: the compiled form, asked region by region where each element comes from.

use crate::catalog::Tensor;
use crate::error::{Error, Report, Result, closest};
use crate::node::{Make, NodeId, Nodes};
use crate::query::Query;
use planaria_layout::{DType, Dims, Region};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor the mapping makes.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) name: Arc<str>,
    pub(crate) tensor: Tensor,
    /// None for a tensor that is declared as not loaded.
    pub(crate) node: Option<NodeId>,
}

impl Target {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape and element type.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// False for a tensor that the mapping declares as not loaded (`_ -> name`).
    pub fn is_loaded(&self) -> bool {
        self.node.is_some()
    }
}

/// A compiled mapping: for every region of a target tensor, the regions of source tensors it consists of.
///
/// Values are expressions over whole sources, so a mapping of any size holds no data, and every element of a
/// loaded target comes from exactly one element of a source.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub(crate) sources: Vec<(Arc<str>, Tensor)>,
    pub(crate) targets: Vec<Target>,
    pub(crate) by_name: HashMap<Arc<str>, usize>,
    pub(crate) nodes: Nodes,
    /// Sources that are left out on purpose, sorted.
    pub(crate) dropped: Vec<Arc<str>>,
    /// Targets that are declared and given no values, sorted.
    pub(crate) absent: Vec<Arc<str>>,
    pub(crate) warnings: Report,
}

/// A step that moves the elements of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rearrange {
    /// Dim `d` of the result is dim `order[d]` of the block.
    Permute(Dims),
    /// The same elements in row-major order under these extents.
    Reshape(Dims),
}

/// Part of a target region: a box of one source, how it is rearranged, and where it lands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'m> {
    /// The source tensor.
    pub source: &'m str,
    /// The box of the source, in the source's coordinates.
    pub from: Region,
    /// The box of the target, in the target's coordinates.
    pub to: Region,
    /// Steps from the source block to the target block, in order; mostly none or one.
    pub steps: SmallVec<[Rearrange; 1]>,
    /// Element types the values pass through, in order; optimizer slots leave them out.
    pub casts: SmallVec<[DType; 1]>,
    /// Element type of the source, when it is known.
    pub dtype: Option<DType>,
}

impl Piece<'_> {
    /// The one permutation between the blocks; none when a reshape is needed as well.
    pub fn permutation(&self) -> Option<Dims> {
        match &self.steps[..] {
            [] => Some((0..self.from.ndim()).collect()),
            [Rearrange::Permute(order)] => Some(order.clone()),
            _ => None,
        }
    }

    /// Element type in the target, when it is known.
    pub fn target_dtype(&self) -> Option<DType> {
        self.casts.last().copied().or(self.dtype)
    }

    /// For each element of the target block in row-major order, its row-major place in the source block.
    /// It is as long as the block: meant for small blocks and tests.
    pub fn order(&self) -> Vec<usize> {
        let mut extents = self.from.extents();
        let mut places: Vec<usize> = (0..self.from.numel()).collect();
        for step in &self.steps {
            match step {
                Rearrange::Reshape(to) => extents = to.clone(),
                Rearrange::Permute(order) => {
                    places = permuted(&places, &extents, order);
                    extents = order.iter().map(|&d| extents[d]).collect();
                }
            }
        }
        places
    }
}

fn permuted(values: &[usize], extents: &[usize], order: &[usize]) -> Vec<usize> {
    let mut strides = Dims::from_elem(1, extents.len());
    for d in (1..extents.len()).rev() {
        strides[d - 1] = strides[d] * extents[d];
    }
    let mut at = Dims::from_elem(0, order.len());
    let mut out = Vec::with_capacity(values.len());
    for _ in 0..values.len() {
        out.push(values[order.iter().zip(&at).map(|(&d, i)| strides[d] * i).sum::<usize>()]);
        for d in (0..order.len()).rev() {
            at[d] += 1;
            if at[d] < extents[order[d]] {
                break;
            }
            at[d] = 0;
        }
    }
    out
}

impl Mapping {
    /// The tensors it makes.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The tensor of this name.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.by_name.get(name).map(|&index| &self.targets[index])
    }

    /// The tensors it may read, read or not.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.sources.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// Things that are suspicious but not wrong.
    pub fn warnings(&self) -> &Report {
        &self.warnings
    }

    /// Sources that no target needs and no statement drops.
    pub fn unread(&self) -> Vec<&str> {
        let read = self.read_sources();
        let unread = self.sources.iter().zip(read).filter(|(_, read)| !read).map(|(source, _)| &*source.0);
        unread.filter(|name| !self.is_dropped(name)).collect()
    }

    /// Sources that are left out on purpose.
    pub fn dropped(&self) -> impl Iterator<Item = &str> {
        self.dropped.iter().map(|name| &**name)
    }

    /// Targets that are declared as not loaded (`_ -> name`), wanted or not.
    pub fn absent(&self) -> impl Iterator<Item = &str> {
        self.absent.iter().map(|name| &**name)
    }

    pub(crate) fn is_dropped(&self, source: &str) -> bool {
        self.dropped.binary_search_by(|dropped| (**dropped).cmp(source)).is_ok()
    }

    /// For each source, whether some target needs it.
    pub(crate) fn read_sources(&self) -> Vec<bool> {
        let mut read = vec![false; self.sources.len()];
        let mut seen = vec![false; self.nodes.len()];
        let mut open: Vec<NodeId> = self.targets.iter().filter_map(|target| target.node).collect();
        while let Some(node) = open.pop() {
            if std::mem::replace(&mut seen[node], true) {
                continue;
            }
            if let Make::Source(index) = self.nodes.get(node).kind {
                read[index] = true;
            }
            self.nodes.inputs(node, &mut open);
        }
        read
    }

    /// The sources one target is made of, each once, in the order they first stand in it.
    pub fn sources_of(&self, target: &str) -> Result<Vec<&str>> {
        let Some(node) = self.require(target)?.node else { return Ok(Vec::new()) };
        let mut found: Vec<usize> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            if !seen.insert(node) {
                continue;
            }
            if let Make::Source(index) = self.nodes.get(node).kind {
                found.push(index);
            }
            let first = open.len();
            self.nodes.inputs(node, &mut open);
            open[first..].reverse();
        }
        Ok(found.into_iter().map(|index| &*self.sources[index].0).collect())
    }

    fn require(&self, name: &str) -> Result<&Target> {
        self.target(name).ok_or_else(|| Error::UnknownTarget {
            name: name.to_string(),
            closest: closest(name, self.targets.iter().map(|target| &*target.name)),
        })
    }

    /// The pieces that together are `region` of a target; none when the target is not loaded. The work grows
    /// with the number of pieces.
    pub fn pieces(&self, target: &str, region: &Region) -> Result<Vec<Piece<'_>>> {
        let target = self.require(target)?;
        let shape = target.tensor.shape();
        if region.ndim() != shape.ndim() || !Region::whole(shape).contains(region) {
            return Err(Error::RegionOutside {
                name: target.name.to_string(),
                region: Box::new(region.clone()),
                shape: shape.to_string(),
            });
        }
        let Some(node) = target.node.filter(|_| !region.is_empty()) else { return Ok(Vec::new()) };
        let raw = Query { nodes: &self.nodes }.visit(node, region).map_err(|_| Error::TooManyPieces {
            name: target.name.to_string(),
            region: Box::new(region.clone()),
            limit: crate::query::LIMIT,
        })?;
        let named = raw.into_iter().map(|raw| {
            let (name, tensor) = &self.sources[raw.source];
            Piece {
                source: name,
                from: raw.from,
                to: raw.to,
                steps: raw.steps,
                casts: raw.casts,
                dtype: tensor.dtype(),
            }
        });
        Ok(named.collect())
    }
}
