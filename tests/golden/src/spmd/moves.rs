//! Ops that only move elements.

use super::call::{Call, wrap};
use super::program::{Outputs, one};
use anyhow::{Context, Result};
use planaria_tensor::ops::{self, PadMode};
use planaria_tensor::{DType, Tensor};

pub(super) fn run(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    let Some(x) = call.maybe(0) else { return Ok(None) };
    let ndim = x.ndim();
    match call.name {
        "reshape" => one(x.reshape(&asked(x.shape(), &call.ints("shape"))?)),
        "flatten" => one(x.flatten(call.int("start_axis")?, call.int("stop_axis")?)),
        "squeeze" => {
            let mut dims = Vec::new();
            for axis in call.ints("axis") {
                let dim = wrap(axis, ndim)?;
                dims.extend((x.shape()[dim] == 1).then_some(dim));
            }
            if call.ints("axis").is_empty() {
                dims = (0..ndim).filter(|&d| x.shape()[d] == 1).collect();
            }
            let kept = (0..ndim).filter(|d| !dims.contains(d)).map(|d| x.shape()[d]);
            one(x.reshape(&kept.collect::<Vec<_>>()))
        }
        "unsqueeze" => {
            let mut dims = x.shape().to_vec();
            for axis in call.ints("axis") {
                dims.insert(wrap(axis, dims.len() + 1)?, 1);
            }
            one(x.reshape(&dims))
        }
        "transpose" => one(x.permute(&call.ints("perm"))),
        "expand" => one(x.broadcast_to(&filled(x.shape(), &call.ints("shape"))?)),
        "expand_as" => one(x.broadcast_to(&filled(x.shape(), &call.ints("target_shape"))?)),
        "tile" => one(x.repeat(&sizes(&call.ints("repeat_times"))?)),
        "roll" => one(x.roll(&call.ints("shifts"), &call.ints("axis"))),
        "pad" => {
            let margins = call.ints("paddings");
            let margins: Vec<(i64, i64)> = margins.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            one(x.pad(&margins, PadMode::Constant(call.number("pad_value", 0.0).into())))
        }
        "triu" => one(x.triu(call.int("diagonal")?)),
        "tril_triu" if call.flag("lower") => one(x.tril(call.int("diagonal")?)),
        "tril_triu" => one(x.triu(call.int("diagonal")?)),
        "one_hot" => one(x.one_hot(usize::try_from(call.int("num_classes")?)?, DType::F32)),
        "slice" | "strided_slice" | "view_slice" => one(Ok(sliced(call, x)?)),
        _ => join(call, x),
    }
}

fn sizes(list: &[i64]) -> Result<Vec<usize>> {
    list.iter().map(|&n| Ok(usize::try_from(n)?)).collect()
}

/// The shape that a reshape asks for: 0 copies a dim, -1 takes what is left.
fn asked(from: &[usize], to: &[i64]) -> Result<Vec<usize>> {
    let mut dims = Vec::new();
    for (dim, &len) in to.iter().enumerate() {
        dims.push(match len {
            0 => *from.get(dim).context("a dim to copy")?,
            -1 => 0,
            len => usize::try_from(len)?,
        });
    }
    let known: usize = dims.iter().filter(|&&n| n > 0).product();
    if let Some(at) = to.iter().position(|&n| n == -1) {
        dims[at] = from.iter().product::<usize>() / known.max(1);
    }
    Ok(dims)
}

/// A shape to broadcast to: -1 keeps a dim.
fn filled(from: &[usize], to: &[i64]) -> Result<Vec<usize>> {
    let skip = to.len().checked_sub(from.len()).context("fewer dims than before")?;
    let one = |(dim, &len): (usize, &i64)| match len {
        -1 => dim.checked_sub(skip).map(|d| from[d]).context("a dim to keep"),
        len => Ok(usize::try_from(len)?),
    };
    to.iter().enumerate().map(one).collect()
}

fn sliced(call: &Call<'_, Tensor>, x: &Tensor) -> Result<Tensor> {
    let mut y = x.clone();
    let (starts, ends, strides) = (call.ints("starts"), call.ints("ends"), call.ints("strides"));
    for (i, &axis) in call.ints("axes").iter().enumerate() {
        let step = strides.get(i).copied().unwrap_or(1);
        y = y.slice(axis, Some(starts[i]), Some(ends[i]), step)?;
    }
    if call.name == "view_slice" {
        y = y.slice(0, Some(call.int("begin_idx")?), Some(call.int("end_idx")?), 1)?;
    }
    let gone = call.ints("decrease_axis");
    Ok(if gone.is_empty() { y } else { y.squeeze(&gone)? })
}

fn join(call: &Call<'_, Tensor>, x: &Tensor) -> Result<Option<Outputs>> {
    let axis = call.attrs["axis"].as_i64().unwrap_or(0);
    let all = |list: Vec<Tensor>| Ok(Some(list.into_iter().map(Some).collect()));
    match call.name {
        "concat" => one(ops::concat(&call.many(0), axis)),
        "stack" => one(ops::stack(&call.many(0), axis)),
        "split" => {
            let len = x.shape()[wrap(axis, x.ndim())?] as i64;
            let mut parts = call.ints("sections");
            let known: i64 = parts.iter().filter(|n| **n >= 0).sum();
            parts.iter_mut().filter(|n| **n < 0).for_each(|n| *n = len - known);
            all(x.split_sizes(&sizes(&parts)?, axis)?)
        }
        "split_with_num" => {
            let num = usize::try_from(call.int("num")?)?.max(1);
            all(x.split(x.shape()[wrap(axis, x.ndim())?] / num, axis)?)
        }
        "unbind" => all(x.unbind(axis)?),
        _ => Ok(None),
    }
}
