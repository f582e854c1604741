//! Pooling in any number of dims.

use super::call::{Answer, Call, Found, extents, many, one, refuse};
use super::conv::{Window, margins, same};
use super::nn::{channels_back, channels_first, channels_last, joined, padded};
use planaria_array::ops::{Keep, PadMode};
use planaria_array::{Array, DType, Scalar};

pub(super) fn call(c: &Call<'_>) -> Found {
    let kernel = match c.name() {
        "pool2d" => c.ints(1)?,
        "pool3d" => c.ints_attr("kernel_size")?,
        "max_pool2d_with_index" => return max_with_index(c),
        _ => return Ok(None),
    };
    let last = channels_last(c)?;
    let x = channels_first(c.array(0)?, last)?;
    let kernel = extents(&kernel)?;
    if x.ndim() != kernel.len() + 2 {
        return refuse(format!("a window of {kernel:?} does not fit {}", x.shape()));
    }
    let largest = c.text_attr("pooling_type")? == "max";
    let out = if c.bool_attr("adaptive")? {
        adaptive(&x, &kernel, largest)?
    } else {
        let (window, ends) = window(c, &x, kernel)?;
        if largest { greatest(&x, &window)? } else { average(c, &x, &window, &ends)? }
    };
    one(channels_back(&out, last)?)
}

/// The windows, with room for the last one where it is rounded up; and where the input's own margins end.
fn window(c: &Call<'_>, x: &Array, kernel: Vec<usize>) -> Answer<(Window, Vec<(i64, i64)>)> {
    let n = kernel.len();
    let stride = extents(&c.ints_attr("strides")?)?;
    if c.bool_attr("global_pooling")? {
        let kernel = x.shape()[2..].to_vec();
        let window = Window { stride: vec![1; n], dilation: vec![1; n], margins: vec![(0, 0); n], kernel };
        return Ok((window.checked()?, vec![(0, 0); n]));
    }
    let own = match c.op.attr("padding_algorithm").and_then(|node| node.as_text()) {
        Some("SAME") => {
            (0..n).map(|d| same(x.shape()[d + 2], kernel[d], *stride.get(d).unwrap_or(&1))).collect()
        }
        Some("VALID") => vec![(0, 0); n],
        _ => margins(&c.ints_attr("paddings")?, n)?,
    };
    let mut window = Window { kernel, stride, dilation: vec![1; n], margins: own.clone() }.checked()?;
    if c.bool_attr("ceil_mode")? {
        for d in 0..n {
            let (before, after) = own[d];
            let room = x.shape()[d + 2] as i64 + before + after - window.kernel[d] as i64;
            let rest = room.rem_euclid(window.stride[d] as i64);
            if room >= 0 && rest != 0 {
                window.margins[d].1 += window.stride[d] as i64 - rest;
            }
        }
    }
    Ok((window, own))
}

/// The dims of the kernel, which come last.
fn inside(n: usize) -> Vec<i64> {
    (1..=n as i64).map(|d| -d).collect()
}

fn greatest(x: &Array, window: &Window) -> Answer<Array> {
    let low = if x.dtype().is_float() { f64::NEG_INFINITY } else { 0.0 };
    let (views, _) = window.views(&padded(x, &window.margins, low)?)?;
    Ok(views.amax(&inside(window.kernel.len()), Keep::No)?)
}

fn average(c: &Call<'_>, x: &Array, window: &Window, own: &[(i64, i64)]) -> Answer<Array> {
    let n = window.kernel.len();
    let (views, counts) = window.views(&padded(x, &window.margins, 0.0)?)?;
    let mut out = views.sum(&inside(n), Keep::No)?;
    if x.is_meta() {
        return Ok(out);
    }
    let exclusive = c.bool_attr("exclusive")?;
    for d in 0..n {
        let size = x.shape()[d + 2] as i64;
        let (low, high) = if exclusive { (0, size) } else { (-own[d].0, size + own[d].1) };
        let covered = |at: usize| {
            let start = at as i64 * window.stride[d] as i64 - own[d].0;
            ((start + window.kernel[d] as i64).min(high) - start.max(low)).max(1) as f64
        };
        let sizes: Vec<f64> = (0..counts[d]).map(covered).collect();
        let mut dims = vec![1; n + 2];
        dims[d + 2] = counts[d];
        let sizes = Array::from_slice(&sizes, &dims)?.cast(x.dtype())?;
        out = out.div(&sizes)?;
    }
    Ok(out)
}

/// Windows as even as possible, of which there are `counts`; dim after dim.
fn adaptive(x: &Array, counts: &[usize], largest: bool) -> Answer<Array> {
    if x.is_meta() {
        return Ok(Array::meta(&[&x.shape()[..2], counts].concat(), x.dtype())?);
    }
    let mut out = x.clone();
    for (d, count) in counts.iter().enumerate() {
        let (axis, size) = (d as i64 + 2, x.shape()[d + 2]);
        let mut parts = Vec::with_capacity(*count);
        for at in 0..*count {
            let (start, end) = (at * size / count, ((at + 1) * size).div_ceil(*count));
            let part = out.narrow(axis, start, end - start)?;
            parts.push(if largest { part.amax(&[axis], Keep::Yes)? } else { part.mean(&[axis], Keep::Yes)? });
        }
        if parts.is_empty() {
            return refuse(format!("no window is asked for in dim {axis}"));
        }
        out = joined(&parts, axis)?;
    }
    Ok(out)
}

/// The largest values and their positions among the elements of a channel.
fn max_with_index(c: &Call<'_>) -> Found {
    let x = c.array(0)?;
    let kernel = extents(&c.ints_attr("kernel_size")?)?;
    if c.bool_attr("adaptive")? || x.ndim() != kernel.len() + 2 {
        return refuse("only windows of a fixed size can be run with positions");
    }
    let (window, _) = window(c, x, kernel)?;
    if x.is_meta() {
        let out = greatest(x, &window)?;
        let mask = Array::meta(out.shape(), DType::I32)?;
        return many([out, mask]);
    }
    let spatial = x.shape()[2..].to_vec();
    let count: usize = spatial.iter().product();
    let positions =
        Array::arange(0usize, count, 1usize, DType::I64)?.reshape(&[&[1, 1], &spatial[..]].concat())?;
    let positions = positions.pad(&window.margins, PadMode::Constant(Scalar::Int(0)))?;
    let flat = |of: &Array| -> Answer<Array> {
        let (views, counts) = window.views(of)?;
        let mut dims = views.shape()[..2].to_vec();
        dims.extend(counts);
        dims.push(window.kernel.iter().product());
        Ok(views.reshape(&dims)?)
    };
    let values = flat(&padded(x, &window.margins, f64::NEG_INFINITY)?)?;
    let (out, at) = values.max(-1, Keep::No)?;
    let positions = flat(&positions)?.broadcast_to(values.shape())?;
    let mask = positions.gather(-1, &at.unsqueeze(-1)?)?.select(-1, 0)?;
    many([out, mask.cast(DType::I32)?])
}
