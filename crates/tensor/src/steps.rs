//! Lists what ops run on this thread, with the tensors they take and give: what programs are captured from.

use crate::error::Result;
use crate::op::Op;
use crate::tensor::Tensor;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Something that happened to tensors.
#[derive(Clone, Debug)]
pub enum Step {
    /// An op ran.
    Ran(Call),
    /// A tensor got the value of another.
    Wrote {
        /// The tensor that was written to.
        target: Tensor,
        /// What it holds now.
        value: Tensor,
        /// How often its bytes have been written to.
        version: u64,
    },
}

/// One op with what it took, after layouts were brought in line, and what it gave.
#[derive(Clone, Debug)]
pub struct Call {
    /// The op.
    pub op: Arc<dyn Op>,
    /// What it took.
    pub inputs: Vec<Tensor>,
    /// How often the bytes of each input had been written to.
    pub versions: Vec<u64>,
    /// What it gave.
    pub outputs: Vec<Tensor>,
    /// How often the bytes of each output had been written to.
    pub made: Vec<u64>,
    /// Its number in the history, if that goes on from here.
    pub number: Option<u64>,
    /// The number of the op whose gradient it helps to compute, and its name.
    pub gradient_of: Option<(u64, &'static str)>,
}

thread_local! {
    static STEPS: RefCell<Option<Vec<Step>>> = const { RefCell::new(None) };
    static WITHIN: Cell<Option<(u64, &'static str)>> = const { Cell::new(None) };
}

/// Puts back what was listed before, also when the work panics.
struct Restore(Option<Vec<Step>>);

impl Drop for Restore {
    fn drop(&mut self) {
        STEPS.set(self.0.take());
    }
}

/// Runs `work` and lists what ops this thread runs meanwhile. All their tensors live until the list goes.
pub fn list<R>(work: impl FnOnce() -> R) -> (R, Vec<Step>) {
    let _restore = Restore(STEPS.replace(Some(Vec::new())));
    let result = work();
    (result, STEPS.take().unwrap_or_default())
}

/// True while [`list`] runs on this thread. Code that lets values decide what is computed does it otherwise then.
pub fn is_listing() -> bool {
    STEPS.with_borrow(Option::is_some)
}

pub(crate) fn ran(op: &Arc<dyn Op>, inputs: &[&Tensor], outputs: &[Tensor]) {
    push(|| Step::Ran(call(op, inputs, versions(inputs), outputs)));
}

fn versions(inputs: &[&Tensor]) -> Vec<u64> {
    inputs.iter().map(|t| t.0.array.version()).collect()
}

fn call(op: &Arc<dyn Op>, inputs: &[&Tensor], versions: Vec<u64>, outputs: &[Tensor]) -> Call {
    let number = outputs.iter().find_map(|t| t.lock().as_ref().map(|edge| edge.node.number));
    let inputs = inputs.iter().map(|&t| t.clone()).collect();
    let made = outputs.iter().map(|t| t.0.array.version()).collect();
    let (op, outputs) = (op.clone(), outputs.to_vec());
    Call { op, inputs, versions, outputs, made, number, gradient_of: WITHIN.get() }
}

/// Runs `work`, which writes into an input what `op` would make anew; `op` is listed in its place.
pub(crate) fn instead(
    op: &Arc<dyn Op>,
    inputs: &[&Tensor],
    work: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    if !is_listing() {
        return work();
    }
    let versions = versions(inputs);
    let (made, _) = list(work);
    let made = made?;
    push(|| Step::Ran(call(op, inputs, versions, std::slice::from_ref(&made))));
    Ok(made)
}

pub(crate) fn wrote(target: &Tensor, value: &Tensor) {
    let version = target.0.array.version();
    push(|| Step::Wrote { target: target.clone(), value: value.clone(), version });
}

fn push(step: impl FnOnce() -> Step) {
    if is_listing() {
        let step = step();
        STEPS.with_borrow_mut(|steps| steps.as_mut().map(|list| list.push(step)));
    }
}

/// Runs `work`, whose ops compute the gradient of another.
pub(crate) fn gradient_of<R>(number: u64, op: &'static str, work: impl FnOnce() -> R) -> R {
    let before = WITHIN.replace(Some((number, op)));
    let result = work();
    WITHIN.set(before);
    result
}
