//! What programs pay on a world that only plans, and what the reference's answers cost by the same measure.

use super::call::{Call, layout_of};
use super::{flatten, program};
use anyhow::Result;
use planaria_layout::rule::settlement;
use planaria_layout::{Layout, Mesh, Reduce, Route};
use planaria_tensor::trace::{Ran, decisions};
use planaria_tensor::{DType, GradOptions, Tensor, World, grad, toward};
use serde_json::Value;
use std::fmt;

/// What a program did.
pub(super) struct Paid {
    pub(super) ran: Vec<Ran>,
    /// Layouts and dtypes of the outputs, in the reference's order.
    pub(super) outputs: Vec<Option<(Layout, DType)>>,
}

impl Paid {
    /// Inputs of all ops moved, messages of their kernels, and what is pending in the end settled.
    pub(super) fn total(&self) -> u128 {
        let sent = |ran: &Ran| {
            let price = ran.weighed.first().map(|taken| taken.price).unwrap_or_default();
            u128::from(price.moved) + u128::from(price.exchanged)
        };
        let settled = |(layout, dtype): &(Layout, DType)| settlement(layout, dtype.size());
        self.ran.iter().map(sent).sum::<u128>() + self.outputs.iter().flatten().map(settled).sum::<u128>()
    }

    fn of(outputs: &[Option<Tensor>], ran: Vec<Ran>) -> Paid {
        let place = |t: &Tensor| Some((t.layout()?.clone(), t.dtype()));
        Paid { ran, outputs: outputs.iter().map(|t| t.as_ref().and_then(place)).collect() }
    }

    /// Ops that sent something.
    pub(super) fn moves(&self) -> usize {
        let sends = |ran: &&Ran| {
            ran.weighed.first().is_some_and(|taken| taken.price.moved + taken.price.exchanged > 0)
        };
        self.ran.iter().filter(sends).count()
    }
}

impl fmt::Display for Paid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ran in &self.ran {
            if let Some(taken) = ran.weighed.first() {
                write!(
                    f,
                    "{} {:?} -> {:?} gives {:?} {:?}; ",
                    ran.op, ran.given, taken.inputs, taken.outputs, taken.price
                )?;
            }
        }
        let outputs: Vec<String> = self.outputs.iter().flatten().map(|(l, _)| l.to_string()).collect();
        write!(f, "we give {outputs:?}")
    }
}

fn dtypes(call: &Call<'_, Layout>) -> Vec<DType> {
    program::holds(call).into_iter().map(program::Holds::dtype).collect()
}

/// Runs the program for a call; nothing where we have no such op.
pub(super) fn forward(mesh: &Mesh, call: &Call<'_, Layout>) -> Result<Option<Paid>> {
    let world = supposed(mesh);
    let (outputs, ran) = decisions(|| program::run(&call.planned(&world, &dtypes(call))?));
    Ok(outputs?.map(|outputs| Paid::of(&outputs, ran)))
}

fn supposed(mesh: &Mesh) -> World {
    World::supposed(mesh.ranks().next().unwrap_or(0))
}

/// What became of a gradient.
pub(super) enum Back {
    NoSuchOp,
    /// Our forward moves the inputs, so the gradient's are not those of the reference.
    Elsewhere,
    NoGradient,
    Paid(Paid),
}

/// The gradients of all inputs from that of the output with the shape of `dy`.
pub(super) fn backward(mesh: &Mesh, call: &Call<'_, Layout>, dy: &Layout) -> Result<Back> {
    let world = supposed(mesh);
    let inputs = call.planned(&world, &dtypes(call))?;
    let (outputs, ran) = decisions(|| program::run(&inputs));
    let Some(outputs) = outputs? else { return Ok(Back::NoSuchOp) };
    if Paid::of(&outputs, ran).moves() > 0 {
        return Ok(Back::Elsewhere);
    }
    let end = outputs.iter().flatten().find(|t| t.has_history() && t.shape() == dy.shape());
    let starts: Vec<&Tensor> = inputs.items().filter(|t| t.has_history()).collect();
    let (Some(end), false) = (end, starts.is_empty()) else { return Ok(Back::NoGradient) };
    let piece = planaria_array::Array::meta(&dy.piece(world.rank())?.extents(), end.dtype())?;
    let seed = Tensor::from_piece(piece, dy, &world)?;
    let (grads, ran) = decisions(|| grad(&[end], &[Some(&seed)], &starts, GradOptions::default()));
    Ok(Back::Paid(Paid::of(&grads?, ran)))
}

/// The price of the reference's answer; nothing when it is not an answer: an output waits for a reduction that the op cannot
/// leave behind, such as the maximum of sums.
pub(super) fn reference(
    mesh: &Mesh,
    call: &Call<'_, Layout>,
    wanted: &[Layout],
    ours: &[Option<(Layout, DType)>],
    outputs: &Value,
) -> Result<Option<u128>> {
    let mut total = 0;
    for ((from, to), dtype) in call.items().zip(wanted).zip(dtypes(call)) {
        total += u128::from(Route::find(from, to, dtype.size())?.cost().bytes);
    }
    let mut flat = Vec::new();
    flatten(outputs, &mut flat);
    for (ours, theirs) in ours.iter().zip(flat) {
        let Some((ours, dtype)) = ours else { continue };
        let Some(theirs) = layout_of(mesh, ours.shape(), theirs)? else { continue };
        let linear = |r: Reduce| matches!(r, Reduce::Sum | Reduce::Avg);
        // Through an op of several inputs no extreme passes, unless ours lets it.
        let alone = call.items().count() == 1;
        let held = |axis: usize| call.items().find_map(|l| l.reduce(axis)).filter(|_| alone);
        let known = |axis: usize| match theirs.reduce(axis) {
            Some(r) => linear(r) || held(axis) == Some(r) || ours.reduce(axis) == Some(r),
            None => true,
        };
        if !(0..mesh.naxes()).all(known) {
            return Ok(None);
        }
        total += settlement(&theirs, dtype.size());
    }
    Ok(Some(total))
}

/// What became of a reverse question.
pub(super) enum Reverse {
    NoSuchOp,
    Several,
    Prices { ours: u64, theirs: u64, same: bool },
}

/// Our inputs for wanted outputs, and what it costs to reach these from ours and from the reference's.
pub(super) fn reverse(
    mesh: &Mesh,
    call: &Call<'_, Layout>,
    given: &[Layout],
    theirs: &[Layout],
) -> Result<Reverse> {
    let whole: Vec<Layout> = call.items().map(|l| Layout::replicated(mesh, l.shape())).collect();
    let ask = |layouts: &[Layout]| -> Result<Option<Vec<Ran>>> {
        let (world, call) = (supposed(mesh), call.with(layouts)?);
        let inputs = call.planned(&world, &dtypes(&call))?;
        let (outputs, ran) = decisions(|| toward(given, || program::run(&inputs)));
        Ok(outputs?.map(|_| ran))
    };
    let Some(ran) = ask(&whole)? else { return Ok(Reverse::NoSuchOp) };
    let meant = |ran: &[Ran]| match ran {
        [one] => one.weighed.first().cloned().filter(|taken| {
            let shapes = taken.outputs.iter().map(Layout::shape);
            taken.outputs.len() == given.len() && shapes.eq(given.iter().map(Layout::shape))
        }),
        _ => None,
    };
    let Some(taken) = meant(&ran).filter(|taken| taken.inputs.len() == whole.len()) else {
        return Ok(Reverse::Several);
    };
    let Some(inputs) = ordered(&ran, &taken.inputs, &whole, &dtypes(call)) else {
        return Ok(Reverse::Several);
    };
    let price = |layouts: &[Layout]| -> Result<Option<u64>> {
        let ran = ask(layouts)?.unwrap_or_default();
        Ok(meant(&ran).map(|taken| taken.price.total()))
    };
    let (Some(ours), Some(other)) = (price(&inputs)?, price(theirs)?) else {
        return Ok(Reverse::Several);
    };
    Ok(Reverse::Prices { ours, theirs: other, same: inputs == theirs })
}

/// The inputs of the one op that ran, in the order of the call's arguments. Our op may take them in another: they are
/// told by shape and element type, as ids and a table may have the same shape.
fn ordered(ran: &[Ran], inputs: &[Layout], args: &[Layout], dtypes: &[DType]) -> Option<Vec<Layout>> {
    let [ran] = ran else { return None };
    let is = |place: usize, arg: usize| {
        inputs[place].shape() == args[arg].shape() && ran.dtypes.get(place) == dtypes.get(arg)
    };
    if (0..args.len()).all(|arg| is(arg, arg)) {
        return Some(inputs.to_vec());
    }
    let only = |arg: usize| {
        let mut places = (0..inputs.len()).filter(|&place| is(place, arg));
        places.next().filter(|_| places.next().is_none()).map(|place| inputs[place].clone())
    };
    (0..args.len()).map(only).collect()
}
