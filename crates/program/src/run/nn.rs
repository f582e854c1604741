//! Ops of networks: norms, products, dropout and what else looks at whole rows.

use super::Datum;
use super::call::{Answer, Call, Found, dim, extents, like, one, refuse};
use crate::program::Op;
use crate::types::tensor_type;
use planaria_array::ops::{self, Keep, PadMode, concat, matmul, stack, where_};
use planaria_array::random::Key;
use planaria_array::{Array, DType, Scalar};

pub(super) fn call(c: &Call<'_>) -> Found {
    let x = || c.array(0);
    match c.name() {
        "softmax" => one(x()?.softmax(c.int_attr("axis")?)?),
        "log_softmax" => one(x()?.log_softmax(c.int_attr("axis")?)?),
        "swiglu" => match c.optional(1) {
            Some(up) => one(ops::swiglu(x()?, up)?),
            None => one(ops::swiglu_packed(x()?)?),
        },
        "layer_norm" => layer_norm(c),
        "fused_rms_norm_quant" => fused_rms_norm(c),
        "batch_norm" => batch_norm(c),
        "group_norm" => group_norm(c),
        "instance_norm" => {
            let (x, eps) = (x()?, c.real_attr("epsilon")?);
            let normed = ops::instance_norm(x, c.optional(1), c.optional(2), eps)?;
            let count = normed.mean.numel();
            let stats = [normed.mean.reshape(&[count])?, normed.rstd.reshape(&[count])?];
            Ok(Some([normed.y].into_iter().chain(stats).map(Datum::Array).collect()))
        }
        "dropout" => dropout(c),
        "prelu" => prelu(c),
        "maxout" => {
            let (x, groups) = (x()?, extents(&[c.int_attr("groups")?])?[0]);
            let axis = dim(c.int_attr("axis")?, x.ndim())?;
            if groups == 0 || x.shape()[axis] % groups != 0 {
                return refuse(format!("{} channels do not form groups of {groups}", x.shape()[axis]));
            }
            let mut dims = x.shape().to_vec();
            dims.splice(axis..=axis, [x.shape()[axis] / groups, groups]);
            one(x.reshape(&dims)?.amax(&[axis as i64 + 1], Keep::No)?)
        }
        "label_smooth" => {
            let (x, eps) = (x()?, c.real_attr("epsilon")?);
            let kept = x.mul(&like(x, 1.0 - eps)?)?;
            let spread = match c.optional(1) {
                Some(prior) => prior.mul(&like(x, eps)?)?,
                None => like(x, eps / *x.shape().last().unwrap_or(&1) as f64)?,
            };
            one(kept.add(&spread)?)
        }
        _ => Ok(None),
    }
}

/// A statistic with as many dims as the program declares: one per row, or all rows in one dim.
fn declared(op: &Op, at: usize, stat: Array) -> Answer<Datum> {
    let ndim = op.results.get(at).and_then(|value| tensor_type(&value.ty)).map(|ty| ty.dims.len());
    Ok(match ndim {
        // An op whose types are being made.
        None if op.results.is_empty() => Datum::Array(stat),
        Some(1) => Datum::Array(stat.reshape(&[stat.numel()])?),
        Some(ndim) if ndim == stat.ndim() => Datum::Array(stat),
        _ => Datum::Absent,
    })
}

/// Variance from `1 / sqrt(variance + eps)`.
fn variance(rstd: &Array, eps: f64) -> Answer<Array> {
    Ok(rstd.square()?.reciprocal()?.sub(&like(rstd, eps)?)?)
}

fn layer_norm(c: &Call<'_>) -> Found {
    let (x, eps) = (c.array(0)?, c.real_attr("epsilon")?);
    let first = dim(c.int_attr("begin_norm_axis")?, x.ndim())?;
    let dims = x.shape()[first..].to_vec();
    let shaped = |at| c.optional(at).map(|p: &Array| p.reshape(&dims)).transpose();
    let (scale, bias) = (shaped(1)?, shaped(2)?);
    let normed = ops::layer_norm(x, &dims, scale.as_ref(), bias.as_ref(), eps)?;
    let var = variance(&normed.rstd, eps)?;
    let stats = [declared(c.op, 1, normed.mean)?, declared(c.op, 2, var)?];
    Ok(Some([Datum::Array(normed.y)].into_iter().chain(stats).collect()))
}

/// The operand, a bias and a residual together, and their norm; what `paddle.incubate` calls `fused_rms_norm`.
fn fused_rms_norm(c: &Call<'_>) -> Found {
    if c.real_attr("quant_scale")? > 0.0 {
        return refuse("results as integers of 8 bits cannot be computed; leave out the quantization");
    }
    let (mut x, eps) = (c.array(0)?.clone(), c.real_attr("epsilon")?);
    for more in [1, 2].into_iter().filter_map(|at| c.optional(at)) {
        x = x.add(more)?;
    }
    let first = dim(c.int_attr("begin_norm_axis")?, x.ndim())?;
    let dims = x.shape()[first..].to_vec();
    let weight = c.optional(3).map(|weight| weight.reshape(&dims)).transpose()?;
    let normed = ops::rms_norm(&x, &dims, weight.as_ref(), eps)?;
    let y = match c.optional(4) {
        Some(bias) => normed.y.add(&bias.reshape(&dims)?)?,
        None => normed.y,
    };
    let sum = if c.optional(2).is_some() { Datum::Array(x) } else { Datum::Absent };
    Ok(Some(vec![Datum::Array(y), sum, declared(c.op, 2, normed.rstd)?]))
}

/// The tensor with its channels in dim 1, and the way back.
pub(super) fn channels_first(x: &Array, last: bool) -> Answer<Array> {
    if !last {
        return Ok(x.clone());
    }
    let mut order: Vec<i64> = (0..x.ndim() as i64 - 1).collect();
    order.insert(1, x.ndim() as i64 - 1);
    Ok(x.permute(&order)?)
}

/// Undoes [`channels_first`].
pub(super) fn channels_back(x: &Array, last: bool) -> Answer<Array> {
    if !last {
        return Ok(x.clone());
    }
    let mut order: Vec<i64> = vec![0];
    order.extend(2..x.ndim() as i64);
    order.push(1);
    Ok(x.permute(&order)?)
}

/// Whether the channels of a tensor come last.
pub(super) fn channels_last(c: &Call<'_>) -> Answer<bool> {
    Ok(matches!(c.text_attr("data_format")?, "NHWC" | "NDHWC" | "NLC"))
}

fn batch_norm(c: &Call<'_>) -> Found {
    let last = channels_last(c)? && c.array(0)?.ndim() > 2;
    let x = channels_first(c.array(0)?, last)?;
    let (mean, var) = (c.array(1)?, c.array(2)?);
    let eps = c.real_attr("epsilon")?;
    let mut per_channel = vec![1; x.ndim()];
    per_channel[1] = mean.numel();
    let spread = |p: &Array| p.reshape(&per_channel);
    let fixed = c.bool_attr("use_global_stats")?
        || (c.bool_attr("is_test")? && !c.bool_attr("trainable_statistics")?);
    let (used_mean, used_var, next) = if fixed {
        (mean.clone(), var.clone(), [mean.clone(), var.clone()])
    } else {
        let dims: Vec<i64> = (0..x.ndim() as i64).filter(|d| *d != 1).collect();
        let (now, spread) = (x.mean(&dims, Keep::No)?, x.var(&dims, 0.0, Keep::No)?);
        let keep = c.real_attr("momentum")?;
        let blend = |old: &Array, new: &Array| -> Answer<Array> {
            Ok(old.mul(&like(old, keep)?)?.add(&new.mul(&like(new, 1.0 - keep)?)?)?)
        };
        let next = [blend(mean, &now)?, blend(var, &spread)?];
        (now, spread, next)
    };
    let rstd = used_var.add(&like(&used_var, eps)?)?.rsqrt()?;
    let mut y = x.sub(&spread(&used_mean)?)?.mul(&spread(&rstd)?)?;
    if let Some(scale) = c.optional(3) {
        y = y.mul(&spread(scale)?)?;
    }
    if let Some(bias) = c.optional(4) {
        y = y.add(&spread(bias)?)?;
    }
    let [mean_out, var_out] = next;
    let arrays = [channels_back(&y, last)?, mean_out, var_out, used_mean, rstd];
    Ok(Some(arrays.into_iter().map(Datum::Array).chain([Datum::Absent]).collect()))
}

fn group_norm(c: &Call<'_>) -> Found {
    let last = channels_last(c)?;
    let x = channels_first(c.array(0)?, last)?;
    let (groups, eps) = (extents(&[c.int_attr("groups")?])?[0], c.real_attr("epsilon")?);
    let normed = ops::group_norm(&x, groups, c.optional(1), c.optional(2), eps)?;
    let var = variance(&normed.rstd, eps)?;
    let stats = [declared(c.op, 1, normed.mean)?, declared(c.op, 2, var)?];
    Ok(Some([Datum::Array(channels_back(&normed.y, last)?)].into_iter().chain(stats).collect()))
}

fn dropout(c: &Call<'_>) -> Found {
    let x = c.array(0)?;
    let p = match c.scalar(2) {
        Ok(p) => p.as_f64(),
        Err(_) if c.rehearsed => 0.0,
        Err(fault) => return Err(fault),
    };
    let upscale = c.text_attr("mode")? == "upscale_in_train";
    if c.bool_attr("is_test")? {
        let out = if upscale { x.clone() } else { x.mul(&like(x, 1.0 - p)?)? };
        return Ok(Some(vec![Datum::Array(out), Datum::Absent]));
    }
    if x.is_meta() {
        return Ok(Some(vec![Datum::Array(x.clone()), Datum::Array(Array::meta(x.shape(), DType::U8)?)]));
    }
    // Paddle's own numbers depend on its generator; ours on the seed and the op.
    let key = Key::new(c.int_attr("seed")? as u64, c.op.results.first().map_or(0, |value| value.id.0 as u64));
    let kept = Array::uniform(x.shape(), DType::F32, key)?.ge(&Array::scalar(p, DType::F32)?)?;
    let scaled = if upscale && p < 1.0 { x.div(&like(x, 1.0 - p)?)? } else { x.clone() };
    let out = where_(&kept, &scaled, &x.zeros_like()?)?;
    Ok(Some(vec![Datum::Array(out), Datum::Array(kept.cast(DType::U8)?)]))
}

fn prelu(c: &Call<'_>) -> Found {
    let (x, alpha) = (c.array(0)?, c.array(1)?);
    let mut dims = vec![1; x.ndim()];
    match c.text_attr("mode")? {
        "all" => {}
        "channel" => {
            let at = if channels_last(c)? { x.ndim() - 1 } else { 1 };
            dims[at] = alpha.numel();
        }
        "element" => {
            dims = x.shape().to_vec();
            dims[0] = 1;
        }
        other => return refuse(format!("mode \"{other}\" is not known")),
    }
    let slope = x.mul(&alpha.reshape(&dims)?)?;
    one(where_(&x.gt(&like(x, 0.0)?)?, x, &slope)?)
}

/// Products of tensors.
pub(super) fn products(c: &Call<'_>) -> Found {
    let turned = |x: &Array, turn: bool| -> Answer<Array> {
        Ok(if turn && x.ndim() > 1 { x.transpose(-1, -2)? } else { x.clone() })
    };
    match c.name() {
        "matmul" => {
            let x = turned(c.array(0)?, c.bool_attr("transpose_x")?)?;
            let y = turned(c.array(1)?, c.bool_attr("transpose_y")?)?;
            one(matmul(&x, &y)?)
        }
        "bmm" | "mv" => one(matmul(c.array(0)?, c.array(1)?)?),
        "addmm" => {
            let (beta, alpha) = (c.real_attr("beta")?, c.real_attr("alpha")?);
            let product = matmul(c.array(1)?, c.array(2)?)?;
            let kept = c.array(0)?.mul(&like(c.array(0)?, beta)?)?;
            one(kept.add(&product.mul(&like(&product, alpha)?)?)?)
        }
        "dot" => {
            let product = c.array(0)?.mul(c.array(1)?)?;
            one(product.sum(&[-1], Keep::No)?.cast(product.dtype())?)
        }
        "cross" => cross(c),
        "kron" => kron(c.array(0)?, c.array(1)?),
        "bilinear" => {
            let (x, y, weight) = (c.array(0)?, c.array(1)?, c.array(2)?);
            // [out, batch, y] of every output, then the rows of y.
            let left = matmul(&x.unsqueeze(0)?, weight)?;
            let out = left.mul(&y.unsqueeze(0)?)?.sum(&[-1], Keep::No)?.transpose(0, 1)?;
            one(match c.optional(3) {
                Some(bias) => out.add(bias)?,
                None => out,
            })
        }
        "einsum" => {
            let out = einsum(c.text_attr("equation")?, &c.arrays(0)?)?;
            let rest = c.op.results.len().saturating_sub(1);
            Ok(Some(
                [Datum::Array(out)].into_iter().chain(std::iter::repeat_n(Datum::Absent, rest)).collect(),
            ))
        }
        _ => Ok(None),
    }
}

fn cross(c: &Call<'_>) -> Found {
    let (x, y) = (c.array(0)?, c.array(1)?);
    // 9 stands for the first dim of three elements.
    let axis = match c.int_attr("axis")? {
        9 => x.shape().iter().position(|size| *size == 3).map_or(0, |at| at as i64),
        axis => axis,
    };
    let part = |of: &Array, at: i64| of.select(axis, at);
    let mut parts = Vec::new();
    for (a, b) in [(1, 2), (2, 0), (0, 1)] {
        parts.push(part(x, a)?.mul(&part(y, b)?)?.sub(&part(x, b)?.mul(&part(y, a)?)?)?);
    }
    let parts: Vec<&Array> = parts.iter().collect();
    one(stack(&parts, axis)?)
}

fn kron(x: &Array, y: &Array) -> Found {
    let ndim = x.ndim().max(y.ndim());
    let padded = |a: &Array| [vec![1; ndim - a.ndim()], a.shape().to_vec()].concat();
    let (a, b) = (padded(x), padded(y));
    let spread = |dims: &[usize], first: bool| -> Vec<usize> {
        dims.iter().flat_map(|d| if first { [*d, 1] } else { [1, *d] }).collect()
    };
    let product = x.reshape(&spread(&a, true))?.mul(&y.reshape(&spread(&b, false))?)?;
    let dims: Vec<usize> = a.iter().zip(&b).map(|(a, b)| a * b).collect();
    one(product.reshape(&dims)?)
}

/// Sums of products over letters; dots stand for the dims that have none.
fn einsum(equation: &str, arrays: &[&Array]) -> Answer<Array> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = equation.split_once("->").map_or((equation.as_str(), None), |(l, r)| (l, Some(r)));
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != arrays.len() {
        return refuse(format!("\"{equation}\" names {} tensors, {} are given", terms.len(), arrays.len()));
    }
    let hidden = |term: &str, ndim: usize| ndim.saturating_sub(term.replace("...", "").chars().count());
    let most = terms
        .iter()
        .zip(arrays)
        .map(|(term, x)| if term.contains("...") { hidden(term, x.ndim()) } else { 0 });
    let most = most.max().unwrap_or(0);
    // Digits stand for the hidden dims, the last one always 0.
    let named = |term: &str, count: usize| -> Vec<char> {
        let digits: String = (0..count).rev().filter_map(|at| char::from_digit(at as u32, 36)).collect();
        term.replace("...", &digits).chars().collect()
    };
    let letters: Vec<Vec<char>> =
        terms.iter().zip(arrays).map(|(term, x)| named(term, hidden(term, x.ndim()))).collect();
    let output: Vec<char> = match right {
        Some(right) => named(right, most),
        None => {
            let mut once: Vec<char> = letters.concat();
            once.sort_unstable();
            let all = once.clone();
            once.retain(|l| l.is_ascii_digit() || all.iter().filter(|o| *o == l).count() == 1);
            once.dedup();
            once
        }
    };
    let mut order = output.clone();
    for letter in letters.concat() {
        if !order.contains(&letter) {
            order.push(letter);
        }
    }
    let mut product: Option<Array> = None;
    for (letters, x) in letters.iter().zip(arrays) {
        let x = aligned(x, letters, &order)?;
        product = Some(match product {
            None => x,
            Some(so_far) => so_far.mul(&x)?,
        });
    }
    let Some(product) = product else { return refuse("no tensor is given") };
    let gone: Vec<i64> = (output.len() as i64..order.len() as i64).collect();
    if gone.is_empty() { Ok(product) } else { Ok(product.sum(&gone, Keep::No)?.cast(product.dtype())?) }
}

/// The tensor with one dim per letter of the order, 1 where it has none.
fn aligned(x: &Array, letters: &[char], order: &[char]) -> Answer<Array> {
    let distinct = letters.iter().enumerate().all(|(at, letter)| !letters[..at].contains(letter));
    if letters.len() != x.ndim() || !distinct {
        return refuse(format!("{letters:?} does not name the dims of {} once each", x.shape()));
    }
    let moved: Vec<i64> = order
        .iter()
        .filter_map(|letter| letters.iter().position(|l| l == letter))
        .map(|d| d as i64)
        .collect();
    let mut out = x.permute(&moved)?;
    for (at, letter) in order.iter().enumerate() {
        if !letters.contains(letter) {
            out = out.unsqueeze(at as i64)?;
        }
    }
    Ok(out)
}

/// Zeros around the positions of a tensor.
pub(super) fn padded(x: &Array, margins: &[(i64, i64)], value: f64) -> Answer<Array> {
    if margins.iter().all(|margin| *margin == (0, 0)) {
        return Ok(x.clone());
    }
    Ok(x.pad(margins, PadMode::Constant(Scalar::Float(value)))?)
}

/// Tensors side by side.
pub(super) fn joined(parts: &[Array], axis: i64) -> Answer<Array> {
    Ok(concat(&parts.iter().collect::<Vec<_>>(), axis)?)
}
