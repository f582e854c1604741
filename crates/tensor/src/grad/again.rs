//! Values that the history does not keep because a cheap op gives them from values that are kept.

use super::mode;
use super::node::{Kept, Meta, NodeKind};
use crate::dispatch::run_placed;
use crate::error::{Error, Result};
use crate::op::Op;
use crate::tensor::{Place, Tensor};
use planaria_array::Array;
use smallvec::SmallVec;
use std::sync::{Arc, PoisonError};

/// How to compute a value again.
#[derive(Clone)]
pub(super) struct Again {
    op: Arc<dyn Op>,
    inputs: SmallVec<[Kept; 2]>,
    /// Where all results lie.
    places: SmallVec<[Option<Place>; 1]>,
    /// Which of them it is.
    output: usize,
}

impl Again {
    /// How to compute a tensor again, where that is wanted, cheap, and possible from what its op has kept.
    pub(super) fn of(tensor: &Tensor) -> Option<Arc<Again>> {
        if !mode::is_selective() || tensor.0.view.is_some() {
            return None;
        }
        let edge = tensor.edge()?;
        let NodeKind::Op(node) = &edge.node.kind else { return None };
        // A value that was written to or moved since is not what its op gave.
        let (now, made) = (Meta::of(tensor), &edge.node.outputs[edge.output]);
        let as_made = now.version == made.version && now.spec == made.spec && now.place == made.place;
        if !as_made || !node.op.is_cheap() {
            return None;
        }
        let saved = node.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = saved.as_ref()?.inputs.iter().map(|kept| Some(kept.as_ref()?.without_history()));
        let inputs = kept.collect::<Option<SmallVec<_>>>()?;
        if inputs.len() != node.metas.len() {
            return None;
        }
        let places = edge.node.outputs.iter().map(|meta| meta.place.clone()).collect();
        Some(Arc::new(Again { op: node.op.clone(), inputs, places, output: edge.output }))
    }

    /// The value.
    pub(super) fn compute(&self) -> Result<Array> {
        let name = self.op.name();
        let input = |(i, kept): (usize, &Kept)| kept.tensor(None, name, || format!("input {i}"));
        let inputs = self.inputs.iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
        let results = run_placed(&*self.op, &inputs, &self.places)?;
        results.into_iter().nth(self.output).ok_or(Error::Bug("an op gave fewer outputs than before"))
    }
}
