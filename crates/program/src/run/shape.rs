//! Ops that move elements and compute none.

use super::Datum;
use super::call::{Answer, Call, Found, dim, extents, one, refuse};
use planaria_array::ops::{PadMode, concat, stack};
use planaria_array::{Array, DType, Scalar};

pub(super) fn call(c: &Call<'_>) -> Found {
    if let Some(found) = lists(c)? {
        return Ok(Some(found));
    }
    if let Some(found) = views(c)? {
        return one(found);
    }
    moves(c)
}

/// Ops that take or give several tensors.
fn lists(c: &Call<'_>) -> Found {
    let listed =
        |arrays: Vec<Array>| Ok(Some(vec![Datum::List(arrays.into_iter().map(Datum::Array).collect())]));
    match c.op.parts() {
        ("builtin", "combine") => return Ok(Some(vec![Datum::List(c.args.clone())])),
        ("builtin", "split") => match c.args.first() {
            Some(Datum::List(items)) => return Ok(Some(items.clone())),
            _ => return refuse("operand 0 is not a list"),
        },
        ("builtin", "slice") => match (c.args.first(), c.int_attr("index")?) {
            (Some(Datum::List(items)), at) if usize::try_from(at).is_ok_and(|at| at < items.len()) => {
                return Ok(Some(vec![items[at as usize].clone()]));
            }
            (_, at) => return refuse(format!("operand 0 has no item {at}")),
        },
        _ => {}
    }
    match c.name() {
        "concat" => {
            let arrays = c.arrays(0)?;
            let axis = c.int(1)?;
            one(concat(&arrays, axis)?)
        }
        "stack" => one(stack(&c.arrays(0)?, c.int_attr("axis")?)?),
        "unbind" | "unstack" => {
            let (x, axis) = (c.array(0)?, dim(c.int_attr("axis")?, c.array(0)?.ndim())?);
            few(x.shape().get(axis).copied().unwrap_or(0))?;
            listed(x.unbind(axis as i64)?)
        }
        "meshgrid" => listed(grid(&c.arrays(0)?)?),
        "split_with_num" => {
            let (x, axis) = (c.array(0)?, dim(c.int(1)?, c.array(0)?.ndim())?);
            let count = c.int_attr("num")?.max(1) as usize;
            few(count)?;
            let (size, rest) = (x.shape()[axis] / count, x.shape()[axis] % count);
            if rest != 0 {
                return refuse(format!(
                    "{} elements of dim {axis} cannot be split into {count}",
                    x.shape()[axis]
                ));
            }
            listed(x.split_sizes(&vec![size; count], axis as i64)?)
        }
        "split" => {
            let (x, mut sections, axis) = (c.array(0)?, c.ints(1)?, dim(c.int(2)?, c.array(0)?.ndim())?);
            let known: i64 = sections.iter().filter(|size| **size >= 0).sum();
            for size in sections.iter_mut().filter(|size| **size < 0) {
                *size = x.shape()[axis] as i64 - known;
            }
            listed(x.split_sizes(&extents(&sections)?, axis as i64)?)
        }
        _ => Ok(None),
    }
}

/// Refuses lists that no program has; their tensors would cost memory even without elements.
/// The coordinates of every point of a grid, axis by axis.
fn grid(axes: &[&Array]) -> Answer<Vec<Array>> {
    let shape: Vec<usize> = axes.iter().map(|axis| axis.numel()).collect();
    let spread = |(at, axis): (usize, &&Array)| -> Answer<Array> {
        let mut alone = vec![1; shape.len()];
        alone[at] = shape[at];
        Ok(axis.reshape(&alone)?.broadcast_to(&shape)?)
    };
    axes.iter().enumerate().map(spread).collect()
}

fn few(count: usize) -> Answer<()> {
    if count > 1 << 16 { refuse(format!("a list of {count} tensors is too long")) } else { Ok(()) }
}

/// The extents that `reshape` asks for: 0 keeps a dim, -1 takes what is left.
fn reshaped(x: &Array, asked: &[i64]) -> Answer<Vec<usize>> {
    let mut dims = Vec::with_capacity(asked.len());
    let mut open = None;
    for (at, size) in asked.iter().enumerate() {
        match size {
            -1 if open.is_none() => {
                open = Some(at);
                dims.push(1);
            }
            0 if at < x.ndim() => dims.push(x.shape()[at]),
            size => dims.extend(extents(&[*size])?),
        }
    }
    if let Some(at) = open {
        let known: usize = dims.iter().product();
        if known == 0 || !x.numel().is_multiple_of(known) {
            return refuse(format!("{} elements do not fit the shape {asked:?}", x.numel()));
        }
        dims[at] = x.numel() / known;
    }
    Ok(dims)
}

fn views(c: &Call<'_>) -> Answer<Option<Array>> {
    let x = || c.array(0);
    let out = match c.name() {
        "reshape" => x()?.reshape(&reshaped(x()?, &c.ints(1)?)?)?,
        "transpose" => x()?.permute(&c.ints_attr("perm")?)?,
        "flatten" => {
            let (start, stop) = (c.int_attr("start_axis")?, c.int_attr("stop_axis")?);
            x()?.flatten(start, stop)?
        }
        "squeeze" => {
            let axes = c.ints(1)?;
            x()?.squeeze(&axes)?
        }
        "unsqueeze" => {
            let mut out = x()?.clone();
            for axis in c.ints(1)? {
                out = out.unsqueeze(axis)?;
            }
            out
        }
        "expand" => {
            let asked = c.ints(1)?;
            let new = asked.len().saturating_sub(x()?.ndim());
            let mut dims = Vec::new();
            for (at, size) in asked.iter().enumerate() {
                match (size, at.checked_sub(new)) {
                    (-1, Some(own)) => dims.push(x()?.shape()[own]),
                    (size, _) => dims.extend(extents(&[*size])?),
                }
            }
            x()?.broadcast_to(&dims)?
        }
        "expand_as" => match c.optional(1) {
            Some(other) => x()?.broadcast_to(other.shape())?,
            None => x()?.broadcast_to(&extents(&c.ints_attr("target_shape")?)?)?,
        },
        "slice" => slice(c)?,
        "strided_slice" => {
            let (starts, ends, steps) = (c.ints(1)?, c.ints(2)?, c.ints(3)?);
            walk(x()?, &c.ints_attr("axes")?, &starts, &ends, &steps)?
        }
        "flip" => x()?.flip(&c.ints_attr("axis")?)?,
        "triu" => x()?.triu(c.int_attr("diagonal")?)?,
        "tril" => x()?.tril(c.int_attr("diagonal")?)?,
        _ => return Ok(None),
    };
    Ok(Some(out))
}

fn slice(c: &Call<'_>) -> Answer<Array> {
    let (starts, ends) = (c.ints(1)?, c.ints(2)?);
    let steps = vec![1; starts.len()];
    let out = walk(c.array(0)?, &c.ints_attr("axes")?, &starts, &ends, &steps)?;
    dropped(&out, &c.ints_attr("decrease_axis")?)
}

/// Without these dims of size 1.
pub(super) fn dropped(x: &Array, axes: &[i64]) -> Answer<Array> {
    if axes.is_empty() { Ok(x.clone()) } else { Ok(x.squeeze(axes)?) }
}

/// Parts of dims, by steps that may go backwards.
pub(super) fn walk(x: &Array, axes: &[i64], starts: &[i64], ends: &[i64], steps: &[i64]) -> Answer<Array> {
    if [starts.len(), ends.len(), steps.len()] != [axes.len(); 3] {
        return refuse(format!(
            "{} dims are cut by {} starts and {} ends",
            axes.len(),
            starts.len(),
            ends.len()
        ));
    }
    let mut out = x.clone();
    for (at, axis) in axes.iter().enumerate() {
        let axis = dim(*axis, x.ndim())?;
        let (start, stop) = bounds(x.shape()[axis] as i64, starts[at], ends[at], steps[at]);
        out = out.slice(axis as i64, start, stop, steps[at])?;
    }
    Ok(out)
}

/// Paddle's bounds as Python's: going backwards, an end of -1 stands before the first element.
fn bounds(size: i64, start: i64, end: i64, step: i64) -> (Option<i64>, Option<i64>) {
    let wrapped = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    if step > 0 {
        return (Some(wrapped(start).max(0)), Some(wrapped(end).max(0)));
    }
    let stop = if end == -1 { -1 } else { wrapped(end) };
    let begin = wrapped(start);
    if begin < 0 {
        // Before the first element: nothing is left.
        return (Some(0), Some(0));
    }
    (Some(begin), (stop >= 0).then_some(stop))
}

fn moves(c: &Call<'_>) -> Found {
    let x = || c.array(0);
    match c.name() {
        "tile" => {
            let times = extents(&c.ints(1)?)?;
            one(x()?.repeat(&times)?)
        }
        "roll" => {
            let (shifts, axes) = (c.ints(1)?, c.ints_attr("axis")?);
            if axes.is_empty() {
                let flat = x()?.reshape(&[x()?.numel()])?.roll(&shifts, &[0])?;
                return one(flat.reshape(x()?.shape())?);
            }
            one(x()?.roll(&shifts, &axes)?)
        }
        "repeat_interleave" => {
            let repeats = extents(&[c.int_attr("repeats")?])?;
            one(x()?.repeat_interleave(&repeats, c.int_attr("axis")?)?)
        }
        "pad" => {
            let margins = c.ints_attr("paddings")?;
            let margins: Vec<(i64, i64)> = margins.chunks_exact(2).map(|m| (m[0], m[1])).collect();
            let value = if x()?.is_meta() { Scalar::Int(0) } else { c.scalar(1)? };
            one(x()?.pad(&margins, PadMode::Constant(value))?)
        }
        "pad3d" => pad3d(c),
        "diag" => diag(c),
        "trace" => trace(c),
        "channel_shuffle" => {
            let (first, n) = channels_first(c)?;
            let groups = extents(&[c.int_attr("groups")?])?[0];
            let [b, ch, h, w] = n;
            if groups == 0 || ch % groups != 0 {
                return refuse(format!("{ch} channels do not form {groups} groups"));
            }
            let moved = first.reshape(&[b, groups, ch / groups, h, w])?.transpose(1, 2)?;
            restored(c, moved.reshape(&[b, ch, h, w])?)
        }
        "pixel_shuffle" => {
            let (first, [b, ch, h, w]) = channels_first(c)?;
            let r = extents(&[c.int_attr("upscale_factor")?])?[0];
            if r == 0 || ch % (r * r) != 0 {
                return refuse(format!("{ch} channels are not a multiple of {r}x{r}"));
            }
            let out = first.reshape(&[b, ch / (r * r), r, r, h, w])?.permute(&[0, 1, 4, 2, 5, 3])?;
            restored(c, out.reshape(&[b, ch / (r * r), h * r, w * r])?)
        }
        "pixel_unshuffle" => {
            let (first, [b, ch, h, w]) = channels_first(c)?;
            let r = extents(&[c.int_attr("downscale_factor")?])?[0];
            if r == 0 || h % r != 0 || w % r != 0 {
                return refuse(format!("{h}x{w} positions do not form blocks of {r}x{r}"));
            }
            let out = first.reshape(&[b, ch, h / r, r, w / r, r])?.permute(&[0, 1, 3, 5, 2, 4])?;
            restored(c, out.reshape(&[b, ch * r * r, h / r, w / r])?)
        }
        "temporal_shift" => temporal_shift(c),
        _ => Ok(None),
    }
}

/// The operand with its channels before its positions, and its extents.
fn channels_first(c: &Call<'_>) -> Answer<(Array, [usize; 4])> {
    let x = c.array(0)?;
    let x = if c.text_attr("data_format")? == "NHWC" { x.permute(&[0, 3, 1, 2])? } else { x.clone() };
    match <[usize; 4]>::try_from(&x.shape()[..]) {
        Ok(dims) => Ok((x, dims)),
        Err(_) => refuse(format!("expected a tensor of 4 dims, found {}", x.shape())),
    }
}

fn restored(c: &Call<'_>, x: Array) -> Found {
    one(if c.text_attr("data_format")? == "NHWC" { x.permute(&[0, 2, 3, 1])? } else { x })
}

fn pad3d(c: &Call<'_>) -> Found {
    let (x, pads) = (c.array(0)?, c.ints(1)?);
    let last = c.text_attr("data_format")? == "NDHWC";
    let spatial = x.ndim().saturating_sub(2);
    if pads.len() != 2 * spatial || spatial != 3 {
        return refuse(format!("{} margins are given for {}", pads.len(), x.shape()));
    }
    // The innermost dim comes first.
    let mut margins: Vec<(i64, i64)> = pads.chunks_exact(2).rev().map(|m| (m[0], m[1])).collect();
    if last {
        margins.push((0, 0));
    }
    let mode = match c.text_attr("mode")? {
        "constant" => PadMode::Constant(Scalar::Float(c.real_attr("pad_value")?)),
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        other => return refuse(format!("mode \"{other}\" is not known")),
    };
    one(x.pad(&margins, mode)?)
}

fn diag(c: &Call<'_>) -> Found {
    let (x, offset) = (c.array(0)?, c.int_attr("offset")?);
    if x.ndim() == 2 {
        return one(diagonal(x, offset, 0, 1)?);
    }
    let size = x.numel() + offset.unsigned_abs() as usize;
    if x.is_meta() {
        return one(Array::meta(&[size, size], x.dtype())?);
    }
    let out = Array::full(&[size, size], c.real_attr("padding_value")?, x.dtype())?;
    diagonal(&out, offset, 0, 1)?.copy_from(&x.reshape(&[x.numel()])?)?;
    one(out)
}

/// The diagonal of two dims, as a view with it last.
fn diagonal(x: &Array, offset: i64, first: i64, second: i64) -> Answer<Array> {
    let (a, b) = (dim(first, x.ndim())?, dim(second, x.ndim())?);
    let (down, right) = ((-offset).max(0) as usize, offset.max(0) as usize);
    let count = (x.shape()[a].saturating_sub(down)).min(x.shape()[b].saturating_sub(right));
    let mut dims: Vec<usize> = Vec::new();
    let mut strides: Vec<isize> = Vec::new();
    for d in (0..x.ndim()).filter(|d| *d != a && *d != b) {
        dims.push(x.shape()[d]);
        strides.push(x.strides()[d]);
    }
    dims.push(count);
    strides.push(x.strides()[a] + x.strides()[b]);
    if x.is_meta() {
        return Ok(Array::meta(&dims, x.dtype())?);
    }
    let start = x.offset() as isize + down as isize * x.strides()[a] + right as isize * x.strides()[b];
    Ok(x.as_strided(&dims, &strides, if count == 0 { x.offset() } else { start as usize })?)
}

fn trace(c: &Call<'_>) -> Found {
    let x = c.array(0)?;
    let line = diagonal(x, c.int_attr("offset")?, c.int_attr("axis1")?, c.int_attr("axis2")?)?;
    let sum = line.sum(&[-1], planaria_array::ops::Keep::No)?;
    one(if x.dtype() == DType::Bool { sum } else { sum.cast(x.dtype())? })
}

/// Parts of the channels come from the frame before and from the one after.
fn temporal_shift(c: &Call<'_>) -> Found {
    let (x, [n, ch, h, w]) = channels_first(c)?;
    let frames = extents(&[c.int_attr("seg_num")?])?[0].max(1);
    let ratio = c.real_attr("shift_ratio")?;
    let (back, fore) = ((ch as f64 * ratio) as i64, (ch as f64 * 2.0 * ratio) as i64);
    let x = x.reshape(&[n / frames, frames, ch, h, w])?;
    let zeros = PadMode::Constant(Scalar::Int(0));
    let shifted = |part: Array, before: i64| part.pad(&[(before, -before), (0, 0), (0, 0), (0, 0)], zeros);
    let from_before = shifted(x.slice(2, Some(0), Some(back), 1)?, 1)?;
    let from_after = shifted(x.slice(2, Some(back), Some(fore), 1)?, -1)?;
    let same = x.slice(2, Some(fore), None, 1)?;
    restored(c, concat(&[&from_before, &from_after, &same], 2)?.reshape(&[n, ch, h, w])?)
}
