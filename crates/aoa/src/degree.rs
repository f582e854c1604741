//! Degrees: in how many tensor-parallel parts a fused weight is held, known from the catalogs or guessed.

use crate::action::{Action, Change, FusionKind, Step};
use crate::ast::Program;
use crate::catalog::{Catalog, Tensor};
use crate::error::Fault;
use crate::graph::{Graph, Place, VersionId};
use crate::node::{Make, NodeId, Nodes};
use crate::options::Degrees;
use crate::pattern::NameId;
use std::collections::{HashMap, HashSet};

/// Most renames followed.
const MAX_STEPS: usize = 64;

/// What is needed to find degrees.
pub(crate) struct Finder<'a> {
    pub(crate) program: &'a Program,
    pub(crate) actions: &'a [Option<Action>],
    pub(crate) graph: &'a Graph,
    pub(crate) given: &'a Catalog,
    pub(crate) far: Option<&'a Catalog>,
    pub(crate) mode: Degrees,
    pub(crate) chains: Option<Chains>,
}

impl Finder<'_> {
    /// Parts of a value over the given tensors along one dim.
    pub(crate) fn given_parts(&self, nodes: &Nodes, of: NodeId, axis: usize) -> usize {
        match &nodes.get(of).kind {
            Make::Source(index) => self.given.at(*index).cuts(axis),
            Make::Permute { of, order } => self.given_parts(nodes, *of, order[axis]),
            Make::Cast { of, .. } => self.given_parts(nodes, *of, axis),
            Make::Join { axis: joined, segments } if *joined != axis => {
                self.given_parts(nodes, segments[0].of, axis)
            }
            // Side by side along the fused dim, or reshaped: no longer parts of one weight.
            _ => 1,
        }
    }

    /// Parts of the far tensor a version ends up in, or comes from, through moves of one tensor.
    pub(crate) fn far_parts(&self, start: VersionId, axis: usize, ndim: usize, forward: bool) -> usize {
        let Some(far) = self.far else { return 1 };
        let (mut version, mut axis) = (start, axis);
        for _ in 0..MAX_STEPS {
            let at_end = if forward {
                self.graph.is_last(version)
            } else {
                self.graph.versions[version].maker.is_none()
            };
            if at_end && let Some(tensor) = far.get(self.graph.name(version)) {
                return tensor.cuts(axis);
            }
            let next =
                if forward { self.after(version, axis, ndim) } else { self.before(version, axis, ndim) };
            let Some(step) = next else { return 1 };
            (version, axis) = step;
        }
        1
    }

    /// The version one plain move later, and where the dim went.
    fn after(&self, version: VersionId, axis: usize, ndim: usize) -> Option<(VersionId, usize)> {
        let readers = &self.graph.versions[version].readers;
        readers.iter().find_map(|&number| {
            let (steps, read, write) = self.plain(number)?;
            let mut axis = self.through_mark(number, read, axis, ndim);
            for step in steps {
                axis = moved(&step.change, axis, ndim)?;
            }
            Some((write.version?, axis))
        })
    }

    /// The version one plain move earlier.
    fn before(&self, version: VersionId, axis: usize, ndim: usize) -> Option<(VersionId, usize)> {
        let number = self.graph.versions[version].maker?;
        let (steps, read, _) = self.plain(number)?;
        let mut axis = axis;
        for step in steps.iter().rev() {
            axis = moved_back(&step.change, axis, ndim)?;
        }
        Some((read.version?, self.through_mark(number, read, axis, ndim)))
    }

    /// The parts of a move from one tensor to one tensor.
    fn plain(&self, number: usize) -> Option<(&[Step], Place, Place)> {
        let step = &self.graph.moves[number];
        let action = self.actions[step.statement].as_ref().filter(|a| a.kind == FusionKind::Plain)?;
        match (&step.reads[..], &step.writes[..]) {
            ([read], [write]) => Some((&action.steps, *read, *write)),
            _ => None,
        }
    }

    fn through_mark(&self, number: usize, read: Place, axis: usize, ndim: usize) -> usize {
        let statement = &self.program.statements[self.graph.moves[number].statement];
        if statement.left[read.from].transposed { ndim.saturating_sub(1 + axis) } else { axis }
    }

    /// The degree of the left side as the reference counts it.
    pub(crate) fn guess_left(&self, number: usize, source: Option<&Catalog>) -> Result<usize, Fault> {
        let Some(source) = source else { return Ok(1) };
        let step = &self.graph.moves[number];
        let Some(Place { version: Some(version), from }) = step.reads.first().copied() else { return Ok(1) };
        if self.program.statements[step.statement].left[from].transposed {
            return Ok(1);
        }
        self.chains.as_ref().map_or(Ok(1), |chains| {
            chains.count(&chains.from, self.graph, self.graph.versions[version].name, source)
        })
    }

    /// The degree of the right side as the reference counts it.
    pub(crate) fn guess_right(&self, number: usize, target: Option<&Catalog>) -> Result<usize, Fault> {
        let write = self.graph.moves[number].writes.first().and_then(|place| place.version);
        match (write, target, &self.chains) {
            (Some(version), Some(target), Some(chains)) => {
                chains.count(&chains.to, self.graph, self.graph.versions[version].name, target)
            }
            _ => Ok(1),
        }
    }
}

/// Where a dim goes; none when a reshape loses it.
fn moved(change: &Change, axis: usize, ndim: usize) -> Option<usize> {
    match change {
        Change::Cast { .. } => Some(axis),
        Change::Reshape { .. } => None,
        Change::Permute(order) if order.is_empty() => Some(ndim.saturating_sub(1 + axis)),
        Change::Permute(order) => order.iter().position(|&from| wrapped(from, ndim) == Some(axis)),
    }
}

/// Where a dim came from.
fn moved_back(change: &Change, axis: usize, ndim: usize) -> Option<usize> {
    match change {
        Change::Permute(order) if !order.is_empty() => wrapped(*order.get(axis)?, ndim),
        _ => moved(change, axis, ndim),
    }
}

fn wrapped(dim: i64, ndim: usize) -> Option<usize> {
    usize::try_from(if dim < 0 { dim + ndim as i64 } else { dim }).ok()
}

/// The reference's maps from name to name: the last statement about a name wins.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    from: HashMap<NameId, NameId>,
    to: HashMap<NameId, NameId>,
}

impl Chains {
    pub(crate) fn new(graph: &Graph) -> Chains {
        let mut chains = Chains::default();
        for step in &graph.moves {
            let names = |places: &[Place]| -> Vec<NameId> {
                places.iter().filter_map(|p| p.version).map(|v| graph.versions[v].name).collect()
            };
            let (left, right) = (names(&step.reads), names(&step.writes));
            let (Some(&first), Some(&target)) = (left.first(), right.first()) else { continue };
            right.iter().for_each(|name| _ = chains.from.insert(*name, first));
            left.iter().for_each(|name| _ = chains.to.insert(*name, target));
        }
        chains
    }

    /// Follows a name until the catalog has it, and counts its shards.
    fn count(
        &self,
        map: &HashMap<NameId, NameId>,
        graph: &Graph,
        start: NameId,
        catalog: &Catalog,
    ) -> Result<usize, Fault> {
        let mut name = start;
        let mut seen = HashSet::new();
        while let Some(&next) = map.get(&name) {
            if !seen.insert(name) {
                return Err(Fault::Circle { name: graph.names.text(start).to_string() });
            }
            if catalog.get(graph.names.text(name)).is_some() {
                break;
            }
            name = next;
        }
        Ok(catalog.get(graph.names.text(name)).map_or(1, Tensor::shards))
    }
}
