//! Evaluation: moves become nodes, in text order or backwards, with every shape and element type checked.

use crate::action::{Action, Change, FusionKind, Step};
use crate::ast::Program;
use crate::catalog::Catalog;
use crate::degree::{Chains, Finder};
use crate::error::{Fault, Log, Problem, Span};
use crate::expand::Direction;
use crate::fused::Fused;
use crate::graph::{Graph, VersionId};
use crate::node::{Make, NodeId, Nodes, Slice, inverse};
use crate::options::{Degrees, Options, Strictness};
use planaria_layout::Dims;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::num::NonZeroUsize;

/// What evaluation works on.
pub(crate) struct Evaluation<'a> {
    pub(crate) program: &'a Program,
    pub(crate) actions: &'a [Option<Action>],
    pub(crate) graph: &'a Graph,
    pub(crate) given: &'a Catalog,
    pub(crate) far: Option<&'a Catalog>,
    pub(crate) options: &'a Options,
    pub(crate) log: &'a mut Log,
    pub(crate) nodes: Nodes,
    /// The node of each version; none when something before it is wrong.
    pub(crate) values: Vec<Option<NodeId>>,
    /// Nodes of the given tensors, made when they are first used.
    sources: HashMap<usize, NodeId>,
    /// Mistakes that count only if a target needs what they spoil.
    suspended: Vec<Problem>,
}

type Values = SmallVec<[NodeId; 3]>;

/// A statement seen in the direction of evaluation.
struct Turn<'t> {
    number: usize,
    action: &'t Action,
    inputs: Values,
    names: Vec<String>,
    outputs: usize,
    span: Span,
    /// Extents of the outputs along the axis, when they are known.
    sizes: Option<Vec<usize>>,
}

impl<'a> Evaluation<'a> {
    pub(crate) fn new(
        program: &'a Program,
        (actions, graph): (&'a [Option<Action>], &'a Graph),
        (given, far): (&'a Catalog, Option<&'a Catalog>),
        options: &'a Options,
        log: &'a mut Log,
    ) -> Evaluation<'a> {
        let values = vec![None; graph.versions.len()];
        let (nodes, sources) = (Nodes::default(), HashMap::new());
        let suspended = Vec::new();
        Evaluation { program, actions, graph, given, far, options, log, nodes, values, sources, suspended }
    }

    /// A mistake, unless a lenient reader can wait for a target that needs the value. The reference does not
    /// follow casts, so a file may join values of two element types as long as nobody takes the result.
    fn fail(&mut self, problem: Problem, inputs: &[NodeId]) {
        let lenient = self.options.strictness == Strictness::Lenient;
        let mixed = matches!(problem.fault, Fault::DTypesDiffer { .. });
        if lenient && mixed && self.nodes.source_dtypes(inputs).len() == 1 {
            self.suspended.push(problem);
        } else {
            self.log.error(problem);
        }
    }

    /// A target needs a value that could not be made: what was waiting counts.
    pub(crate) fn needed(&mut self) {
        self.suspended.drain(..).for_each(|problem| self.log.error(problem));
    }

    /// No target needs what is still waiting.
    pub(crate) fn unneeded(&mut self) {
        self.suspended.drain(..).for_each(|problem| self.log.warn(problem));
    }

    /// Evaluates everything.
    pub(crate) fn run(&mut self, direction: Direction) {
        let finder = Finder {
            program: self.program,
            actions: self.actions,
            graph: self.graph,
            given: self.given,
            far: self.far,
            mode: self.options.degrees,
            chains: (self.options.degrees == Degrees::Guessed).then(|| Chains::new(self.graph)),
        };
        match direction {
            Direction::Forward => (0..self.graph.moves.len()).for_each(|n| self.forward(n, &finder)),
            Direction::Reverse => (0..self.graph.moves.len()).rev().for_each(|n| self.backward(n, &finder)),
        }
    }

    /// The node of a given tensor.
    pub(crate) fn source(&mut self, name: &str) -> Option<NodeId> {
        let index = self.given.index(name)?;
        if let Some(&node) = self.sources.get(&index) {
            return Some(node);
        }
        let tensor = self.given.at(index);
        let node = self.nodes.push(tensor.shape().clone(), tensor.dtype(), Make::Source(index));
        self.sources.insert(index, node);
        Some(node)
    }

    /// The value of a version, which may be a given tensor nobody made.
    fn value(&mut self, version: VersionId, direction: Direction) -> Option<NodeId> {
        if self.values[version].is_none() {
            let outside = match direction {
                Direction::Forward => self.graph.versions[version].maker.is_none(),
                Direction::Reverse => self.graph.is_last(version),
            };
            if outside {
                self.values[version] =
                    self.source(&self.graph.names.text(self.graph.versions[version].name).clone());
            }
        }
        self.values[version]
    }

    fn forward(&mut self, number: usize, finder: &Finder<'_>) {
        let step = &self.graph.moves[number];
        let statement = &self.program.statements[step.statement];
        let Some(action) = &self.actions[step.statement] else { return };
        let mut inputs = Values::new();
        for place in &step.reads {
            let value = place.version.and_then(|v| self.value(v, Direction::Forward));
            let Some(value) = value else { return };
            let transposed = statement.left[place.from].transposed;
            inputs.push(if transposed { self.nodes.transpose(value) } else { value });
        }
        let names = step.reads.iter().filter_map(|p| p.version).map(|v| self.graph.name(v).to_string());
        let turn = Turn {
            number,
            action,
            inputs,
            names: names.collect(),
            outputs: step.writes.len(),
            span: statement.span,
            sizes: action.sizes.clone(),
        };
        let made = self.combine(&turn, finder, Direction::Forward).and_then(|made| {
            let changed = made.into_iter().map(|node| self.change(node, &action.steps, &turn.names[0]));
            changed.collect::<Result<Values, Problem>>()
        });
        match made {
            Ok(made) => {
                for (place, node) in step.writes.iter().zip(made) {
                    if let Some(version) = place.version {
                        self.values[version] = Some(node);
                    }
                }
            }
            Err(problem) => self.fail(problem, &turn.inputs),
        }
    }

    /// Undoes a move: what it read is made from what it wrote.
    fn backward(&mut self, number: usize, finder: &Finder<'_>) {
        let step = &self.graph.moves[number];
        let statement = &self.program.statements[step.statement];
        let Some(action) = &self.actions[step.statement] else { return };
        let mut inputs = Values::new();
        let mut names = Vec::new();
        for place in &step.writes {
            let value = place.version.and_then(|v| self.value(v, Direction::Reverse));
            // What nothing gives back is missed where it is needed.
            let Some(value) = value else { return };
            names.push(place.version.map_or("_", |v| self.graph.name(v)).to_string());
            inputs.push(value);
        }
        let undone: Result<Values, Problem> =
            inputs.iter().map(|&node| self.undo(node, number, action)).collect();
        let made = undone.and_then(|undone| {
            let sizes = action.sizes.clone().or_else(|| self.far_sizes(number, action, undone[0]));
            let outputs = step.reads.len();
            let turn = Turn { number, action, inputs: undone, names, outputs, span: statement.span, sizes };
            self.combine(&turn, finder, Direction::Reverse)
        });
        let made = match made {
            Ok(made) => made,
            Err(problem) => return self.fail(problem, &inputs),
        };
        for (place, node) in step.reads.iter().zip(made) {
            let Some(version) = place.version else { continue };
            let transposed = statement.left[place.from].transposed;
            let node = if transposed { self.nodes.transpose(node) } else { node };
            // A name the model keeps itself is taken from there; otherwise the first statement wins.
            let kept = self.graph.is_last(version)
                && self.graph.versions[version].maker.is_some()
                && self.given.get(self.graph.name(version)).is_some();
            if kept || self.values[version].is_some() {
                let name = self.graph.name(version).to_string();
                let span = statement.left[place.from].span;
                self.log.warn(Problem::at(Fault::KeptTwice { name }, span));
            }
            if !kept {
                self.values[version] = Some(node);
            }
        }
    }

    /// Several tensors to one, one to several, or one to one.
    fn combine(
        &mut self,
        turn: &Turn<'_>,
        finder: &Finder<'_>,
        direction: Direction,
    ) -> Result<Values, Problem> {
        let at = |fault| Problem::at(fault, turn.span);
        let (inputs, outputs) = (&turn.inputs, turn.outputs);
        let step = &self.graph.moves[turn.number];
        turn.action.check_count(step.reads.len(), step.writes.len(), turn.span)?;
        let fused = turn.action.kind != FusionKind::Plain;
        if inputs.len() == 1 && outputs == 1 && !fused {
            return Ok(inputs.clone());
        }
        if inputs.len() > 1 && outputs > 1 {
            return Err(at(Fault::ManyToMany { left: inputs.len(), right: outputs }));
        }
        let axis = turn.action.axis.unwrap_or(0);
        let axis = self.nodes.axis(inputs[0], axis, &turn.names[0]).map_err(at)?;
        let parts = if fused { self.degrees(turn, axis, finder, direction).map_err(at)? } else { (1, 1) };
        let names = |node: NodeId| {
            let known = turn.inputs.iter().position(|input| *input == node);
            known.and_then(|i| turn.names.get(i)).cloned().unwrap_or_else(|| turn.names[0].clone())
        };
        if fused {
            let sizes = turn.sizes.as_deref();
            let kind = turn.action.kind;
            let fused = Fused { kind, inputs, outputs, axis, parts, sizes, names: &names };
            return fused.make(&mut self.nodes).map(Values::from_vec).map_err(at);
        }
        if outputs == 1 {
            self.check_sizes(turn, axis).map_err(at)?;
            let slice = |&of: &NodeId| Slice {
                of,
                start: 0,
                len: self.nodes.shape(of).get(axis).copied().unwrap_or(0),
            };
            let slices: Vec<Slice> = inputs.iter().map(slice).collect();
            return self.nodes.join(axis, &slices, &names).map(|node| Values::from_elem(node, 1)).map_err(at);
        }
        self.split(turn, axis, &names).map_err(at)
    }

    /// Sizes written beside a concatenation must be those of its parts.
    fn check_sizes(&self, turn: &Turn<'_>, axis: usize) -> Result<(), Fault> {
        let Some(sizes) = &turn.action.sizes else { return Ok(()) };
        let found = turn.inputs.iter().map(|&of| self.nodes.shape(of).get(axis).copied());
        if found.eq(sizes.iter().map(|size| Some(*size))) {
            return Ok(());
        }
        let (name, shape) = (turn.names[0].clone(), self.nodes.shape(turn.inputs[0]).to_string());
        Err(Fault::BadSizes { name, shape, dim: axis, sizes: sizes.clone() })
    }

    fn split(
        &mut self,
        turn: &Turn<'_>,
        axis: usize,
        names: &dyn Fn(NodeId) -> String,
    ) -> Result<Values, Fault> {
        let of = turn.inputs[0];
        let shape = self.nodes.shape(of).clone();
        let len = shape[axis];
        let (name, text) = (turn.names[0].clone(), shape.to_string());
        let sizes = match &turn.sizes {
            Some(sizes) => {
                let total = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
                if total != Some(len) || sizes.len() != turn.outputs {
                    return Err(Fault::BadSizes { name, shape: text, dim: axis, sizes: sizes.clone() });
                }
                sizes.clone()
            }
            None if len.is_multiple_of(turn.outputs) => vec![len / turn.outputs; turn.outputs],
            None => return Err(Fault::NotDivisible { name, shape: text, dim: axis, parts: turn.outputs }),
        };
        let mut start = 0;
        let mut made = Values::new();
        for len in sizes {
            made.push(self.nodes.join(axis, &[Slice { of, start, len }], names)?);
            start += len;
        }
        Ok(made)
    }

    /// Parts of the tensor read and of the tensor made, in the direction of evaluation.
    fn degrees(
        &self,
        turn: &Turn<'_>,
        axis: usize,
        finder: &Finder<'_>,
        direction: Direction,
    ) -> Result<(usize, usize), Fault> {
        let step = &self.graph.moves[turn.number];
        let forward = direction == Direction::Forward;
        let left = turn.action.left_parts.or(self.options.left_parts.map(NonZeroUsize::get));
        let right = turn.action.right_parts.or(self.options.right_parts.map(NonZeroUsize::get));
        if finder.mode == Degrees::Guessed {
            // The reference counts before it turns the statements round, and knows of it for one tensor alone.
            let turned = !forward && step.reads.len() == 1 && step.writes.len() == 1;
            let (near, far) =
                if turned { (self.far, Some(self.given)) } else { (Some(self.given), self.far) };
            let left = left.map_or_else(|| finder.guess_left(turn.number, near), Ok)?;
            let right = right.map_or_else(|| finder.guess_right(turn.number, far), Ok)?;
            return Ok(if forward { (left, right) } else { (right, left) });
        }
        let (near, far) = if forward { (left, right) } else { (right, left) };
        let ndim = self.nodes.shape(turn.inputs[0]).ndim();
        let near = near.unwrap_or_else(|| finder.given_parts(&self.nodes, turn.inputs[0], axis));
        let far = far.unwrap_or_else(|| {
            let place = if forward { step.writes.first() } else { step.reads.first() };
            let Some((place, version)) = place.and_then(|p| Some((p, p.version?))) else { return 1 };
            let mark = &self.program.statements[step.statement].left;
            let transposed = !forward && mark[place.from].transposed;
            let axis = if transposed { ndim.saturating_sub(1 + axis) } else { axis };
            finder.far_parts(version, axis, ndim, forward)
        });
        Ok((near, far))
    }

    /// Extents the far side has for what a reversed move makes.
    fn far_sizes(&self, number: usize, action: &Action, whole: NodeId) -> Option<Vec<usize>> {
        let step = &self.graph.moves[number];
        let far = self.far.filter(|_| step.reads.len() > 1)?;
        let axis = self.nodes.axis(whole, action.axis?, "").ok()?;
        let statement = &self.program.statements[step.statement];
        let size = |place: &crate::graph::Place| {
            let version = place.version.filter(|v| self.graph.versions[*v].maker.is_none())?;
            let shape = far.get(self.graph.name(version))?.shape();
            let transposed = statement.left[place.from].transposed;
            shape.get(if transposed { shape.ndim().checked_sub(1 + axis)? } else { axis }).copied()
        };
        step.reads.iter().map(size).collect()
    }

    fn change(&mut self, node: NodeId, steps: &[Step], name: &str) -> Result<NodeId, Problem> {
        let mut node = node;
        for step in steps {
            let at = |fault| Problem::at(fault, step.span);
            node = match &step.change {
                Change::Permute(order) => {
                    let order = self.order(node, order, name).map_err(at)?;
                    self.nodes.permute(node, &order)
                }
                Change::Reshape { to, from } => {
                    let shape = self.nodes.shape(node);
                    let declared = from.as_ref().is_none_or(|from| {
                        from.len() == shape.ndim()
                            && from.iter().zip(shape.iter()).all(|(f, s)| *f == *s as i64)
                    });
                    if !declared {
                        let (shape, to) = (shape.to_string(), from.clone().unwrap_or_default());
                        return Err(at(Fault::BadReshape { name: name.into(), shape, to }));
                    }
                    self.nodes.reshape(node, to, name).map_err(at)?
                }
                Change::Cast { to, from } => {
                    if let (Some(declared), Some(found)) = (*from, self.nodes.get(node).dtype)
                        && declared != found
                    {
                        let problem = at(Fault::SrcDType { name: name.into(), declared, found });
                        match self.options.strictness {
                            Strictness::Strict => return Err(problem),
                            Strictness::Lenient => self.log.warn(problem),
                        }
                    }
                    self.nodes.cast(node, *to)
                }
            };
        }
        Ok(node)
    }

    /// The changes of a statement, last first, each undone.
    fn undo(&mut self, node: NodeId, number: usize, action: &Action) -> Result<NodeId, Problem> {
        let step = &self.graph.moves[number];
        let statement = &self.program.statements[step.statement];
        let outside = |v: &VersionId| self.graph.versions[*v].maker.is_none();
        let place = step.reads.first();
        let version = place.and_then(|p| p.version).filter(outside);
        let known = version.and_then(|v| self.far?.get(self.graph.name(v)));
        let plain = place.is_some_and(|p| !statement.left[p.from].transposed) && action.steps.len() == 1;
        let name = place.and_then(|p| p.version).map_or(String::new(), |v| self.graph.name(v).to_string());
        let mut node = node;
        for step in action.steps.iter().rev() {
            let at = |fault| Problem::at(fault, step.span);
            node = match &step.change {
                Change::Permute(order) => {
                    let order = self.order(node, order, &name).map_err(at)?;
                    self.nodes.permute(node, &inverse(&order))
                }
                Change::Cast { to, from } => {
                    let before = from.or_else(|| known.and_then(|tensor| tensor.dtype()));
                    self.nodes.cast(node, before.ok_or_else(|| at(Fault::CastOneWay { to: *to }))?)
                }
                Change::Reshape { from, .. } => {
                    let shape = known.filter(|_| plain).map(|tensor| tensor.shape());
                    let before = from.clone().or_else(|| Some(shape?.iter().map(|&d| d as i64).collect()));
                    let before = before.ok_or_else(|| at(Fault::ReshapeOneWay { name: name.clone() }))?;
                    self.nodes.reshape(node, &before, &name).map_err(at)?
                }
            };
        }
        Ok(node)
    }

    /// A checked permutation; an empty list reverses the dims.
    fn order(&self, node: NodeId, order: &[i64], name: &str) -> Result<Dims, Fault> {
        let ndim = self.nodes.shape(node).ndim();
        if order.is_empty() {
            return Ok((0..ndim).rev().collect());
        }
        let dims = order.iter().map(|&d| if d < 0 { d.saturating_add(ndim as i64) } else { d });
        let dims: Option<Dims> = dims.map(|d| usize::try_from(d).ok()).collect();
        let mut seen = dims.clone().unwrap_or_default();
        seen.sort_unstable();
        match dims {
            Some(dims) if seen.iter().copied().eq(0..ndim) => Ok(dims),
            _ => Err(Fault::BadPermutation { name: name.to_string(), ndim, order: order.to_vec() }),
        }
    }
}
