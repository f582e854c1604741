//! Rotary position embedding and its gradient.

use super::fused::{all_meta, check_ids, check_ids_late, check_param, ids as checked_ids, param, real_dtype};
use crate::array::{Array, Values};
use crate::cpu::real::{Float, with_float};
use crate::cpu::rotary as kernel;
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use planaria_layout::{DType, Shape};

pub use crate::cpu::rotary::RotaryPairing;

/// The order of the last three dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryLayout {
    /// `[.., sequence, heads, dim]`.
    SeqHeads,
    /// `[.., heads, sequence, dim]`.
    HeadsSeq,
}

/// The position of each sequence element.
#[derive(Clone, Copy, Debug)]
pub enum RotaryPositions<'a> {
    /// Counted up from this one.
    From(usize),
    /// Given as integers of shape `[sequence]` or `[.., sequence]`, with the leading dims of `x`.
    Ids(&'a Array),
}

/// How [`rotary`] reads its input.
#[derive(Clone, Copy, Debug)]
pub struct RotaryOptions<'a> {
    /// Which elements are rotated together.
    pub pairing: RotaryPairing,
    /// Where sequence and heads are.
    pub layout: RotaryLayout,
    /// Where in the sequence each element is.
    pub positions: RotaryPositions<'a>,
}

/// Cosines and sines of each position's angles, both `[positions, pairs]`.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    /// Cosines, in f32 or the dtype of the rotated arrays.
    pub cos: Array,
    /// Sines.
    pub sin: Array,
}

impl RotaryTable {
    /// The usual angles `position * theta^(-2i / dim)` for a rotated part of `dim` elements, computed in f64.
    pub fn new(positions: usize, dim: usize, theta: f64) -> Result<RotaryTable> {
        if !dim.is_multiple_of(2) {
            return Err(Error::argument("rotary_table", format!("dim must be even, got {dim}")));
        }
        if !(theta > 0.0 && theta.is_finite()) {
            let what = format!("theta must be positive and finite, got {theta}");
            return Err(Error::argument("rotary_table", what));
        }
        Shape::new(&[positions, dim])?;
        let frequencies: Vec<f64> = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect();
        RotaryTable::from_frequencies(positions, &frequencies)
    }

    /// Angles `position * frequencies[i]`, for scaled variants.
    pub fn from_frequencies(positions: usize, frequencies: &[f64]) -> Result<RotaryTable> {
        let shape = Shape::new(&[positions, frequencies.len()])?;
        let table = |f: fn(f64) -> f64| {
            Array::build(shape.clone(), |out: &mut [f32]| {
                for (p, row) in out.chunks_mut(frequencies.len().max(1)).enumerate() {
                    for (o, &frequency) in row.iter_mut().zip(frequencies) {
                        *o = f(p as f64 * frequency) as f32;
                    }
                }
            })
        };
        Ok(RotaryTable { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }
}

/// Rotates the first `2 * pairs` elements of each row of `x` by its position's angles; the rest is copied. A pair
/// `(a, b)` becomes `(a cos - b sin, b cos + a sin)`.
pub fn rotary(x: &Array, table: &RotaryTable, options: &RotaryOptions<'_>) -> Result<Array> {
    rotate("rotary", x, &table.cos, &table.sin, options)
}

/// Gradient of the input of [`rotary`]: the inverse rotation of `dy`.
pub fn rotary_grad(dy: &Array, table: &RotaryTable, options: &RotaryOptions<'_>) -> Result<Array> {
    let inverse = if table.sin.is_meta() { table.sin.clone() } else { negated(&table.sin)? };
    rotate("rotary_grad", dy, &table.cos, &inverse, options)
}

fn negated(x: &Array) -> Result<Array> {
    if let Device::Cuda(_) = x.device() {
        return x.neg();
    }
    let dtype = x.dtype();
    let values = x.cast(DType::F64)?.values::<f64>("rotary_grad")?;
    let minus: Vec<f64> = values.iter().map(|v| -v).collect();
    Array::from_slice(&minus, x.shape())?.cast(dtype)
}

/// The checked geometry of one call.
struct Plan {
    sequence: usize,
    /// Rows between two sequence elements.
    inner: usize,
    half: usize,
    size: usize,
}

impl Plan {
    fn new(
        op: &'static str,
        x: &Array,
        cos: &Array,
        sin: &Array,
        options: &RotaryOptions<'_>,
    ) -> Result<Plan> {
        real_dtype(op, x.dtype())?;
        let dims = x.shape();
        let [.., a, b, dim] = dims[..] else {
            return Err(Error::argument(op, format!("x must have at least 3 dims, got shape {dims}")));
        };
        let (sequence, inner) = match options.layout {
            RotaryLayout::SeqHeads => (a, b),
            RotaryLayout::HeadsSeq => (b, 1),
        };
        let [size, half] = cos.shape()[..] else {
            let what = format!("tables must be [positions, pairs], got shape {}", cos.shape());
            return Err(Error::argument(op, what));
        };
        check_param(op, x, Some(cos), cos.shape())?;
        check_param(op, x, Some(sin), cos.shape())?;
        if half.saturating_mul(2) > dim {
            let what = format!("a table of {half} pairs does not fit rows of {dim} elements");
            return Err(Error::argument(op, what));
        }
        Ok(Plan { sequence, inner, half, size })
    }

    /// Positions of `[sequence]` or `[.., sequence]`.
    fn positions(
        &self,
        op: &'static str,
        x: &Array,
        positions: RotaryPositions<'_>,
    ) -> Result<Option<Values<i64>>> {
        let wrong = |ids: &Array| {
            let reason = "positions must be [sequence] or [leading dims.., sequence]";
            Error::ShapeMismatch { op, lhs: ids.shape().clone(), rhs: x.shape().clone(), reason }
        };
        match positions {
            RotaryPositions::From(first) => match first.checked_add(self.sequence) {
                Some(end) if end <= self.size || self.sequence == 0 => Ok(None),
                _ => {
                    let (from, len, size) = (first, self.sequence, self.size);
                    let what = format!("{len} positions from {from} reach past a table of {size} positions");
                    Err(Error::argument(op, what))
                }
            },
            RotaryPositions::Ids(ids) => {
                let lead = &x.shape()[..x.ndim() - 3];
                let shape = ids.shape();
                let fits = shape.last() == Some(&self.sequence)
                    && (shape.ndim() == 1 || shape[..shape.ndim() - 1] == *lead);
                if !fits {
                    return Err(wrong(ids));
                }
                check_ids(op, ids)?;
                if let Device::Cuda(_) = ids.device() {
                    return check_ids_late(op, ids, self.size, None).map(|()| None);
                }
                if ids.is_meta() { Ok(None) } else { checked_ids(op, ids, self.size, |_| false).map(Some) }
            }
        }
    }
}

/// Rows of heads where those stand last, else rows of one head.
fn rotate_on_cuda(
    op: &'static str,
    x: &Array,
    cos: &Array,
    sin: &Array,
    options: &RotaryOptions<'_>,
    plan: &Plan,
) -> Result<Array> {
    let (dims, n) = (x.shape(), x.ndim());
    let heads = if options.layout == RotaryLayout::SeqHeads { dims[n - 2] } else { 1 };
    // Rows may lie apart, as columns of a wider product do.
    let row = heads * dims[n - 1];
    let flat = x.reshape(&[x.numel().checked_div(row).unwrap_or(0), row])?;
    let apart = flat.strides()[1] == 1 && flat.strides()[0] >= row as isize;
    let rows = if apart { flat } else { flat.copy()? };
    let (first, positions) = match options.positions {
        RotaryPositions::From(first) => (first, None),
        RotaryPositions::Ids(ids) => {
            // Those out of range are reported late, and must do no harm until then.
            let last = plan.size.saturating_sub(1) as i64;
            let ids = ids.cast(DType::I64)?;
            let ids =
                ids.maximum(&Array::scalar(0, DType::I64)?)?.minimum(&Array::scalar(last, DType::I64)?)?;
            let spread = match options.layout {
                RotaryLayout::SeqHeads => ids.broadcast_to(&dims[..n - 2])?,
                RotaryLayout::HeadsSeq => ids.unsqueeze(-2)?.broadcast_to(&dims[..n - 1])?,
            };
            (0, Some(spread.contiguous()?))
        }
    };
    let wide = real_dtype(op, x.dtype())?;
    let table = |t: &Array| {
        t.narrow(0, first.min(plan.size), plan.size - first.min(plan.size))?.cast(wide)?.contiguous()
    };
    let rotation = cuda::Rotation {
        shape: dims,
        heads,
        dim: dims[n - 1],
        half: plan.half,
        positions: positions.as_ref(),
        length: plan.sequence,
        pairing: options.pairing,
    };
    cuda::rotate(op, &rows, &table(cos)?, &table(sin)?, &rotation)
}

fn rotate(
    op: &'static str,
    x: &Array,
    cos: &Array,
    sin: &Array,
    options: &RotaryOptions<'_>,
) -> Result<Array> {
    let plan = Plan::new(op, x, cos, sin, options)?;
    let ids = plan.positions(op, x, options.positions)?;
    let given = match options.positions {
        RotaryPositions::Ids(ids) => Some(ids),
        RotaryPositions::From(_) => None,
    };
    if all_meta(op, x, &[Some(cos), Some(sin), given])? {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    if let Device::Cuda(_) = x.device() {
        return rotate_on_cuda(op, x, cos, sin, options, &plan);
    }
    let (sequence, inner) = (plan.sequence, plan.inner);
    let rows_per_sample = x.shape()[x.ndim() - 3] * x.shape()[x.ndim() - 2];
    let position = |row: usize| {
        let step = row / inner % sequence;
        match (&ids, options.positions) {
            (Some(ids), _) if ids.len() == sequence => ids[step] as usize,
            (Some(ids), _) => ids[row / rows_per_sample * sequence + step] as usize,
            (None, RotaryPositions::From(first)) => first + step,
            (None, RotaryPositions::Ids(_)) => step,
        }
    };
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let values = x.values::<T>(op)?;
        let (cos, sin) = (cos.cast(<R as crate::element::Element>::DTYPE)?.values::<R>(op)?,
            param::<R>(op, Some(sin))?);
        let sin = sin.as_deref().unwrap_or_default();
        let dim = x.shape()[x.ndim() - 1];
        Array::build(x.shape().clone(), |y: &mut [T]| {
            kernel::rotate(&values, y, dim, (&cos, sin), plan.half, position, options.pairing);
        })
    })
}
