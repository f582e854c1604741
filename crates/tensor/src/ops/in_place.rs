//! Writing an op's result into a tensor that exists: the bytes, then the history.

use crate::dispatch::{apply1, toward};
use crate::error::Result;
use crate::grad::{Backward, no_grad, rewrite};
use crate::op::Op;
use crate::steps;
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::Placement;
use std::sync::Arc;

/// Where an op that changes part of its first input puts the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onto {
    /// Into a copy.
    Copy,
    /// Into the input itself.
    Here,
    /// Into the input itself, which is zero everywhere and belongs to nobody else.
    Zeros,
}

impl Onto {
    /// The array to write into.
    pub(crate) fn of(self, x: &Array) -> Result<Array> {
        if self == Onto::Copy { Ok(x.copy()?) } else { Ok(x.clone()) }
    }

    /// The name it is written down with.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Onto::Copy => "copy",
            Onto::Here => "here",
            Onto::Zeros => "zeros",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Onto> {
        [Onto::Copy, Onto::Here, Onto::Zeros].into_iter().find(|onto| onto.name() == name)
    }
}

/// Runs `here`, which writes into its input `target` where no layout is in the way, and gives the target a history in
/// which `made` was applied to `inputs`.
pub(crate) fn write_into(target: &Tensor, here: impl Op, made: impl Op, inputs: &[&Tensor]) -> Result<()> {
    target.check_writable(made.name())?;
    let made: Arc<dyn Op> = Arc::new(made);
    let run = || no_grad(|| apply1(here, inputs));
    let place = || match target.layout() {
        Some(home) => toward(std::slice::from_ref(home), run),
        None => run(),
    };
    // Programs have no writes: there the value is made anew.
    let out = steps::instead(&made, inputs, place)?;
    bring_home(target, &out)?;
    steps::wrote(target, &out);
    rewrite(target, made, inputs)
}

/// Puts a value that was computed elsewhere, or under another layout, into the target's bytes.
fn bring_home(target: &Tensor, out: &Tensor) -> Result<()> {
    let (home, array) = (target.local(), out.local());
    let is_there = target.layout() == out.layout()
        && array.shares_storage(home)
        && (array.shape(), array.strides(), array.offset()) == (home.shape(), home.strides(), home.offset());
    if is_there {
        return Ok(());
    }
    let value = match (target.layout(), out.layout()) {
        (Some(layout), Some(_)) => no_grad(|| out.reshard(layout))?.local().clone(),
        _ => out.whole()?,
    };
    Ok(home.copy_from(&value)?)
}

/// Zeros for the gradient of an input, in its layout; axes on which it was pending are whole.
pub(crate) fn zeros_for(at: &Backward<'_>, input: usize) -> Result<Tensor> {
    let spec = at.input_spec(input);
    let Some(place) = at.input_place(input) else {
        return Ok(Tensor::new(Array::zeros_on(&spec.shape, spec.dtype, at.input_device(input))?));
    };
    let axes = place.layout.partial_axes();
    let layout =
        axes.iter().try_fold(place.layout.as_ref().clone(), |l, axis| l.with(axis, Placement::Replicate))?;
    Tensor::full(&layout, 0.0, spec.dtype, &place.world)?.to(at.input_device(input))
}
