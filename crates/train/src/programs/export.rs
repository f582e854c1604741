//! Parts of a model in the ops of Paddle, for any batch and length or for fixed ones, and their files.

use super::{Part, Sizes, capture_model};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_nn::layers::Positions;
use planaria_nn::models::{Network, Run};
use planaria_program::onnx::{Exported, export};
use planaria_program::{Extents, Program, ProgramState, generalize, lower};
use planaria_tensor::{Tensor, no_grad};

/// The longest sequence that a program of any length takes.
pub const LONGEST: usize = 1024;

/// Part of a model in the ops of Paddle: for these sizes, or for any batch and any length up to [`LONGEST`].
///
/// # Errors
/// An op that Paddle has no form for, by name, and a model whose program depends on sizes in a way that cannot be left open.
pub fn lowered(network: &dyn Network, part: Part, sizes: Option<&Sizes>) -> Result<(Program, ProgramState)> {
    if let Some(sizes) = sizes {
        let captured = capture_model(network, part, sizes)?;
        return Ok(lower(&captured.program, &captured.state, Extents::Fixed)?);
    }
    long_rotations(network)?;
    let examples = match part {
        Part::Decode => [Sizes { batch: 2, length: 1, past: 5 }, Sizes { batch: 3, length: 1, past: 7 }],
        _ => [Sizes { batch: 2, length: 5, past: 0 }, Sizes { batch: 3, length: 7, past: 0 }],
    };
    let one = |sizes: &Sizes| -> Result<(Program, ProgramState)> {
        let captured = capture_model(network, part, sizes)?;
        Ok(lower(&captured.program, &captured.state, Extents::Example)?)
    };
    let (first, second) = (one(&examples[0])?, one(&examples[1])?);
    let open = generalize((&first.0, &first.1), (&second.0, &second.1))?;
    Ok((open, first.1))
}

/// Has the model make rotations for as many positions as a program of any length takes: they are a constant of it.
fn long_rotations(network: &dyn Network) -> Result<()> {
    let id = || Ok::<_, Error>(Tensor::new(Array::zeros(&[1, 1], DType::I64)?));
    let positions = Positions::Ids { ids: id()?, end: LONGEST };
    no_grad(|| network.forward((&id()?).into(), &Run { positions, ..Run::default() }).map_err(Error::from))?;
    Ok(())
}

/// An ONNX model of such a program, with the parameters in a file of that name beside it.
///
/// # Errors
/// An op that ONNX has no form for, by name and with what it was made from.
pub fn to_onnx(program: &Program, state: &ProgramState, beside: &str) -> Result<Exported> {
    let names = |value: &str, dim: usize| {
        let name = match (value.split('.').next().unwrap_or_default(), dim) {
            ("input_ids" | "position_ids" | "logits" | "past" | "present" | "labels", 0) => "batch",
            ("input_ids" | "position_ids" | "logits" | "labels", 1) => "sequence",
            ("past", 2) => "past",
            ("present", 2) => "past_and_sequence",
            _ => return None,
        };
        Some(name.to_string())
    };
    Ok(export(program, state, Some(beside), &names)?)
}
