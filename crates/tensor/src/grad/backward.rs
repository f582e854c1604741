//! Backward: gradients go from node to node, latest first, and what is not needed any more is dropped on the way.

use super::mode::{no_grad, with_grad};
use super::node::{Edge, Kept, Meta, Node, NodeKind, OpNode, Saved, next_number};
use super::split::Aside;
use crate::error::{Error, Result};
use crate::op::{Places, Spec};
use crate::steps;
use crate::tensor::{Place, Tensor};
use planaria_array::Array;
use planaria_array::ops::Binary;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, PoisonError};

/// What backward leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GradOptions {
    /// Saved values stay, so that backward can go through the same history again.
    pub keep_history: bool,
    /// Gradients have history themselves, so that they can be differentiated. Implies `keep_history`.
    pub differentiable: bool,
}

/// What an op's gradient may look at.
pub struct Backward<'a> {
    node: &'a Arc<Node>,
    op: &'a OpNode,
    needs: Places,
    saved: Saved,
    options: GradOptions,
    carried: Cell<Option<Tensor>>,
}

impl std::fmt::Debug for Backward<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backward({})", self.op.op.name())
    }
}

impl Backward<'_> {
    /// True when the gradient of this input is wanted.
    pub fn needs(&self, input: usize) -> bool {
        self.needs.has(input)
    }

    /// A saved input.
    pub fn input(&self, input: usize) -> Result<Tensor> {
        let kept = self.kept(&self.saved.inputs, input)?;
        kept.tensor(kept.edge.clone(), self.op.op.name(), || format!("input {input}"))
    }

    /// A saved output.
    pub fn output(&self, output: usize) -> Result<Tensor> {
        let kept = self.kept(&self.saved.outputs, output)?;
        let edge = Edge { node: self.node.clone(), output };
        kept.tensor(Some(edge), self.op.op.name(), || format!("output {output}"))
    }

    fn kept<'s>(&self, list: &'s [Option<Kept>], place: usize) -> Result<&'s Kept> {
        list.get(place)
            .and_then(Option::as_ref)
            .ok_or(Error::Bug("a gradient asks for a value its op did not save"))
    }

    /// Shape and dtype of an input.
    pub fn input_spec(&self, input: usize) -> &Spec {
        &self.op.metas[input].spec
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.op.metas.len()
    }

    /// Shape and dtype of an output.
    pub fn output_spec(&self, output: usize) -> &Spec {
        &self.node.outputs[output].spec
    }

    /// Zeros like an output, for a kernel that wants the gradient of each.
    pub fn zeros(&self, output: usize) -> Result<Tensor> {
        zeros(&self.node.outputs[output])
    }

    /// Zeros like an input.
    pub fn input_zeros(&self, input: usize) -> Result<Tensor> {
        zeros(&self.op.metas[input])
    }

    /// True when the gradient will itself be differentiated: fused kernels without a gradient must not be used.
    pub fn is_differentiable(&self) -> bool {
        self.options.differentiable
    }

    /// What has come to input 0 by other ways, laid as `like`: who takes it gives it back inside the gradient of that input.
    /// Only for ops that say so by [`crate::Op::adds_carried`].
    pub(crate) fn carried(&self, like: &Tensor) -> Option<Tensor> {
        let carried = self.carried.take()?;
        if carried.0.place == like.0.place {
            return Some(carried);
        }
        self.carried.set(Some(carried));
        None
    }

    /// The device of an input.
    pub(crate) fn input_device(&self, input: usize) -> planaria_array::Device {
        self.op.metas[input].device
    }

    /// Where an input lay.
    pub(crate) fn input_place(&self, input: usize) -> Option<&Place> {
        self.op.metas[input].place.as_ref()
    }
}

/// Zeros in the layout of a value; pending contributions of zero are zero.
fn zeros(meta: &Meta) -> Result<Tensor> {
    let extents = meta.place.as_ref().map(Place::extents).transpose()?;
    let extents = extents.unwrap_or_else(|| meta.spec.shape.dims().into());
    let array = Array::zeros_on(&extents, meta.spec.dtype, meta.device)?;
    Ok(Tensor::raw(array, meta.place.clone(), None, None))
}

/// Gradients of `tensor` (times `grad`; 1 for a single element) on all leaves it came from.
pub fn backward(tensor: &Tensor, grad: Option<&Tensor>, options: GradOptions) -> Result<()> {
    let roots = [root(tensor, grad)?];
    Run::new(options, None).go(roots)?;
    Ok(())
}

/// Gradients of `outputs` (times `grads`; 1 for single elements) with respect to `inputs`. Absent where an input does
/// not take part. Leaves are not touched.
pub fn grad(
    outputs: &[&Tensor],
    grads: &[Option<&Tensor>],
    inputs: &[&Tensor],
    options: GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let targets = inputs
        .iter()
        .map(|t| t.edge().ok_or_else(|| Error::NoHistory { what: format!("{t:?}") }))
        .collect::<Result<Vec<_>>>()?;
    let given = |i: usize| grads.get(i).copied().flatten();
    let roots = outputs.iter().enumerate().map(|(i, t)| root(t, given(i))).collect::<Result<Vec<_>>>()?;
    Run::new(options, Some((&roots, targets))).go(roots.clone())
}

/// Where backward starts, with the gradient there.
pub(super) type Root = (Edge, Tensor);

/// The gradients of a node's outputs; absent where nothing arrived.
pub(super) type Arrived = SmallVec<[Option<Tensor>; 1]>;

fn root(tensor: &Tensor, grad: Option<&Tensor>) -> Result<Root> {
    let edge = tensor.edge().ok_or_else(|| Error::NoHistory { what: format!("{tensor:?}") })?;
    let Some(grad) = grad else {
        if tensor.numel() != 1 {
            return Err(Error::NotScalar { shape: tensor.shape().clone() });
        }
        return Ok((edge, tensor.ones_like()?));
    };
    check_kind(grad, &tensor.spec())?;
    Ok((edge, grad.clone()))
}

/// A gradient is of its tensor's shape and dtype.
pub(super) fn check_kind(grad: &Tensor, expected: &Spec) -> Result<()> {
    let text = |s: &Spec| format!("{}{}", s.dtype, s.shape);
    match grad.spec() == *expected {
        true => Ok(()),
        false => Err(Error::GradientKind { found: text(&grad.spec()), expected: text(expected) }),
    }
}

/// The sum of the gradients that have arrived at one output.
type Slot = Option<Tensor>;

/// Adds a gradient, in place where nobody else can see the sum.
fn accumulate(slot: &mut Slot, grad: Tensor, options: GradOptions) -> Result<()> {
    *slot = Some(match slot.take() {
        None => grad,
        Some(sum) if can_add_in_place(&sum, &grad, options) => {
            sum.0.array.binary_in_place(Binary::Add, &grad.0.array)?;
            sum
        }
        Some(sum) => sum.add(&grad)?,
    });
    Ok(())
}

fn can_add_in_place(sum: &Tensor, grad: &Tensor, options: GradOptions) -> bool {
    let alike = sum.0.place == grad.0.place && sum.0.array.shape() == grad.0.array.shape();
    let ours = Arc::strong_count(&sum.0) == 1 && sum.0.array.is_exclusive() && sum.0.array.is_contiguous();
    alike && ours && !options.differentiable && !sum.0.array.is_meta()
}

struct Entry {
    node: Arc<Node>,
    slots: SmallVec<[Slot; 1]>,
}

/// One backward under way.
pub(super) struct Run {
    options: GradOptions,
    open: HashMap<u64, Entry>,
    order: BinaryHeap<u64>,
    /// With targets: their edges, what arrived, and the nodes on the way to them.
    targets: Option<Targets>,
    /// What leads to no target is laid aside here for later, instead of being dropped.
    pub(super) aside: Option<Aside>,
}

struct Targets {
    edges: Vec<Edge>,
    found: Vec<Option<Tensor>>,
    way: Way,
    /// Nodes made since are inside recomputed blocks.
    started: u64,
}

impl Run {
    pub(super) fn new(options: GradOptions, wanted: Option<(&[Root], Vec<Edge>)>) -> Run {
        let targets = wanted.map(|(roots, edges)| {
            let mut way = Way::to(&edges);
            way.follow(roots.iter().map(|(edge, _)| edge.node.clone()).collect());
            let found = edges.iter().map(|_| None).collect();
            Targets { way, found, edges, started: next_number() }
        });
        Run { options, open: HashMap::new(), order: BinaryHeap::new(), targets, aside: None }
    }

    fn go(mut self, roots: impl IntoIterator<Item = Root>) -> Result<Vec<Option<Tensor>>> {
        for (edge, grad) in roots {
            self.arrive(&edge, grad)?;
        }
        let differentiable = self.options.differentiable;
        let work = || {
            self.drain(0)?;
            Ok(self.finish().0)
        };
        if differentiable { with_grad(work) } else { no_grad(work) }
    }

    /// Visits open nodes with a number past `level`, latest first.
    pub(super) fn drain(&mut self, level: u64) -> Result<()> {
        while self.order.peek().is_some_and(|&number| number > level) {
            let entry = self.order.pop().and_then(|number| self.open.remove(&number));
            entry.map_or(Ok(()), |entry| self.visit(entry))?;
        }
        Ok(())
    }

    /// What arrived at the targets, and the nodes on the way to them.
    pub(super) fn finish(self) -> (Vec<Option<Tensor>>, HashSet<u64>) {
        self.targets.map(|t| (t.found, t.way.on)).unwrap_or_default()
    }

    /// True when gradients for this node are wanted in this run.
    fn leads(&self, number: u64) -> bool {
        let Some(targets) = &self.targets else { return true };
        let inside = self.aside.is_none() && number >= targets.started;
        inside || targets.way.on.contains(&number)
    }

    /// A gradient has come to an output of a node.
    pub(super) fn arrive(&mut self, edge: &Edge, grad: Tensor) -> Result<()> {
        let number = edge.node.number;
        if !self.leads(number) {
            if let Some(aside) = &mut self.aside {
                aside.lay_arrival(edge.clone(), grad);
            }
            return Ok(());
        }
        let entry = self.open.entry(number).or_insert_with(|| {
            self.order.push(number);
            let slots = edge.node.outputs.iter().map(|_| None).collect();
            Entry { node: edge.node.clone(), slots }
        });
        accumulate(&mut entry.slots[edge.output], grad, self.options)
    }

    fn visit(&mut self, entry: Entry) -> Result<()> {
        let Entry { node, slots } = entry;
        if let Some(aside) = &mut self.aside {
            aside.passes(node.number);
        }
        let mut grads = Arrived::new();
        for (output, slot) in slots.into_iter().enumerate() {
            grads.push(slot.map(|grad| node.hooked(output, grad)).transpose()?);
        }
        if let Some(targets) = &mut self.targets {
            for (edge, found) in targets.edges.iter().zip(&mut targets.found) {
                if Arc::ptr_eq(&edge.node, &node) {
                    *found = grads[edge.output].clone();
                }
            }
        }
        match &node.kind {
            NodeKind::Leaf(slot) if self.targets.is_none() => {
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(grad) = grads.into_iter().next().flatten() {
                    let sum = match slot.take() {
                        Some(before) => before.add(&grad)?,
                        None => grad,
                    };
                    *slot = Some(sum);
                }
                Ok(())
            }
            NodeKind::Leaf(_) => Ok(()),
            NodeKind::Block(block) => {
                let outputs = block.run()?;
                if let (Some(_), Some(targets)) = (&self.aside, &mut self.targets) {
                    targets.way.follow(outputs.iter().filter_map(|t| Some(t.edge()?.node)).collect());
                }
                for (output, grad) in outputs.iter().zip(grads) {
                    if let (Some(edge), Some(grad)) = (output.edge(), grad) {
                        self.arrive(&edge, grad)?;
                    }
                }
                Ok(())
            }
            NodeKind::Op(op) => self.through(&node, op, grads),
        }
    }

    /// From the gradients of an op's outputs to those of its inputs.
    fn through(&mut self, node: &Arc<Node>, op: &OpNode, grads: Arrived) -> Result<()> {
        let leads = |edge: &Option<Edge>| edge.as_ref().is_some_and(|e| self.leads(e.node.number));
        let needs: Places = match self.targets {
            None => op.needs.clone(),
            Some(_) => op.inputs.iter().map(leads).collect(),
        };
        let rest = self.aside.is_some() && op.inputs.iter().any(|e| e.is_some() && !leads(e));
        if let Some(aside) = self.aside.as_mut().filter(|_| rest) {
            aside.lay_node(node.clone(), grads.clone());
        }
        match rest && needs.is_empty() {
            true => Ok(()),
            false => self.through_to(node, op, grads, needs, if rest { Saving::Stays } else { Saving::Goes }),
        }
    }

    /// Takes what has come to an op's first input by other ways, if its gradient can add that to its own.
    fn carried(&mut self, op: &OpNode, needs: &Places) -> Option<Tensor> {
        // What is differentiated or listed is made of additions that can be seen.
        let plain = !self.options.differentiable && !steps::is_listing();
        if !plain || !needs.has(0) || !op.op.adds_carried() {
            return None;
        }
        let edge = op.inputs.first()?.as_ref()?;
        self.open.get_mut(&edge.node.number)?.slots[edge.output].take()
    }

    /// The same for some of the inputs.
    pub(super) fn through_to(
        &mut self,
        node: &Arc<Node>,
        op: &OpNode,
        grads: Arrived,
        needs: Places,
        saving: Saving,
    ) -> Result<()> {
        let keeps = saving == Saving::Stays || self.options.keep_history || self.options.differentiable;
        let mut slot = op.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = if keeps { slot.clone() } else { slot.take() };
        drop(slot);
        let saved = saved.ok_or(Error::Freed { op: op.op.name() })?;
        let carried = Cell::new(self.carried(op, &needs));
        let at = Backward { node, op, needs, saved, options: self.options, carried };
        let inputs = steps::gradient_of(node.number, op.op.name(), || op.op.vjp(&at, &grads))?;
        let needs = at.needs;
        if let (Some(Some(edge)), Some(left)) = (op.inputs.first(), at.carried.take()) {
            self.arrive(edge, left)?;
        }
        drop((at.saved, grads));
        for (input, (edge, grad)) in op.inputs.iter().zip(inputs).enumerate() {
            if let (Some(edge), Some(grad), true) = (edge, grad, needs.has(input)) {
                self.arrive(edge, grad)?;
            }
        }
        Ok(())
    }
}

/// What becomes of saved values that a gradient has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saving {
    Goes,
    /// They are needed once more.
    Stays,
}

/// Nodes from which some target can be reached.
struct Way {
    on: HashSet<u64>,
    seen: HashSet<u64>,
}

impl Way {
    fn to(targets: &[Edge]) -> Way {
        Way { on: targets.iter().map(|edge| edge.node.number).collect(), seen: HashSet::new() }
    }

    /// Decides for all nodes behind `open` that were not seen before.
    fn follow(&mut self, mut open: Vec<Arc<Node>>) {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        while let Some(node) = open.pop() {
            if self.seen.insert(node.number) {
                open.extend(node.parents().map(|edge| edge.node.clone()));
                nodes.push(node);
            }
        }
        // Parents have lower numbers, so going up finds each of them decided.
        nodes.sort_unstable_by_key(|node| node.number);
        for node in nodes {
            // What a block has captured shows only when it runs again.
            let captured = matches!(node.kind, NodeKind::Block(_));
            if captured || node.parents().any(|edge| self.on.contains(&edge.node.number)) {
                self.on.insert(node.number);
            }
        }
    }
}
