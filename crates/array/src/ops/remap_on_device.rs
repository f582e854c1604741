//! Copies through one map per dim, and their gradients, on a device: run by run as views, or by positions where runs are many.

use crate::array::{Array, Strides};
use crate::cpu::remap::{Map, Run, Step};
use crate::element::Scalar;
use crate::error::Result;
use crate::ops::{Binary, Keep};
use planaria_layout::{Dims, Shape};
use smallvec::SmallVec;

/// More runs than this are done by positions, in one launch.
const RUNS: usize = 8;

/// `x` read through one map per dim, gaps filled with `fill`.
pub(super) fn read(op: &'static str, x: &Array, maps: &[Map], fill: Scalar) -> Result<Array> {
    let mut x = x.clone();
    for (d, map) in changed(maps) {
        let dim = d as i64;
        if let Some(positions) = positions(map, &x)? {
            x = x.index_select(dim, &positions)?;
            continue;
        }
        let out = Array::unwritten(op, with(x.shape(), d, map.len())?, x.dtype(), x.device())?;
        for run in map.runs() {
            let to = out.narrow(dim, run.at, run.len)?;
            match source(&x, d, run)? {
                Some(from) => to.copy_from(&from.broadcast_to(to.shape())?)?,
                None => to.fill(fill)?,
            }
        }
        x = out;
    }
    x.copy()
}

/// The elements of `grad` added back to where they came from.
pub(super) fn add_back(grad: &Array, input: &Shape, maps: &[Map]) -> Result<Array> {
    let mut grad = grad.clone();
    for (d, map) in changed(maps) {
        let dim = d as i64;
        let sum = Array::zeros_on(&with(grad.shape(), d, input[d])?, grad.dtype(), grad.device())?;
        if let Some(positions) = positions(map, &grad)? {
            grad = sum.index_add(dim, &positions, &grad)?;
            continue;
        }
        for run in map.runs() {
            let Some(to) = source(&sum, d, run)? else { continue };
            let part = grad.narrow(dim, run.at, run.len)?;
            let part = if run.step == Step::Stay { part.sum(&[dim], Keep::Yes)? } else { part };
            to.binary_in_place(Binary::Add, &part)?;
        }
        grad = sum;
    }
    grad.copy()
}

fn changed(maps: &[Map]) -> impl Iterator<Item = (usize, &Map)> {
    maps.iter().enumerate().filter(|(_, map)| !map.is_identity())
}

fn with(shape: &[usize], d: usize, size: usize) -> Result<Shape> {
    let mut dims = Dims::from_slice(shape);
    dims[d] = size;
    Ok(Shape::from_dims(dims)?)
}

/// What a run shows of `x`: one position where it stays, a view that may run backwards; nothing where it is filled.
fn source(x: &Array, d: usize, run: &Run) -> Result<Option<Array>> {
    let Some(start) = run.start else { return Ok(None) };
    let dim = d as i64;
    Ok(Some(match run.step {
        Step::Forward => x.narrow(dim, start, run.len)?,
        Step::Stay => x.narrow(dim, start, 1)?,
        Step::Back => turned_round(&x.narrow(dim, start + 1 - run.len, run.len)?, d),
    }))
}

/// A view that runs backwards along a dim that is not empty.
fn turned_round(x: &Array, d: usize) -> Array {
    let mut strides: Strides = SmallVec::from_slice(x.strides());
    let last = x.shape()[d].saturating_sub(1) as isize * strides[d];
    let offset = if x.numel() == 0 { x.offset() } else { (x.offset() as isize + last) as usize };
    strides[d] = -strides[d];
    x.with_geometry(x.shape().clone(), strides, offset)
}

/// The source of every position, where there are many runs and all have one.
fn positions(map: &Map, beside: &Array) -> Result<Option<Array>> {
    if map.runs().len() <= RUNS || map.runs().iter().any(|run| run.start.is_none()) {
        return Ok(None);
    }
    let all: Vec<i64> = map.dense().into_iter().map(|at| at as i64).collect();
    Array::from_slice(&all, &[all.len()])?.to(beside.device()).map(Some)
}
