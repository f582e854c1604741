//! Nodes: every value of a mapping as an immutable expression over whole source tensors.

use crate::error::Fault;
use planaria_layout::{DType, Dims, Listed, Shape};
use smallvec::SmallVec;
use std::collections::HashSet;

/// Number of a node.
pub(crate) type NodeId = usize;

/// A value: its shape, its element type when known, and how it comes about.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) shape: Shape,
    pub(crate) dtype: Option<DType>,
    pub(crate) kind: Make,
}

/// How a value comes about.
#[derive(Clone, Debug)]
pub(crate) enum Make {
    /// A source tensor, by its number.
    Source(usize),
    /// Slices of other values, side by side along one dim.
    Join { axis: usize, segments: Vec<Segment> },
    /// Dim `d` of this is dim `order[d]` of the other.
    Permute { of: NodeId, order: Dims },
    /// The same elements in row-major order under another shape.
    Reshape { of: NodeId },
    /// Other elements of the same values.
    Cast { of: NodeId, to: DType },
    /// A box of another value that starts at `lo`.
    Cut { of: NodeId, lo: Dims },
    /// Boxes filled by other values of the boxes' extents.
    Tiles { tiles: Listed<Filled> },
}

/// The value that fills a tile, and where the tile starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Filled {
    pub(crate) node: NodeId,
    pub(crate) lo: Dims,
}

impl planaria_layout::Holder for Filled {
    fn as_rank(&self) -> Option<planaria_layout::Rank> {
        None
    }
}

/// Up to `end` (from the end of the segment before): `of`, from index `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) end: usize,
    pub(crate) of: NodeId,
    pub(crate) start: usize,
}

/// Part of a value along the joined dim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) of: NodeId,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// All nodes of a mapping.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    list: Vec<Node>,
}

impl Nodes {
    pub(crate) fn get(&self, id: NodeId) -> &Node {
        &self.list[id]
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds the nodes a node is made of.
    pub(crate) fn inputs(&self, id: NodeId, inputs: &mut Vec<NodeId>) {
        match &self.get(id).kind {
            Make::Source(_) => {}
            Make::Join { segments, .. } => inputs.extend(segments.iter().map(|segment| segment.of)),
            Make::Permute { of, .. }
            | Make::Reshape { of }
            | Make::Cast { of, .. }
            | Make::Cut { of, .. } => {
                inputs.push(*of);
            }
            Make::Tiles { tiles } => {
                inputs.extend(tiles.boxes().flat_map(|(_, filled)| filled.first().map(|f| f.node)));
            }
        }
    }

    /// Element types of the sources behind some nodes, whatever they are cast to on the way.
    pub(crate) fn source_dtypes(&self, of: &[NodeId]) -> HashSet<Option<DType>> {
        let (mut open, mut seen, mut found) = (of.to_vec(), HashSet::new(), HashSet::new());
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            if let Make::Source(_) = self.get(id).kind {
                found.insert(self.get(id).dtype);
            }
            self.inputs(id, &mut open);
        }
        found
    }

    pub(crate) fn shape(&self, id: NodeId) -> &Shape {
        &self.list[id].shape
    }

    pub(crate) fn push(&mut self, shape: Shape, dtype: Option<DType>, kind: Make) -> NodeId {
        self.list.push(Node { shape, dtype, kind });
        self.list.len() - 1
    }

    /// A negative axis counts from the end.
    pub(crate) fn axis(&self, of: NodeId, axis: i64, name: &str) -> Result<usize, Fault> {
        let ndim = self.shape(of).ndim();
        let from_end = if axis < 0 { axis.saturating_add(ndim as i64) } else { axis };
        usize::try_from(from_end).ok().filter(|axis| *axis < ndim).ok_or_else(|| Fault::AxisOutOfRange {
            axis,
            name: name.to_string(),
            ndim,
        })
    }

    /// Slices side by side; `names` says what to call each slice's value.
    pub(crate) fn join(
        &mut self,
        axis: usize,
        slices: &[Slice],
        names: &dyn Fn(NodeId) -> String,
    ) -> Result<NodeId, Fault> {
        let Some(first) = slices.first() else {
            return Err(planaria_layout::Error::Bug("empty join").into());
        };
        let mut total = 0usize;
        let mut segments: Vec<Segment> = Vec::with_capacity(slices.len());
        for slice in slices {
            self.check_fit(axis, first.of, slice.of, names)?;
            total = total.checked_add(slice.len).ok_or_else(|| too_large(self.shape(first.of)))?;
            self.flatten(axis, *slice, &mut segments);
        }
        let mut dims = Dims::from_slice(self.shape(first.of));
        dims[axis] = total;
        let shape = Shape::from_dims(dims)?;
        let dtype = slices.iter().find_map(|slice| self.get(slice.of).dtype);
        match segments[..] {
            // Everything of one value is that value.
            [Segment { end, of, start: 0 }] if end == self.shape(of)[axis] => Ok(of),
            [] => Ok(self.push(shape, dtype, Make::Cut { of: first.of, lo: Dims::new() })),
            _ => Ok(self.push(shape, dtype, Make::Join { axis, segments })),
        }
    }

    fn check_fit(
        &self,
        axis: usize,
        first: NodeId,
        other: NodeId,
        names: &dyn Fn(NodeId) -> String,
    ) -> Result<(), Fault> {
        let (a, b) = (self.get(first), self.get(other));
        let same_dim = |dim: usize| dim == axis || a.shape[dim] == b.shape[dim];
        if a.shape.ndim() != b.shape.ndim() || !(0..a.shape.ndim()).all(same_dim) {
            return Err(Fault::ShapesDiffer {
                first: names(first),
                first_shape: a.shape.to_string(),
                second: names(other),
                second_shape: b.shape.to_string(),
                axis,
            });
        }
        match (a.dtype, b.dtype) {
            (Some(x), Some(y)) if x != y => Err(Fault::DTypesDiffer {
                first: names(first),
                first_dtype: x,
                second: names(other),
                second_dtype: y,
            }),
            _ => Ok(()),
        }
    }

    /// Adds a slice, seeing through joins along the same dim and melting neighbours.
    fn flatten(&self, axis: usize, slice: Slice, segments: &mut Vec<Segment>) {
        if slice.len == 0 {
            return;
        }
        if let Make::Join { axis: inner, segments: parts } = &self.get(slice.of).kind
            && *inner == axis
        {
            let first = parts.partition_point(|part| part.end <= slice.start);
            let mut at = slice.start;
            for (number, part) in parts.iter().enumerate().skip(first) {
                let begin = if number == 0 { 0 } else { parts[number - 1].end };
                let stop = part.end.min(slice.start + slice.len);
                if at >= stop {
                    break;
                }
                // Parts of a join never are joins along its own dim: this is one level deep.
                push(segments, Slice { of: part.of, start: part.start + (at - begin), len: stop - at });
                at = stop;
            }
            return;
        }
        push(segments, slice);
    }

    /// Dims in another order; an order that changes nothing changes nothing.
    pub(crate) fn permute(&mut self, of: NodeId, order: &[usize]) -> NodeId {
        if order.iter().enumerate().all(|(dim, from)| dim == *from) {
            return of;
        }
        let node = self.get(of);
        let dims: Dims = order.iter().map(|&d| node.shape[d]).collect();
        let dtype = node.dtype;
        if let Make::Permute { of: inner, order: before } = &node.kind {
            let (inner, order): (_, Dims) = (*inner, order.iter().map(|&d| before[d]).collect());
            return self.permute(inner, &order);
        }
        // A permutation of a valid shape is valid.
        let shape = Shape::from_dims(dims).unwrap_or_default();
        self.push(shape, dtype, Make::Permute { of, order: Dims::from_slice(order) })
    }

    /// All dims reversed.
    pub(crate) fn transpose(&mut self, of: NodeId) -> NodeId {
        let order: Dims = (0..self.shape(of).ndim()).rev().collect();
        self.permute(of, &order)
    }

    pub(crate) fn cast(&mut self, of: NodeId, to: DType) -> NodeId {
        let node = self.get(of);
        if node.dtype == Some(to) {
            return of;
        }
        let shape = node.shape.clone();
        self.push(shape, Some(to), Make::Cast { of, to })
    }

    /// Another shape for the same elements; `-1` once stands for what is left.
    pub(crate) fn reshape(&mut self, of: NodeId, to: &[i64], name: &str) -> Result<NodeId, Fault> {
        let node = self.get(of);
        let bad = || Fault::BadReshape { name: name.into(), shape: node.shape.to_string(), to: to.to_vec() };
        let known: SmallVec<[usize; 6]> = to.iter().filter_map(|&d| usize::try_from(d).ok()).collect();
        let product = Shape::new(&known).map_err(|_| bad())?.numel();
        let numel = node.shape.numel();
        let mut dims = Dims::new();
        for &extent in to {
            dims.push(match usize::try_from(extent) {
                Ok(extent) => extent,
                Err(_) if extent == -1 && known.len() + 1 == to.len() && product > 0 => numel / product,
                Err(_) => return Err(bad()),
            });
        }
        let shape = Shape::from_dims(dims).map_err(|_| bad())?;
        if shape.numel() != numel {
            return Err(bad());
        }
        if shape == node.shape {
            return Ok(of);
        }
        let dtype = node.dtype;
        Ok(self.push(shape, dtype, Make::Reshape { of }))
    }
}

fn push(segments: &mut Vec<Segment>, slice: Slice) {
    let begin = segments.last().map_or(0, |last| last.end);
    let end = begin + slice.len;
    let before = if segments.len() > 1 { segments[segments.len() - 2].end } else { 0 };
    match segments.last_mut() {
        Some(last) if last.of == slice.of && last.start + (last.end - before) == slice.start => {
            last.end = end
        }
        _ => segments.push(Segment { end, of: slice.of, start: slice.start }),
    }
}

fn too_large(shape: &Shape) -> Fault {
    planaria_layout::Error::ShapeTooLarge { shape: shape.to_vec() }.into()
}

/// The order that undoes another.
pub(crate) fn inverse(order: &[usize]) -> Dims {
    let mut inverse = Dims::from_elem(0, order.len());
    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    inverse
}
