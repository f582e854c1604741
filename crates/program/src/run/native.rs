//! Ops of our own table, on whole arrays.

use super::Datum;
use super::call::{Answer, Call, Fault, refuse};
use crate::native::{DIALECT, tensor_op};
use planaria_array::Array;
use planaria_tensor::Local;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) fn call(c: &Call<'_>) -> Answer<Vec<Datum>> {
    if c.op.is(DIALECT, "reshard") {
        // A program of one rank on whole values: they lie everywhere already.
        return Ok(vec![Datum::Array(c.array(0)?.clone())]);
    }
    let Some(op) = tensor_op(c.op) else {
        return refuse(
            "there is no op of ours with this name and these attributes; read it with the version that wrote it",
        );
    };
    let inputs = (0..c.op.operands.len()).map(|at| c.array(at)).collect::<Answer<Vec<&Array>>>()?;
    let forward = || op.forward(&inputs, &Local::Whole);
    let results = match c.rehearsed {
        // Kernels trust the functions that call them; a file may call them with anything.
        true => catch_unwind(AssertUnwindSafe(forward))
            .or_else(|_| refuse("it cannot be given these operands"))?,
        false => forward(),
    };
    let results = results.map_err(|error| match error {
        planaria_tensor::Error::Array(source) => Fault::Array(source),
        other => Fault::Tensor(other),
    })?;
    Ok(results.into_iter().map(Datum::Array).collect())
}
