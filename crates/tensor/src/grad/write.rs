//! Writes in place: the value changes under the tensor, and its history with it.

use super::mode::is_recording;
use super::node::{Edge, View, record, replay};
use crate::attributes::Attributes;
use crate::dispatch::{Results, apply1};
use crate::error::{Error, Result};
use crate::grad::{Backward, wanted};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec, only};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::rule::Rule;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Gives `target` a history in which `op` made it from `inputs`, of which the first is its value before. The bytes
/// have been written already.
pub(crate) fn rewrite(target: &Tensor, op: Arc<dyn Op>, inputs: &[&Tensor]) -> Result<()> {
    let Some(needs) = wanted(inputs) else { return Ok(()) };
    let results: Results = smallvec![(target.0.array.clone(), target.0.place.clone())];
    let made = only(record(op, inputs, results, needs)?)?;
    let edge = made.lock().clone();
    if let Some(view) = &target.0.view {
        let value = Tensor::raw(target.0.array.clone(), target.0.place.clone(), edge.clone(), None);
        write_through(view, &value)?;
    }
    set_history(target, edge);
    Ok(())
}

impl Tensor {
    /// Refuses a write in place that would lose the gradient of a leaf.
    pub(crate) fn check_writable(&self, op: &'static str) -> Result<()> {
        let base = self.0.view.as_ref().map_or(self, |view| &view.base);
        if is_recording() && (self.is_leaf() || base.is_leaf()) {
            Err(Error::LeafWrite { op })
        } else {
            Ok(())
        }
    }
}

fn set_history(tensor: &Tensor, edge: Option<Edge>) {
    *tensor.lock() = edge;
    let rewrites = tensor.0.rewrites.fetch_add(1, Ordering::AcqRel);
    debug_assert!(rewrites < u64::MAX);
}

/// The base of a view gets the history of a write through it; the view itself has seen it.
fn write_through(view: &View, value: &Tensor) -> Result<()> {
    let base = &view.base;
    let before = Tensor::raw(base.0.array.clone(), base.0.place.clone(), base.edge(), None);
    let alone = if let [view] = &view.chain[..] { view.put_back() } else { None };
    let op = alone.unwrap_or_else(|| Arc::new(PutView { chain: view.chain.clone() }));
    if let Some(needs) = wanted(&[&before, value]) {
        let results: Results = smallvec![(base.0.array.clone(), base.0.place.clone())];
        let made = only(record(op, &[&before, value], results, needs)?)?;
        set_history(base, made.lock().clone());
        view.seen.store(base.rewrites(), Ordering::Release);
    }
    Ok(())
}

/// A copy of input 0 in which the part that the chain of view ops shows is input 1.
#[derive(Debug, Clone)]
struct PutView {
    chain: SmallVec<[Arc<dyn Op>; 1]>,
}

impl Op for PutView {
    fn name(&self) -> &'static str {
        "put_view"
    }

    fn attributes(&self) -> Attributes {
        let names = self.chain.iter().map(|op| op.name().into()).collect::<Vec<_>>();
        self.chain.iter().fold(
            Attributes::new().with("chain", crate::attributes::Attr::List(names)),
            |all, op| {
                op.attributes()
                    .iter()
                    .fold(all, |all, (name, value)| all.with_read(name.to_string().into(), value.clone()))
            },
        )
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let ndims = |list: &[Spec]| list.iter().map(|s| s.shape.ndim()).collect::<Vec<_>>();
        Ok(Rule::whole(&ndims(inputs), &ndims(outputs)))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        if inputs[0].is_meta() {
            return Ok(smallvec![inputs[0].clone()]);
        }
        let out = inputs[0].copy()?;
        let shown = self
            .chain
            .iter()
            .try_fold(out.clone(), |array, op| only(op.forward(&[&array], &Local::Whole)?))?;
        shown.copy_from(inputs[1])?;
        Ok(smallvec![out])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None, None]) };
        let base = at.needs(0).then(|| apply1(self.clone(), &[grad, &at.input_zeros(1)?])).transpose()?;
        let value = at.needs(1).then(|| replay(&self.chain, grad.clone())).transpose()?;
        Ok(smallvec![base, value])
    }
}
