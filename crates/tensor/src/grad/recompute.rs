//! Blocks whose inner values are not kept but computed again in backward.

use super::mode::{is_recording, watch, with_grad};
use super::node::{Edge, Kept, Meta, Node, NodeKind};
use crate::error::Result;
use crate::random;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

type Work = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// A block to run again.
pub(crate) struct Block {
    work: Arc<Work>,
    pub(crate) inputs: SmallVec<[Kept; 2]>,
    /// Where the random numbers of the block start.
    random: random::DrawState,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} inputs)", self.inputs.len())
    }
}

/// Runs `work` and keeps only its inputs; backward runs it again, with the same random numbers, and goes through
/// the history that this makes. Gradients also reach tensors that `work` captured.
///
/// The results are the same bits as without recomputing, because `work` is the same ops on the same values.
pub fn recompute(
    inputs: &[&Tensor],
    work: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    let given: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    let random = random::state();
    let (results, touched) = watch(|| work(&given));
    let results = results?;
    if !touched || !is_recording() {
        return Ok(results);
    }
    let block = Block { work: Arc::new(work), inputs: inputs.iter().map(|t| Kept::new(t)).collect(), random };
    let node = Node::new(NodeKind::Block(block), results.iter().map(Meta::of).collect());
    let tensor = |(output, result): (usize, &Tensor)| {
        let edge = result.dtype().is_float().then(|| Edge { node: node.clone(), output });
        Tensor::raw(result.0.array.clone(), result.0.place.clone(), edge, None)
    };
    Ok(results.iter().enumerate().map(tensor).collect())
}

impl Block {
    /// The block's outputs with their history, which leads to the original inputs.
    pub(crate) fn run(&self) -> Result<Vec<Tensor>> {
        let input =
            |(i, kept): (usize, &Kept)| kept.tensor(kept.edge.clone(), "recompute", || format!("input {i}"));
        let inputs = self.inputs.iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
        random::replay(&self.random, || with_grad(|| (self.work)(&inputs)))
    }
}
