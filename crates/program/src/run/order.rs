//! Ops that sort, rank and search.

use super::Datum;
use super::call::{Answer, Call, Found, dim, extents, many, one, refuse};
use planaria_array::ops::{Keep, Order, Side, Which, concat};
use planaria_array::{Array, DType};

pub(super) fn call(c: &Call<'_>) -> Found {
    let x = || c.array(0);
    match c.name() {
        "topk" => {
            let which = if c.bool_attr("largest")? { Which::Largest } else { Which::Smallest };
            let k = extents(&[c.int(1)?])?[0];
            let (values, indices) = x()?.topk(k, c.int_attr("axis")?, which)?;
            many([values, indices])
        }
        "argsort" => {
            let order = if c.bool_attr("descending")? { Order::Descending } else { Order::Ascending };
            let (values, indices) = x()?.sort(c.int_attr("axis")?, order)?;
            many([values, indices])
        }
        "kthvalue" => {
            let k = extents(&[c.int_attr("k")?])?[0];
            let (values, indices) = x()?.kthvalue(k, c.int_attr("axis")?, c.keep("keepdim")?)?;
            many([values, indices])
        }
        "median" => median(c),
        "unique" => unique(c),
        "searchsorted" => {
            let side = if c.bool_attr("right")? { Side::Right } else { Side::Left };
            let found = x()?.searchsorted(c.array(1)?, side)?;
            one(if c.bool_attr("out_int32")? { found.cast(DType::I32)? } else { found.cast(DType::I64)? })
        }
        _ => Ok(None),
    }
}

/// The middle value, or the mean of the two middle ones.
fn median(c: &Call<'_>) -> Found {
    let (x, keep) = (c.array(0)?, c.keep("keepdim")?);
    let axes = c.ints_attr("axis")?;
    let axes: Vec<usize> = match axes.is_empty() {
        true => (0..x.ndim()).collect(),
        false => axes.iter().map(|axis| dim(*axis, x.ndim())).collect::<Answer<_>>()?,
    };
    // The dims that go are gathered into the last one.
    let stay: Vec<usize> = (0..x.ndim()).filter(|d| !axes.contains(d)).collect();
    let order: Vec<i64> = stay.iter().chain(&axes).map(|d| *d as i64).collect();
    let kept: Vec<usize> = stay.iter().map(|d| x.shape()[*d]).collect();
    let count: usize = axes.iter().map(|d| x.shape()[*d]).product();
    let mut rows = kept.clone();
    rows.push(count);
    let moved = x.permute(&order)?.reshape(&rows)?;
    if count == 0 {
        return refuse("the median of nothing is not defined");
    }
    let (low, low_at) = moved.kthvalue(count.div_ceil(2), -1, Keep::No)?;
    let (high, high_at) = moved.kthvalue(count / 2 + 1, -1, Keep::No)?;
    let mean = c.text_attr("mode")? == "avg";
    let half = Array::scalar(0.5, x.dtype())?;
    let value = if mean { low.add(&high)?.mul(&half)? } else { low.clone() };
    let nan = moved.is_nan()?.any(&[-1], Keep::No)?;
    let value = planaria_array::ops::where_(&nan, &value.full_like(f64::NAN)?, &value)?;
    let shape: Vec<usize> = match keep {
        Keep::No => kept,
        Keep::Yes => (0..x.ndim()).map(|d| if axes.contains(&d) { 1 } else { x.shape()[d] }).collect(),
    };
    let at = concat(&[&low_at.unsqueeze(-1)?, &high_at.unsqueeze(-1)?], -1)?;
    let mut pair = shape.clone();
    let medians = match mean {
        true => {
            pair.push(2);
            Datum::Array(at.reshape(&pair)?)
        }
        false => Datum::Array(low_at.reshape(&shape)?),
    };
    let declared = c.op.results.get(1).and_then(|value| crate::types::tensor_type(&value.ty));
    let fits = declared.is_some_and(|ty| medians.array().is_some_and(|array| array.ndim() == ty.dims.len()));
    Ok(Some(vec![Datum::Array(value.reshape(&shape)?), if fits { medians } else { Datum::Absent }]))
}

fn unique(c: &Call<'_>) -> Found {
    let x = c.array(0)?;
    if !c.ints_attr("axis")?.is_empty() {
        return refuse("unique along a dim cannot be run, only that of all elements");
    }
    if x.is_meta() {
        return Ok(Some(vec![Datum::Unknown; 4]));
    }
    let dtype = c.dtype_attr("dtype")?.unwrap_or(DType::I64);
    let found = x.unique()?;
    let inverse = found.inverse.reshape(&[x.numel()])?;
    let mut first = vec![-1i64; found.values.numel()];
    for (at, group) in inverse.to_vec::<i64>()?.into_iter().enumerate() {
        let slot = &mut first[group as usize];
        if *slot < 0 {
            *slot = at as i64;
        }
    }
    let first = Array::from_slice(&first, &[first.len()])?;
    let indices = [first.cast(dtype)?, inverse.cast(dtype)?, found.counts.cast(dtype)?];
    many([found.values].into_iter().chain(indices))
}
