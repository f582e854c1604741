//! Ops that only move elements, and their gradients.

use super::bench::Bench;
use super::call::{Call, wrap};
use super::table::Outputs;
use anyhow::{Context, Result};
use planaria_layout::rule::{self, LINEAR, Range, Rule};
use planaria_layout::{Layout, Reduce, Shape};

pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "reshape" | "flatten" | "squeeze" | "unsqueeze" => {
            let x = call.one(0)?;
            let shape = match call.name {
                "reshape" => asked(x.shape(), &call.ints("shape"))?,
                "flatten" => flattened(call)?,
                "squeeze" => squeezed(call)?,
                _ => unsqueezed(call)?,
            };
            vec![Some(bench.reshape(x, &shape)?)]
        }
        "reshape_grad" | "flatten_grad" | "squeeze_grad" | "unsqueeze_grad" => {
            vec![Some(bench.reshape(call.last()?, call.one(0)?.shape())?)]
        }
        "transpose" | "transpose_grad" => {
            let x = call.last()?;
            let perm: Vec<usize> =
                call.ints("perm").into_iter().map(|d| wrap(d, x.shape().ndim())).collect::<Result<_>>()?;
            let mut back = vec![0; perm.len()];
            perm.iter().enumerate().for_each(|(to, &from)| back[from] = to);
            vec![Some(bench.permute(x, if call.name == "transpose" { &perm } else { &back })?)]
        }
        "expand" | "expand_as" => {
            let name = if call.name == "expand" { "shape" } else { "target_shape" };
            let x = call.one(0)?;
            let mut dims: Vec<i64> = call.ints(name);
            let skip = dims.len() - x.shape().ndim();
            dims.iter_mut()
                .enumerate()
                .filter(|(_, n)| **n < 0)
                .for_each(|(d, n)| *n = x.shape()[d - skip] as i64);
            let dims: Vec<usize> =
                dims.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>()?;
            let shape = Shape::new(&dims)?;
            match call.maybe(1) {
                // The result is to meet the other tensor, of which only the layout matters.
                Some(like) if *like.shape() == shape => {
                    let like = bench.only_shape(like)?;
                    vec![Some(bench.pointwise(&[&like, x], &shape, &[(&[1], &Reduce::EVERY)])?)]
                }
                _ => vec![Some(bench.expand(x, &shape)?)],
            }
        }
        "expand_grad" | "expand_as_grad" => vec![Some(bench.sum_to(call.last()?, call.one(0)?.shape())?)],
        _ => return regular(bench, call),
    }))
}

/// Ops that treat every dim alike, or need some whole.
fn regular(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "tile" | "tile_grad" => vec![Some(tile(bench, call)?)],
        "roll" | "roll_grad" | "pad" | "pad_grad" | "triu" | "triu_grad" | "tril_triu" => {
            vec![Some(along(bench, call)?)]
        }
        "one_hot" => {
            let x = call.one(0)?;
            let mut dims: Vec<Option<usize>> = (0..x.shape().ndim()).map(Some).collect();
            dims.push(None);
            let mut shape = x.shape().to_vec();
            shape.push(usize::try_from(call.int("num_classes")?)?);
            vec![Some(bench.one(&rule::select_dims(x.shape(), &dims), &[x], &Shape::new(&shape)?)?)]
        }
        "slice" | "strided_slice" | "view_slice" | "slice_grad" | "strided_slice_grad" => {
            vec![Some(slice(bench, call)?)]
        }
        _ => return join(bench, call),
    }))
}

/// The shape that a reshape asks for: 0 copies a dim, -1 takes what is left.
fn asked(from: &Shape, to: &[i64]) -> Result<Shape> {
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
        dims[at] = from.numel() / known.max(1);
    }
    Ok(Shape::new(&dims)?)
}

fn flattened(call: &Call<'_>) -> Result<Shape> {
    let shape = call.one(0)?.shape();
    let (start, stop) = (call.dim("start_axis", shape.ndim())?, call.dim("stop_axis", shape.ndim())?);
    let mut dims = shape[..start].to_vec();
    dims.push(shape[start..=stop].iter().product());
    dims.extend(&shape[stop + 1..]);
    Ok(Shape::new(&dims)?)
}

fn squeezed(call: &Call<'_>) -> Result<Shape> {
    let shape = call.one(0)?.shape();
    let named = call.dims("axis", shape.ndim())?;
    let kept = shape.iter().enumerate().filter(|(dim, n)| **n != 1 || !named.contains(dim)).map(|(_, &n)| n);
    Ok(Shape::new(&kept.collect::<Vec<_>>())?)
}

fn unsqueezed(call: &Call<'_>) -> Result<Shape> {
    let mut dims = call.one(0)?.shape().to_vec();
    for axis in call.ints("axis") {
        dims.insert(wrap(axis, dims.len() + 1)?, 1);
    }
    Ok(Shape::new(&dims)?)
}

/// Repeats; a dim that is repeated is whole.
fn tile(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let x = call.one(0)?;
    let times: Vec<usize> =
        call.ints("repeat_times").into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>()?;
    let ndim = times.len().max(x.shape().ndim());
    let time = |d: usize| if d + times.len() < ndim { 1 } else { times[d + times.len() - ndim] };
    let skip = ndim - x.shape().ndim();
    let dims: Vec<usize> =
        (0..ndim).map(|d| time(d) * if d < skip { 1 } else { x.shape()[d - skip] }).collect();
    let output = Shape::new(&dims)?;
    let mut rule = rule::tile(x.shape(), &output);
    if call.name == "tile" {
        rule.pass(&[0], &Reduce::EVERY);
        return bench.one(&rule, &[x], &output);
    }
    let mut rule = rule::tile_grad(&output, x.shape());
    rule.pass(&[0], LINEAR);
    bench.one(&rule, &[call.last()?], x.shape())
}

/// Ops that need some dims whole and may change their extents.
fn along(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let x = call.last()?;
    let ndim = x.shape().ndim();
    let mut output = x.shape().to_vec();
    let whole: Vec<usize> = match call.name {
        "roll" | "roll_grad" => call.dims("axis", ndim)?,
        "pad" | "pad_grad" => {
            let paddings = call.ints("paddings");
            let sign = if call.name == "pad" { 1 } else { -1 };
            for (dim, pair) in paddings.chunks(2).enumerate() {
                output[dim] = usize::try_from(output[dim] as i64 + sign * pair.iter().sum::<i64>())?;
            }
            (0..ndim).filter(|&d| paddings[2 * d] != 0 || paddings[2 * d + 1] != 0).collect()
        }
        _ => vec![ndim - 2, ndim - 1],
    };
    let output = Shape::new(&output)?;
    let mut rule = rule::along(&[x.shape()], &[&output], &whole);
    rule.pass(&[0], LINEAR);
    bench.one(&rule, &[x], &output)
}

/// What a slice takes of a dim, as Python clips it.
fn range(dim: usize, (start, end, step): (i64, i64, i64), len: usize) -> Range {
    let n = len as i64;
    let clip = |at: i64| if at < 0 { (at + n).max(if step < 0 { -1 } else { 0 }) } else { at.min(n) };
    let (start, end) = (clip(start), clip(end));
    let start = if step < 0 { start.min(n - 1) } else { start };
    let span = if step > 0 { end - start } else { start - end };
    let count = (span + step.abs() - 1).div_euclid(step.abs().max(1));
    let len = usize::try_from(count).unwrap_or(0);
    Range { dim, start: usize::try_from(start).unwrap_or(0), len, step, kept: true }
}

/// Dims taken in full may be cut.
fn slice(bench: &mut Bench, call: &Call<'_>) -> Result<Layout> {
    let whole = call.one(0)?.shape();
    let (starts, ends, strides) = (call.ints("starts"), call.ints("ends"), call.ints("strides"));
    let mut ranges = Vec::new();
    for (i, axis) in call.ints("axes").into_iter().enumerate() {
        let dim = wrap(axis, whole.ndim())?;
        let step = strides.get(i).copied().unwrap_or(1);
        ranges.push(range(dim, (starts[i], ends[i], step), whole[dim]));
    }
    if call.name == "view_slice" {
        ranges.push(range(0, (call.int("begin_idx")?, call.int("end_idx")?, 1), whole[0]));
    }
    for gone in call.ints("decrease_axis") {
        let dim = wrap(gone, whole.ndim())?;
        ranges.iter_mut().filter(|range| range.dim == dim).for_each(|range| range.kept = false);
    }
    let taken = |dim: usize| ranges.iter().find(|range| range.dim == dim);
    let kept = (0..whole.ndim()).filter(|&dim| taken(dim).is_none_or(|range| range.kept));
    let output: Vec<usize> = kept.map(|dim| taken(dim).map_or(whole[dim], |range| range.len)).collect();
    let output = Shape::new(&output)?;
    let mut rule = rule::slice(whole, &ranges);
    if call.name.ends_with("_grad") {
        let dy = call.last()?;
        // A slice that leaves one element may be written without dims or with one.
        if *dy.shape() != output {
            let rule = Rule::whole(&[dy.shape().ndim()], &[whole.ndim()]);
            return bench.one(&rule, &[dy], whole);
        }
        (rule.inputs, rule.outputs) = (rule.outputs, rule.inputs);
        rule.pass(&[0], LINEAR);
        return bench.one(&rule, &[dy], whole);
    }
    rule.pass(&[0], &Reduce::EVERY);
    bench.one(&rule, &[call.one(0)?], &output)
}

fn join(bench: &mut Bench, call: &Call<'_>) -> Result<Option<Outputs>> {
    Ok(Some(match call.name {
        "concat" | "stack" => {
            let inputs: Vec<&Layout> = call.tensors().collect();
            let shapes: Vec<&Shape> = inputs.iter().map(|x| x.shape()).collect();
            let mut dims = shapes[0].to_vec();
            let (mut rule, output) = if call.name == "concat" {
                let dim = call.dim("axis", dims.len())?;
                dims[dim] = shapes.iter().map(|s| s[dim]).sum();
                let output = Shape::new(&dims)?;
                (rule::concat(&shapes, &output, dim), output)
            } else {
                let dim = call.dim("axis", dims.len() + 1)?;
                dims.insert(dim, shapes.len());
                let output = Shape::new(&dims)?;
                (rule::stack(&shapes, &output, dim), output)
            };
            rule.pass(&(0..inputs.len()).collect::<Vec<_>>(), &Reduce::EVERY);
            vec![Some(bench.one(&rule, &inputs, &output)?)]
        }
        "split" | "split_with_num" | "unbind" | "concat_grad" | "stack_grad" => part(bench, call)?,
        _ => return Ok(None),
    }))
}

/// One tensor in several.
fn part(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let x = call.last()?;
    let dim = call.dim("axis", x.shape().ndim())?;
    let len = x.shape()[dim];
    let sizes: Vec<usize> = match call.name {
        "split" => {
            let mut sizes = call.ints("sections");
            let known: i64 = sizes.iter().filter(|n| **n >= 0).sum();
            sizes.iter_mut().filter(|n| **n < 0).for_each(|n| *n = len as i64 - known);
            sizes.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>()?
        }
        "split_with_num" => {
            let num = usize::try_from(call.int("num")?)?;
            vec![len / num; num]
        }
        "concat_grad" => call.many(0).iter().map(|t| t.shape()[dim]).collect(),
        _ => vec![1; len],
    };
    let mut outputs = Vec::new();
    for size in sizes {
        let mut dims = x.shape().to_vec();
        match call.name {
            "unbind" | "stack_grad" => drop(dims.remove(dim)),
            _ => dims[dim] = size,
        }
        outputs.push(Shape::new(&dims)?);
    }
    let shapes: Vec<&Shape> = outputs.iter().collect();
    let mut rule = match call.name {
        "unbind" | "stack_grad" => rule::unbind(x.shape(), &shapes, dim),
        _ => rule::split(x.shape(), &shapes, dim),
    };
    rule.pass(&[0], &Reduce::EVERY);
    Ok(bench.run(&rule, &[x], &outputs)?.into_iter().map(Some).collect())
}
