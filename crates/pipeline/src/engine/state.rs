//! What a rank holds between its actions.

use super::At;
use planaria_tensor::{Deferred, History, Tensor};
use std::collections::HashMap;

/// What is left of a stage's work on a micro-batch between forward and backward.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Where the gradients of the inputs arrive; absent for inputs without.
    pub(super) inputs: Vec<Option<History>>,
    /// Where backward starts; absent for outputs without gradient.
    pub(super) outputs: Vec<Option<History>>,
    /// The tensors themselves, only when they are not released early.
    pub(super) held: Vec<Tensor>,
}

impl Record {
    pub(super) fn new(inputs: Vec<Option<History>>) -> Record {
        Record { inputs, ..Record::default() }
    }
}

/// A gradient with the place of the input it belongs to.
pub(super) type InputGrad = (Option<Tensor>, Option<History>);

/// Everything a rank holds during a step.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Received, not yet used.
    pub(super) inputs: HashMap<At, Vec<Tensor>>,
    /// Made, not yet sent.
    pub(super) outputs: HashMap<At, Vec<Tensor>>,
    /// Received, not yet used.
    pub(super) output_grads: HashMap<At, Vec<Option<Tensor>>>,
    /// Made, not yet sent.
    pub(super) input_grads: HashMap<At, Vec<InputGrad>>,
    pub(super) records: HashMap<At, Record>,
    pub(super) deferred: HashMap<At, Deferred>,
}
