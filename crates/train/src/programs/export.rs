//! Parts of a model in the ops of Paddle, for any batch and length or for fixed ones, and as ONNX models.

use super::{Part, Sizes, capture_model};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_nn::layers::Positions;
use planaria_nn::models::{Network, Run};
use planaria_program::onnx::{FileBeside, export};
use planaria_program::{
    Captured, Extents, Program, ProgramState, generalize, lower, remove_dead, remove_unread,
};
use planaria_tensor::{Tensor, no_grad};

/// The sizes that a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// These alone.
    Fixed(Sizes),
    /// Any batch, and sequences of up to so many tokens: a program holds rotations for as many positions.
    Open {
        /// The longest sequence, with what came before it.
        longest: usize,
    },
}

/// Sizes that programs are captured with to find out how they depend on them: what holds for all of these is taken to
/// hold for others.
const EXAMPLES: [(usize, usize); 3] = [(2, 7), (5, 18), (3, 11)];

/// Part of a model in the ops of Paddle.
///
/// # Errors
/// An op that Paddle has no form for, by name, and a model whose program depends on sizes in a way that cannot be left open.
pub fn lowered(network: &dyn Network, part: Part, extent: Extent) -> Result<(Program, ProgramState)> {
    let one = |sizes: &Sizes, extents: Extents| -> Result<(Program, ProgramState)> {
        let Captured { mut program, mut state, .. } = capture_model(network, part, sizes)?;
        remove_dead(&mut program);
        remove_unread(&mut program, &mut state);
        Ok(lower(&program, &state, extents)?)
    };
    let longest = match extent {
        Extent::Fixed(sizes) => return one(&sizes, Extents::Fixed),
        Extent::Open { longest } => longest,
    };
    long_rotations(network, longest)?;
    let example = |(batch, length): (usize, usize)| {
        let sizes = match part {
            Part::Decode => Sizes { batch, length: 1, past: length },
            _ => Sizes { batch, length, past: 0 },
        };
        one(&sizes, Extents::Example)
    };
    let made = EXAMPLES.into_iter().map(example).collect::<Result<Vec<_>>>()?;
    let open = generalize(&made.iter().map(|(program, state)| (program, state)).collect::<Vec<_>>())?;
    Ok((open, made.into_iter().next().map(|(_, state)| state).unwrap_or_default()))
}

/// Has the model make rotations for as many positions as a program takes: they are a constant of it.
fn long_rotations(network: &dyn Network, longest: usize) -> Result<()> {
    let id = || Ok::<_, Error>(Tensor::new(Array::zeros(&[1, 1], DType::I64)?));
    let positions = Positions::Ids { ids: id()?, end: longest };
    no_grad(|| network.forward((&id()?).into(), &Run { positions, ..Run::default() }).map_err(Error::from))?;
    Ok(())
}

/// An ONNX model of such a program, with the parameters in a file beside it.
///
/// # Errors
/// An op that ONNX has no form for, by name and with what it was made from.
pub fn to_onnx(program: &Program, state: &ProgramState, beside: FileBeside<'_>) -> Result<Vec<u8>> {
    let continues = program.inputs().iter().any(|input| input.name.starts_with("past."));
    let names = |value: &str, dim: usize| {
        let name = match (value.split('.').next().unwrap_or_default(), dim) {
            ("input_ids" | "position_ids" | "logits" | "past" | "present" | "labels", 0) => "batch",
            // On three axes, which are the first dim.
            ("position_ids", 1) => "batch",
            ("input_ids" | "logits" | "labels", 1) | ("position_ids", 2) => "sequence",
            ("past", 2) => "past",
            ("present", 2) if continues => "past_and_sequence",
            ("present", 2) => "sequence",
            ("pixel_values", 0) => "patches",
            ("image_grid_thw", 0) => "images",
            ("image_embeds", 0) => "image_tokens",
            _ => return None,
        };
        Some(name.to_string())
    };
    Ok(export(program, state, Some(beside), &names)?)
}
