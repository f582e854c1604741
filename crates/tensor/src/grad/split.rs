//! Backward in two parts: first the gradients of some inputs, later those of everything else.
//!
//! A pipeline stage owes its predecessor the gradient of its input at once; the gradients of its parameters can wait
//! for an idle moment. Both parts together do the same sums in the same order as one backward.

use super::backward::{Arrived, GradOptions, Run, Saving};
use super::handle::History;
use super::mode::no_grad;
use super::node::{Edge, Node, NodeKind};
use crate::error::Result;
use crate::op::Places;
use crate::tensor::Tensor;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The part of a backward that was put off. Dropping it drops those gradients.
#[must_use = "the gradients of the leaves are made by `run`"]
#[derive(Default)]
pub struct Deferred {
    later: Vec<Later>,
    /// Nodes whose gradients were made in the first part.
    done: HashSet<u64>,
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deferred({} steps)", self.later.len())
    }
}

/// One step that was put off.
struct Later {
    /// In one backward, all open nodes past this number are visited before this step.
    level: u64,
    what: What,
}

enum What {
    /// The gradients of an op's outputs; some of its inputs wait for theirs.
    Node(Arc<Node>, Arrived),
    /// A gradient that came to where only the second part goes.
    Arrival(Edge, Tensor),
}

/// Steps laid aside by the first part.
pub(super) struct Aside {
    later: Vec<Later>,
    /// Lowest node visited since the last step was laid aside.
    low: u64,
}

impl Aside {
    /// A node is visited.
    pub(super) fn passes(&mut self, number: u64) {
        self.low = self.low.min(number);
    }

    pub(super) fn lay_node(&mut self, node: Arc<Node>, grads: Arrived) {
        self.lay(What::Node(node, grads));
    }

    pub(super) fn lay_arrival(&mut self, edge: Edge, grad: Tensor) {
        self.lay(What::Arrival(edge, grad));
    }

    fn lay(&mut self, what: What) {
        let level = std::mem::replace(&mut self.low, u64::MAX);
        self.later.push(Later { level, what });
    }
}

/// The gradients of `roots` (times the tensors given with them; 1 for single elements) with respect to `inputs`,
/// absent where an input takes no part, and the rest of the backward, to be run later. Leaves are not touched.
///
/// Between the two parts the history keeps what the second needs: the saved values of ops with inputs that do not
/// lead to `inputs`, and the gradients of their outputs.
pub fn backward_inputs(
    roots: &[(History, Option<Tensor>)],
    inputs: &[History],
) -> Result<(Vec<Option<Tensor>>, Deferred)> {
    let roots = roots.iter().map(|(at, grad)| at.root(grad.as_ref())).collect::<Result<Vec<_>>>()?;
    if inputs.is_empty() {
        let later = |(edge, grad)| Later { level: u64::MAX, what: What::Arrival(edge, grad) };
        return Ok((
            Vec::new(),
            Deferred { later: roots.into_iter().map(later).collect(), ..Deferred::default() },
        ));
    }
    let targets = inputs.iter().map(|at| at.0.clone()).collect();
    let mut run = Run::new(GradOptions::default(), Some((&roots, targets)));
    run.aside = Some(Aside { later: Vec::new(), low: u64::MAX });
    no_grad(|| {
        roots.into_iter().try_for_each(|(edge, grad)| run.arrive(&edge, grad))?;
        run.drain(0)
    })?;
    let later = run.aside.take().map(|aside| aside.later).unwrap_or_default();
    let (found, done) = run.finish();
    Ok((found, Deferred { later, done }))
}

impl Deferred {
    /// Makes the gradients that were put off, on all leaves they belong to.
    pub fn run(self) -> Result<()> {
        let Deferred { later, done } = self;
        let mut run = Run::new(GradOptions::default(), None);
        no_grad(|| {
            for Later { level, what } in later {
                run.drain(level)?;
                match what {
                    What::Arrival(edge, grad) => run.arrive(&edge, grad)?,
                    What::Node(node, grads) => {
                        let NodeKind::Op(op) = &node.kind else { continue };
                        let waits = |edge: &Option<Edge>| {
                            edge.as_ref().is_some_and(|e| !done.contains(&e.node.number))
                        };
                        let needs: Places = op.inputs.iter().map(waits).collect();
                        run.through_to(&node, op, grads, needs, Saving::Goes)?;
                    }
                }
            }
            run.drain(0)
        })
    }

    /// True when nothing was put off.
    pub fn is_empty(&self) -> bool {
        self.later.is_empty()
    }
}
