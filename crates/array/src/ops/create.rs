//! Arrays made from nothing: ranges, identities, one-hot rows and copies of another array's form.

use crate::array::Array;
use crate::convert::Number;
use crate::device::Device;
use crate::element::{Element, Scalar, with_dtype};
use crate::error::{Error, Result};
use crate::ops::fused::check_ids_late;
use planaria_cpu::pool;
use planaria_layout::{DType, Shape};

/// Elements a thread takes at once.
const UNIT: usize = 4096;

/// A fresh array whose element i is `value(i)` in f64 or as an integer.
fn indexed(shape: Shape, dtype: DType, value: impl Fn(usize) -> Scalar + Sync) -> Result<Array> {
    with_dtype!(dtype, T => Array::build(shape, |out: &mut [T]| {
        pool::for_chunks_mut(out, UNIT, size_of::<T>(), |first, piece| {
            for (i, o) in piece.iter_mut().enumerate() {
                *o = T::from_scalar(value(first + i));
            }
        });
    }))
}

impl Array {
    /// An array of ones.
    pub fn ones(shape: &[usize], dtype: DType) -> Result<Array> {
        Array::full(shape, Scalar::Int(1), dtype)
    }

    /// `value` in this array's shape, dtype and device.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Array> {
        Array::full_on(self.shape(), value, self.dtype(), self.device())
    }

    /// Zeros in this array's shape, dtype and device.
    pub fn zeros_like(&self) -> Result<Array> {
        Array::zeros_on(self.shape(), self.dtype(), self.device())
    }

    /// Ones in this array's shape, dtype and device.
    pub fn ones_like(&self) -> Result<Array> {
        self.full_like(Scalar::Int(1))
    }

    /// `start, start + step, ...` up to but without `end`. Integers are exact; if any argument is a float, values
    /// are computed in f64 and rounded once.
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Array> {
        let (start, end, step) = (start.into(), end.into(), step.into());
        if dtype == DType::Bool {
            return Err(Error::DType { op: "arange", found: dtype, expected: "a number" });
        }
        let whole = |s: Scalar| !matches!(s, Scalar::Float(_));
        if whole(start) && whole(end) && whole(step) {
            return integer_range(start.as_int(), end.as_int(), step.as_int(), dtype);
        }
        let (first, last, by) = (start.as_f64(), end.as_f64(), step.as_f64());
        let count = ((last - first) / by).ceil();
        if !(first.is_finite() && last.is_finite() && by.is_finite()) || by == 0.0 || count < 0.0 {
            return Err(bad_range(start, end, step));
        }
        let shape = Shape::new(&[count as usize])?;
        indexed(shape, dtype, |i| Scalar::Float(first + i as f64 * by))
    }

    /// `count` values evenly spaced from `start` to `end`, both included. Computed in f64 from the nearer end, so
    /// that the last value is exactly `end`, and rounded once; integers truncate.
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Array> {
        if !start.is_finite() || !end.is_finite() {
            return Err(Error::argument("linspace", format!("bounds {start} and {end} must be finite")));
        }
        let shape = Shape::new(&[count])?;
        let step = (end / 2.0 - start / 2.0) / (count.saturating_sub(1).max(1) as f64 / 2.0);
        let value = |i: usize| match count - 1 - i {
            _ if i < count.div_ceil(2) => start + step * i as f64,
            from_end => end - step * from_end as f64,
        };
        indexed(shape, dtype, |i| Scalar::Float(value(i)))
    }

    /// Ones on the main diagonal, zeros elsewhere.
    pub fn eye(rows: usize, columns: usize, dtype: DType) -> Result<Array> {
        let shape = Shape::new(&[rows, columns])?;
        with_dtype!(dtype, T => {
            let one = T::from_scalar(Scalar::Int(1));
            Array::build(shape, |out: &mut [T]| {
                out.fill(T::default());
                out.iter_mut().step_by(columns + 1).take(rows.min(columns)).for_each(|o| *o = one);
            })
        })
    }

    /// A new last dim of size `classes`, 1 at the position this integer array names and 0 elsewhere.
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Array> {
        if !self.dtype().is_int() {
            return Err(Error::DType { op: "one_hot", found: self.dtype(), expected: "an integer type" });
        }
        let mut dims = self.shape().to_vec();
        dims.push(classes);
        let shape = Shape::new(&dims)?;
        if self.is_meta() {
            return Ok(Array::meta_of(shape, dtype));
        }
        if let Device::Cuda(_) = self.device() {
            check_ids_late("one_hot", self, classes, None)?;
            let here = Array::arange(0i64, classes, 1i64, DType::I64)?.to(self.device())?;
            return self.cast(DType::I64)?.unsqueeze(-1)?.eq(&here)?.cast(dtype);
        }
        let index = with_dtype!(self.dtype(), T => positions::<T>(self, classes)?);
        with_dtype!(dtype, T => {
            let one = T::from_scalar(Scalar::Int(1));
            Array::build(shape, |out: &mut [T]| {
                pool::for_chunks_mut(out, classes, size_of::<T>(), |first, piece| {
                    piece.fill(T::default());
                    for (row, &at) in piece.chunks_mut(classes).zip(&index[first / classes..]) {
                        row[at] = one;
                    }
                });
            })
        })
    }
}

/// The values of an integer array as positions below `size`.
fn positions<T: Number>(x: &Array, size: usize) -> Result<Vec<usize>> {
    let values = x.values::<T>("one_hot")?;
    let position = |&v: &T| match v.to_scalar().as_int() {
        i if (0..size as i128).contains(&i) => Ok(i as usize),
        i => Err(Error::IndexOutOfRange {
            index: i.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            position: 0,
            dim: x.ndim(),
            size,
        }),
    };
    values.iter().map(position).collect()
}

fn integer_range(start: i128, end: i128, step: i128, dtype: DType) -> Result<Array> {
    let refuse = || bad_range(Scalar::Int(start), Scalar::Int(end), Scalar::Int(step));
    let distance = end.checked_sub(start).ok_or_else(refuse)?;
    if step == 0 || (distance != 0 && (distance < 0) != (step < 0)) {
        return Err(refuse());
    }
    let count = distance.unsigned_abs().div_ceil(step.unsigned_abs());
    let shape = Shape::new(&[usize::try_from(count).unwrap_or(usize::MAX)])?;
    indexed(shape, dtype, |i| Scalar::Int(start + i as i128 * step))
}

fn bad_range(start: Scalar, end: Scalar, step: Scalar) -> Error {
    let what = format!(
        "cannot count from {start} to {end} by {step}: the step must be finite, lead there and not be 0"
    );
    Error::argument("arange", what)
}
