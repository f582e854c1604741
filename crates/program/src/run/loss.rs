//! Losses.

use super::Datum;
use super::call::{Answer, Call, Found, dim, like, many, one, refuse};
use planaria_array::ops::{Keep, where_};
use planaria_array::{Array, DType};

pub(super) fn call(c: &Call<'_>) -> Found {
    match c.name() {
        "cross_entropy_with_softmax" => cross_entropy(c),
        "cross_entropy_with_softmax_grad" => cross_entropy_grad(c),
        "nll_loss" => nll(c),
        "huber_loss" => {
            let (x, delta) = (c.array(0)?, c.real_attr("delta")?);
            let residual = c.array(1)?.sub(x)?;
            let size = residual.abs()?;
            let square = residual.square()?.mul(&like(x, 0.5)?)?;
            let line = size.sub(&like(x, 0.5 * delta)?)?.mul(&like(x, delta)?)?;
            let out = where_(&size.le(&like(x, delta)?)?, &square, &line)?;
            many([out, residual])
        }
        "kldiv_loss" => {
            let (x, label) = (c.array(0)?, c.array(1)?);
            let loss = if c.bool_attr("log_target")? {
                label.exp()?.mul(&label.sub(x)?)?
            } else {
                let each = label.mul(&label.ln()?.sub(x)?)?;
                where_(&label.gt(&like(label, 0.0)?)?, &each, &label.zeros_like()?)?
            };
            let all: Vec<i64> = (0..x.ndim() as i64).collect();
            one(match c.text_attr("reduction")? {
                "none" => loss,
                "mean" => loss.mean(&all, Keep::No)?,
                "sum" => loss.sum(&all, Keep::No)?,
                "batchmean" => {
                    let batch = x.shape().first().copied().unwrap_or(1).max(1);
                    loss.sum(&all, Keep::No)?.div(&like(x, batch as f64)?)?
                }
                other => return refuse(format!("reduction \"{other}\" is not known")),
            })
        }
        "sigmoid_cross_entropy_with_logits" => sigmoid(c),
        _ => Ok(None),
    }
}

/// Labels with the dim of the classes as 1, and where they count.
fn labels(c: &Call<'_>, label: &Array, x: &Array, axis: usize) -> Answer<(Array, Array)> {
    let mut dims = x.shape().to_vec();
    dims[axis] = 1;
    let label = label.reshape(&dims)?.cast(DType::I64)?;
    let ignored = Array::scalar(c.int_attr("ignore_index")?, DType::I64)?;
    let counts = label.ne(&ignored)?;
    let safe = where_(&counts, &label, &label.zeros_like()?)?;
    Ok((safe, counts))
}

fn cross_entropy(c: &Call<'_>) -> Found {
    let (x, label) = (c.array(0)?, c.array(1)?);
    let axis = dim(c.int_attr("axis")?, x.ndim())?;
    let (softmax, log) = match c.bool_attr("use_softmax")? {
        true => (x.softmax(axis as i64)?, x.log_softmax(axis as i64)?),
        false => (x.clone(), x.ln()?),
    };
    if c.bool_attr("soft_label")? {
        let loss = label.mul(&log)?.sum(&[axis as i64], Keep::Yes)?.neg()?;
        return many([softmax, loss]);
    }
    let (label, counts) = labels(c, label, x, axis)?;
    let chosen = log.gather(axis as i64, &label)?.neg()?;
    let loss = where_(&counts, &chosen, &chosen.zeros_like()?)?;
    many([softmax, loss])
}

fn cross_entropy_grad(c: &Call<'_>) -> Found {
    let (label, softmax, dy) = (c.array(0)?, c.array(1)?, c.array(2)?);
    let axis = dim(c.int_attr("axis")?, softmax.ndim())?;
    if !c.bool_attr("use_softmax")? {
        return refuse("the gradient of a cross entropy without softmax cannot be run");
    }
    if c.bool_attr("soft_label")? {
        return one(softmax.sub(label)?.mul(dy)?);
    }
    let (label, counts) = labels(c, label, softmax, axis)?;
    let chosen = softmax.zeros_like()?.scatter_scalar(axis as i64, &label, 1i64)?;
    let grad = softmax.sub(&chosen)?.mul(dy)?;
    one(where_(&counts, &grad, &grad.zeros_like()?)?)
}

fn nll(c: &Call<'_>) -> Found {
    let (x, label) = (c.array(0)?, c.array(1)?);
    let axis = if x.ndim() == 1 { 0 } else { 1 };
    let (label, counts) = labels(c, label, x, axis as usize)?;
    let weights = match c.optional(2) {
        Some(weight) => {
            let flat = label.reshape(&[label.numel()])?;
            weight.index_select(0, &flat)?.reshape(label.shape())?
        }
        None => Array::ones(label.shape(), x.dtype())?,
    };
    let weights = if x.is_meta() { weights.to_meta() } else { weights };
    let weights = where_(&counts, &weights, &weights.zeros_like()?)?;
    let loss = x.gather(axis, &label)?.neg()?.mul(&weights)?;
    let all: Vec<i64> = (0..x.ndim() as i64).collect();
    let (sum, total) = (loss.sum(&all, Keep::No)?, weights.sum(&all, Keep::No)?);
    let out = match c.text_attr("reduction")? {
        "mean" => sum.div(&total)?,
        "sum" => sum,
        "none" => {
            return Ok(Some(vec![Datum::Array(loss.select(axis, 0)?), Datum::Array(total.zeros_like()?)]));
        }
        other => return refuse(format!("reduction \"{other}\" is not known")),
    };
    many([out, total])
}

fn sigmoid(c: &Call<'_>) -> Found {
    let (x, label) = (c.array(0)?, c.array(1)?);
    if c.optional(2).is_some() {
        return refuse("weights of positive labels cannot be run");
    }
    let soft = x.abs()?.neg()?.exp()?.ln_1p()?;
    let loss = x.relu()?.sub(&x.mul(label)?)?.add(&soft)?;
    let counts = label.ne(&like(label, c.int_attr("ignore_index")? as f64)?)?;
    let loss = where_(&counts, &loss, &loss.zeros_like()?)?;
    if !c.bool_attr("normalize")? {
        return one(loss);
    }
    let all: Vec<i64> = (0..x.ndim() as i64).collect();
    let count = counts.cast(x.dtype())?.sum(&all, Keep::No)?.maximum(&like(x, 1e-5)?)?;
    one(loss.div(&count)?)
}
