//! Which ops of ours answer for an op of the reference: a program on tensors, as a user would write it.
//!
//! Nothing here says how an op may be cut. That is asked of the ops themselves, by running the program.

use super::call::Call;
use super::{elements, moves, picks, products};
use anyhow::Result;
use planaria_array::DType;
use planaria_tensor::Tensor;

/// The outputs in the reference's order; absent where we have none to compare.
pub(super) type Outputs = Vec<Option<Tensor>>;

/// Runs the program for a call; nothing where we have no such op.
pub(super) fn run(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    for family in [elements::run, products::run, moves::run, picks::run] {
        if let Some(outputs) = family(call)? {
            return Ok(Some(outputs));
        }
    }
    Ok(None)
}

/// One output.
pub(super) fn one(output: planaria_tensor::Result<Tensor>) -> Result<Option<Outputs>> {
    Ok(Some(vec![Some(output?)]))
}

/// What an argument holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Floats,
    Truths,
    Bits,
    /// Positions below a bound that the program's other arguments give.
    Positions,
}

impl Holds {
    pub(super) fn dtype(self) -> DType {
        match self {
            Holds::Floats => DType::F32,
            Holds::Truths => DType::Bool,
            Holds::Bits | Holds::Positions => DType::I64,
        }
    }
}

/// What each argument holds, lists unrolled: the cases give shapes only.
pub(super) fn holds<T>(call: &Call<'_, T>) -> Vec<Holds> {
    let count = call.items().count();
    let mut all = vec![Holds::Floats; count];
    let name = call.name;
    if name.starts_with("logical_") || matches!(name, "all" | "any") {
        all.fill(Holds::Truths);
    } else if name.starts_with("bitwise_") {
        all.fill(Holds::Bits);
    }
    let positions: &[usize] = match name {
        "embedding" | "embedding_static" | "one_hot" => &[0],
        "c_embedding" | "gather" | "gather_nd" | "scatter" | "scatter_nd_add" | "index_select"
        | "take_along_axis" | "put_along_axis" => &[1],
        "cross_entropy_with_softmax" | "cross_entropy_with_softmax_static" if !call.flag("soft_label") => {
            &[1]
        }
        "c_softmax_with_cross_entropy" => &[1],
        _ => &[],
    };
    positions.iter().filter(|&&p| p < count).for_each(|&p| all[p] = Holds::Positions);
    match name {
        "where" => all[0] = Holds::Truths,
        // The list of indices stands between the tensor and the values.
        "index_put" => {
            let last = count.saturating_sub(1);
            all.iter_mut().take(last).skip(1).for_each(|h| *h = Holds::Positions);
        }
        _ => {}
    }
    all
}
