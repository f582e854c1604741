//! A tensor's place in the history without its values, and backward that starts from such places.

use super::backward::{GradOptions, Root, Run, check_kind};
use super::mode::{no_grad, with_grad};
use super::node::{Edge, Meta, NodeKind};
use crate::error::{Error, Result};
use crate::op::Spec;
use crate::ops::settled_place;
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::Layout;
use std::fmt;
use std::sync::PoisonError;

/// A tensor's place in the history, without its values: backward can start here, and the gradient of a leaf can be
/// fetched here, after the tensor itself is gone. It keeps alive only what gradients need.
#[derive(Clone)]
pub struct History(pub(super) Edge);

impl History {
    fn meta(&self) -> &Meta {
        &self.0.node.outputs[self.0.output]
    }

    /// Shape and dtype of the tensor.
    pub fn spec(&self) -> &Spec {
        &self.meta().spec
    }

    /// Its layout, if it lay on a mesh.
    pub fn layout(&self) -> Option<&Layout> {
        self.meta().place.as_ref().map(|place| place.layout.as_ref())
    }

    /// True for a leaf, made by [`Tensor::requires_grad`].
    pub fn is_leaf(&self) -> bool {
        matches!(self.0.node.kind, NodeKind::Leaf(_))
    }

    /// Takes the gradient off a leaf.
    pub fn take_grad(&self) -> Option<Tensor> {
        match &self.0.node.kind {
            NodeKind::Leaf(slot) => slot.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        }
    }

    /// Ones in the layout of the tensor; where it was pending, as a whole value.
    pub fn ones(&self) -> Result<Tensor> {
        let Meta { spec, place, device, .. } = self.meta();
        let place = place.as_ref().map(settled_place).transpose()?;
        let extents = place.as_ref().map(|p| p.extents()).transpose()?;
        let extents = extents.unwrap_or_else(|| spec.shape.dims().into());
        let array = Array::full_on(&extents, 1.0, spec.dtype, *device)?;
        Ok(Tensor::raw(array, place, None, None))
    }

    /// Where backward starts, with the gradient there.
    pub(super) fn root(&self, grad: Option<&Tensor>) -> Result<Root> {
        let grad = match grad {
            Some(grad) => grad.clone(),
            None if self.spec().shape.numel() == 1 => self.ones()?,
            None => return Err(Error::NotScalar { shape: self.spec().shape.clone() }),
        };
        check_kind(&grad, self.spec())?;
        Ok((self.0.clone(), grad))
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({}{})", self.spec().dtype, self.spec().shape)
    }
}

impl Tensor {
    /// This tensor's place in the history, if it has one.
    pub fn history(&self) -> Option<History> {
        self.edge().map(History)
    }
}

/// Gradients of all `roots` together (times the tensors given with them; 1 for single elements) on all leaves they
/// came from.
pub fn backward_from(roots: &[(History, Option<Tensor>)], options: GradOptions) -> Result<()> {
    let roots = roots.iter().map(|(at, grad)| at.root(grad.as_ref())).collect::<Result<Vec<_>>>()?;
    let mut run = Run::new(options, None);
    let work = || {
        roots.into_iter().try_for_each(|(edge, grad)| run.arrive(&edge, grad))?;
        run.drain(0)
    };
    if options.differentiable { with_grad(work) } else { no_grad(work) }
}
