//! Ops that look at one position at a time.

use super::Datum;
use super::call::{Answer, Call, Found, like, one};
use planaria_array::ops::{clip, where_};
use planaria_array::{Array, DType, Scalar};

pub(super) fn call(c: &Call<'_>) -> Found {
    if let Some(found) = unary(c)? {
        return one(found);
    }
    if let Some(found) = activation(c)? {
        return one(found);
    }
    if let Some(found) = binary(c)? {
        return one(found);
    }
    mixed(c)
}

fn unary(c: &Call<'_>) -> Answer<Option<Array>> {
    let apply: fn(&Array) -> planaria_array::Result<Array> = match c.name() {
        "abs" => Array::abs,
        "acos" => Array::acos,
        "acosh" => Array::acosh,
        "asin" => Array::asin,
        "asinh" => Array::asinh,
        "atan" => Array::atan,
        "atanh" => Array::atanh,
        "bitwise_not" => Array::bit_not,
        "ceil" => Array::ceil,
        "cos" => Array::cos,
        "cosh" => Array::cosh,
        "erf" => Array::erf,
        "exp" => Array::exp,
        "expm1" => Array::exp_m1,
        "floor" => Array::floor,
        "isfinite" => Array::is_finite,
        "isinf" => Array::is_inf,
        "isnan" => Array::is_nan,
        "log" => Array::ln,
        "log10" => Array::log10,
        "log1p" => Array::ln_1p,
        "log2" => Array::log2,
        "logical_not" => Array::logical_not,
        "logsigmoid" => Array::log_sigmoid,
        "reciprocal" => Array::reciprocal,
        "relu" => Array::relu,
        "rsqrt" => Array::rsqrt,
        "sigmoid" => Array::sigmoid,
        "sign" => Array::sign,
        "silu" | "swish" => Array::silu,
        "sin" => Array::sin,
        "sinh" => Array::sinh,
        "sqrt" => Array::sqrt,
        "square" => Array::square,
        "tan" => Array::tan,
        "tanh" => Array::tanh,
        "trunc" => Array::trunc,
        "assign" => |x| Ok(x.clone()),
        _ => return Ok(None),
    };
    Ok(Some(apply(c.array(0)?)?))
}

/// `value` where `x` is past the bound, else `otherwise`.
fn above(x: &Array, bound: f64, value: &Array, otherwise: &Array) -> Answer<Array> {
    Ok(where_(&x.gt(&like(x, bound)?)?, value, otherwise)?)
}

fn limited(x: &Array, low: f64, high: f64) -> Answer<Array> {
    Ok(clip(x, Some(Scalar::Float(low)), Some(Scalar::Float(high)))?)
}

fn activation(c: &Call<'_>) -> Answer<Option<Array>> {
    let x = || c.array(0);
    let scaled = |x: &Array, by: f64| -> Answer<Array> { Ok(x.mul(&like(x, by)?)?) };
    let out = match c.name() {
        "gelu" if c.bool_attr("approximate")? => x()?.gelu_tanh()?,
        "gelu" => x()?.gelu()?,
        "relu6" => limited(x()?, 0.0, 6.0)?,
        "hardtanh" => limited(x()?, c.real_attr("t_min")?, c.real_attr("t_max")?)?,
        "hardswish" => {
            let x = x()?;
            let gate = limited(&x.add(&like(x, 3.0)?)?, 0.0, 6.0)?;
            x.mul(&gate)?.div(&like(x, 6.0)?)?
        }
        "hardsigmoid" => {
            let x = x()?;
            let line = scaled(x, c.real_attr("slope")?)?.add(&like(x, c.real_attr("offset")?)?)?;
            limited(&line, 0.0, 1.0)?
        }
        "hardshrink" => {
            let x = x()?;
            above(&x.abs()?, c.real_attr("threshold")?, x, &x.zeros_like()?)?
        }
        "softshrink" => {
            let (x, t) = (x()?, c.real_attr("threshold")?);
            let shrunk = x.sub(&x.sign()?.mul(&like(x, t)?)?)?;
            above(&x.abs()?, t, &shrunk, &x.zeros_like()?)?
        }
        "tanh_shrink" => x()?.sub(&x()?.tanh()?)?,
        "thresholded_relu" => {
            let other = x()?.full_like(c.real_attr("value")?)?;
            above(x()?, c.real_attr("threshold")?, x()?, &other)?
        }
        "leaky_relu" => above(x()?, 0.0, x()?, &scaled(x()?, c.real_attr("negative_slope")?)?)?,
        "softsign" => x()?.div(&x()?.abs()?.add(&like(x()?, 1.0)?)?)?,
        "softplus" => softplus(x()?, c.real_attr("beta")?, c.real_attr("threshold")?)?,
        "mish" => x()?.mul(&softplus(x()?, 1.0, c.real_attr("lambda")?)?.tanh()?)?,
        "elu" => above(x()?, 0.0, x()?, &scaled(&x()?.exp_m1()?, c.real_attr("alpha")?)?)?,
        "celu" => {
            let a = c.real_attr("alpha")?;
            above(x()?, 0.0, x()?, &scaled(&scaled(x()?, 1.0 / a)?.exp_m1()?, a)?)?
        }
        "selu" => {
            let (s, a) = (c.real_attr("scale")?, c.real_attr("alpha")?);
            scaled(&above(x()?, 0.0, x()?, &scaled(&x()?.exp_m1()?, a)?)?, s)?
        }
        "stanh" => {
            let (a, b) = (c.real_attr("scale_a")?, c.real_attr("scale_b")?);
            scaled(&scaled(x()?, a)?.tanh()?, b)?
        }
        "logit" => {
            let (x, eps) = (x()?, c.real_attr("eps")?);
            let x = if eps > 0.0 { limited(x, eps, 1.0 - eps)? } else { x.clone() };
            x.div(&like(&x, 1.0)?.sub(&x)?)?.ln()?
        }
        "round" => round(x()?, c.int_attr("decimals").unwrap_or(0))?,
        "pow" => x()?.pow(&like(x()?, c.real_attr("y")?)?)?,
        _ => return Ok(None),
    };
    Ok(Some(out))
}

fn softplus(x: &Array, beta: f64, threshold: f64) -> Answer<Array> {
    let scaled = x.mul(&like(x, beta)?)?;
    let soft = scaled.softplus()?.div(&like(x, beta)?)?;
    above(&scaled, threshold, x, &soft)
}

/// Halves go away from zero, unlike those of [`Array::round`].
fn round(x: &Array, decimals: i64) -> Answer<Array> {
    if decimals != 0 {
        let by = like(x, 10f64.powi(decimals as i32))?;
        return Ok(round(&x.mul(&by)?, 0)?.div(&by)?);
    }
    let whole = x.trunc()?;
    let far = x.sub(&whole)?.abs()?.ge(&like(x, 0.5)?)?;
    Ok(where_(&far, &whole.add(&x.sign()?)?, &whole)?)
}

fn binary(c: &Call<'_>) -> Answer<Option<Array>> {
    let apply: fn(&Array, &Array) -> planaria_array::Result<Array> = match c.name() {
        "add" => Array::add,
        "subtract" => Array::sub,
        "multiply" => Array::mul,
        "divide" => Array::div,
        "maximum" => Array::maximum,
        "minimum" => Array::minimum,
        "fmax" => Array::fmax,
        "fmin" => Array::fmin,
        "remainder" => Array::rem,
        "floor_divide" => Array::floor_div,
        "elementwise_pow" => Array::pow,
        "atan2" => Array::atan2,
        "bitwise_and" => Array::bit_and,
        "bitwise_or" => Array::bit_or,
        "bitwise_xor" => Array::bit_xor,
        "logical_and" => Array::logical_and,
        "logical_or" => Array::logical_or,
        "logical_xor" => Array::logical_xor,
        "equal" => Array::eq,
        "not_equal" => Array::ne,
        "less_than" => Array::lt,
        "less_equal" => Array::le,
        "greater_than" => Array::gt,
        "greater_equal" => Array::ge,
        _ => return Ok(None),
    };
    Ok(Some(apply(c.array(0)?, c.array(1)?)?))
}

fn mixed(c: &Call<'_>) -> Found {
    match c.name() {
        "real" | "imag" => {
            let part = i64::from(c.name() == "imag");
            match c.args.first() {
                Some(Datum::Complex(pairs)) => one(pairs.select(-1, part)?),
                _ if part == 0 => one(c.array(0)?.clone()),
                _ => one(c.array(0)?.zeros_like()?),
            }
        }
        "scale" => scale(c),
        "heaviside" => {
            let (x, y) = (c.array(0)?, c.array(1)?);
            let zero = like(x, 0.0)?;
            one(where_(&x.eq(&zero)?, y, &x.gt(&zero)?.cast(x.dtype())?)?)
        }
        "clip" => {
            let x = c.array(0)?;
            let (low, high) = match (c.scalar(1), c.scalar(2)) {
                (Ok(low), Ok(high)) => (low, high),
                // Without elements any bounds give the same type.
                _ if c.rehearsed => (Scalar::Int(0), Scalar::Int(1)),
                (low, high) => (low?, high?),
            };
            one(clip(x, Some(low), Some(high))?)
        }
        "cast" => match c.dtype_attr("dtype")? {
            Some(dtype) => one(c.array(0)?.cast(dtype)?),
            None => one(c.array(0)?.clone()),
        },
        "where" => {
            let condition = c.array(0)?.cast(DType::Bool)?;
            one(where_(&condition, c.array(1)?, c.array(2)?)?)
        }
        "masked_fill" => {
            let (x, mask) = (c.array(0)?, c.array(1)?);
            let value = c.array(2)?.cast(x.dtype())?;
            let value = if value.numel() == 1 { value.reshape(&[])? } else { value };
            one(where_(mask, &value, x)?)
        }
        "lerp" => {
            let (x, y) = (c.array(0)?, c.array(1)?);
            one(x.add(&c.array(2)?.mul(&y.sub(x)?)?)?)
        }
        "add_n" => {
            let arrays = c.arrays(0)?;
            let mut sum = arrays[0].clone();
            for more in &arrays[1..] {
                sum = sum.add(more)?;
            }
            one(sum)
        }
        _ => Ok(None),
    }
}

/// `x * scale + bias`, in the element type of `x`.
fn scale(c: &Call<'_>) -> Found {
    let x = c.array(0)?;
    let by = match c.scalar(1) {
        Ok(by) => by.as_f64(),
        Err(_) if c.rehearsed => 1.0,
        Err(fault) => return Err(fault),
    };
    let (by, bias) = (like(x, by)?, like(x, c.real_attr("bias")?)?);
    one(match c.bool_attr("bias_after_scale")? {
        true => x.mul(&by)?.add(&bias)?,
        false => x.add(&bias)?.mul(&by)?,
    })
}
