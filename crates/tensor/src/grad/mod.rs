//! Gradient history: which op made a tensor, from what, and what it kept for its gradient.

mod again;
mod away;
mod backward;
mod handle;
mod mode;
mod node;
mod recompute;
mod split;
mod write;

pub use away::Fetch;
pub use backward::{Backward, GradOptions, backward, grad};
pub use handle::{History, backward_from};
pub(crate) use mode::wanted;
pub use mode::{is_recording, no_grad, selective, with_grad};
pub(crate) use node::{Edge, View, made, record, unrecorded};
pub use recompute::recompute;
pub use split::{Deferred, backward_inputs};
pub(crate) use write::rewrite;

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use node::{Node, NodeKind};
use std::sync::PoisonError;

impl Tensor {
    /// Makes this tensor one whose gradient is wanted: a leaf of the history. Others of the same value stay as they are.
    pub fn requires_grad(&self) -> Tensor {
        let leaf = Node::leaf(self);
        Tensor::raw(self.0.array.clone(), self.0.place.clone(), Some(Edge { node: leaf, output: 0 }), None)
    }

    /// True when a gradient flows back to this tensor or past it.
    pub fn has_history(&self) -> bool {
        self.edge().is_some()
    }

    /// True for a tensor made by [`Tensor::requires_grad`].
    pub fn is_leaf(&self) -> bool {
        self.edge().is_some_and(|edge| matches!(edge.node.kind, NodeKind::Leaf(_)))
    }

    /// The gradient that backward has left on this leaf.
    pub fn grad(&self) -> Option<Tensor> {
        match &self.edge()?.node.kind {
            NodeKind::Leaf(slot) => slot.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            _ => None,
        }
    }

    /// Takes the gradient off this leaf, so that the next backward starts from nothing.
    pub fn take_grad(&self) -> Option<Tensor> {
        match &self.edge()?.node.kind {
            NodeKind::Leaf(slot) => slot.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        }
    }

    /// Calls `hook` with each gradient that arrives at this tensor; what it gives back takes its place.
    pub fn on_grad(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<()> {
        let edge = self.edge().ok_or_else(|| Error::NoHistory { what: format!("{self:?}") })?;
        edge.node.add_hook(edge.output, Box::new(hook));
        Ok(())
    }

    /// Gradients of this single element (or of its product with `grad`) on all leaves it came from. Collective.
    pub fn backward(&self) -> Result<()> {
        backward(self, None, GradOptions::default())
    }
}
