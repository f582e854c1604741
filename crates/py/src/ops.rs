//! The operations of the array API standard by name: dtypes are settled here, the rest is the crate's own.

use planaria::array::ops::{self, Binary, Compare, Keep, Order, Side, Unary};
use planaria::array::{Array, DType, Error, Scalar};
use pyo3::prelude::*;

use crate::array::PyArray;
use crate::dtype::optional;
use crate::error::exception;
use crate::gil::compute;
use crate::number::{Int, Size, sizes};
use crate::operators::{CastIf, divide, floor_divide, operand, product};
use crate::tensor::{Dims, dims};

type Made = Result<Array, Error>;

const UNARY: &[(&str, Unary)] = &[
    ("abs", Unary::Abs),
    ("acos", Unary::Acos),
    ("acosh", Unary::Acosh),
    ("asin", Unary::Asin),
    ("asinh", Unary::Asinh),
    ("atan", Unary::Atan),
    ("atanh", Unary::Atanh),
    ("ceil", Unary::Ceil),
    ("cos", Unary::Cos),
    ("cosh", Unary::Cosh),
    ("exp", Unary::Exp),
    ("expm1", Unary::ExpM1),
    ("floor", Unary::Floor),
    ("log", Unary::Ln),
    ("log10", Unary::Log10),
    ("log1p", Unary::Ln1p),
    ("log2", Unary::Log2),
    ("negative", Unary::Neg),
    ("reciprocal", Unary::Reciprocal),
    ("round", Unary::Round),
    ("sign", Unary::Sign),
    ("sin", Unary::Sin),
    ("sinh", Unary::Sinh),
    ("sqrt", Unary::Sqrt),
    ("square", Unary::Square),
    ("tan", Unary::Tan),
    ("tanh", Unary::Tanh),
    ("trunc", Unary::Trunc),
];

/// An operation of one array.
#[pyfunction]
pub(crate) fn unary(py: Python<'_>, name: &str, x: &PyArray) -> PyResult<PyArray> {
    let array = x.0.clone();
    let known = UNARY.iter().find(|(other, _)| *other == name).map(|(_, op)| *op);
    let whole = !array.dtype().is_float() && matches!(name, "ceil" | "floor" | "round" | "trunc");
    let made = compute(py, || match (known, name) {
        _ if whole => array.copy(),
        // Both zeros have the sign 0.
        (Some(Unary::Sign), _) if array.dtype().is_float() => {
            ops::unary(Unary::Sign, &array)?.add(&Array::scalar(0, array.dtype())?)
        }
        (Some(op), _) => ops::unary(op, &array),
        (None, "positive") => array.copy(),
        (None, "logical_not") => array.cast_if(DType::Bool)?.logical_not(),
        (None, "bitwise_invert") => array.bit_not(),
        (None, "isnan") => array.is_nan(),
        (None, "isinf") => array.is_inf(),
        (None, "isfinite") => array.is_finite(),
        (None, "signbit") => signbit(&array),
        (None, _) => Err(unknown(name)),
    });
    made.map(PyArray)
}

fn unknown(name: &str) -> Error {
    Error::Argument { op: "array_api", what: format!("there is no operation {name:?}") }
}

/// True where the sign bit is set, which also tells -0 from 0.
fn signbit(x: &Array) -> Made {
    if !x.dtype().is_float() {
        return ops::compare(Compare::Lt, x, &Array::scalar(0, x.dtype())?);
    }
    let wide = x.cast_if(DType::F64)?.reinterpret(DType::I64)?;
    ops::compare(Compare::Lt, &wide, &Array::scalar(0, DType::I64)?)
}

const BINARY: &[(&str, Binary)] = &[
    ("add", Binary::Add),
    ("atan2", Binary::Atan2),
    ("bitwise_and", Binary::BitAnd),
    ("bitwise_left_shift", Binary::Shl),
    ("bitwise_or", Binary::BitOr),
    ("bitwise_right_shift", Binary::Shr),
    ("bitwise_xor", Binary::BitXor),
    ("floor_divide", Binary::FloorDiv),
    ("maximum", Binary::Maximum),
    ("minimum", Binary::Minimum),
    ("multiply", Binary::Mul),
    ("pow", Binary::Pow),
    ("remainder", Binary::Rem),
    ("subtract", Binary::Sub),
];

const COMPARE: &[(&str, Compare)] = &[
    ("equal", Compare::Eq),
    ("greater", Compare::Gt),
    ("greater_equal", Compare::Ge),
    ("less", Compare::Lt),
    ("less_equal", Compare::Le),
    ("not_equal", Compare::Ne),
];

/// An operation of two arrays, or of an array and a number on either side.
#[pyfunction]
pub(crate) fn binary(
    py: Python<'_>,
    name: &str,
    x1: &Bound<'_, PyAny>,
    x2: &Bound<'_, PyAny>,
) -> PyResult<PyArray> {
    let (array, other, swap) = match (x1.cast::<PyArray>(), x2.cast::<PyArray>()) {
        (Ok(x), _) => (x.get().0.clone(), x2, false),
        (_, Ok(y)) => (y.get().0.clone(), x1, true),
        _ => return Err(exception(py, "DTypeError", format!("{name} needs at least one Array"))),
    };
    let Some(other) = operand(other)? else {
        let what = format!("{name} does not take {}", other.get_type().name()?);
        return Err(exception(py, "DTypeError", what));
    };
    let (mine, theirs) = other.beside(py, &array)?;
    let (x, y) = if swap { (theirs, mine) } else { (mine, theirs) };
    let known = BINARY.iter().find(|(other, _)| *other == name).map(|(_, op)| *op);
    let compared = COMPARE.iter().find(|(other, _)| *other == name).map(|(_, op)| *op);
    let made = compute(py, || match (known, compared, name) {
        (Some(Binary::FloorDiv), ..) => floor_divide(&x, &y),
        (Some(op), ..) => ops::binary(op, &x, &y),
        (_, Some(op), _) => ops::compare(op, &x, &y),
        (.., "divide") => divide(&x, &y),
        (.., "logical_and") => x.cast_if(DType::Bool)?.logical_and(&y.cast_if(DType::Bool)?),
        (.., "logical_or") => x.cast_if(DType::Bool)?.logical_or(&y.cast_if(DType::Bool)?),
        (.., "logical_xor") => x.cast_if(DType::Bool)?.logical_xor(&y.cast_if(DType::Bool)?),
        (.., "copysign") => copysign(&x, &y),
        (.., "hypot") => hypot(&x, &y),
        (.., "logaddexp") => logaddexp(&x, &y),
        (.., "nextafter") => nextafter(&x, &y),
        (.., "matmul") => product(&x, &y),
        _ => Err(unknown(name)),
    });
    made.map(PyArray)
}

fn copysign(x: &Array, y: &Array) -> Made {
    let size = x.abs()?;
    ops::where_(&signbit(y)?.broadcast_to(&joined(&size, y)?)?, &size.neg()?, &size)
}

fn joined(x: &Array, y: &Array) -> Result<planaria::layout::Shape, Error> {
    planaria::array::broadcast_shapes("broadcast", x.shape(), y.shape())
}

/// Scaled by the larger of the two, so that squares do not overflow.
fn hypot(x: &Array, y: &Array) -> Made {
    let (x, y) = (x.abs()?, y.abs()?);
    let (big, small) = (x.maximum(&y)?, x.minimum(&y)?);
    let ratio = small.div(&big)?;
    let one = Array::scalar(1.0, big.dtype())?;
    let scaled = big.mul(&ratio.square()?.add(&one)?.sqrt()?)?;
    // Zero of both, and infinity of either whatever the other is.
    let still = big.eq(&Array::scalar(0.0, big.dtype())?)?;
    let scaled = ops::where_(&still, &big, &scaled)?;
    let infinite =
        x.is_inf()?.broadcast_to(scaled.shape())?.logical_or(&y.is_inf()?.broadcast_to(scaled.shape())?)?;
    ops::where_(&infinite, &Array::scalar(f64::INFINITY, big.dtype())?, &scaled)
}

fn logaddexp(x: &Array, y: &Array) -> Made {
    let (big, small) = (x.maximum(y)?, x.minimum(y)?);
    let sum = big.add(&small.sub(&big)?.exp()?.ln_1p()?)?;
    // Equal infinities have no difference.
    ops::where_(&big.is_inf()?, &big, &sum)
}

/// The next value of the dtype toward the other.
fn nextafter(x: &Array, y: &Array) -> Made {
    let shape = joined(x, y)?;
    let (x, y) = (x.broadcast_to(&shape)?.contiguous()?, y.broadcast_to(&shape)?.contiguous()?);
    match x.dtype() {
        DType::F64 => {
            let pairs = x.to_vec::<f64>()?.into_iter().zip(y.to_vec::<f64>()?);
            Array::from_slice(&pairs.map(|(x, y)| step64(x, y)).collect::<Vec<_>>(), &shape)
        }
        DType::F32 => {
            let pairs = x.to_vec::<f32>()?.into_iter().zip(y.to_vec::<f32>()?);
            Array::from_slice(&pairs.map(|(x, y)| step32(x, y)).collect::<Vec<_>>(), &shape)
        }
        found => Err(Error::DType { op: "nextafter", found, expected: "f32 or f64" }),
    }
}

fn step64(x: f64, y: f64) -> f64 {
    if x == y || x.is_nan() || y.is_nan() {
        if x == y { y } else { f64::NAN }
    } else if y > x {
        x.next_up()
    } else {
        x.next_down()
    }
}

fn step32(x: f32, y: f32) -> f32 {
    if x == y || x.is_nan() || y.is_nan() {
        if x == y { y } else { f32::NAN }
    } else if y > x {
        x.next_up()
    } else {
        x.next_down()
    }
}

/// A reduction over dims; sums and products of integers keep their sign and are as wide as i64 at least.
#[pyfunction]
#[pyo3(signature = (name, x, axis, keepdims, dtype=None, correction=0.0))]
pub(crate) fn reduce(
    py: Python<'_>,
    name: &str,
    x: &PyArray,
    axis: Option<Dims>,
    keepdims: bool,
    dtype: Option<&Bound<'_, PyAny>>,
    correction: f64,
) -> PyResult<PyArray> {
    let (array, asked, keep) = (x.0.clone(), optional(dtype)?, if keepdims { Keep::Yes } else { Keep::No });
    let none = matches!(&axis, Some(Dims::Several(dims)) if dims.is_empty());
    let over = dims(axis);
    let made = compute(py, || {
        let folded = |x: &Array| match name {
            _ if none => x.copy(),
            "sum" => x.sum(&over, keep),
            "prod" => x.prod(&over, keep),
            "max" => x.amax(&over, keep),
            "min" => x.amin(&over, keep),
            "mean" => x.mean(&over, keep),
            "var" => x.var(&over, correction, keep),
            "std" => x.std(&over, correction, keep),
            "any" => x.any(&over, keep),
            "all" => x.all(&over, keep),
            "count_nonzero" => x.count_nonzero(&over, keep),
            _ => Err(unknown(name)),
        };
        match name {
            "sum" | "prod" => {
                let wanted = asked.unwrap_or_else(|| summed(array.dtype()));
                folded(&array.cast_if(wanted)?)?.cast_if(wanted)
            }
            "any" | "all" => folded(&array.cast_if(DType::Bool)?)?.cast_if(DType::Bool),
            "count_nonzero" if none => array.cast(DType::Bool)?.cast(DType::I64),
            // One element each: no spread, over nothing where the correction leaves nothing.
            "var" | "std" if none => ops::binary(
                Binary::Div,
                &array.sub(&array)?,
                &Array::scalar((1.0 - correction).max(0.0), array.dtype())?,
            ),
            "max" | "min" => folded(&array)?.cast_if(array.dtype()),
            _ => folded(&array),
        }
    });
    made.map(PyArray)
}

/// The dtype that sums of a dtype have.
fn summed(dtype: DType) -> DType {
    match dtype {
        _ if dtype.is_float() => dtype,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => DType::U64,
        _ => DType::I64,
    }
}

/// A running sum or product along a dim.
#[pyfunction]
#[pyo3(signature = (name, x, axis, dtype=None, include_initial=false))]
pub(crate) fn scan(
    py: Python<'_>,
    name: &str,
    x: &PyArray,
    axis: Int,
    dtype: Option<&Bound<'_, PyAny>>,
    include_initial: bool,
) -> PyResult<PyArray> {
    let axis = axis.0;
    let (array, wanted) = (x.0.clone(), optional(dtype)?.unwrap_or_else(|| summed(x.0.dtype())));
    let made = compute(py, || {
        let x = array.cast_if(wanted)?;
        let (run, first) = match name {
            "cumulative_sum" => (x.cumsum(axis)?, 0),
            "cumulative_prod" => (x.cumprod(axis)?, 1),
            _ => return Err(unknown(name)),
        };
        let run = run.cast_if(wanted)?;
        if !include_initial {
            return Ok(run);
        }
        let mut shape = run.shape().to_vec();
        let dim = axis.rem_euclid(shape.len().max(1) as i64) as usize;
        shape[dim] = 1;
        ops::concat(&[&Array::full(&shape, first, wanted)?, &run], axis)
    });
    made.map(PyArray)
}

/// Positions of extremes, as i64.
#[pyfunction]
pub(crate) fn arg(
    py: Python<'_>,
    name: &str,
    x: &PyArray,
    axis: Option<Int>,
    keepdims: bool,
) -> PyResult<PyArray> {
    let axis = axis.map(|axis| axis.0);
    let (array, keep) = (x.0.clone(), if keepdims { Keep::Yes } else { Keep::No });
    let made = compute(py, || match name {
        "argmax" => array.argmax(axis, keep),
        "argmin" => array.argmin(axis, keep),
        _ => Err(unknown(name)),
    });
    made.map(PyArray)
}

/// Sorted elements, or the positions that sort them.
#[pyfunction]
pub(crate) fn sort(
    py: Python<'_>,
    x: &PyArray,
    axis: Int,
    descending: bool,
    positions: bool,
) -> PyResult<PyArray> {
    let axis = axis.0;
    let (array, order) = (x.0.clone(), if descending { Order::Descending } else { Order::Ascending });
    let made = compute(py, || match positions {
        true => array.argsort(axis, order),
        false => array.sort(axis, order).map(|(values, _)| values),
    });
    made.map(PyArray)
}

/// Where values would stand among sorted ones.
#[pyfunction]
pub(crate) fn searchsorted(
    py: Python<'_>,
    sorted: &PyArray,
    values: &PyArray,
    right: bool,
) -> PyResult<PyArray> {
    let side = if right { Side::Right } else { Side::Left };
    compute(py, || sorted.0.searchsorted(&values.0, side)).map(PyArray)
}

/// Values in order, where they stand, and how often each occurs.
#[pyfunction]
pub(crate) fn unique(py: Python<'_>, x: &PyArray) -> PyResult<(PyArray, PyArray, PyArray)> {
    let found = compute(py, || x.0.unique())?;
    Ok((PyArray(found.values), PyArray(found.inverse), PyArray(found.counts)))
}

/// Elements of one where a mask is true, of the other where it is not.
#[pyfunction]
pub(crate) fn choose(
    py: Python<'_>,
    condition: &PyArray,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
) -> PyResult<PyArray> {
    let (array, other, swap) = match (x.cast::<PyArray>(), y.cast::<PyArray>()) {
        (Ok(array), _) => (array.get().0.clone(), y, false),
        (_, Ok(array)) => (array.get().0.clone(), x, true),
        _ => return Err(exception(py, "DTypeError", "where needs at least one Array")),
    };
    let Some(other) = operand(other)? else {
        return Err(exception(py, "DTypeError", "where takes arrays and numbers"));
    };
    let (mine, theirs) = other.beside(py, &array)?;
    let (x, y) = if swap { (theirs, mine) } else { (mine, theirs) };
    compute(py, || ops::where_(&condition.0, &x, &y)).map(PyArray)
}

/// Ways to make arrays: `zeros ones full arange linspace eye`.
#[pyfunction]
#[pyo3(signature = (shape, value, dtype))]
pub(crate) fn full(
    py: Python<'_>,
    shape: Vec<Size>,
    value: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
) -> PyResult<PyArray> {
    let dtype = crate::dtype::dtype_of(dtype)?;
    let value = crate::object::number(value)?
        .ok_or_else(|| exception(py, "DTypeError", "a fill value is a number"))?;
    crate::object::check_range(py, value, dtype)?;
    compute(py, || Array::full(&sizes(&shape), value, dtype)).map(PyArray)
}

/// `start, start + step, ...` below `stop`.
#[pyfunction]
pub(crate) fn arange(
    py: Python<'_>,
    start: &Bound<'_, PyAny>,
    stop: &Bound<'_, PyAny>,
    step: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
) -> PyResult<PyArray> {
    let one = |object: &Bound<'_, PyAny>| -> PyResult<Scalar> {
        crate::object::number(object)?.ok_or_else(|| exception(py, "DTypeError", "arange takes numbers"))
    };
    let (start, stop, step, dtype) = (one(start)?, one(stop)?, one(step)?, crate::dtype::dtype_of(dtype)?);
    let backwards = (stop.as_f64() - start.as_f64()) * step.as_f64() <= 0.0 && step.as_f64() != 0.0;
    compute(
        py,
        || if backwards { Array::zeros(&[0], dtype) } else { Array::arange(start, stop, step, dtype) },
    )
    .map(PyArray)
}

/// Evenly spaced values, the last one left out unless `endpoint`.
#[pyfunction]
pub(crate) fn linspace(
    py: Python<'_>,
    start: f64,
    stop: f64,
    num: Size,
    dtype: &Bound<'_, PyAny>,
    endpoint: bool,
) -> PyResult<PyArray> {
    let (num, dtype) = (num.0, crate::dtype::dtype_of(dtype)?);
    let made = compute(py, || match endpoint || num == 0 {
        true => Array::linspace(start, stop, num, dtype),
        false => Array::linspace(start, stop - (stop - start) / num as f64, num, dtype),
    });
    made.map(PyArray)
}

/// Ones on a diagonal.
#[pyfunction]
pub(crate) fn eye(
    py: Python<'_>,
    rows: Size,
    columns: Size,
    k: Int,
    dtype: &Bound<'_, PyAny>,
) -> PyResult<PyArray> {
    let dtype = crate::dtype::dtype_of(dtype)?;
    let made = compute(py, || {
        let across = Array::arange(0i64, columns.0 as i64, 1i64, DType::I64)?;
        let down =
            Array::arange(0i64, rows.0 as i64, 1i64, DType::I64)?.add(&Array::scalar(k.0, DType::I64)?)?;
        across.unsqueeze(0)?.eq(&down.unsqueeze(1)?)?.cast(dtype)
    });
    made.map(PyArray)
}
