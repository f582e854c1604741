//! A reference executor: plans run over in-memory buffers, one per rank of a mesh.
//!
//! Slow and simple on purpose. Tests and golden runners use it to see what a plan does to values.

use crate::error::{Error, Result};
use crate::layout::{Layout, Piece};
use crate::mesh::Rank;
use crate::placement::{Neutral, Placement, Reduce};
use crate::region::Region;
use crate::reshard::{Combine, Plan};
use crate::route::Route;
use std::collections::HashMap;

/// One row-major buffer per rank, in the row-major order of the mesh coordinates.
pub type Locals = Vec<Vec<f64>>;

/// Cuts a whole tensor into the buffers of a layout. The rank at `coords` gets its cut times
/// `weight(coords)`, which only tests with pending reductions need: pass `|_| 1.0` otherwise.
pub fn scatter(layout: &Layout, value: &[f64], weight: impl Fn(&[usize]) -> f64) -> Result<Locals> {
    if value.len() != layout.shape().numel() {
        return Err(Error::ValueLength { found: value.len(), expected: layout.shape().numel() });
    }
    let whole = Region::whole(layout.shape());
    let cut = |position: usize| {
        let coords = layout.mesh().coords_at(position);
        let piece = layout.piece_at(&coords);
        let mut local = vec![0.0; piece.numel()];
        for region in piece.boxes() {
            for (to, from) in held_at(&piece, &region)?.into_iter().zip(elements(&region, &whole)) {
                local[to] = value[from] * weight(&coords);
            }
        }
        Ok(local)
    };
    (0..layout.mesh().size()).map(cut).collect()
}

/// The whole tensor behind the buffers of a layout: partial axes are reduced, copies must agree.
/// `None` when copies differ.
pub fn gather(layout: &Layout, locals: &[Vec<f64>]) -> Result<Option<Vec<f64>>> {
    let mut resolved = layout.clone();
    for axis in layout.partial_axes().iter() {
        resolved = resolved.with(axis, Placement::Replicate)?;
    }
    let locals = reshard(layout, &resolved, locals)?;
    let whole = Region::whole(layout.shape());
    let mut value = vec![None; layout.shape().numel()];
    for (position, local) in locals.iter().enumerate() {
        let piece = layout.piece_at(&layout.mesh().coords_at(position));
        for region in piece.boxes() {
            for (to, from) in elements(&region, &whole).into_iter().zip(held_at(&piece, &region)?) {
                if value[to]
                    .replace(local[from])
                    .is_some_and(|old: f64| old.to_bits() != local[from].to_bits())
                {
                    return Ok(None);
                }
            }
        }
    }
    Ok(value.into_iter().collect())
}

/// Runs every rank's plan from one layout to another.
pub fn reshard(from: &Layout, to: &Layout, locals: &[Vec<f64>]) -> Result<Locals> {
    check_lengths(from, locals)?;
    to.mesh().ranks().map(|rank| run_plan(from, to, rank, locals)).collect()
}

/// Runs the steps of a route one after the other.
pub fn run(route: &Route, locals: &[Vec<f64>]) -> Result<Locals> {
    check_lengths(&route.from, locals)?;
    // By rank: the steps may be written on another mesh of the same ranks.
    let mut held: HashMap<Rank, Vec<f64>> = route.from.mesh().ranks().zip(locals.iter().cloned()).collect();
    for step in &route.steps {
        let locals = take(&step.from, &held)?;
        let moved = reshard(&step.from, &step.to, &locals)?;
        held = step.to.mesh().ranks().zip(moved).collect();
    }
    take(&route.to, &held)
}

fn take(layout: &Layout, held: &HashMap<Rank, Vec<f64>>) -> Result<Locals> {
    let one = |rank| held.get(&rank).cloned().ok_or(Error::Bug("a route lost a rank"));
    layout.mesh().ranks().map(one).collect()
}

fn check_lengths(layout: &Layout, locals: &[Vec<f64>]) -> Result<()> {
    if locals.len() != layout.mesh().size() {
        return Err(Error::RankCount { ranks: locals.len(), mesh: layout.mesh().size() });
    }
    for (rank, local) in layout.mesh().ranks().zip(locals) {
        let expected = layout.piece(rank)?.numel();
        if local.len() != expected {
            return Err(Error::BufferLength { rank, found: local.len(), expected });
        }
    }
    Ok(())
}

fn run_plan(from: &Layout, to: &Layout, rank: Rank, locals: &[Vec<f64>]) -> Result<Vec<f64>> {
    let plan = Plan::receive(from, to, rank)?;
    let piece = to.piece(rank)?;
    let fill = if plan.neutral == Neutral::Zero { 0.0 } else { 1.0 };
    let mut local = vec![f64::NAN; piece.numel()];
    for part in &plan.parts {
        let mut values = vec![fill; part.region.numel()];
        for (i, &source) in part.from.iter().enumerate() {
            let contribution = read(from, source, &part.region, locals)?;
            match plan.combine {
                Some(combine) if i > 0 => fold(&mut values, &contribution, combine),
                _ => values = contribution,
            }
        }
        if let Some(combine) = plan.combine.filter(|_| !part.from.is_empty()) {
            values.iter_mut().for_each(|x| *x = finish(*x, combine));
        }
        for (to, value) in held_at(&piece, &part.region)?.into_iter().zip(values) {
            local[to] = value;
        }
    }
    Ok(local)
}

fn read(from: &Layout, source: Rank, region: &Region, locals: &[Vec<f64>]) -> Result<Vec<f64>> {
    let coords = from.mesh().require(source)?;
    let piece = from.piece_at(&coords);
    let all = (0..coords.len()).collect();
    let local = &locals[from.mesh().position(all, &coords)];
    Ok(held_at(&piece, region)?.into_iter().map(|at| local[at]).collect())
}

fn fold(values: &mut [f64], with: &[f64], combine: Combine) {
    for (x, &y) in values.iter_mut().zip(with) {
        *x = match combine.reduce {
            Reduce::Sum | Reduce::Avg => *x + y,
            Reduce::Max => x.max(y),
            Reduce::Min => x.min(y),
            Reduce::Prod => *x * y,
            Reduce::Any => truth(*x != 0.0 || y != 0.0),
            Reduce::All => truth(*x != 0.0 && y != 0.0),
        };
    }
}

fn finish(value: f64, combine: Combine) -> f64 {
    match combine.reduce {
        Reduce::Any | Reduce::All => truth(value != 0.0),
        _ => value / combine.divisor as f64,
    }
}

fn truth(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

/// Where a piece keeps the elements of a box in its buffer.
fn held_at(piece: &Piece, region: &Region) -> Result<Vec<usize>> {
    let extents = piece.extents();
    let buffer = Region::from_bounds(extents.iter().map(|_| 0).collect(), extents);
    let inner = piece.locate(region).ok_or(Error::Bug("a plan uses a box that a piece does not hold"))?;
    Ok(elements(&inner, &buffer))
}

/// Offsets of the elements of a box in the row-major storage of `outer`.
fn elements(region: &Region, outer: &Region) -> Vec<usize> {
    region.runs(outer).flat_map(|(at, len)| at..at + len).collect()
}
