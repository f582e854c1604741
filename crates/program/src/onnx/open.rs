//! ONNX models with open extents, as programs that leave them open too.

use super::import::Parsed;
use super::tensor::Beside;
use crate::error::{Error, Result};
use crate::lower::generalize;
use crate::program::Program;
use crate::run::ProgramState;
use std::collections::HashMap;

/// How often a model is read with other sizes, to find out how it depends on them.
const EXAMPLES: usize = 4;

/// Extents of one input: those that are open by the number of their name.
type Extents = Vec<Result<usize, usize>>;

/// Which open extents are one and the same.
#[derive(Clone, Copy, PartialEq)]
enum Same {
    /// Those of one name.
    Name,
    /// Those of one dim, whatever input they are of.
    Dim,
}

/// Examples whose sizes are so many times as large: some models take sizes that divide by a number, as patches do into the
/// tokens that they become.
const TIMES: usize = 144;

/// Reads an ONNX model; extents that it leaves open are open in the program too. Those of one name are equal; where a model
/// cannot be read so, those of one dim are: some writers give every extent a name of its own. Elements that are not in it
/// are asked for from `beside`.
///
/// # Errors
/// Those of [`import`](super::import), and a node whose sizes cannot be left open.
pub fn import_open(bytes: &[u8], beside: &Beside<'_>) -> Result<(Program, ProgramState)> {
    let parsed = Parsed::read(bytes, beside)?;
    let (named, by_dim) = (open_inputs(&parsed, Same::Name), open_inputs(&parsed, Same::Dim));
    let error = match read_open(&parsed, &named, 1, beside) {
        Err(error) if named.values().flatten().any(Result::is_err) => error,
        read => return read,
    };
    // What is wrong in all readings is told with the names that the model gives.
    let others = [(&named, TIMES), (&by_dim, 1), (&by_dim, TIMES)];
    let read = |(inputs, times)| read_open(&parsed, inputs, times, beside).ok();
    others.into_iter().find_map(read).ok_or(error)
}

fn read_open(
    parsed: &Parsed,
    inputs: &HashMap<String, Extents>,
    times: usize,
    beside: &Beside<'_>,
) -> Result<(Program, ProgramState)> {
    let none = inputs.values().flatten().all(Result::is_ok);
    let example = |which: usize| {
        let size = |extent: &Result<usize, usize>| extent.unwrap_or_else(|name| times * size(name, which));
        parsed.program(&|_, input| Some(inputs.get(input)?.iter().map(size).collect()), beside)
    };
    let first = example(0)?;
    if none {
        return Ok(first);
    }
    let others = (1..EXAMPLES).map(example).collect::<Result<Vec<_>>>()?;
    let all: Vec<(&Program, &ProgramState)> =
        std::iter::once(&first).chain(&others).map(|(program, state)| (program, state)).collect();
    let program = generalize(&all).map_err(|error| Error::Onnx {
        place: "model".to_string(),
        what: format!("its open extents cannot be left open: {error}"),
    })?;
    Ok((program, first.1))
}

/// The extents of inputs; those that are open by the number of their name, each without a name by its own.
fn open_inputs(parsed: &Parsed, same: Same) -> HashMap<String, Extents> {
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut inputs = HashMap::new();
    for input in parsed.inputs() {
        let name = input.name.clone().unwrap_or_default();
        let shape = input.ty.as_ref().and_then(|ty| ty.tensor.as_ref()).and_then(|ty| ty.shape.as_ref());
        let mut extents = Vec::new();
        for (at, dim) in shape.into_iter().flat_map(|shape| &shape.dim).enumerate() {
            let own = || format!("{name} {at}");
            let next = names.len();
            extents.push(match dim.value.and_then(|value| usize::try_from(value).ok()) {
                Some(value) => Ok(value),
                None => {
                    let named = dim.param.clone().filter(|name| !name.is_empty()).unwrap_or_else(own);
                    let key = if same == Same::Dim { at.to_string() } else { named };
                    Err(*names.entry(key).or_insert(next))
                }
            });
        }
        inputs.insert(name, extents);
    }
    inputs
}

/// A small size for an open extent in one of the examples: no two extents grow alike.
fn size(name: usize, which: usize) -> usize {
    const SIZES: [[usize; EXAMPLES]; 4] = [[2, 5, 3, 11], [7, 18, 11, 4], [13, 6, 20, 9], [5, 23, 8, 17]];
    SIZES[name % SIZES.len()][which] + name / SIZES.len() * (1 + which)
}
