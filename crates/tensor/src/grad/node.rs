//! Nodes of the history, the values they keep, and views that follow writes to their base.

use super::again::Again;
use super::away::Away;
use super::mode::{self, no_grad};
use super::recompute::Block;
use crate::dispatch::{Outputs, Results, apply_shared};
use crate::error::{Error, Result};
use crate::op::{Op, Places, Spec, only};
use crate::steps;
use crate::tensor::{Place, Tensor};
use planaria_array::{Array, Device};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One output of a node.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) output: usize,
}

/// Looks at a gradient on its way, and may replace it.
pub(crate) type Hook = Box<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// How a tensor came to be.
pub(crate) struct Node {
    /// Later nodes have higher numbers, so descending order is a valid order for backward.
    pub(crate) number: u64,
    pub(crate) kind: NodeKind,
    pub(crate) outputs: SmallVec<[Meta; 1]>,
    hooks: Mutex<Vec<(usize, Hook)>>,
}

#[allow(clippy::large_enum_variant)] // nearly all nodes are ops, and a box would cost one more allocation each
pub(crate) enum NodeKind {
    /// Gradients end here.
    Leaf(Mutex<Option<Tensor>>),
    /// Made by an op.
    Op(OpNode),
    /// Made by a block that is run again in backward.
    Block(Block),
}

/// An op with its inputs.
pub(crate) struct OpNode {
    pub(crate) op: Arc<dyn Op>,
    /// Where gradients of the inputs go; absent where none is wanted.
    pub(crate) inputs: SmallVec<[Option<Edge>; 2]>,
    pub(crate) metas: SmallVec<[Meta; 2]>,
    pub(crate) needs: Places,
    /// Gone once backward has used them.
    pub(crate) saved: Mutex<Option<Saved>>,
}

/// What is known of a tensor without its values.
#[derive(Clone)]
pub(crate) struct Meta {
    pub(crate) spec: Spec,
    pub(crate) place: Option<Place>,
    pub(crate) device: Device,
    /// Of the elements when this was noted.
    pub(crate) version: u64,
}

/// Values kept for a gradient.
#[derive(Clone, Default)]
pub(crate) struct Saved {
    pub(crate) inputs: SmallVec<[Option<Kept>; 2]>,
    pub(crate) outputs: SmallVec<[Option<Kept>; 1]>,
}

/// One kept value.
#[derive(Clone)]
pub(crate) struct Kept {
    elements: Elements,
    place: Option<Place>,
    pub(crate) edge: Option<Edge>,
}

/// Where the elements of a kept value are.
#[derive(Clone)]
enum Elements {
    /// Here, with their version when they were kept.
    Here(Array, u64),
    /// Elsewhere.
    Away(Away),
    /// Nowhere: they are computed again.
    Again(Arc<Again>),
}

impl Kept {
    pub(crate) fn new(tensor: &Tensor) -> Kept {
        let here = || Elements::Here(tensor.0.array.clone(), tensor.0.array.version());
        let again = || Again::of(tensor).map(Elements::Again);
        let elements = Away::of(tensor).map(Elements::Away).or_else(again).unwrap_or_else(here);
        Kept { elements, place: tensor.0.place.clone(), edge: tensor.edge() }
    }

    /// The same value for one who asks for no gradient of it.
    pub(super) fn without_history(&self) -> Kept {
        Kept { edge: None, ..self.clone() }
    }

    fn result(array: &Array, place: &Option<Place>) -> Kept {
        Kept { elements: Elements::Here(array.clone(), array.version()), place: place.clone(), edge: None }
    }

    /// The tensor, unless it was written to since.
    pub(crate) fn tensor(
        &self,
        edge: Option<Edge>,
        op: &'static str,
        what: impl Fn() -> String,
    ) -> Result<Tensor> {
        let array = match &self.elements {
            Elements::Away(away) => away.fetch()?,
            Elements::Again(again) => no_grad(|| again.compute())?,
            Elements::Here(array, saved) if array.version() == *saved => array.clone(),
            Elements::Here(array, saved) => {
                return Err(Error::Stale { op, what: what(), saved: *saved, now: array.version() });
            }
        };
        Ok(Tensor::raw(array, self.place.clone(), edge, None))
    }
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl Meta {
    pub(crate) fn of(tensor: &Tensor) -> Meta {
        let array = &tensor.0.array;
        let (device, version) = (array.device(), array.version());
        Meta { spec: tensor.spec(), place: tensor.0.place.clone(), device, version }
    }

    fn result(array: &Array, place: &Option<Place>) -> Meta {
        let shape = place.as_ref().map_or(array.shape(), |p| p.layout.shape()).clone();
        let spec = Spec { shape, dtype: array.dtype() };
        Meta { spec, place: place.clone(), device: array.device(), version: array.version() }
    }
}

impl Node {
    pub(crate) fn new(kind: NodeKind, outputs: SmallVec<[Meta; 1]>) -> Arc<Node> {
        Arc::new(Node { number: next_number(), kind, outputs, hooks: Mutex::default() })
    }

    pub(crate) fn leaf(tensor: &Tensor) -> Arc<Node> {
        Node::new(NodeKind::Leaf(Mutex::default()), SmallVec::from_iter([Meta::of(tensor)]))
    }

    pub(crate) fn add_hook(&self, output: usize, hook: Hook) {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push((output, hook));
    }

    /// The gradient of an output after its hooks.
    pub(crate) fn hooked(&self, output: usize, mut grad: Tensor) -> Result<Tensor> {
        for (_, hook) in
            self.hooks.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|h| h.0 == output)
        {
            if let Some(replaced) = hook(&grad)? {
                grad = replaced;
            }
        }
        Ok(grad)
    }

    /// Edges to the nodes this one was made from.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &Edge> {
        let op = if let NodeKind::Op(op) = &self.kind { op.inputs.as_slice() } else { &[] };
        let block = if let NodeKind::Block(block) = &self.kind { block.inputs.as_slice() } else { &[] };
        op.iter().flatten().chain(block.iter().filter_map(|kept| kept.edge.as_ref()))
    }
}

impl Node {
    /// Moves the edges of this node, also those of what it saved, to a list.
    fn give_edges(&mut self, to: &mut Vec<Edge>) {
        match &mut self.kind {
            NodeKind::Leaf(_) => {}
            NodeKind::Op(op) => {
                to.extend(op.inputs.drain(..).flatten());
                let saved =
                    op.saved.get_mut().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
                to.extend(saved.inputs.into_iter().flatten().filter_map(|kept| kept.edge));
            }
            NodeKind::Block(block) => to.extend(block.inputs.iter_mut().filter_map(|kept| kept.edge.take())),
        }
    }
}

/// Long chains are taken apart in a loop: nested drops would need stack for each node.
impl Drop for Node {
    fn drop(&mut self) {
        let mut open = Vec::new();
        self.give_edges(&mut open);
        while let Some(edge) = open.pop() {
            if let Some(mut node) = Arc::into_inner(edge.node) {
                node.give_edges(&mut open);
            }
        }
    }
}

/// Tensors for the results of an op, with the history that leads back to its inputs.
pub(crate) fn record(
    op: Arc<dyn Op>,
    inputs: &[&Tensor],
    results: Results,
    needs: Places,
) -> Result<Outputs> {
    let saves = op.saves(&needs);
    let keep = |(i, t): (usize, &&Tensor)| saves.inputs.has(i).then(|| Kept::new(t));
    let kept = |(i, (array, place)): (usize, &(Array, Option<Place>))| {
        saves.outputs.has(i).then(|| Kept::result(array, place))
    };
    let saved = Saved {
        inputs: inputs.iter().enumerate().map(keep).collect(),
        outputs: results.iter().enumerate().map(kept).collect(),
    };
    let edge = |(i, t): (usize, &&Tensor)| if needs.has(i) { t.edge() } else { None };
    let edges = inputs.iter().enumerate().map(edge).collect();
    let metas = inputs.iter().map(|t| Meta::of(t)).collect();
    let outputs = results.iter().map(|(array, place)| Meta::result(array, place)).collect();
    let views: SmallVec<[Option<View>; 1]> =
        results.iter().enumerate().map(|(output, (array, _))| view_of(&op, output, inputs, array)).collect();
    let node = OpNode { op, inputs: edges, metas, needs, saved: Mutex::new(Some(saved)) };
    let node = Node::new(NodeKind::Op(node), outputs);
    let mut made = Outputs::new();
    for (output, ((array, place), view)) in results.into_iter().zip(views).enumerate() {
        let edge = array.dtype().is_float().then(|| Edge { node: node.clone(), output });
        made.push(Tensor::raw(array, place, edge, view));
    }
    Ok(made)
}

/// The tensor for the one result of an op that is not a kernel of its own, with history where that is recorded.
pub(crate) fn made(
    op: Arc<dyn Op>,
    input: &Tensor,
    (array, place): (Array, Option<Place>),
) -> Result<Tensor> {
    let output = match mode::wanted(&[input]) {
        None => Tensor::raw(array, place, None, None),
        Some(needs) => only(record(op.clone(), &[input], SmallVec::from_iter([(array, place)]), needs)?)?,
    };
    steps::ran(&op, &[input], std::slice::from_ref(&output));
    Ok(output)
}

/// Tensors for the results of a view op that records nothing. They still know their base: a later write through
/// either may bring history.
pub(crate) fn unrecorded(op: Arc<dyn Op>, inputs: &[&Tensor], results: Results) -> Outputs {
    let tensor = |(output, (array, place)): (usize, (Array, Option<Place>))| {
        let view = view_of(&op, output, inputs, &array);
        Tensor::raw(array, place, None, view)
    };
    results.into_iter().enumerate().map(tensor).collect()
}

/// A tensor that shows part of another's storage.
pub(crate) struct View {
    /// The tensor that owns the history of writes.
    pub(crate) base: Tensor,
    /// From the base to this view.
    pub(crate) chain: SmallVec<[Arc<dyn Op>; 1]>,
    /// Rewrites of the base that this view's history has seen.
    pub(crate) seen: AtomicU64,
}

impl Clone for View {
    fn clone(&self) -> View {
        let seen = AtomicU64::new(self.seen.load(Ordering::Acquire));
        View { base: self.base.clone(), chain: self.chain.clone(), seen }
    }
}

fn view_of(op: &Arc<dyn Op>, output: usize, inputs: &[&Tensor], result: &Array) -> Option<View> {
    let source = inputs.first().filter(|_| op.is_view())?;
    if !result.shares_storage(&source.0.array) {
        return None;
    }
    let (base, mut chain) = match &source.0.view {
        Some(view) => (view.base.clone(), view.chain.clone()),
        None => ((*source).clone(), SmallVec::new()),
    };
    chain.push(op.view_alone(output).unwrap_or_else(|| op.clone()));
    let seen = AtomicU64::new(base.rewrites());
    Some(View { base, chain, seen })
}

impl Tensor {
    /// The node that gradients of this tensor go to, after writes through other views of its storage.
    pub(crate) fn edge(&self) -> Option<Edge> {
        if let Some(view) = &self.0.view {
            let now = view.base.rewrites();
            if view.seen.swap(now, Ordering::AcqRel) != now {
                let again = mode::with_grad(|| replay(&view.chain, view.base.clone()));
                *self.lock() = again.ok().and_then(|tensor| tensor.lock().clone());
            }
        }
        self.lock().clone()
    }
}

/// The view ops of a chain, one after the other.
pub(crate) fn replay(chain: &[Arc<dyn Op>], base: Tensor) -> Result<Tensor> {
    chain.iter().try_fold(base, |tensor, op| only(apply_shared(op.clone(), &[&tensor])?))
}
