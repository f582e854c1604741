//! Fused weights: in which order the heads of query, key and value, or gate and up, stand in one tensor.

use crate::action::FusionKind;
use crate::error::Fault;
use crate::node::{NodeId, Nodes, Slice};

/// A run of units of one component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    component: usize,
    first: usize,
    count: usize,
}

/// How the components of a fused tensor are interleaved.
struct Order {
    /// Units of each component: heads, or the pieces of gate and up.
    units: Vec<usize>,
    runs: Vec<Run>,
}

/// By key-value group: the queries of the group, its key, its value.
fn grouped(heads: usize, groups: usize) -> Order {
    let queries = heads / groups;
    let group = |g: usize| {
        let run = |component, first, count| Run { component, first, count };
        [run(0, g * queries, queries), run(1, g, 1), run(2, g, 1)]
    };
    Order { units: vec![heads, groups, groups], runs: (0..groups).flat_map(group).collect() }
}

/// By rank: its share of each component in turn.
fn ranked(units: &[usize], parts: usize, what: &'static str) -> Result<Order, Fault> {
    if let Some(&heads) = units.iter().find(|&&units| units % parts != 0) {
        return Err(Fault::BadHeads { heads, parts, what });
    }
    let runs = (0..parts).flat_map(|rank| {
        let share = move |(component, units): (usize, &usize)| {
            let count = units / parts;
            Run { component, first: rank * count, count }
        };
        units.iter().enumerate().map(share)
    });
    Ok(Order { units: units.to_vec(), runs: runs.collect() })
}

/// A fused statement: the tensors read, how many are made, and the parts on both sides.
pub(crate) struct Fused<'a> {
    pub(crate) kind: FusionKind,
    pub(crate) inputs: &'a [NodeId],
    pub(crate) outputs: usize,
    pub(crate) axis: usize,
    /// Parts of the tensor that is read, and of the one that is made.
    pub(crate) parts: (usize, usize),
    /// Extents of the outputs along the axis, when they are known.
    pub(crate) sizes: Option<&'a [usize]>,
    pub(crate) names: &'a dyn Fn(NodeId) -> String,
}

impl Fused<'_> {
    /// The tensors a fused statement makes.
    pub(crate) fn make(&self, nodes: &mut Nodes) -> Result<Vec<NodeId>, Fault> {
        let (from, to) = self.parts;
        let (units, flag) = match self.kind {
            FusionKind::Grouped { heads, groups } => (vec![heads, groups, groups], "fused_qkv"),
            FusionKind::Ranked { heads, groups } => (vec![heads, groups, groups], "fused_qkv_old"),
            FusionKind::Ffn | FusionKind::Plain => (vec![self.pieces()?; 2], "fused_ffn"),
        };
        let order = |parts: usize| match self.kind {
            FusionKind::Grouped { heads, groups } => Ok(grouped(heads, groups)),
            _ => ranked(&units, parts, "ranks"),
        };
        let components = units.len();
        match (self.inputs.len(), self.outputs) {
            (n, 1) if n == components => Ok(vec![self.fuse(nodes, &order(to)?, self.inputs)?]),
            (1, n) if n == components => self.unfuse(nodes, &order(from)?, self.sizes),
            (1, 1) if flag != "fused_qkv" => {
                let parts = self.unfuse(nodes, &order(from)?, None)?;
                Ok(vec![self.fuse(nodes, &order(to)?, &parts)?])
            }
            (left, right) => Err(Fault::BadForm { flag, left, right }),
        }
    }

    /// Into how many pieces gate and up are cut.
    fn pieces(&self) -> Result<usize, Fault> {
        let (from, to) = self.parts;
        match (self.inputs.len(), self.outputs) {
            (2, 1) => lcm(1, to),
            (1, 2) => lcm(from, 1),
            _ => lcm(from, to),
        }
    }

    fn unit(&self, nodes: &Nodes, of: NodeId, parts: usize) -> Result<usize, Fault> {
        let shape = nodes.shape(of);
        let len = shape.get(self.axis).copied().unwrap_or(0);
        if len % parts == 0 {
            return Ok(len / parts);
        }
        Err(Fault::NotDivisible { name: (self.names)(of), shape: shape.to_string(), dim: self.axis, parts })
    }

    fn fuse(&self, nodes: &mut Nodes, order: &Order, parts: &[NodeId]) -> Result<NodeId, Fault> {
        let mut unit = Vec::with_capacity(parts.len());
        for (&part, &units) in parts.iter().zip(&order.units) {
            unit.push(self.unit(nodes, part, units)?);
        }
        let slice = |run: &Run| {
            let unit = unit[run.component];
            Slice { of: parts[run.component], start: run.first * unit, len: run.count * unit }
        };
        let slices: Vec<Slice> = order.runs.iter().map(slice).collect();
        nodes.join(self.axis, &slices, self.names)
    }

    fn unfuse(
        &self,
        nodes: &mut Nodes,
        order: &Order,
        sizes: Option<&[usize]>,
    ) -> Result<Vec<NodeId>, Fault> {
        let fused = self.inputs[0];
        let unit = match sizes {
            Some(sizes) => self.units_of(nodes, order, sizes)?,
            None => vec![self.unit(nodes, fused, order.units.iter().sum())?; order.units.len()],
        };
        // Where each run starts in the fused tensor; runs of a component are in order already.
        let mut slices: Vec<Vec<Slice>> = vec![Vec::new(); order.units.len()];
        let mut start = 0;
        for run in &order.runs {
            let len = run.count * unit[run.component];
            slices[run.component].push(Slice { of: fused, start, len });
            start += len;
        }
        slices.iter().map(|slices| nodes.join(self.axis, slices, self.names)).collect()
    }

    /// Unit of each component when the extents of the components are known.
    fn units_of(&self, nodes: &Nodes, order: &Order, sizes: &[usize]) -> Result<Vec<usize>, Fault> {
        let fused = self.inputs[0];
        let shape = nodes.shape(fused);
        let total = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
        let divisible = sizes.iter().zip(&order.units).all(|(size, units)| size % units == 0);
        if total != shape.get(self.axis).copied() || !divisible {
            return Err(Fault::BadSizes {
                name: (self.names)(fused),
                shape: shape.to_string(),
                dim: self.axis,
                sizes: sizes.to_vec(),
            });
        }
        Ok(sizes.iter().zip(&order.units).map(|(size, units)| size / units).collect())
    }
}

/// The least common multiple, refused where no tensor could be cut that finely.
fn lcm(a: usize, b: usize) -> Result<usize, Fault> {
    const LIMIT: usize = 1 << 20;
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let least = (a.max(1) / x).checked_mul(b.max(1)).filter(|n| *n <= LIMIT);
    least.ok_or(Fault::BadHeads { heads: LIMIT, parts: a.max(b), what: "ranks" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_ranks_interleave_differently() {
        let shown = |order: &Order| -> Vec<(usize, usize, usize)> {
            order.runs.iter().map(|r| (r.component, r.first, r.count)).collect()
        };
        assert_eq!(shown(&grouped(4, 2)), [(0, 0, 2), (1, 0, 1), (2, 0, 1), (0, 2, 2), (1, 1, 1), (2, 1, 1)]);
        let two = ranked(&[8, 4, 4], 2, "ranks").unwrap();
        assert_eq!(shown(&two), [(0, 0, 4), (1, 0, 2), (2, 0, 2), (0, 4, 4), (1, 2, 2), (2, 2, 2)]);
        assert!(ranked(&[8, 2, 2], 4, "ranks").is_err());
    }
}
