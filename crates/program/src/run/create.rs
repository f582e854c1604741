//! Ops that make tensors from numbers.

use super::Datum;
use super::call::{Answer, Call, Fault, Found, extents, one, refuse};
use planaria_array::{Array, DType, Scalar};

/// Elements that a run without elements still computes; larger constants stand without theirs.
pub(super) const REHEARSED: usize = 1 << 12;

pub(super) fn call(c: &Call<'_>) -> Found {
    match c.name() {
        "full" => {
            let shape = extents(&c.ints_attr("shape")?)?;
            one(filled(c, &shape, Scalar::Float(c.real_attr("value")?), wanted(c)?)?)
        }
        "full_int_array" => {
            let values = c.ints_attr("value")?;
            one(Array::from_slice(&values, &[values.len()])?.cast(wanted(c)?)?)
        }
        "full_like" => {
            let x = c.array(0)?;
            let dtype = c.dtype_attr("dtype")?.unwrap_or(x.dtype());
            if x.is_meta() {
                return one(Array::meta(x.shape(), dtype)?);
            }
            one(filled(c, x.shape(), c.scalar(1)?, dtype)?)
        }
        "assign_value" => {
            let (shape, dtype) = (extents(&c.ints_attr("shape")?)?, wanted(c)?);
            let values = c.reals_attr("values")?;
            one(Array::from_slice(&values, &shape)?.cast(dtype)?)
        }
        "arange" => {
            let dtype = wanted(c)?;
            let bounds = [c.scalar(0)?, c.scalar(1)?, c.scalar(2)?];
            let [start, end, step] = bounds.map(|bound| whole(bound, dtype));
            bounded(c, (end.as_f64() - start.as_f64()) / step.as_f64())?;
            one(Array::arange(start, end, step, dtype)?)
        }
        "linspace" => {
            let count = c.int(2)?;
            bounded(c, count as f64)?;
            let count =
                usize::try_from(count).or_else(|_| refuse(format!("{count} values are asked for")))?;
            one(Array::linspace(c.scalar(0)?.as_f64(), c.scalar(1)?.as_f64(), count, wanted(c)?)?)
        }
        "eye" => {
            let rows = c.int(0)?;
            let columns = Some(c.int(1)?).filter(|columns| *columns >= 0).unwrap_or(rows);
            let shape = extents(&[rows, columns])?;
            bounded(c, rows as f64 * columns as f64)?;
            one(Array::eye(shape[0], shape[1], wanted(c)?)?)
        }
        "one_hot" => {
            let classes = extents(&[c.int(1)?])?[0];
            let ids = c.array(0)?.cast(DType::I64)?;
            one(ids.one_hot(classes, DType::F32)?)
        }
        "shape64" | "shape" => {
            let Some(Datum::Array(x)) = c.exact.first() else { return refuse("operand 0 is not a tensor") };
            let dims: Vec<i64> = x.shape().iter().map(|d| *d as i64).collect();
            let dtype = if c.name() == "shape" { DType::I32 } else { DType::I64 };
            one(Array::from_slice(&dims, &[dims.len()])?.cast(dtype)?)
        }
        "numel" => one(Array::scalar(c.array(0)?.numel(), DType::I64)?),
        _ => Ok(None),
    }
}

fn wanted(c: &Call<'_>) -> Answer<DType> {
    c.dtype_attr("dtype")?.map_or_else(|| refuse("attribute dtype names no element type"), Ok)
}

/// A run without elements makes no large ones.
fn bounded(c: &Call<'_>, count: f64) -> Answer<()> {
    if c.rehearsed && count.abs() > REHEARSED as f64 { Err(Fault::Unknown) } else { Ok(()) }
}

fn filled(c: &Call<'_>, shape: &[usize], value: Scalar, dtype: DType) -> Answer<Array> {
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if c.rehearsed && count.is_none_or(|count| count > REHEARSED) {
        return Ok(Array::meta(shape, dtype)?);
    }
    Ok(Array::full(shape, whole(value, dtype), dtype)?)
}

/// A whole number as one where integers are made, so that none is rounded.
pub(crate) fn whole(value: Scalar, dtype: DType) -> Scalar {
    match value {
        Scalar::Float(x) if dtype.is_int() && x.is_finite() => Scalar::Int(x.trunc() as i128),
        other => other,
    }
}
