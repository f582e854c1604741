//! Gradients of gather, scatter and their relatives.

use super::gather::{OwnValue, ScatterReduce, aligned, landing_cells};
use super::index_grad::sum_to;
use crate::array::Array;
use crate::error::Result;
use planaria_layout::{DType, Dims, Shape};

/// Gradient of [`Array::gather`]: `dy` added into zeros of the array's shape at the gathered positions.
pub fn gather_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    let dx = Array::zeros_on(shape, dy.dtype(), dy.device())?;
    dx.scatter_add_assign(dim, index, dy)?;
    Ok(dx)
}

/// Gradient of [`Array::scatter`] with respect to the array: `dy` with zeros at the written positions.
pub fn scatter_grad(dy: &Array, dim: i64, index: &Array) -> Result<Array> {
    dy.scatter_scalar(dim, index, 0.0)
}

/// Gradient of [`Array::scatter`] and [`Array::scatter_add`] with respect to the source: `dy` gathered at the
/// positions, zero for source elements that no position names. Of several writes to one element each gets the
/// whole gradient.
pub fn scatter_source_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    let taken = dy.gather(dim, index)?;
    let shape = Shape::new(shape)?;
    if taken.shape() == &shape {
        return Ok(taken);
    }
    let source = Array::zeros_on(&shape, dy.dtype(), dy.device())?;
    if taken.numel() > 0 {
        let mut part = source.clone();
        for (d, &n) in taken.shape().iter().enumerate() {
            part = part.narrow(d as i64, 0, n)?;
        }
        part.copy_from(&taken)?;
    }
    Ok(source)
}

/// Gradient of [`Array::take_along_dim`], broadcasting undone.
pub fn take_along_dim_grad(dy: &Array, index: &Array, dim: i64, shape: &[usize]) -> Result<Array> {
    let (_, index, d) = aligned("take_along_dim", &Array::meta(shape, dy.dtype())?, index, dim)?;
    let mut wide = Dims::from_slice(index.shape());
    wide[d] = shape[d];
    sum_to(&gather_grad(dy, d as i64, &index, &wide)?, shape)
}

/// Gradients of [`Array::scatter_reduce`] with respect to the array and the source, computed in f64.
///
/// Sum and mean hand `dy` (divided by the count) to everyone who took part. A product gives each factor `dy` times
/// the product of the others. Max and min share `dy` evenly among those equal to the result.
pub fn scatter_reduce_grad(
    dy: &Array,
    x: &Array,
    dim: i64,
    index: &Array,
    src: &Array,
    reduction: ScatterReduce,
    own: OwnValue,
) -> Result<(Array, Array)> {
    let cells = landing_cells("scatter_reduce", x, dim, index, src)?;
    let wide = |a: &Array| a.cast(DType::F64)?.to_vec::<f64>();
    let result = wide(&x.scatter_reduce(dim, index, src, reduction, own)?)?;
    let mut covered = src.clone();
    for (d, &n) in index.shape().iter().enumerate().filter(|_| !cells.is_empty()) {
        covered = covered.narrow(d as i64, 0, n)?;
    }
    let (dy, own_values) = (wide(dy)?, wide(x)?);
    let values = if cells.is_empty() { Vec::new() } else { wide(&covered)? };
    let mut takes_part = vec![true; own_values.len()];
    if own == OwnValue::Exclude {
        cells.iter().for_each(|&at| takes_part[at] = false);
    }
    let mut meeting = vec![Meeting::default(); own_values.len()];
    for (at, &v) in own_values.iter().enumerate().filter(|&(at, _)| takes_part[at]) {
        meeting[at].add(v, result[at]);
    }
    for (&at, &v) in cells.iter().zip(&values) {
        meeting[at].add(v, result[at]);
    }
    let share = |at: usize, v: f64| dy[at] * meeting[at].share(v, result[at], reduction);
    let dx: Vec<f64> = own_values
        .iter()
        .enumerate()
        .map(|(at, &v)| if takes_part[at] { share(at, v) } else { 0.0 })
        .collect();
    let taken: Vec<f64> = cells.iter().zip(&values).map(|(&at, &v)| share(at, v)).collect();
    let dsrc = Array::zeros(src.shape(), DType::F64)?;
    if !cells.is_empty() {
        let mut part = dsrc.clone();
        for (d, &n) in index.shape().iter().enumerate() {
            part = part.narrow(d as i64, 0, n)?;
        }
        part.copy_from(&Array::from_slice(&taken, part.shape())?)?;
    }
    Ok((Array::from_slice(&dx, x.shape())?.cast(x.dtype())?, dsrc.cast(src.dtype())?))
}

/// What the values that meet in one element have in common.
#[derive(Clone)]
struct Meeting {
    count: f64,
    zeros: usize,
    /// Product of those that are not zero.
    product: f64,
    /// How many equal the result.
    equal: f64,
}

impl Default for Meeting {
    fn default() -> Meeting {
        Meeting { count: 0.0, zeros: 0, product: 1.0, equal: 0.0 }
    }
}

impl Meeting {
    fn add(&mut self, v: f64, result: f64) {
        self.count += 1.0;
        self.equal += f64::from(u8::from(v == result));
        if v == 0.0 { self.zeros += 1 } else { self.product *= v }
    }

    /// Derivative of the reduced value with respect to one of the values.
    fn share(&self, v: f64, result: f64, reduction: ScatterReduce) -> f64 {
        match reduction {
            ScatterReduce::Sum => 1.0,
            ScatterReduce::Mean => 1.0 / self.count,
            ScatterReduce::Max | ScatterReduce::Min if v == result => 1.0 / self.equal,
            ScatterReduce::Max | ScatterReduce::Min => 0.0,
            ScatterReduce::Prod => match (v == 0.0, self.zeros) {
                (false, 0) => self.product / v,
                (true, 1) => self.product,
                _ => 0.0,
            },
        }
    }
}
