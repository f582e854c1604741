//! The program of one rank of a mesh, from a program of a single rank: every op decides by its own rule, and what must
//! move in between is an op of its own.

use crate::capture::{Captured, Function, capture};
use crate::error::{Error, Result};
use crate::program::Program;
use crate::run::{Datum, ProgramState, Ranks, run_tensors};
use crate::types::{Element, tensor_type};
use planaria_layout::{Layout, Mesh, Rank, Shape};
use planaria_tensor::{Array, Tensor, World};
use std::collections::BTreeMap;

/// Where a rank is, and how what a program is given lies on the mesh.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The mesh.
    pub mesh: Mesh,
    /// The rank.
    pub rank: Rank,
    /// Layouts of inputs and parameters by name; others are whole on every rank.
    pub layouts: BTreeMap<String, Layout>,
}

/// The program of one rank: the same values, with layouts, and a `planaria.reshard` wherever one op gives a value otherwise
/// than the next takes it. Nothing is computed and nothing is sent.
///
/// # Errors
/// Layouts of other shapes than the program declares, and ops that have no rule.
pub fn propagate(program: &Program, spread: &Spread) -> Result<Program> {
    let world = World::supposed(spread.rank);
    let ranks = Ranks { mesh: spread.mesh.clone(), world: world.clone() };
    let placed = |name: &str, ty: &crate::node::Node| planned(name, ty, spread, &world);
    let inputs = program.inputs().into_iter();
    let inputs = inputs.map(|input| Ok((input.name.to_string(), placed(&input.name, &input.value.ty)?)));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let held = program.held().into_iter();
    let held = held.map(|held| Ok((held.name.to_string(), placed(&held.name, &held.value.ty)?)));
    let held = held.collect::<Result<Vec<_>>>()?;
    let by_name: BTreeMap<String, Tensor> = held.iter().cloned().collect();
    let function = Function { inputs, parameters: held, settings: Vec::new() };
    let Captured { program, .. } = capture(&function, |given| {
        let outputs = run_tensors(program, &by_name, given, Some(&ranks))?;
        Ok::<_, Error>(outputs.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect())
    })?;
    Ok(program)
}

/// A tensor without elements that lies as it is said.
fn planned(name: &str, ty: &crate::node::Node, spread: &Spread, world: &World) -> Result<Tensor> {
    let refuse = |what: String| Error::State { what: format!("{name}: {what}") };
    let ty = tensor_type(ty).ok_or_else(|| refuse("it is not a tensor".to_string()))?;
    let (Element::Plain(dtype), dims) = (ty.element, &ty.dims) else {
        return Err(refuse("complex numbers lie on no mesh".to_string()));
    };
    let dims = dims.iter().map(|d| usize::try_from(*d)).collect::<Result<Vec<_>, _>>();
    let dims = dims.map_err(|_| refuse("its extents are not known".to_string()))?;
    let shape = Shape::new(&dims).map_err(|error| refuse(error.to_string()))?;
    let layout = match spread.layouts.get(name) {
        Some(layout) if *layout.shape() == shape => layout.clone(),
        Some(layout) => return Err(refuse(format!("it lies as `{layout}`, the program declares {ty}"))),
        None => Layout::replicated(&spread.mesh, &shape),
    };
    let failed = |source| Error::Tensor { place: name.to_string(), source };
    let piece = layout.piece(spread.rank).map_err(|error| refuse(error.to_string()))?;
    let array = Array::meta(&piece.extents(), dtype).map_err(|error| failed(error.into()))?;
    Tensor::from_piece(array, &layout, world).map_err(failed)
}

/// This rank's pieces of what a program holds, from the whole values.
///
/// # Errors
/// Values that are missing or are not tensors.
pub fn pieces(
    program: &Program,
    state: &ProgramState,
    spread: &Spread,
    world: &World,
) -> Result<BTreeMap<String, Tensor>> {
    let mut all = BTreeMap::new();
    for held in program.held() {
        let missing = || Error::State { what: format!("parameter {} is not given", held.name) };
        let array = state.get(&held.name).and_then(Datum::array).ok_or_else(missing)?;
        let layout = spread.layouts.get(&*held.name).cloned();
        let layout = layout.unwrap_or_else(|| Layout::replicated(&spread.mesh, array.shape()));
        let tensor = Tensor::place(array, &spread.mesh, layout.placements(), world);
        all.insert(
            held.name.to_string(),
            tensor.map_err(|source| Error::Tensor { place: held.name.to_string(), source })?,
        );
    }
    Ok(all)
}
