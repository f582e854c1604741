//! Ops that fold dims.

use super::call::{Answer, Call, Found, dim, like, one, refuse};
use planaria_array::ops::{Keep, sum_to};
use planaria_array::{Array, DType};

/// A fold over dims.
type Fold = fn(&Array, &[i64], Keep) -> planaria_array::Result<Array>;

pub(super) fn call(c: &Call<'_>) -> Found {
    if let Some(found) = folds(c)? {
        return one(found);
    }
    if let Some(found) = norms(c)? {
        return one(found);
    }
    scans(c)
}

/// Every dim, where none is named.
fn all_or(x: &Array, axes: Vec<i64>) -> Vec<i64> {
    if axes.is_empty() { (0..x.ndim() as i64).collect() } else { axes }
}

fn fold(x: &Array, axes: Vec<i64>, keep: Keep, fold: Fold) -> Answer<Array> {
    let axes = all_or(x, axes);
    // A single value is its own fold; ops that change the element type do so on one dim.
    if x.ndim() == 0 {
        return Ok(fold(&x.reshape(&[1])?, &[0], Keep::No)?);
    }
    Ok(fold(x, &axes, keep)?)
}

fn folds(c: &Call<'_>) -> Answer<Option<Array>> {
    let x = || c.array(0);
    let out = match c.name() {
        "sum" => {
            let wanted = c.dtype_attr("dtype")?;
            let sum = fold(x()?, c.ints(1)?, c.keep("keepdim")?, Array::sum)?;
            let natural =
                if matches!(x()?.dtype(), DType::Bool | DType::I32) { DType::I64 } else { x()?.dtype() };
            sum.cast(wanted.unwrap_or(natural))?
        }
        "mean" => fold(x()?, c.ints(1)?, c.keep("keepdim")?, Array::mean)?,
        "max" => fold(x()?, c.ints(1)?, c.keep("keepdim")?, Array::amax)?,
        "min" => fold(x()?, c.ints(1)?, c.keep("keepdim")?, Array::amin)?,
        "prod" => {
            let axes = if c.bool_attr("reduce_all")? { Vec::new() } else { c.ints(1)? };
            fold(x()?, axes, c.keep("keepdim")?, Array::prod)?.cast(x()?.dtype())?
        }
        "all" => fold(x()?, c.ints_attr("axis")?, c.keep("keepdim")?, Array::all)?,
        "any" => fold(x()?, c.ints_attr("axis")?, c.keep("keepdim")?, Array::any)?,
        "amax" => fold(x()?, c.ints_attr("axis")?, c.keep("keepdim")?, Array::amax)?,
        "amin" => fold(x()?, c.ints_attr("axis")?, c.keep("keepdim")?, Array::amin)?,
        "logsumexp" => {
            let axes = if c.bool_attr("reduce_all")? { Vec::new() } else { c.ints_attr("axis")? };
            fold(x()?, axes, c.keep("keepdim")?, Array::logsumexp)?
        }
        "mean_all" => fold(x()?, Vec::new(), Keep::No, Array::mean)?,
        "reduce_as" => sum_to(x()?, c.array(1)?.shape())?,
        "argmax" | "argmin" => {
            let flat = c.bool_attr("flatten")?;
            let axis = if flat { None } else { Some(c.int(1)?) };
            let keep = c.keep("keepdims")?;
            let found =
                if c.name() == "argmax" { x()?.argmax(axis, keep)? } else { x()?.argmin(axis, keep)? };
            found.cast(c.dtype_attr("dtype")?.unwrap_or(DType::I64))?
        }
        _ => return Ok(None),
    };
    Ok(Some(out))
}

fn norms(c: &Call<'_>) -> Answer<Option<Array>> {
    let x = || c.array(0);
    let out = match c.name() {
        "squared_l2_norm" => {
            fold(x()?, Vec::new(), Keep::No, Array::sum_squares)?.reshape(&[1])?.cast(x()?.dtype())?
        }
        "p_norm" => {
            let (p, keep) = (c.real_attr("porder")?, c.keep("keepdim")?);
            if c.bool_attr("asvector")? {
                let whole: Vec<i64> = (0..x()?.ndim() as i64).collect();
                x()?.norm(p, &whole, keep)?
            } else {
                x()?.norm(p, &[c.int_attr("axis")?], keep)?
            }
        }
        "dist" => {
            let difference = x()?.sub(c.array(1)?)?;
            let whole: Vec<i64> = (0..difference.ndim() as i64).collect();
            difference.norm(c.real_attr("p")?, &whole, Keep::No)?
        }
        _ => return Ok(None),
    };
    Ok(Some(out))
}

fn scans(c: &Call<'_>) -> Found {
    let scan: fn(&Array, i64) -> planaria_array::Result<Array> = match c.name() {
        "cumsum" => Array::cumsum,
        "cumprod" => Array::cumprod,
        "logcumsumexp" => Array::logcumsumexp,
        _ => return Ok(None),
    };
    let flat = c.name() != "cumprod" && c.bool_attr("flatten")?;
    let whole = c.array(0)?;
    let x = if flat { whole.reshape(&[whole.numel()])? } else { whole.clone() };
    let axis = match c.name() {
        _ if flat => 0,
        "cumsum" => c.int(1)?,
        "cumprod" => c.int_attr("dim")?,
        _ => c.int_attr("axis")?,
    };
    let axis = dim(axis, x.ndim())? as i64;
    let turned = |x: &Array| -> Answer<Array> {
        Ok(if c.bool_attr("reverse")? { x.flip(&[axis])? } else { x.clone() })
    };
    let mut out = scan(&turned(&x)?, axis)?.cast(x.dtype())?;
    if c.bool_attr("exclusive")? {
        out = shifted(&out, axis, c.name())?;
    }
    one(turned(&out)?)
}

/// Every value one position later, with that of nothing first.
fn shifted(x: &Array, axis: i64, op: &str) -> Answer<Array> {
    let nothing = match op {
        "cumsum" => 0.0,
        "cumprod" => 1.0,
        "logcumsumexp" => f64::NEG_INFINITY,
        other => return refuse(format!("{other} has no exclusive form")),
    };
    let mut first: Vec<usize> = x.shape().to_vec();
    first[axis as usize] = 1;
    let first = like(x, nothing)?.broadcast_to(&first)?;
    let first = if x.is_meta() { first.to_meta() } else { first };
    let rest = x.slice(axis, None, Some(-1), 1)?;
    Ok(planaria_array::ops::concat(&[&first, &rest], axis)?)
}
