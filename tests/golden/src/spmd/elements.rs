//! Ops that work element by element, reductions, searches along dims, and norms.

use super::call::{Call, wrap};
use super::program::{Outputs, one};
use anyhow::Result;
use planaria_array::ops::{Order, Which};
use planaria_tensor::ops::{self, BatchNorm, CrossEntropyOptions, RunningStats};
use planaria_tensor::{Binary, DType, Keep, Tensor};

type Made = planaria_tensor::Result<Tensor>;

pub(super) fn run(call: &Call<'_, Tensor>) -> Result<Option<Outputs>> {
    let Some(x) = call.maybe(0) else { return Ok(None) };
    if let Some(y) = unary(call, x) {
        return one(y);
    }
    if let Some(y) = call.maybe(1).and_then(|y| binary(call.name, x, y)) {
        return one(y);
    }
    match call.name {
        "where" => one(x.where_(call.one(1)?, call.one(2)?)),
        "add_n" => one(ops::add_n(&call.many(0))),
        "dropout" => Ok(Some(vec![Some(ops::dropout(x, call.number("p", 0.5))?), None])),
        "fused_dropout_add" => {
            let y = ops::dropout_add(x, call.one(1)?, call.number("p", 0.5))?;
            Ok(Some(vec![Some(y), None]))
        }
        "label_smooth" => {
            // A prior takes the place of the even distribution.
            let share = call.number("epsilon", 0.1);
            match call.maybe(1) {
                None => one(ops::label_smooth(x, x.ndim() - 1, share)),
                Some(prior) => one(x.mul_scalar(1.0 - share)?.add(&prior.mul_scalar(share)?)),
            }
        }
        _ => reduced(call, x),
    }
}

fn unary(call: &Call<'_, Tensor>, x: &Tensor) -> Option<Made> {
    Some(match call.name {
        "abs" => x.abs(),
        "acos" => x.acos(),
        "acosh" => x.acosh(),
        "asin" => x.asin(),
        "asinh" => x.asinh(),
        "atan" => x.atan(),
        "atanh" => x.atanh(),
        "bitwise_not" => x.bit_not(),
        "ceil" => x.ceil(),
        "cos" => x.cos(),
        "cosh" => x.cosh(),
        "erf" => x.erf(),
        "exp" => x.exp(),
        "expm1" => x.exp_m1(),
        "floor" => x.floor(),
        "log" => x.ln(),
        "log10" => x.log10(),
        "log1p" => x.ln_1p(),
        "log2" => x.log2(),
        "logical_not" => x.logical_not(),
        "logsigmoid" => x.log_sigmoid(),
        "reciprocal" => x.reciprocal(),
        "relu" => x.relu(),
        "round" => x.round(),
        "rsqrt" => x.rsqrt(),
        "sigmoid" => x.sigmoid(),
        "sign" => x.sign(),
        "silu" | "swish" => x.silu(),
        "sin" => x.sin(),
        "sinh" => x.sinh(),
        "softplus" => x.softplus(),
        "sqrt" => x.sqrt(),
        "square" => x.square(),
        "tan" => x.tan(),
        "tanh" => x.tanh(),
        "trunc" => x.trunc(),
        "gelu" if call.flag("approximate") => x.gelu_tanh(),
        "gelu" => x.gelu(),
        _ => return composed_unary(call, x),
    })
}

/// Functions that a user writes with those above.
fn composed_unary(call: &Call<'_, Tensor>, x: &Tensor) -> Option<Made> {
    let number = |name: &str, default: f64| call.number(name, default);
    let made = || -> planaria_tensor::Result<Option<Tensor>> {
        Ok(Some(match call.name {
            "relu6" => x.clip(Some(0.0), Some(6.0))?,
            "hardtanh" => x.clip(Some(-1.0), Some(1.0))?,
            "clip" => x.clip(Some(number("min", 0.0)), Some(number("max", 1.0)))?,
            "hardsigmoid" => x.mul_scalar(1.0 / 6.0)?.add_scalar(0.5)?.clip(Some(0.0), Some(1.0))?,
            "hardswish" => x.add_scalar(3.0)?.clip(Some(0.0), Some(6.0))?.mul(x)?.mul_scalar(1.0 / 6.0)?,
            "leaky_relu" => x.maximum(&x.mul_scalar(0.02)?)?,
            "softsign" => x.div(&x.abs()?.add_scalar(1.0)?)?,
            "tanh_shrink" => x.sub(&x.tanh()?)?,
            "mish" => x.mul(&x.softplus()?.tanh()?)?,
            "stanh" => {
                x.mul_scalar(number("scale_a", 0.67))?.tanh()?.mul_scalar(number("scale_b", 1.7159))?
            }
            "logit" => x.div(&x.neg()?.add_scalar(1.0)?)?.ln()?,
            "pow" => x.pow(&Tensor::scalar(number("y", 2.0), x.dtype())?)?,
            "div_scale" => x.mul_scalar(1.0 / number("scale", 2.0))?,
            "scale" | "scale_with_bias" => {
                let (scale, bias) = (number("scale", 1.0), number("bias", 0.0));
                let y = x.mul_scalar(scale)?;
                if bias == 0.0 { y } else { y.add_scalar(bias)? }
            }
            "cast" => x.cast(DType::F64)?,
            "assign" => x.copy()?,
            "share_data" | "conj" => x.clone(),
            "full_like" | "fill" => x.full_like(number("value", 1.0))?,
            "empty_like" => x.zeros_like()?,
            "squared_l2_norm" => x.sum_squares(&[], Keep::No)?.reshape(&[1])?,
            "mean_all" => x.mean(&[], Keep::No)?,
            _ => return Ok(None),
        }))
    };
    made().transpose()
}

fn binary(name: &str, x: &Tensor, y: &Tensor) -> Option<Made> {
    Some(match name {
        "add" => x.add(y),
        "subtract" => x.sub(y),
        "multiply" => x.mul(y),
        "divide" => x.div(y),
        "atan2" => x.atan2(y),
        "elementwise_pow" => x.pow(y),
        "maximum" => x.maximum(y),
        "minimum" => x.minimum(y),
        "fmax" => x.binary(Binary::Fmax, y),
        "fmin" => x.binary(Binary::Fmin, y),
        "bitwise_and" => x.binary(Binary::BitAnd, y),
        "bitwise_or" => x.binary(Binary::BitOr, y),
        "bitwise_xor" => x.binary(Binary::BitXor, y),
        "floor_divide" => x.binary(Binary::FloorDiv, y),
        "remainder" => x.binary(Binary::Rem, y),
        "trunc_divide" => x.div(y).and_then(|q| q.trunc()),
        "equal" => x.eq(y),
        "not_equal" => x.ne(y),
        "greater_equal" => x.ge(y),
        "greater_than" => x.gt(y),
        "less_equal" => x.le(y),
        "less_than" => x.lt(y),
        "logical_and" => x.logical_and(y),
        "logical_or" => x.logical_or(y),
        "logical_xor" => x.logical_xor(y),
        _ => return None,
    })
}

fn keep<T>(call: &Call<'_, T>, name: &str) -> Keep {
    if call.flag(name) { Keep::Yes } else { Keep::No }
}

fn reduced(call: &Call<'_, Tensor>, x: &Tensor) -> Result<Option<Outputs>> {
    let keep = keep(call, "keepdim");
    let all = call.flag("reduce_all") || call.flag("asvector");
    let dims = if all { Vec::new() } else { call.ints("axis") };
    let kind = call.attrs["reduce_type"].as_i64();
    match (call.name, kind) {
        ("mean", _) | ("reduce_base", Some(4)) => one(x.mean(&dims, keep)),
        ("sum", _) | ("reduce_base", Some(0)) => one(x.sum(&dims, keep)),
        ("nansum", _) => one(x.nansum(&dims, keep)),
        ("max" | "amax", _) | ("reduce_base", Some(1)) => one(x.amax(&dims, keep)),
        ("min" | "amin", _) | ("reduce_base", Some(2)) => one(x.amin(&dims, keep)),
        ("prod", _) | ("reduce_base", Some(3)) => one(x.prod(&dims, keep)),
        ("any", _) | ("reduce_base", Some(5)) => one(x.any(&dims, keep)),
        ("all", _) | ("reduce_base", Some(6)) => one(x.all(&dims, keep)),
        ("frobenius_norm", _) => one(x.norm(2.0, &dims, keep)),
        ("p_norm", _) => one(x.norm(call.number("porder", 2.0), &dims, keep)),
        ("logsumexp", _) => one(x.logsumexp(&dims, keep)),
        _ => along(call, x),
    }
}

/// Ops along one dim.
fn along(call: &Call<'_, Tensor>, x: &Tensor) -> Result<Option<Outputs>> {
    let axis = call.attrs["axis"].as_i64().unwrap_or(-1);
    let both = |(values, places): (Tensor, Tensor)| Ok(Some(vec![Some(values), Some(places)]));
    let dim = if call.flag("flatten") { None } else { Some(axis) };
    match call.name {
        "argmax" => one(x.argmax(dim, keep(call, "keepdims"))),
        "argmin" => one(x.argmin(dim, keep(call, "keepdims"))),
        "argsort" => {
            let order = if call.flag("descending") { Order::Descending } else { Order::Ascending };
            both(x.sort(axis, order)?)
        }
        "topk" => {
            let which = if call.flag("largest") { Which::Largest } else { Which::Smallest };
            both(x.topk(usize::try_from(call.int("k")?)?, axis, which)?)
        }
        "cumsum" => one(x.cumsum(axis)),
        "cummax" => both(x.cummax(axis)?),
        "cummin" => both(x.cummin(axis)?),
        "softmax" => one(x.softmax(axis)),
        "log_softmax" => one(x.log_softmax(axis)),
        _ => norms(call, x),
    }
}

fn norms(call: &Call<'_, Tensor>, x: &Tensor) -> Result<Option<Outputs>> {
    let (weight, bias, eps) = (call.maybe(1), call.maybe(2), call.number("epsilon", 1e-5));
    let first = call.text("data_format") != "NHWC" && !call.text("data_format").ends_with('C');
    let lead = match call.attrs["begin_norm_axis"].as_i64() {
        Some(axis) => wrap(axis, x.ndim())?,
        None => x.ndim() - 1,
    };
    let shape = &x.shape()[lead..];
    // Parameters may be written flat.
    let fit = |p: Option<&Tensor>| p.map(|p| p.reshape(shape)).transpose();
    let alone = |y: Tensor, others: usize| {
        Ok(Some(std::iter::once(Some(y)).chain((0..others).map(|_| None)).collect()))
    };
    match call.name {
        "layer_norm" | "fast_ln" => {
            alone(ops::layer_norm(x, shape, fit(weight)?.as_ref(), fit(bias)?.as_ref(), eps)?, 2)
        }
        "fused_rms_norm" => alone(ops::rms_norm(x, shape, fit(weight)?.as_ref(), eps)?, 1),
        "group_norm" if first => {
            alone(ops::group_norm(x, usize::try_from(call.int("groups")?)?, weight, bias, eps)?, 2)
        }
        "instance_norm" => alone(ops::instance_norm(x, weight, bias, eps)?, 2),
        "batch_norm" | "batch_norm_static" | "sync_batch_norm_" | "sync_batch_norm_via_batch_norm_rule"
            if first =>
        {
            // Behind `x` stand the running averages, then the parameters.
            let running = RunningStats { mean: call.one(1)?, var: call.one(2)? };
            let mode = match call.flag("is_test") || call.flag("use_global_stats") {
                true => BatchNorm::Evaluation(running),
                false => BatchNorm::Training { running: None, momentum: 0.1 },
            };
            alone(ops::batch_norm(x, call.maybe(3), call.maybe(4), mode, eps)?, 5)
        }
        _ => losses(call, x),
    }
}

fn losses(call: &Call<'_, Tensor>, x: &Tensor) -> Result<Option<Outputs>> {
    let dim = call.attrs["axis"].as_i64().unwrap_or(-1);
    match call.name {
        "cross_entropy_with_softmax"
        | "cross_entropy_with_softmax_static"
        | "c_softmax_with_cross_entropy" => {
            let reduction = planaria_array::ops::Reduction::None;
            let options = CrossEntropyOptions { dim, reduction, ..CrossEntropyOptions::default() };
            let label = call.one(1)?;
            let loss = match call.flag("soft_label") {
                true => ops::soft_cross_entropy(x, label, &options)?,
                false if label.ndim() == x.ndim() => {
                    ops::cross_entropy(x, &label.squeeze(&[dim])?, &options)?
                }
                false => ops::cross_entropy(x, label, &options)?,
            };
            // Probabilities are not made; the loss has no dim for the classes.
            Ok(Some(vec![None, Some(loss.unsqueeze(dim)?)]))
        }
        _ => Ok(None),
    }
}
