//! Gradients that programs name as ops.

use super::Datum;
use super::call::{Answer, Call, Found, dim, like, many, one, refuse};
use planaria_array::Array;
use planaria_array::ops::{
    Activation, activation_grad, embedding_grad, expand_reduced, layer_norm_grad, log_softmax_grad, matmul,
    softmax_grad, sum_to, where_,
};

pub(super) fn call(c: &Call<'_>) -> Found {
    let Some(name) = c.name().strip_suffix("_grad") else { return Ok(None) };
    if let Some(found) = unary(c, name)? {
        return one(found);
    }
    if let Some(found) = binary(c, name)? {
        return Ok(Some(found));
    }
    match name {
        "matmul" => matmul_grad(c),
        "sum" | "mean" => {
            let (x, dy) = (c.array(0)?, c.array(1)?);
            let axes = if c.bool_attr("reduce_all")? { Vec::new() } else { c.ints(2)? };
            let axes = if axes.is_empty() { (0..x.ndim() as i64).collect() } else { axes };
            let grad = expand_reduced(dy, x.shape(), &axes)?;
            if name == "sum" {
                return one(grad);
            }
            let count: usize = axes
                .iter()
                .map(|d| Ok(x.shape()[dim(*d, x.ndim())?]))
                .collect::<Answer<Vec<_>>>()?
                .iter()
                .product();
            one(grad.div(&like(x, count as f64)?)?)
        }
        "layer_norm" => layer_norm(c),
        "embedding" => {
            let (ids, table, dy) = (c.array(0)?, c.array(1)?, c.array(2)?);
            let padding = usize::try_from(c.int_attr("padding_idx")?).ok();
            one(embedding_grad(dy, ids, table.shape()[0], padding)?)
        }
        "reshape" | "squeeze" | "unsqueeze" => one(c.array(1)?.reshape(c.array(0)?.shape())?),
        "transpose" => {
            let perm = c.ints_attr("perm")?;
            let mut back = vec![0i64; perm.len()];
            for (at, d) in perm.iter().enumerate() {
                back[dim(*d, perm.len())?] = at as i64;
            }
            one(c.array(0)?.permute(&back)?)
        }
        "softmax" => one(softmax_grad(c.array(1)?, c.array(0)?, c.int_attr("axis")?)?),
        "log_softmax" => one(log_softmax_grad(c.array(1)?, c.array(0)?, c.int_attr("axis")?)?),
        _ => Ok(None),
    }
}

/// Gradients of ops of one tensor: those with `out` know the result, the others the input.
fn unary(c: &Call<'_>, name: &str) -> Answer<Option<Array>> {
    let (a, dy) = (|| c.array(0), || c.array(1));
    let constant = |value: f64| like(dy()?, value);
    let out = match name {
        "relu" => where_(&a()?.gt(&like(a()?, 0.0)?)?, dy()?, &dy()?.zeros_like()?)?,
        "sigmoid" => dy()?.mul(&a()?.mul(&constant(1.0)?.sub(a()?)?)?)?,
        "tanh" => dy()?.mul(&constant(1.0)?.sub(&a()?.square()?)?)?,
        "exp" => dy()?.mul(a()?)?,
        "sqrt" => dy()?.mul(&constant(0.5)?)?.div(a()?)?,
        "rsqrt" => dy()?.mul(&constant(-0.5)?)?.mul(&a()?.square()?.mul(a()?)?)?,
        "log" => dy()?.div(a()?)?,
        "square" => dy()?.mul(&constant(2.0)?)?.mul(a()?)?,
        "abs" => dy()?.mul(&a()?.sign()?)?,
        "gelu" if c.bool_attr("approximate")? => activation_grad(Activation::GeluTanh, a()?, dy()?)?,
        "gelu" => activation_grad(Activation::Gelu, a()?, dy()?)?,
        "silu" => activation_grad(Activation::Silu, a()?, c.array(2)?)?,
        "cast" => dy()?.cast(a()?.dtype())?,
        "scale" => {
            let by = match c.scalar(1) {
                Ok(by) => by.as_f64(),
                Err(_) if c.rehearsed => 1.0,
                Err(fault) => return Err(fault),
            };
            a()?.mul(&like(a()?, by)?)?
        }
        _ => return Ok(None),
    };
    Ok(Some(out))
}

fn binary(c: &Call<'_>, name: &str) -> Found {
    let (x, y) = (|| c.array(0), || c.array(1));
    let dy = || c.array(if name == "divide" { 3 } else { 2 });
    let (dx, dy) = match name {
        "add" => (dy()?.clone(), dy()?.clone()),
        "subtract" => (dy()?.clone(), dy()?.neg()?),
        "multiply" => (dy()?.mul(y()?)?, dy()?.mul(x()?)?),
        "divide" => {
            let out = c.array(2)?;
            let dx = dy()?.div(y()?)?;
            let back = dx.mul(out)?.neg()?;
            (dx, back)
        }
        _ => return Ok(None),
    };
    many([sum_to(&dx, x()?.shape())?, sum_to(&dy, y()?.shape())?])
}

fn matmul_grad(c: &Call<'_>) -> Found {
    let (x, y, dy) = (c.array(0)?, c.array(1)?, c.array(2)?);
    if x.ndim() < 2 || y.ndim() < 2 {
        return refuse("the gradient of a product with a vector cannot be run");
    }
    let (tx, ty) = (c.bool_attr("transpose_x")?, c.bool_attr("transpose_y")?);
    let turned =
        |a: &Array, turn: bool| -> Answer<Array> { Ok(if turn { a.transpose(-1, -2)? } else { a.clone() }) };
    let (x2, y2) = (turned(x, tx)?, turned(y, ty)?);
    let dx = turned(&matmul(dy, &y2.transpose(-1, -2)?)?, tx)?;
    let dy = turned(&matmul(&x2.transpose(-1, -2)?, dy)?, ty)?;
    many([sum_to(&dx, x.shape())?, sum_to(&dy, y.shape())?])
}

fn layer_norm(c: &Call<'_>) -> Found {
    let (x, mean, var, dy) = (c.array(0)?, c.array(3)?, c.array(4)?, c.array(5)?);
    let first = dim(c.int_attr("begin_norm_axis")?, x.ndim())?;
    let (rows, dims) = (&x.shape()[..first], &x.shape()[first..]);
    let rstd = var.add(&like(var, c.real_attr("epsilon")?)?)?.rsqrt()?;
    let weight = c.optional(1).map(|w| w.reshape(dims)).transpose()?;
    let grad =
        layer_norm_grad(dy, x, dims, &mean.reshape(rows)?, &rstd.reshape(rows)?, weight.as_ref(), None)?;
    let flat = |given: Option<&Array>, grad: Array| -> Answer<Datum> {
        Ok(match given {
            Some(given) => Datum::Array(grad.reshape(given.shape())?.cast(given.dtype())?),
            None => Datum::Absent,
        })
    };
    let (scale, bias) = (flat(c.optional(1), grad.weight)?, flat(c.optional(2), grad.bias)?);
    Ok(Some(vec![Datum::Array(grad.x), scale, bias]))
}
